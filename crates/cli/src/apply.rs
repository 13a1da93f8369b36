//! `sarsen apply`, `diff`, `export` and `history`: verbs for the whole state.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sarsen_node::model::{Document, parse_document};
use sarsen_node::schema::{Apply, ConfigState, RevisionList};

use crate::control::{ServerOptions, table};
use crate::disk::on_a_core;
use crate::exit::UsageError;
use crate::import::write_private;
use crate::output::{print_document, print_line};
use crate::state::{self, ChangeOptions};

/// Flags of `sarsen apply`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The document: TOML, or JSON if its name ends in .json; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Delete objects that the document does not list. Without it, they are left unchanged.
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

/// Flags of `sarsen diff`.
#[derive(clap::Args)]
pub(crate) struct DiffArguments {
    /// The document: TOML, or JSON if its name ends in .json; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Compare as `sarsen apply --prune` does.
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    options: ServerOptions,
}

/// Flags of `sarsen export`.
#[derive(clap::Args)]
pub(crate) struct ExportArguments {
    /// Include the secrets of the accounts: a server that does not have these accounts needs them.
    #[arg(long)]
    secrets: bool,
    /// Write the document to this file, which only its owner can read. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    options: ServerOptions,
}

/// Flags of `sarsen history`.
#[derive(clap::Args)]
pub(crate) struct HistoryArguments {
    /// Number of changes, newest first.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
    #[command(flatten)]
    options: ServerOptions,
}

/// Runs `sarsen apply`.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { file, prune, options } = arguments;
    options.send(&Apply { prune: *prune, ..options.apply_request(read(file)?) })
}

/// Runs `sarsen diff`.
pub(crate) fn diff(arguments: &DiffArguments) -> anyhow::Result<()> {
    let DiffArguments { file, prune, options } = arguments;
    let document = read(file)?;
    let apply = Apply { document, prune: *prune, dry_run: true, ..Apply::default() };
    let client = options.client()?;
    let changed = on_a_core(async { Ok(client.post("/config/apply", &apply).await?) })?;
    state::report(&changed, options.json)
}

/// Runs `sarsen export`.
pub(crate) fn export(arguments: &ExportArguments) -> anyhow::Result<()> {
    let ExportArguments { secrets, out, options } = arguments;
    let (client, path) = (options.client()?, format!("/config?secrets={secrets}"));
    let state: ConfigState = on_a_core(async { Ok(client.get(&path).await?) })?;
    let text = if options.json {
        serde_json::to_string(&state.document)? + "\n"
    } else {
        toml::to_string(&state.document)?
    };
    match out {
        None => print_document(&text),
        Some(out) => {
            write_private(out, &text).with_context(|| format!("cannot write {}", out.display()))
        }
    }
}

/// Runs `sarsen history`.
pub(crate) fn history(arguments: &HistoryArguments) -> anyhow::Result<()> {
    let HistoryArguments { limit, options } = arguments;
    let (client, path) = (options.client()?, format!("/config/revisions?limit={limit}"));
    let list: RevisionList = on_a_core(async { Ok(client.get(&path).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&list)?);
    }
    let rows: Vec<[String; 4]> = list
        .revisions
        .iter()
        .map(|revision| {
            let when = crate::control::utc(revision.at_unix_seconds);
            let number = revision.revision.to_string();
            [number, when, revision.author.clone(), revision.summary.join("; ")]
        })
        .collect();
    print_line(&table(["REVISION", "AT", "AUTHOR", "CHANGES"], &rows))
}

/// Reads a document from its file. An error names the line.
pub(crate) fn read(path: &Path) -> anyhow::Result<Document> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
        text
    } else {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
    };
    let is_json = path.extension().is_some_and(|extension| extension == "json")
        || text.trim_start().starts_with('{');
    Ok(parse_document(&text, is_json).map_err(|(line, message)| {
        let line = line.map_or_else(String::new, |line| format!(":{line}"));
        UsageError(format!("{}{line}: {}", path.display(), message.trim()))
    })?)
}
