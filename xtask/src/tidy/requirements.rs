//! Checks that the files and tests exist that a page of requirements names. In the rows of its tables, a word between
//! backticks that ends in `.rs` is a file, named from its crate on. A word that is as long as a test's name is a
//! function.

use std::collections::HashSet;

use super::Finding;

/// The pages that are checked.
pub(super) const PAGES: &[&str] = &["docs/rfc7143.md"];

/// Returns the names of all functions of a source file.
pub(super) fn functions(text: &str) -> impl Iterator<Item = String> {
    text.split("fn ")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
}

/// Checks the page at `path`.
pub(super) fn check(
    path: &str,
    text: &str,
    exists: impl Fn(&str) -> bool,
    functions: &HashSet<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with('|')) {
        if line.trim_end_matches(['|', ' ']).matches('|').count() > 4 {
            findings.push(Finding::at_line(path, number, "a row has four columns"));
        }
        for word in line.split('`').skip(1).step_by(2) {
            let missing = match word.strip_suffix(".rs") {
                Some(_) => !exists(&file(word)),
                None => is_test(word) && !functions.contains(word),
            };
            if missing {
                findings.push(Finding::at_line(path, number, format!("{word} is not there")));
            }
        }
    }
    findings
}

/// Returns the path of a file that is named from its crate on.
fn file(name: &str) -> String {
    match name.split_once('/') {
        Some(("tests" | "xtask" | "fuzz", _)) | None => name.to_owned(),
        Some((krate, rest)) => format!("crates/{krate}/src/{rest}"),
    }
}

fn is_test(word: &str) -> bool {
    word.matches('_').count() >= 3
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_names_are_found() {
        let source = "#[test]\nfn a_test_that_is_there() {}\nfn other<T>() {}";
        let functions: HashSet<String> = functions(source).collect();
        let page = "`no_test_outside_a_table`\n\
                    | 1 | all is well | `wire/a.rs` | `a_test_that_is_there` |\n\
                    | 2 | a file | `wire/b.rs` | |\n\
                    | 3 | a test | `tests/c.rs` | `a_test_that_is_gone`, `Type` |\n\
                    | 4 | too many | of | these | columns |\n";
        let exists = |path: &str| matches!(path, "crates/wire/src/a.rs" | "tests/c.rs");
        let found: Vec<_> = check("page.md", page, exists, &functions)
            .into_iter()
            .map(|finding| format!("{} {}", finding.place, finding.what))
            .collect();
        assert_eq!(
            found,
            [
                "page.md:3 wire/b.rs is not there",
                "page.md:4 a_test_that_is_gone is not there",
                "page.md:5 a row has four columns"
            ]
        );
    }
}
