//! `sarsen import`: converts the configuration of another target program.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use sarsen_compat::import::{self, Complaint, Files, Imported, Origin};
use sarsen_node::desired::Changed;
use sarsen_node::model::Document;
use serde::Serialize;

use crate::exit::{PartialError, UsageError};
use crate::output::{note, print_line};
use crate::state::{self, ChangeOptions};

/// The flags about the change itself, where there is one.
const OF_A_CHANGE: [&str; 4] = ["force", "grace", "revision", "control"];

/// Flags of `sarsen import`.
#[derive(clap::Args)]
#[command(mut_args(only_with_a_change))]
pub(crate) struct Arguments {
    /// The program that the configuration belongs to.
    #[arg(value_name = "PROGRAM")]
    from: Program,
    /// Configuration file: saveconfig.json, targets.conf, scst.conf, ctl.conf or istgt.conf.
    file: PathBuf,
    /// Apply the document to the running server, as `sarsen apply` does. Objects that it does not list are left
    /// unchanged.
    #[arg(long, conflicts_with = "out")]
    apply: bool,
    /// Write the document with its secrets to this file, for `sarsen apply -f`. Only its owner can read it. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show secrets in the output.
    #[arg(long)]
    secrets: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

fn only_with_a_change(arg: clap::Arg) -> clap::Arg {
    if OF_A_CHANGE.contains(&arg.get_id().as_str()) { arg.requires("apply") } else { arg }
}

#[derive(Clone, Copy, ValueEnum)]
enum Program {
    /// The Linux kernel's target, set up with targetcli.
    Lio,
    /// tgt, with tgtd and tgt-admin.
    Tgt,
    /// SCST, with scstadmin.
    Scst,
    /// FreeBSD's ctld.
    Ctld,
    /// istgt.
    Istgt,
}

impl From<Program> for Origin {
    fn from(program: Program) -> Self {
        match program {
            Program::Lio => Self::Lio,
            Program::Tgt => Self::Tgt,
            Program::Scst => Self::Scst,
            Program::Ctld => Self::Ctld,
            Program::Istgt => Self::Istgt,
        }
    }
}

/// Maximum length of a configuration.
const LONGEST: u64 = 64 << 20;

/// The files of this machine.
struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<String> {
        if std::fs::metadata(path)?.len() > LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        std::fs::read_to_string(path)
    }

    /// A pattern may only be the last part of a path, as in the configurations.
    fn matching(&self, pattern: &str) -> Vec<PathBuf> {
        let pattern = Path::new(pattern);
        let (Some(folder), Some(wanted)) = (pattern.parent(), pattern.file_name()) else {
            return Vec::new();
        };
        let wanted: Vec<char> = wanted.to_string_lossy().chars().collect();
        let fits = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| {
                let name: Vec<char> = name.chars().collect();
                (name.first() != Some(&'.') || wanted.first() == Some(&'.'))
                    && matches(&wanted, &name)
            })
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(fits).collect();
        paths.sort();
        paths
    }
}

/// Matches `*` and `?` as a shell does.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|end| matches(rest, &name[end..])),
        Some((wanted, rest)) => name.split_first().is_some_and(|(first, after)| {
            (*wanted == '?' || wanted == first) && matches(rest, after)
        }),
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    document: &'a Document,
    not_carried: &'a [Complaint],
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<Changed>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = &arguments.file;
    let text = Disk.read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let imported = import::import(arguments.from.into(), path, &text, &Disk)
        .map_err(|error| UsageError(error.to_string()))?;
    if let (Some(out), false) = (&arguments.out, arguments.options.dry_run) {
        write_private(out, &text_of(&imported.document, imported.assumes_portals)?)
            .with_context(|| format!("cannot write {}", out.display()))?;
    }
    if arguments.options.options.json {
        print_json(arguments, &imported)?
    } else {
        print(arguments, &imported)?
    }
    let lost = imported
        .complaints
        .iter()
        .filter(|one| one.weight == import::ComplaintSeverity::Loss)
        .count();
    if lost > 0 {
        let message = format!(
            "{lost} settings that affect initiators could not be imported; they are listed above"
        );
        return Err(PartialError(message).into());
    }
    Ok(())
}

