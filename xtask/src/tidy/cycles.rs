//! The modules of a crate do not import each other in a circle. Only modules directly below the crate's root count.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::code_alone;

/// The imports between the modules of each crate.
#[derive(Default)]
pub(super) struct Crates(BTreeMap<String, Crate>);

#[derive(Default)]
struct Crate {
    /// The modules whose items the root exports, by the items' names.
    exports: BTreeMap<String, String>,
    /// The first parts of all paths that begin with `crate::`, by the module that uses them.
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl Crates {
    /// Adds a file of a crate. Tests may import anything.
    pub(super) fn add(&mut self, path: &str, text: &str) {
        let Some((name, file)) =
            path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            return;
        };
        let module = file.split('/').next().unwrap_or(file).trim_end_matches(".rs");
        if file.split(['/', '.']).any(|part| part == "tests") || module == "main" {
            return;
        }
        let code = code_alone(text.split("#[cfg(test)]\nmod ").next().unwrap_or(text));
        let package = self.0.entry(name.to_owned()).or_default();
        if module == "lib" {
            package.exports.extend(exports(&code));
        } else {
            package.uses.entry(module.to_owned()).or_default().extend(uses(&code));
        }
    }

    /// Finds the modules that import themselves through others.
    pub(super) fn check(&self) -> Vec<Finding> {
        let what = "the module imports itself through others; move what both need below both";
        let found = self.0.iter().flat_map(|(name, package)| {
            let place = move |module| format!("crates/{name}/src/{module}");
            package.in_cycles().into_iter().map(place)
        });
        found.map(|place| Finding::new(place, what)).collect()
    }
}

impl Crate {
    /// Returns the modules that a module imports, in its own words or through the root.
    fn imports(&self, module: &str) -> impl Iterator<Item = &str> {
        let used = self.uses.get(module).into_iter().flatten();
        let resolved = used.map(|name| self.exports.get(name).unwrap_or(name).as_str());
        resolved.filter(move |&import| import != module && self.uses.contains_key(import))
    }

    fn in_cycles(&self) -> BTreeSet<&str> {
        let modules = self.uses.keys().map(String::as_str);
        modules.filter(|module| self.reached_from(module).contains(module)).collect()
    }

    /// Returns all modules that a module imports, also through others.
    fn reached_from(&self, module: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.imports(module).collect();
        while let Some(import) = next.pop() {
            if reached.insert(import) {
                next.extend(self.imports(import));
            }
        }
        reached
    }
}

/// Returns the names after each `crate::`, in groups as well.
fn uses(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, rest) in
        code.match_indices("crate::").map(|(at, found)| code.split_at(at + found.len()))
    {
        if let Some(group) = rest.strip_prefix('{') {
            names.extend(first_names(group));
        } else {
            names.extend(identifier(rest).map(str::to_owned));
        }
    }
    names
}

/// Returns the first name of each item of a group, up to the group's end.
fn first_names(group: &str) -> Vec<String> {
    let (mut depth, mut is_first, mut names) = (0_u32, true, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            _ if is_first && !letter.is_whitespace() => {
                names.extend(identifier(&group[at..]).map(str::to_owned));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

/// Returns the exported names of a root with their modules: `pub use module::{A, B as C};`.
fn exports(code: &str) -> Vec<(String, String)> {
    let statements = code.split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
    let pairs = statements.filter_map(|(path, _)| {
        let (module, names) = path.split_once("::")?;
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
        Some(names.map(|name| (name, module.to_owned())).collect::<Vec<_>>())
    });
    pairs.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates(files: &[(&str, &str)]) -> Crates {
        let mut crates = Crates::default();
        files.iter().for_each(|(path, text)| crates.add(path, text));
        crates
    }

    fn places(crates: &Crates) -> Vec<String> {
        crates.check().into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_found_through_groups_and_the_root() {
        let crates = crates(&[
            ("crates/io/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{Clock, Other};"),
            ("crates/io/src/a.rs", "use crate::{\n    b::{Deep, Deeper},\n    Clock,\n};"),
            ("crates/io/src/b/part.rs", "fn f() { crate::c::now() }"),
            ("crates/io/src/c.rs", "use crate::a;"),
            ("crates/io/src/d.rs", "use crate::a::A;"),
        ]);
        assert_eq!(places(&crates), ["a", "b", "c"].map(|m| format!("crates/io/src/{m}")));
    }

    #[test]
    fn comments_tests_and_other_folders_do_not_count() {
        let crates = crates(&[
            ("crates/io/src/a.rs", "use crate::b;\n// crate::a\n"),
            ("crates/io/src/b.rs", "\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
            ("crates/io/src/b/tests.rs", "use crate::a;"),
            ("tests/src/b.rs", "use crate::a;"),
        ]);
        assert!(places(&crates).is_empty());
    }
}
