//! Checks of the configuration to be served, and of the running server.

use std::io::ErrorKind;
use std::path::Path;

use indicatif::BinaryBytes;
use sarsen_io::file::{File, OpenOptions};
use sarsen_node::config::{self, Config, StoreKind};
use sarsen_node::control::{Address, ClientError};
use sarsen_node::model::Orphan;
use sarsen_node::schema::{OrphanList, Problem, ProblemList, TargetList};

use super::Finding;
use crate::control::ServerOptions;
use crate::disk::on_a_core;
use crate::serve::read_configuration;

const CHECK: &str = "configuration";

/// Reads a configuration, as far as possible.
pub(super) fn read(path: Option<&Path>) -> (Option<Config>, Vec<Finding>) {
    let Some(path) = path else { return (None, Vec::new()) };
    let text = match read_configuration(path) {
        Ok(text) => text,
        Err(error) => {
            let finding = format!("{error:#}");
            let remedy = "name a file that the user of the server can read";
            return (None, vec![Finding::problem(CHECK, finding, remedy)]);
        }
    };
    match config::parse_file(path, &text).and_then(Config::finish) {
        Ok(config) => (Some(config), vec![Finding::ok(CHECK, format!("{} holds", path.display()))]),
        Err(error) => {
            // The message ends with what to do.
            let remedy = "correct it; `sarsen serve` would not start";
            (None, vec![Finding::problem(CHECK, error.to_string(), remedy)])
        }
    }
}

/// Checks whether the files and addresses of a configuration exist.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for volume in &config.volumes {
        let path = match (volume.store, &volume.path) {
            // The server will create the file. The disk checks cover its folder.
            (StoreKind::File, Some(path)) if volume.size.is_some() && !path.exists() => continue,
            (StoreKind::File | StoreKind::Iso, Some(path)) => path,
            _ => continue,
        };
        let options = OpenOptions { read_only: volume.is_read_only(), ..OpenOptions::default() };
        findings.push(store(&volume.name, path, File::open(path, options).map(drop)));
    }
    for account in &config.accounts {
        if let Err(error) = account.read_secret() {
            let finding = format!("account {}: {error}", account.name);
            findings.push(Finding::problem("account", finding, "provide a readable secret"));
        }
    }
    for portal in &config.listen {
        let checked = portal.tls.as_ref().map(config::TlsConfig::check);
        if let Some(Err(error)) = checked {
            let finding = format!("portal {}: {error}", portal.address);
            findings.push(Finding::problem("tls", finding, "replace the certificate or the key"));
        }
    }
    findings
}

fn store(volume: &str, path: &Path, opened: std::io::Result<()>) -> Finding {
    let path = path.display();
    let error = match opened {
        Ok(()) => return Finding::ok("store", format!("volume {volume}: {path} can be opened")),
        Err(error) => error,
    };
    let remedy = match error.kind() {
        ErrorKind::NotFound => "create it, or set a size so that the server creates it",
        ErrorKind::PermissionDenied => "let the user that the server runs as read and write it",
        ErrorKind::ResourceBusy => "unmount it; only one program may use a disk",
        _ => "name a regular file or a block device",
    };
    Finding::problem("store", format!("volume {volume}: {path}: {error}"), remedy)
}

/// The facts about the running server.
pub(super) struct RunningServer {
    pub(super) running: bool,
    pub(super) findings: Vec<Finding>,
}

/// Asks the server of the flags, or else of the configuration.
pub(super) fn server(options: &ServerOptions, config: Option<&Config>) -> RunningServer {
    let client = options.client_or(config.and_then(|config| config.control.as_deref()));
    let asked = client.and_then(|client| {
        on_a_core(async {
            let targets: TargetList = client.get("/targets").await?;
            let ProblemList { problems, warnings } = client.get("/problems").await?;
            // A server without a state has no folder of volumes.
            let orphans = client
                .get("/orphans")
                .await
                .map_or_else(|_| Vec::new(), |found: OrphanList| found.orphans);
            Ok(ReportedFigures { targets: targets.targets.len(), problems, warnings, orphans })
        })
    });
    judge(asked)
}

/// Figures that a server reports about itself.
#[derive(Default)]
struct ReportedFigures {
    /// Returns the number of objects of a kind.
    targets: usize,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    orphans: Vec<Orphan>,
}

/// Reports all orphaned files in one sentence: there may be thousands.
fn orphaned(orphans: &[Orphan]) -> Option<Finding> {
    const SHOWN: usize = 10;
    let names: Vec<&str> = orphans.iter().map(|orphan| orphan.name.as_str()).take(SHOWN).collect();
    let bytes: u64 = orphans.iter().map(|orphan| orphan.allocated_bytes).sum();
    let more = match orphans.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!orphans.is_empty()).then(|| {
        Finding::warning(
            "server",
            format!(
                "{} files or volumes in pools belong to no volume of the server, and occupy {}: {}{more}",
                orphans.len(),
                BinaryBytes(bytes),
                names.join(", ")
            ),
            "see `sarsen volume orphan list`; remove what is not needed with `sarsen volume orphan remove`",
        )
    })
}