/// Applies the document to the running server.
fn apply(options: &ChangeOptions, imported: &Imported) -> anyhow::Result<Changed> {
    options.submit(&options.apply_request(imported.document.clone()))
}

/// Prints the document, with a note on listening if it has no portals.
fn text_of(document: &Document, assumes_portals: bool) -> anyhow::Result<String> {
    const PORTALS: &str = "# Where it listened is not in the file. A server keeps the portals that it has; one \
                           that is\n\
                           # to be reached from everywhere needs this, too:\n\
                           # [[portal]]\n# address = \"0.0.0.0:3260\"\n\n";
    let text = toml::to_string(document)?;
    Ok(if assumes_portals { format!("{PORTALS}{text}") } else { text })
}

fn shown(arguments: &Arguments, imported: &Imported) -> Document {
    let mut document = imported.document.clone();
    if !arguments.secrets {
        document.account.iter_mut().for_each(|account| account.secret = None);
    }
    document
}

fn print_json(arguments: &Arguments, imported: &Imported) -> anyhow::Result<()> {
    let changed = if arguments.apply { Some(apply(&arguments.options, imported)?) } else { None };
    let document = &shown(arguments, imported);
    let answer = Answer { document, not_carried: &imported.complaints, changed };
    print_line(&serde_json::to_string(&answer)?)
}

fn print(arguments: &Arguments, imported: &Imported) -> anyhow::Result<()> {
    if arguments.out.is_none() && !arguments.apply {
        let text = text_of(&shown(arguments, imported), imported.assumes_portals)?;
        print_line(text.trim_end())?;
        let accounts = imported.document.account.iter();
        let hidden = accounts.filter(|account| account.secret.is_some()).count();
        if hidden > 0 && !arguments.secrets {
            note(format_args!(
                "{hidden} secrets are not shown: use --out FILE or --secrets to include them"
            ));
        }
    }
    // Printed before the request to the server, so that the user sees these notes before a refusal.
    for complaint in &imported.complaints {
        let weight = match complaint.weight {
            import::ComplaintSeverity::Note => "note",
            import::ComplaintSeverity::Loss => "lost",
        };
        note(format_args!("{weight}  {complaint}"));
    }
    if !arguments.apply {
        return Ok(());
    }
    state::report(&apply(&arguments.options, imported)?, false)
}

/// Creates a file with mode 0600, or sets that mode.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut permissions = file.metadata()?.permissions();
    permissions.set_mode(0o600);
    file.set_permissions(permissions)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        assert!(fits("*.conf", "a.conf") && fits("?.c*f", "a.conf") && fits("*", ""));
        assert!(!fits("*.conf", "a.conf~") && !fits("?", "") && !fits("a", "ab"));
    }

    fn fits(pattern: &str, name: &str) -> bool {
        let [pattern, name] = [pattern, name].map(|text| text.chars().collect::<Vec<_>>());
        matches(&pattern, &name)
    }

    #[test]
    fn import_without_portals_opens_none() {
        let text = text_of(&Document::default(), true).expect("it can be written");
        let document: Document = toml::from_str(&text).expect(&text);
        assert_eq!(document, Document::default());
        assert!(text.contains("[[portal]]"), "{text}");
        // With the comment marks removed, the text declares a portal.
        let taken = text.lines().map(|line| match line.trim_start_matches("# ") {
            line if line.starts_with("[[") || line.starts_with("address") => format!("{line}\n"),
            _ => String::new(),
        });
        let document: Document = toml::from_str(&taken.collect::<String>()).expect(&text);
        assert_eq!(document.portal[0].address.as_str(), "0.0.0.0:3260");
    }

    #[test]
    fn file_with_secrets_is_readable_by_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.toml");
        std::fs::write(&path, "before").expect("it can be written");
        write_private(&path, "a").expect("it can be written");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&path).expect("it can be read"), "a");
    }
}
