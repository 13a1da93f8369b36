//! `sarsen man`: a manual page for each verb, from its help and examples, and one for the configuration file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use sarsen_node::reference;

use crate::{examples, exit};

/// Flags of `sarsen man`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder that gets the pages, in man1 and man5. It is created if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, command: Command) -> anyhow::Result<()> {
    let out = &arguments.out;
    let commands = out.join("man1");
    create_folder(&commands)?;
    for (name, page) in pages(command)? {
        write(&commands.join(name), &page)?;
    }
    let files = out.join("man5");
    create_folder(&files)?;
    write(&files.join("sarsen.toml.5"), &configuration_page()?)
}

fn create_folder(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

fn write(path: &Path, page: &[u8]) -> anyhow::Result<()> {
    let page = escaped(&String::from_utf8_lossy(page));
    fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a page in ASCII: groff reads bytes as Latin-1 unless someone tells it otherwise.
fn escaped(page: &str) -> String {
    let mut ascii = String::with_capacity(page.len());
    for letter in page.chars() {
        if letter.is_ascii() {
            ascii.push(letter);
        } else {
            ascii.push_str(&format!("\\[u{:04X}]", u32::from(letter)));
        }
    }
    ascii
}

/// Returns the pages by file name.
fn pages(command: Command) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    // `sarsen help VERB` shows the same text as the page of the verb.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, None, &mut pages)?;
    Ok(pages)
}

fn add(
    command: &Command,
    parent: Option<&str>,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push((format!("{name}.1"), page(command, parent)?));
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        add(verb, Some(name), pages)?;
    }
    Ok(())
}

fn page(command: &Command, parent: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .source(format!("sarsen {}", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = name.split_once('-').map_or("", |(_, path)| path).replace('-', " ");
    let mut roff = Roff::new();
    examples::section(&path, &mut roff);
    roff.to_writer(&mut page)?;
    endings(parent).to_writer(&mut page)?;
    Ok(page)
}

/// The page of the configuration file.
fn configuration_page() -> anyhow::Result<Vec<u8>> {
    let version = format!("sarsen {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", ["sarsen.toml", "5", "", &version, "File Formats"]);
    roff.control("SH", ["NAME"])
        .text([roman("sarsen.toml - the configuration of the server of sarsen")]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in reference::INTRODUCTION {
        roff.control("PP", []).text(inlines(paragraph));
    }
    for table in reference::tables() {
        let heading = if table.heading.is_empty() { reference::FIRST_KEYS } else { &table.heading };
        roff.control("SH", [heading]).text(inlines(&table.text));
        for key in &table.keys {
            let mut values = vec![bold(&key.name), roman(" = ")];
            values.extend(inlines(&key.values));
            roff.control("TP", []).text(values).text(inlines(&key.text));
            match reference::default_of(key) {
                "" => {}
                "required" => drop(roff.text([roman("Required.")])),
                default => {
                    let text = format!("Default: {default}.");
                    roff.text(inlines(&text));
                }
            }
        }
    }
    roff.control("SH", ["SEE ALSO"]).text([bold("sarsen-serve"), roman("(1), ")]);
    roff.text([bold("sarsen-apply"), roman("(1)")]);
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Text with code between backticks, which becomes bold.
fn inlines(text: &str) -> Vec<Inline> {
    let text = text.replace('\n', " ");
    let parts = text.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// Returns the end of each page.
fn endings(parent: Option<&str>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in exit::CODES {
        roff.control("TP", []).text([bold(code.to_string())]).text([roman(*meaning)]);
    }
    if let Some(parent) = parent {
        roff.control("SH", ["SEE ALSO"]).text([bold(parent), roman("(1)")]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::{Command as Process, Stdio};

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_verb_has_a_page_with_the_exit_codes() {
        let pages = pages(crate::Arguments::command()).expect("pages");
        let names: BTreeSet<_> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["sarsen.1", "sarsen-serve.1", "sarsen-target-drain.1", "sarsen-disk-read.1"] {
            assert!(names.contains(name), "{name} is not among {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("help")), "{names:?}");
        assert!(!names.contains("sarsen-man.1"), "what is hidden has no page");
        for (name, page) in &pages {
            let text = String::from_utf8_lossy(page);
            assert!(text.contains("EXIT STATUS"), "{name}");
            assert!(text.contains("the server cannot be reached"), "{name}");
            assert!(name == "sarsen.1" || text.contains("SEE ALSO"), "{name}");
        }
    }

    /// Returns the complaints of groff about a page, or none if groff is not installed.
    fn complaints(page: &Path) -> Option<String> {
        let mut groff = Process::new("groff");
        groff.args(["-ww", "-man", "-Tutf8", "-z"]).arg(page).stdin(Stdio::null());
        let output = groff.output().ok()?;
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    #[test]
    fn groff_reads_every_page_without_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("made/man");
        run(&Arguments { out: out.clone() }, crate::Arguments::command()).expect("pages");
        let mut seen = 0;
        let pages =
            ["man1", "man5"].map(|folder| fs::read_dir(out.join(folder)).expect("the folder"));
        for entry in pages.into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let Some(complaints) = complaints(&path) else { return };
            assert_eq!(complaints, "", "{}", path.display());
            seen += 1;
        }
        assert!(seen > 10, "{seen} pages");
        let bad = folder.path().join("bad.1");
        write(&bad, b".TH A 1\n.nonsense\n").expect("written");
        assert!(!complaints(&bad).unwrap_or_default().is_empty(), "the check can fail");
    }
}