/// Evaluates the figures that the server reports about itself.
fn judge(asked: anyhow::Result<ReportedFigures>) -> RunningServer {
    const CHECK: &str = "server";
    let error = match asked {
        Ok(ReportedFigures { targets, problems, warnings, orphans }) => {
            let runs = Finding::ok(CHECK, format!("a server runs; number of targets: {targets}"));
            let lacks = problems.into_iter().map(|Problem { problem, .. }| {
                let remedy = "do what the message says; the server serves all other objects, and tries this one again";
                Finding::problem(CHECK, problem, remedy)
            });
            let little = warnings.into_iter().map(|warning| {
                let remedy = "free space on that file system, or delete unneeded volumes";
                Finding::warning(CHECK, warning, remedy)
            });
            return RunningServer {
                running: true,
                findings: [runs]
                    .into_iter()
                    .chain(lacks)
                    .chain(little)
                    .chain(orphaned(&orphans))
                    .collect(),
            };
        }
        Err(error) => error,
    };
    let finding = match error.downcast_ref() {
        Some(ClientError::Unreachable { address: address @ Address::Socket(_), source }) => {
            match source.kind() {
                ErrorKind::PermissionDenied => Finding::warning(
                    CHECK,
                    format!("this user has no permission to use {address}"),
                    "run this as the server's user, or as root",
                ),
                ErrorKind::ConnectionRefused => Finding::warning(
                    CHECK,
                    format!("{address} exists, but no server answers there: the server has ended"),
                    "see its log (journalctl -u sarsen), and start it",
                ),
                _ => Finding::ok(CHECK, format!("no server runs with {address}")),
            }
        }
        Some(
            error @ (ClientError::Unreachable { .. }
            | ClientError::Token(_)
            | ClientError::Tls(_)
            | ClientError::Untrusted { .. }
            | ClientError::Unauthorized { .. }),
        ) => Finding::warning(
            CHECK,
            format!("the server does not answer: {error}"),
            "see --control, --token-file and --ca",
        ),
        _ => Finding::warning(
            CHECK,
            format!("the server sends invalid responses: {error:#}"),
            "check that it and this program have the same version",
        ),
    };
    RunningServer { running: false, findings: vec![finding] }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use sarsen_node::model::ObjectKind;

    use super::super::Level;
    use super::*;

    #[test]
    fn a_configuration_that_is_wrong_is_a_problem() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.toml");
        assert_eq!(read(Some(&path)).1[0].level, Level::Problem, "absent");
        fs::write(&path, "lisen = []\n").expect("written");
        let (config, findings) = read(Some(&path));
        assert!(config.is_none());
        assert_eq!(findings[0].level, Level::Problem);
        assert!(findings[0].finding.contains("lisen"), "{findings:?}");
        assert!(read(None).1.is_empty());
    }

    #[test]
    fn doctor_looks_for_configured_files_without_creating_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.toml");
        let text = "[[volume]]\nname = \"a\"\nstore = \"file\"\npath = \"PLACE/a.img\"\n\
                    [[volume]]\nname = \"b\"\nstore = \"file\"\npath = \"PLACE/b.img\"\nsize = \"1MiB\"\n\
                    [[account]]\nname = \"h\"\nsecret-file = \"PLACE/secret\"\n";
        let text = text.replace("PLACE", &folder.path().display().to_string());
        fs::write(&path, text).expect("written");
        let (config, first) = read(Some(&path));
        let config = config.unwrap_or_else(|| panic!("{first:?}"));
        let found = findings(&config);
        let problems: Vec<_> = found.iter().map(|finding| (finding.check, finding.level)).collect();
        assert_eq!(problems, [("store", Level::Problem), ("account", Level::Problem)]);
        assert!(!folder.path().join("b.img").exists());
        fs::write(folder.path().join("a.img"), [0; 4096]).expect("written");
        assert_eq!(findings(&config)[0].level, Level::Ok);
    }

    #[test]
    fn doctor_distinguishes_dead_server_from_no_server() {
        assert_eq!(level_if_unreachable(ErrorKind::NotFound), Level::Ok);
        assert_eq!(level_if_unreachable(ErrorKind::ConnectionRefused), Level::Warning);
        assert_eq!(level_if_unreachable(ErrorKind::PermissionDenied), Level::Warning);
        assert_eq!(
            judge(Err(ClientError::Broken("x".into()).into())).findings[0].level,
            Level::Warning
        );
        assert!(judge(Ok(ReportedFigures { targets: 3, ..ReportedFigures::default() })).running);
    }

    fn level_if_unreachable(kind: ErrorKind) -> Level {
        let source = io::Error::from(kind);
        let error = ClientError::Unreachable { address: Address::Socket("/x".into()), source };
        judge(Err(error.into())).findings[0].level
    }

    #[test]
    fn degraded_server_is_reported_as_problem() {
        let problem = "volume kept: /mnt/kept.img: cannot open it".to_owned();
        let lacks = Problem {
            kind: ObjectKind::Volume,
            name: "kept".into(),
            problem,
            since_unix_seconds: 1,
        };
        let server = judge(Ok(ReportedFigures {
            targets: 3,
            problems: vec![lacks],
            ..ReportedFigures::default()
        }));
        let levels: Vec<_> = server.findings.iter().map(|finding| finding.level).collect();
        assert_eq!((server.running, levels), (true, vec![Level::Ok, Level::Problem]));
    }

    #[test]
    fn orphans_and_overcommitment_are_warnings() {
        let orphan = Orphan {
            name: "left.img".into(),
            path: "/state/volumes/left.img".into(),
            size_bytes: 1 << 20,
            allocated_bytes: 4096,
            has_state: false,
        };
        let warnings = vec!["the volumes on the file system of /a may still take 2GiB".to_owned()];
        let reported =
            ReportedFigures { warnings, orphans: vec![orphan], ..ReportedFigures::default() };
        let findings = judge(Ok(reported)).findings;
        let levels: Vec<_> = findings.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Warning]);
        assert!(findings[2].finding.contains("left.img"), "{findings:?}");
    }
}
