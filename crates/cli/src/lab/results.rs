//! The results of the lab, for the console of a server.

use std::path::PathBuf;

use sarsen_lab::archive::{Archive, ArchiveError};
use sarsen_lab::record::Run;
use sarsen_lab::report::{self, Format};
use sarsen_lab::study;
use sarsen_node::control::{LabFormat, LabResults};
use sarsen_node::schema::LabRun;

use super::run::find;

/// The archive of the user that runs the server.
#[derive(Debug)]
pub(crate) struct Results {
    archive: PathBuf,
}

impl Results {
    /// Uses the archive of the lab's verbs.
    pub(crate) fn usual() -> Self {
        Self { archive: Archive::usual_path() }
    }

    /// Returns the archive, if it exists. Reading does not create it.
    fn open(&self) -> Result<Option<Archive>, String> {
        self.archive.is_file().then(|| Archive::open(&self.archive)).transpose().map_err(reported)
    }
}

fn reported(error: ArchiveError) -> String {
    error.to_string()
}

impl LabResults for Results {
    fn runs(&self) -> Result<Vec<LabRun>, String> {
        let Some(archive) = self.open()? else { return Ok(Vec::new()) };
        Ok(archive.runs().map_err(reported)?.into_iter().map(lab_run).collect())
    }

    fn report(&self, run: i64, format: LabFormat) -> Result<Option<Vec<u8>>, String> {
        let Some(archive) = self.open()? else { return Ok(None) };
        let run = match archive.run(run) {
            Err(ArchiveError::NoSuchRun { .. }) => return Ok(None),
            run => run.map_err(reported)?,
        };
        let document = study::report(find(&run.study).map_err(|error| error.to_string())?, &run);
        let format = match format {
            LabFormat::Json => Format::Json,
            LabFormat::Html => Format::Html,
        };
        let mut text = Vec::new();
        report::write(format, &document, &run, &mut text).map_err(|error| error.to_string())?;
        Ok(Some(text))
    }
}

fn lab_run(run: Run) -> LabRun {
    LabRun {
        id: run.id,
        study: run.study,
        scale: run.scale.to_string(),
        targets_under_test: run.targets_under_test,
        began_at: run.began_at,
        ended_at: run.ended_at,
    }
}

#[cfg(test)]
mod tests {
    use sarsen_lab::record::{Labels, Measures, Outcome, Sample, Scale, Setting};

    use super::*;

    #[test]
    fn reading_verbs_create_no_archive() {
        let folder = tempfile::tempdir().expect("a folder");
        let results = Results { archive: folder.path().join("lab.sqlite") };
        assert_eq!(results.runs(), Ok(Vec::new()));
        assert_eq!(results.report(1, LabFormat::Html), Ok(None));
        assert!(!results.archive.exists());
    }

    #[test]
    fn run_is_listed_and_reported_with_published_figures() {
        let folder = tempfile::tempdir().expect("a folder");
        let results = Results { archive: folder.path().join("lab.sqlite") };
        let archive = Archive::open(&results.archive).expect("made");
        let run = Run {
            id: 0,
            study: "lunden".into(),
            scale: Scale::Quick,
            command: "sarsen lab run lunden --quick".into(),
            targets_under_test: vec!["sarsen".into()],
            began_at: 1,
            ended_at: None,
            setting: Setting::default(),
            samples: Vec::new(),
        };
        let id = archive.begin(&run).expect("begun");
        let figures = [("kib_per_s".to_owned(), 20_000.0)].into();
        let labels = Labels::new().with("setup", "iscsi-3-vms").with("operation", "put_block");
        let outcome = Outcome::Measured(Measures { figures, ..Measures::default() });
        let sample = Sample { labels, repetition: 1, ended_at: 2, outcome };
        archive.add(id, &sample).expect("kept");
        let listed = results.runs().expect("read");
        assert_eq!(
            (listed[0].id, listed[0].study.as_str(), listed[0].ended_at),
            (id, "lunden", None)
        );
        let json = results.report(id, LabFormat::Json).expect("read").expect("there");
        assert!(String::from_utf8_lossy(&json).contains("\"published\""));
        let html = results.report(id, LabFormat::Html).expect("read").expect("there");
        assert!(html.starts_with(b"<!DOCTYPE html>"));
        assert_eq!(results.report(id + 1, LabFormat::Json), Ok(None));
    }
}
