//! `cargo xtask tidy`: rules that neither the compiler nor clippy checks. Each is a pure function over text, with a
//! test that shows that it can fail.

mod cycles;
mod dependencies;
mod layers;
mod links;
mod names;
mod requirements;
mod source;
mod words;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Folders of other projects' files and of generated files.
const SKIPPED_FOLDERS: &[&str] =
    &[".git", "artifacts", "cache", "corpus", "node_modules", "target"];

/// The place of an error, and its description.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    place: String,
    what: String,
}

impl Finding {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }

    fn at_line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self::new(format!("{path}:{line}"), what)
    }
}

/// Checks the working tree. Prints every finding, and fails if any of them is more than a warning.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let paths = files(&root)?;
    let mut findings = Vec::new();
    let mut warnings = Vec::new();
    let mut functions = HashSet::new();
    let mut crates = cycles::Crates::default();

    let mut metadata = shell::cargo();
    metadata.args(["metadata", "--format-version", "1", "--no-deps"]);
    findings.extend(layers::check(&layers::packages(&shell::output(&mut metadata)?)?));
    for path in &paths {
        findings.extend(names::check(path));
        let kind = Path::new(path).extension().and_then(|extension| extension.to_str());
        let read = || fs::read_to_string(root.join(path)).with_context(|| path.clone());
        match kind {
            Some("rs") => {
                let text = read()?;
                functions.extend(requirements::functions(&text));
                findings.extend(source::check(path, &text));
                crates.add(path, &text);
                findings.extend(words::check(path, &text));
                warnings.extend(source::length(path, &text));
            }
            Some("md") => {
                let text = read()?;
                let exists = |target: &Path| root.join(target).exists();
                findings.extend(links::check(path, &text, exists));
                findings.extend(words::check(path, &text));
            }
            Some("toml") if path == "Cargo.toml" => {
                findings.extend(dependencies::check_root(path, &read()?));
            }
            Some("toml") if path.ends_with("/Cargo.toml") => {
                findings.extend(dependencies::check_member(path, &read()?));
            }
            _ => {}
        }
    }

    findings.extend(crates.check());
    for &path in requirements::PAGES {
        let text = fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        let exists = |file: &str| root.join(file).exists();
        findings.extend(requirements::check(path, &text, exists, &functions));
    }

    for warning in &warnings {
        println!("warning: {}: {}", warning.place, warning.what);
    }
    for finding in &findings {
        println!("error: {}: {}", finding.place, finding.what);
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} findings"),
    }
}

/// Returns whether this is within a crate's sources, where a module may have any name.
fn is_source(folder: &Path) -> bool {
    folder.components().any(|part| part.as_os_str() == "src")
}

/// Returns every file of the project, relative to `root`, in order.
fn files(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if !entry.file_type()?.is_dir() {
                found.push(path.to_string_lossy().into_owned());
            } else if is_source(&folder) || !SKIPPED_FOLDERS.contains(&name.as_str()) {
                folders.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
