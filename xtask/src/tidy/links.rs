//! Checks that links from Markdown to files lead to files that exist.

use std::path::{Component, Path, PathBuf};

use super::Finding;

/// Checks every relative link of the page at `path`.
pub(super) fn check(path: &str, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for link in links(&without_code(line)) {
            let target = link.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if target.is_empty() || elsewhere {
                continue;
            }
            match resolve(folder, target) {
                Some(resolved) if exists(&resolved) => {}
                Some(_) => {
                    findings.push(Finding::at_line(path, number, format!("{target} is not there")));
                }
                None => {
                    let what = format!("{target} leads out of the repository");
                    findings.push(Finding::at_line(path, number, what));
                }
            }
        }
    }
    findings
}

/// Returns `target` of `[text](target)`, `[text](target "title")` and `[label]: target`.
fn links(line: &str) -> Vec<String> {
    let first_word = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    let mut found: Vec<_> = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| first_word(target))
        .collect();
    if let Some((_, target)) =
        line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).filter(|_| found.is_empty())
    {
        found.push(first_word(target));
    }
    found
}

/// Returns the line without the text between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Returns the path of a target; `None` if it is above the root.
fn resolve(folder: &Path, target: &str) -> Option<PathBuf> {
    let mut resolved = match target.strip_prefix('/') {
        Some(_) => PathBuf::new(),
        None => folder.to_owned(),
    };
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => {
                if !resolved.pop() {
                    return None;
                }
            }
            Component::Normal(name) => resolved.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let exists = |path: &Path| path == Path::new("docs/a.md") || path == Path::new("README.md");
        check("docs/page.md", text, exists).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn existing_and_external_links_are_valid() {
        let text = "[a](a.md#part) [up](../README.md \"home\") [root](/README.md) [x](https://x.y) \
                    [here](#below) `[code](no.md)`\n```\n[code](no.md)\n```\n[label]: a.md\n";
        assert!(findings(text).is_empty());
    }

    #[test]
    fn dead_links_are_found_in_both_forms() {
        assert_eq!(findings("see [b](b.md)"), ["b.md is not there"]);
        assert_eq!(findings("[label]: gone.md"), ["gone.md is not there"]);
        assert_eq!(findings("[out](../../x.md)"), ["../../x.md leads out of the repository"]);
    }
}
