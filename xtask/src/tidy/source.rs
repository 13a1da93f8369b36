//! Rules for Rust files: where `unsafe` and real time are permitted, and the length of a file.

use super::Finding;

/// The one crate that communicates with the kernel.
const KERNEL_CRATE: &str = "crates/io/";

/// Like [`KERNEL_CRATE`], these use real time: they are not part of the program.
const REAL_TIME: &[&str] = &["compare/", "fuzz/", "tests/", "xtask/"];

/// A longer file may be worth splitting.
const LONG_FILE_LINES: usize = 700;

/// Checks the rules for one file.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    if path.starts_with(KERNEL_CRATE) {
        return Vec::new();
    }
    // A test passes some instant to its machine.
    let is_test = path.ends_with("/tests.rs") || path.ends_with("/testing.rs");
    let real_time = is_test || REAL_TIME.iter().any(|folder| path.starts_with(folder));
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(code_alone(text).lines()) {
        let words: Vec<_> = line
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|w| !w.is_empty())
            .collect();
        if words.contains(&"unsafe") {
            findings.push(Finding::at_line(path, number, "`unsafe` belongs in crates/io"));
        }
        // clippy.toml forbids the clock itself; this attribute would bypass that.
        if words.contains(&"disallowed_methods") && !real_time {
            let what = "use the clocks, random numbers, sleeps and threads of crates/io";
            findings.push(Finding::at_line(path, number, what));
        }
    }
    findings
}

/// Returns a warning for a long file, never an error.
pub(super) fn length(path: &str, text: &str) -> Option<Finding> {
    let count = text.lines().count();
    let what = format!("{count} lines; consider splitting the file");
    (count > LONG_FILE_LINES).then(|| Finding::new(path, what))
}

/// Returns the text with comments and the contents of literals blanked; each line keeps its length.
pub(super) fn code_alone(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => quoted(rest, 1),
            'r' | 'b' | 'c' if !after_word => literal(rest),
            '\'' => character(rest),
            _ => 0,
        };
        after_word = skipped == 0 && (first.is_alphanumeric() || first == '_');
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    code
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// Returns the length up to and including the closing quotation mark, from `start` after the opening one.
fn quoted(text: &str, start: usize) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `c"…"`; 0 for a word that begins like one.
fn literal(text: &str) -> usize {
    let prefix = text.find(|c| !matches!(c, 'r' | 'b' | 'c')).unwrap_or(text.len());
    let hashes = text[prefix..].bytes().take_while(|byte| *byte == b'#').count();
    let raw = text[..prefix].ends_with('r');
    if prefix > 2 || !text[prefix + hashes..].starts_with('"') || (hashes > 0 && !raw) {
        return 0;
    }
    let start = prefix + hashes + 1;
    if !raw {
        return quoted(text, start);
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[start..].find(&end).map_or(text.len(), |at| start + at + end.len())
}

/// Returns the length of `'x'` and `'\n'`; 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut rest = text.char_indices().skip(1);
    match (rest.next(), rest.next()) {
        (Some((_, '\\')), Some(_)) => {
            text.char_indices().skip(3).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_outside_the_kernel_crate_is_found() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(check("crates/wire/src/lib.rs", text)[0].place, "crates/wire/src/lib.rs:2");
        assert!(check("crates/io/src/memory.rs", text).is_empty());
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = r##"
            // unsafe
            /* unsafe /* unsafe */ unsafe */
            let a = "unsafe \" unsafe"; let b = r#"unsafe " unsafe"#; let c = b"unsafe";
            let quote = '"'; let escaped = '\''; let tick: &'static str = "unsafe";
            #![forbid(unsafe_code)]
        "##;
        assert!(check("crates/wire/src/lib.rs", text).is_empty(), "{}", code_alone(text));
        assert_eq!(check("crates/wire/src/lib.rs", "let q = '\"'; unsafe {}").len(), 1);
        assert_eq!(check("crates/wire/src/lib.rs", "fn f<'a>() { unsafe {} }").len(), 1);
        assert_eq!(check("crates/wire/src/lib.rs", "\"a\"; unsafe {} \"b\"").len(), 1);
    }

    #[test]
    fn the_way_around_the_ban_on_clocks_is_found() {
        let text = "#![allow(clippy::disallowed_methods)]";
        assert_eq!(check("crates/node/src/lib.rs", text).len(), 1);
        assert!(check("crates/proto/src/a/tests.rs", text).is_empty());
        assert!(check("crates/volume/src/testing.rs", text).is_empty());
        assert!(check("xtask/src/main.rs", text).is_empty());
        assert!(check("crates/io/src/time.rs", text).is_empty());
    }

    #[test]
    fn a_long_file_is_a_warning() {
        assert!(length("a.rs", &"\n".repeat(701)).is_some());
        assert!(length("a.rs", &"\n".repeat(700)).is_none());
    }
}
