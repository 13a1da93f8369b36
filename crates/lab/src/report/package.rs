//! A run as a data package: a folder with the samples as CSV, a dictionary of their columns and figures, the tables of the
//! report, and all of the run as JSON. `datapackage.json` describes the files in the form of the Data Package standard, which
//! other programs read.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::{Report, csv, json as whole, utc};
use crate::record::{Outcome, Run, figure};

const SAMPLES: &str = "samples.csv";
const FIGURES: &str = "figures.csv";
const RUN: &str = "run.json";
/// The folder of the tables.
const TABLES: &str = "tables";

/// Writes the files. The folder is created; files of these names in it are replaced.
pub fn write(report: &Report, run: &Run, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let to = |name: &str| Ok::<_, io::Error>(BufWriter::new(File::create(folder.join(name))?));
    let mut samples = to(SAMPLES)?;
    csv::write(run, &mut samples)?;
    samples.flush()?;
    write_figures(run, &mut to(FIGURES)?)?;
    let mut all = to(RUN)?;
    whole::write(report, run, &mut all)?;
    all.flush()?;
    fs::create_dir_all(folder.join(TABLES))?;
    let tables = csv::tables(report)?;
    for (name, text) in &tables {
        fs::write(folder.join(TABLES).join(name), text)?;
    }
    let names: Vec<_> = tables.into_iter().map(|(name, _)| name).collect();
    let mut description = to("datapackage.json")?;
    serde_json::to_writer_pretty(&mut description, &describe(report, run, &names))?;
    writeln!(description)?;
    description.flush()
}

/// Returns the names of the figures of a run.
fn figures(run: &Run) -> Vec<&str> {
    let measured = run.samples.iter().filter_map(|sample| match &sample.outcome {
        Outcome::Measured(measures) => Some(measures.figures.keys()),
        Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
    });
    let mut names: Vec<_> = measured.flatten().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Writes the dictionary of the figures.
fn write_figures(run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    let mut writer = ::csv::Writer::from_writer(out);
    writer.write_record(FIGURE_COLUMNS.map(|(name, ..)| name))?;
    for name in figures(run) {
        let (words, unit) = figure::split_unit(name);
        let known = figure::DESCRIBED.iter().find(|(known, _)| *known == name);
        let description = known.map_or(words.as_str(), |(_, description)| description.trim());
        writer.write_record([&*csv::harmless(name), unit, &csv::harmless(description)])?;
    }
    writer.flush()
}

/// The columns of the dictionary of figures: name, type, description.
const FIGURE_COLUMNS: [(&str, &str, &str); 3] = [
    ("figure", "string", "name of the figure, as in samples.csv"),
    ("unit", "string", "its unit; empty if it has none"),
    ("description", "string", "what it is, or its name in words"),
];

/// Returns a time in the form of RFC 3339, as the standard wants it.
fn date_time(seconds: u64) -> String {
    utc(seconds).replacen(' ', "T", 1).replace(" UTC", "Z")
}

/// Returns the description of a file.
fn resource(name: &str, path: &str, what: &str) -> Value {
    let (format, mediatype) =
        if path.ends_with("json") { ("json", "application/json") } else { ("csv", "text/csv") };
    json!({
        "name": name, "path": path, "description": what, "format": format, "mediatype": mediatype,
        "encoding": "utf-8",
    })
}

/// Returns the description of a file with these columns.
fn table<'a>(
    name: &str,
    path: &str,
    what: &str,
    columns: impl Iterator<Item = (&'a str, &'a str, &'a str)>,
) -> Value {
    let field = |(name, kind, what)| json!({ "name": name, "type": kind, "description": what });
    let mut table = resource(name, path, what);
    table["profile"] = "tabular-data-resource".into();
    table["schema"] = json!({ "fields": columns.map(field).collect::<Vec<_>>() });
    table
}

fn describe(report: &Report, run: &Run, tables: &[String]) -> Value {
    let columns = csv::columns(run);
    let columns = columns.iter().map(|(name, kind, what)| (&**name, *kind, *what));
    let of_figures = FIGURE_COLUMNS.into_iter();
    let mut resources = vec![
        table("samples", SAMPLES, "a row for each figure of each sample", columns),
        table("figures", FIGURES, "the figures of samples.csv with their units", of_figures),
        resource("run", RUN, "all of the run, with histograms and time series, and its report"),
    ];
    resources.extend(tables.iter().map(|name| {
        let path = format!("{TABLES}/{name}");
        resource(
            name.trim_end_matches(".csv"),
            &path,
            "a table of the report, or the data of a chart",
        )
    }));
    json!({
        "profile": "data-package",
        "name": format!("{}-run-{}", run.study, run.id),
        "title": report.title,
        "description": report.summary.join(" "),
        "created": date_time(run.ended_at.unwrap_or(run.began_at)),
        "resources": resources,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sample;
    use super::*;

    #[test]
    fn times_have_the_form_of_the_standard() {
        assert_eq!(date_time(0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn all_columns_and_figures_are_described() {
        let folder = tempfile::tempdir().unwrap();
        let (report, run) = sample::hostile();
        write(&report, &run, folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let package: Value = serde_json::from_str(&read("datapackage.json")).unwrap();
        for resource in package["resources"].as_array().unwrap() {
            let text = read(resource["path"].as_str().unwrap());
            let Some(fields) = resource["schema"]["fields"].as_array() else { continue };
            let mut reader = ::csv::Reader::from_reader(text.as_bytes());
            let head: Vec<_> = reader.headers().unwrap().iter().map(str::to_owned).collect();
            let named: Vec<_> =
                fields.iter().map(|field| field["name"].as_str().unwrap().to_owned()).collect();
            assert_eq!(head, named);
        }
        let column = |name: &str, column: &str| -> BTreeSet<String> {
            let text = read(name);
            let mut reader = ::csv::Reader::from_reader(text.as_bytes());
            let at = reader.headers().unwrap().iter().position(|one| one == column).unwrap();
            reader.records().map(|record| record.unwrap()[at].to_owned()).collect()
        };
        let described = column(FIGURES, "figure");
        assert!(!described.is_empty());
        assert!(figures(&run).iter().all(|name| described.contains(*name)), "{described:?}");
    }
}
