//! Names without meaning.

use std::path::{Component, Path};

use super::Finding;

const BANNED: &[&str] =
    &["common", "helper", "helpers", "manager", "misc", "util", "utilities", "utils"];

/// Checks every component of a path.
pub(super) fn check(path: &str) -> Vec<Finding> {
    Path::new(path)
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Path::new(name).file_stem()?.to_str(),
            _ => None,
        })
        .filter(|name| BANNED.contains(name) || is_versioned(name))
        .map(|name| Finding::new(path, format!("`{name}` names nothing: say what it is for")))
        .collect()
}

/// Returns whether a name is like `framer_v2`: the old version must be deleted instead.
fn is_versioned(name: &str) -> bool {
    name.rsplit_once("_v")
        .is_some_and(|(_, tail)| !tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_say_nothing_are_found_wherever_they_stand() {
        for path in ["crates/io/src/util.rs", "tests/common/mod.rs", "web/framer_v2.js"] {
            assert_eq!(check(path).len(), 1, "{path}");
        }
    }

    #[test]
    fn names_that_contain_them_are_fine() {
        for path in ["crates/io/src/utilisation.rs", "docs/ipv6.md", "a/b_vector.rs", "a/x_v.rs"] {
            assert!(check(path).is_empty(), "{path}");
        }
    }
}
