//! A parser of Apache's configuration syntax, as Perl's Config::General reads it for tgt-admin: `key value`,
//! `<block name>` to `</block>`, `include`.

use std::path::{Path, PathBuf};

use super::{Files, ImportError, shown_key};

/// Maximum depth of included files. A file that exceeds it includes itself.
const DEEPEST: usize = 16;

/// A setting or a block.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its key, as written.
    pub(super) key: String,
    /// The text after the key.
    pub(super) value: String,
    /// File and line.
    pub(super) place: String,
    /// The items of a block; `None` for a setting.
    pub(super) items: Option<Vec<Item>>,
}

/// Parses a file. The items of included files replace the `include` settings.
pub(super) fn parse(path: &Path, text: &str, files: &dyn Files) -> Result<Vec<Item>, ImportError> {
    let mut reader = Reader { files, open: Vec::new(), done: Vec::new() };
    reader.read(path, text, 0)?;
    match reader.open.pop() {
        Some(open) => Err(ImportError::new(open.place, {
            let key = shown_key(&open.key);
            format!("<{key}> does not end: add </{key}>")
        })),
        None => Ok(reader.done),
    }
}

struct Reader<'a> {
    files: &'a dyn Files,
    open: Vec<Item>,
    done: Vec<Item>,
}

impl Reader<'_> {
    fn read(&mut self, path: &Path, text: &str, depth: usize) -> Result<(), ImportError> {
        let mut begun: Option<(usize, String)> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let (first, mut whole) = begun.take().unwrap_or((number, String::new()));
            let line = uncommented(line);
            if let Some(part) = line.strip_suffix('\\') {
                whole.push_str(part);
                begun = Some((first, whole));
                continue;
            }
            whole.push_str(line.trim());
            self.take(path, &format!("{}:{first}", path.display()), whole.trim(), depth)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        path: &Path,
        place: &str,
        line: &str,
        depth: usize,
    ) -> Result<(), ImportError> {
        if line.is_empty() {
            return Ok(());
        }
        let Some(tag) = line.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) else {
            let (key, value) = split(line);
            if key.eq_ignore_ascii_case("include") {
                return self.include(path, place, &value, depth);
            }
            self.add(Item { key, value, place: place.to_owned(), items: None });
            return Ok(());
        };
        if let Some(key) = tag.strip_prefix('/') {
            let fits = |open: &Item| open.key.eq_ignore_ascii_case(key.trim());
            return match self.open.pop() {
                Some(open) if fits(&open) => {
                    self.add(open);
                    Ok(())
                }
                Some(open) => {
                    let (key, open_key) = (shown_key(key), shown_key(&open.key));
                    let message = format!(
                        "</{key}> ends <{open_key}>, which begins at {}; add </{open_key}> before it",
                        open.place
                    );
                    Err(ImportError::new(place, message))
                }
                None => Err(ImportError::new(place, {
                    let key = shown_key(key);
                    format!("</{key}> has no <{key}> before it; add that, or remove this line")
                })),
            };
        }
        if let Some(pattern) = tag.strip_prefix("<include") {
            return self.include(path, place, pattern.trim().trim_end_matches('>'), depth);
        }
        let (key, value) = split(tag);
        self.open.push(Item { key, value, place: place.to_owned(), items: Some(Vec::new()) });
        Ok(())
    }

    fn add(&mut self, item: Item) {
        let within = self.open.last_mut().and_then(|open| open.items.as_mut());
        within.unwrap_or(&mut self.done).push(item);
    }

    fn include(
        &mut self,
        path: &Path,
        place: &str,
        pattern: &str,
        depth: usize,
    ) -> Result<(), ImportError> {
        if depth == DEEPEST {
            let message = "files include each other without end: take this include out";
            return Err(ImportError::new(place, message));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let pattern = folder.join(pattern);
        let is_pattern = pattern.to_string_lossy().contains(['*', '?', '[']);
        let paths: Vec<PathBuf> = if is_pattern {
            self.files.matching(&pattern.to_string_lossy())
        } else {
            vec![pattern]
        };
        for path in paths {
            let text = self.files.read(&path).map_err(|error| {
                ImportError::new(place, format!("cannot read {}: {error}", path.display()))
            })?;
            self.read(&path, &text, depth + 1)?;
        }
        Ok(())
    }
}

/// Returns the line without a comment: the text after a # that begins a word.
fn uncommented(line: &str) -> &str {
    let mut before = ' ';
    let mut quoted = false;
    for (index, character) in line.char_indices() {
        match character {
            '"' => quoted = !quoted,
            '#' if !quoted && before.is_whitespace() => return line[..index].trim_end(),
            _ => {}
        }
        before = character;
    }
    line.trim_end()
}

/// Parses `key value`, `key = value`, `key "value"`.
fn split(line: &str) -> (String, String) {
    let end = line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim();
    let bare = rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    (key.to_owned(), bare.unwrap_or(rest).to_owned())
}
