use super::*;
use crate::record::{Labels, Measures, Outcome};

#[test]
fn archive_of_root_is_that_of_packaged_service() {
    let (root, shared) = ([("HOME", "/root")], "/var/lib/sarsen/lab.sqlite");
    let service = [("STATE_DIRECTORY", "/var/lib/sarsen"), ("HOME", "/")];
    assert_eq!(usual_path_with(&service, false, &[]), shared);
    assert_eq!(usual_path_with(&root, true, &["/var/lib/sarsen"]), shared);
    let own = "/root/.local/state/sarsen/lab.sqlite";
    assert_eq!(usual_path_with(&root, true, &[]), own, "there is no service");
    assert_eq!(
        usual_path_with(&root, true, &["/var/lib/sarsen", own]),
        own,
        "an existing archive stays in use"
    );
    assert_eq!(usual_path_with(&root, true, &["/var/lib/sarsen", own, shared]), shared);
    let user = [("HOME", "/home/ada"), ("XDG_STATE_HOME", "/state")];
    assert_eq!(usual_path_with(&user, false, &["/var/lib/sarsen"]), "/state/sarsen/lab.sqlite");
}

/// Returns the usual path on a machine where only these variables and files exist.
fn usual_path_with(variables: &[(&str, &str)], is_root: bool, files: &[&str]) -> String {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| PathBuf::from(value))
    };
    let exists = |path: &Path| files.iter().any(|file| path == Path::new(file));
    usual_path(variable, is_root, &exists).display().to_string()
}

fn run() -> Run {
    Run {
        id: 0,
        study: "trinkle".into(),
        scale: Scale::Quick,
        command: "sarsen lab run trinkle".into(),
        targets_under_test: vec!["sarsen".into(), "tgt".into()],
        began_at: 1_700_000_000,
        ended_at: None,
        setting: Setting { seed: 7, ..Setting::default() },
        samples: Vec::new(),
    }
}

fn sample(repetition: u32) -> Sample {
    let mut measures = Measures::default();
    measures.figures.insert("iops".into(), 1234.5);
    let labels = Labels::new().with("target", "tgt").with("mtu", 1500);
    let outcome = Outcome::Measured(measures);
    Sample { labels, repetition, ended_at: 1_700_000_001, outcome }
}

#[test]
fn stored_runs_are_in_reopened_archive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/lab.sqlite");
    let archive = Archive::open(&path).unwrap();
    let id = archive.begin(&run()).unwrap();
    archive.add(id, &sample(1)).unwrap();
    archive.add(id, &Sample { outcome: Outcome::Failed("gone".into()), ..sample(2) }).unwrap();
    drop(archive);

    let archive = Archive::open(&path).unwrap();
    let targets_under_test = ["sarsen".to_owned(), "tgt".into()];
    let unfinished = |scale| archive.unfinished("trinkle", scale, &targets_under_test).unwrap();
    assert_eq!((unfinished(Scale::Quick), unfinished(Scale::Full)), (Some(id), None));
    let unable = Outcome::NotMeasured("no network namespaces".into());
    archive.add(id, &Sample { outcome: unable, ..sample(3) }).unwrap();
    archive.forget_failures(id).unwrap();
    archive.add(id, &Sample { outcome: Outcome::Failed("lost".into()), ..sample(2) }).unwrap();
    archive.end(id, 1_700_000_009).unwrap();
    assert_eq!(unfinished(Scale::Quick), None);
    let read = archive.run(id).unwrap();
    let samples = vec![sample(1), Sample { outcome: Outcome::Failed("lost".into()), ..sample(2) }];
    assert_eq!(read, Run { id, ended_at: Some(1_700_000_009), samples, ..run() });
    assert_eq!(archive.runs().unwrap().len(), 1);
    archive.remove(id).unwrap();
    assert!(matches!(archive.run(id), Err(ArchiveError::NoSuchRun { .. })));
    assert!(archive.add(id, &sample(1)).is_err());
}

#[test]
fn a_run_is_one_process_to_add_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab.sqlite");
    let archive = Archive::open(&path).unwrap();
    let id = archive.begin(&run()).unwrap();
    let hold = archive.hold(id).unwrap();
    // These locks belong to open file descriptions, not to processes.
    let other = Archive::open(&path).unwrap();
    assert!(matches!(other.hold(id), Err(ArchiveError::Held { .. })));
    assert!(matches!(other.remove(id), Err(ArchiveError::Held { .. })));
    drop(other.hold(id + 1).unwrap());
    drop(hold);
    other.remove(id).unwrap();
    let names = std::fs::read_dir(folder.path()).unwrap().flatten().map(|it| it.file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["lab.sqlite"]);
}

#[test]
fn files_that_are_no_archive_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    std::fs::write(&path, "not a database, but long enough to be taken for a header".repeat(9))
        .unwrap();
    let message = Archive::open(&path).unwrap_err().to_string();
    assert!(message.contains("other is damaged") && message.contains("move it away"), "{message}");
    std::fs::write(folder.path().join("empty"), "").unwrap();
    let message = Archive::open(&folder.path().join("empty")).unwrap_err().to_string();
    assert!(message.contains("it is empty"), "{message}");
    let newer = folder.path().join("newer");
    let connection = Connection::open(&newer).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    assert!(matches!(Archive::open(&newer), Err(ArchiveError::Version { found: 99, .. })));
    let foreign = folder.path().join("foreign");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    assert!(matches!(Archive::open(&foreign), Err(ArchiveError::Version { found: 0, .. })));
}

#[test]
fn a_figure_that_was_changed_in_the_file_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab.sqlite");
    let archive = Archive::open(&path).unwrap();
    let id = archive.begin(&run()).unwrap();
    archive.add(id, &sample(1)).unwrap();
    drop(archive);
    let whole = std::fs::read(&path).unwrap();
    for (text, other) in [("1234.5", "9234.5"), ("1500", "1400"), ("trinkle", "trinkie")] {
        let mut bytes = whole.clone();
        let place = bytes.windows(text.len()).rposition(|it| it == text.as_bytes()).unwrap();
        bytes[place..][..text.len()].copy_from_slice(other.as_bytes());
        std::fs::write(&path, bytes).unwrap();
        let archive = Archive::open(&path).unwrap();
        let message = archive.run(id).unwrap_err().to_string();
        assert!(message.contains("checksum") && message.contains("lab.sqlite"), "{message}");
    }
}
