//! External libraries are declared once, in the root manifest, each with its reason.

use super::Finding;

/// Checks the root's `[workspace.dependencies]`: one line each, ending in its reason.
pub(super) fn check_root(path: &str, manifest: &str) -> Vec<Finding> {
    entries(manifest, |section| section == "workspace.dependencies")
        .filter(|(_, line)| !line.contains("path = "))
        .filter(|(_, line)| line.rsplit_once("# ").is_none_or(|(_, reason)| reason.len() < 10))
        .map(|(number, line)| {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            let what = format!("{name} needs its reason on its line: `{name} = … # why`");
            Finding::at_line(path, number, what)
        })
        .collect()
}

/// Checks a member's dependencies: all of them are inherited.
pub(super) fn check_member(path: &str, manifest: &str) -> Vec<Finding> {
    entries(manifest, |section| section.ends_with("dependencies"))
        .filter(|(_, line)| !line.replace(' ', "").contains("workspace=true"))
        .map(|(number, line)| {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            let what = format!("declare {name} in the root's Cargo.toml and inherit it here");
            Finding::at_line(path, number, what)
        })
        .collect()
}

/// Returns the numbered lines that begin an entry in the wanted sections.
fn entries(manifest: &str, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    (1..).zip(manifest.lines()).filter(move |(_, line)| {
        if let Some(section) = line.strip_prefix('[') {
            inside = section.split(']').next().is_some_and(&wanted);
            return false;
        }
        inside && line.starts_with(|first: char| first.is_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_a_reason_is_found() {
        let manifest = "[workspace.dependencies]\n\
                        sarsen-io = { path = \"crates/io\" }\n\
                        libc = \"0.2\" # what rustix lacks\n\
                        rand = \"0.9\"\n\
                        [profile.dev]\n\
                        opt-level = 1\n";
        let findings = check_root("Cargo.toml", manifest);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "Cargo.toml:4");
    }

    #[test]
    fn a_member_with_a_version_of_its_own_is_found() {
        let manifest = "[package]\nname = \"a\"\n\
                        [dependencies]\nlibc.workspace = true\nserde = { workspace = true }\n\
                        [target.'cfg(unix)'.dev-dependencies]\nrand = \"0.9\"\n";
        let findings = check_member("crates/a/Cargo.toml", manifest);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("rand"));
    }
}
