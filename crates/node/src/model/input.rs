//! Conversion of JSON and TOML into types of this program. An error names the key that does not fit: a caller that
//! passed `iops=abc` knows no line and column. For a file, it also has a line.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_path_to_error::Segment;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::names::nearest;
use super::{Document, Invalid, Key, ObjectKind};

/// Maximum bytes of a key or a message that are shown. Both repeat the client's text, which may have any length.
const SHOWN: usize = 500;

/// The reason why a text does not fit its type.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", .key.as_ref().map_or(String::new(), |key| format!("{key}: ")))]
pub struct Mismatch {
    /// The key whose value is wrong: `volume[3].iops`.
    pub key: Option<String>,
    /// The problem of its value.
    pub message: String,
}

/// Parses the text of JSON as a `T`.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Mismatch> {
    serde_json::from_slice(text).map_err(|error| misfit::<T>(text, error))
}

/// Parses the text again, more slowly, to find the key. This builds a `T` up to the error, not a tree of values, which
/// takes a hundred times the length of the text.
fn misfit<T: DeserializeOwned>(text: &[u8], error: serde_json::Error) -> Mismatch {
    // For invalid JSON there is no key; its line is more useful.
    if !error.is_data() {
        return Mismatch { key: None, message: error.to_string() };
    }
    let mut text = serde_json::Deserializer::from_slice(text);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut text) else {
        return Mismatch { key: None, message: error.to_string() };
    };
    let key = error.path().to_string();
    let error = error.into_inner();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = error.to_string();
    let message = message.strip_suffix(&place).unwrap_or(&message);
    // A path of a single dot denotes the whole document.
    Mismatch { key: (key != ".").then(|| shown(&key)), message: shown(&worded(message)) }
}

/// Parses the text of a document, JSON or TOML. An error is its line in TOML, and a message that names the object and the
/// key.
pub fn parse_document(text: &str, is_json: bool) -> Result<Document, (Option<usize>, String)> {
    if is_json {
        return from_json(text.as_bytes()).map_err(|misfit| {
            let invalid = named(text.as_bytes(), None, &misfit);
            (None, invalid.map_or_else(|| misfit.to_string(), |invalid| invalid.to_string()))
        });
    }
    let document = toml::Deserializer::parse(text).map_err(|error| (None, error.to_string()))?;
    serde_path_to_error::deserialize(document).map_err(|error| {
        let key = Some(error.path().to_string()).filter(|key| key != ".");
        let error = error.into_inner();
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let misfit = Mismatch { key, message: shown(&worded(error.message())) };
        let invalid = in_object(None, &misfit, |name| {
            name.deserialize(toml::Deserializer::parse(text).ok()?).ok()?
        });
        (line, invalid.map_or_else(|| misfit.to_string(), |invalid| invalid.to_string()))
    })
}

/// Returns the message of serde in the words of this program. An unknown key is reported with the known ones.
pub(crate) fn worded(message: &str) -> String {
    if let Some((key, known)) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "))
    {
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let hint = nearest(key, known.iter().copied());
        return format!("unknown key {key}{hint} (known: {})", known.join(", "));
    }
    if message.ends_with(", expected a boolean") {
        return format!("{message}: write true or false");
    }
    match message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(key) => format!("there is no {key}: add it"),
        None => message.to_owned(),
    }
}

/// Returns an error in a body of JSON as an error of the object in it, if the object has a name: in the object of this
/// kind, or in one of a document's.
pub(crate) fn named(text: &[u8], kind: Option<ObjectKind>, misfit: &Mismatch) -> Option<Invalid> {
    in_object(kind, misfit, |name| {
        name.deserialize(&mut serde_json::Deserializer::from_slice(text)).ok()?
    })
}

/// Returns an error as an error of its object. `find` returns the name of the object.
fn in_object(
    kind: Option<ObjectKind>,
    misfit: &Mismatch,
    find: impl FnOnce(TextAt<'_>) -> Option<String>,
) -> Option<Invalid> {
    let Place(steps) = Place::of_field(misfit.key.as_deref()?);
    let is_kind = |step: &Step| {
        let kinds = ObjectKind::ALL.into_iter();
        { kinds }.find(|kind| *step == Step::Key(kind.word().to_owned()))
    };
    let (kind, object) = match kind {
        Some(kind) => (kind, 0),
        None => {
            let place = steps.iter().position(|step| is_kind(step).is_some())?;
            let kind = is_kind(&steps[place])?;
            (kind, place + if kind.is_singleton() { 1 } else { 2 })
        }
    };
    let (around, field) = steps.split_at_checked(object)?;
    let field = Place(field.to_vec()).to_string();
    let invalid = |name: &str| Invalid::new(Key::new(kind, name), field, misfit.message.clone());
    if kind.is_singleton() {
        return Some(invalid(""));
    }
    let name = if kind == ObjectKind::Portal { "address" } else { "name" };
    let path = [around, &[Step::Key(name.to_owned())]].concat();
    Some(invalid(&shown(&find(TextAt(&path))?)))
}

/// Finds the text at a path, and stores nothing else.
struct TextAt<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for TextAt<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextAt<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the way to a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.is_empty().then(|| text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some((Step::Index(index), rest)) = self.0.split_first() else { return Ok(None) };
        for _ in 0..*index {
            list.next_element::<IgnoredAny>()?;
        }
        let found = list.next_element_seed(TextAt(rest))?.flatten();
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Self::Value, A::Error> {
        let Some((Step::Key(wanted), rest)) = self.0.split_first() else { return Ok(None) };
        let mut found = None;
        while let Some(key) = table.next_key::<String>()? {
            if key == *wanted {
                found = table.next_value_seed(TextAt(rest))?;
            } else {
                table.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A step of the path to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// The path to a value, from the outermost table on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) Vec<Step>);

impl Place {
    /// Parses the path of a field: `allow[0].host`.
    pub(crate) fn of_field(field: &str) -> Self {
        let parts = field.split(['.', '[']).filter(|part| !part.is_empty());
        Self(
            parts
                .map(|part| match part.strip_suffix(']').and_then(|index| index.parse().ok()) {
                    Some(index) => Step::Index(index),
                    None => Step::Key(part.to_owned()),
                })
                .collect(),
        )
    }

    fn of_path(path: &serde_path_to_error::Path) -> Self {
        let step = |segment: &Segment| match segment {
            Segment::Seq { index } => Some(Step::Index(*index)),
            Segment::Map { key } => Some(Step::Key(key.clone())),
            Segment::Enum { variant } => Some(Step::Key(variant.clone())),
            Segment::Unknown => None,
        };
        Self(path.iter().map_while(step).collect())
    }

    /// Returns the offset of the value in the text, or that of the innermost known table or list around it.
    pub(crate) fn offset(&self, value: &Spanned<DeValue<'_>>) -> usize {
        let (mut value, mut offset) = (value, value.span().start);
        for step in &self.0 {
            let next = match step {
                Step::Index(index) => value.get_ref().as_array().and_then(|list| list.get(*index)),
                Step::Key(key) => value.get_ref().as_table().and_then(|table| {
                    let (found, next) = table.iter().find(|(known, _)| known.get_ref() == key)?;
                    offset = found.span().start;
                    Some(next)
                }),
            };
            let Some(next) = next else { break };
            if matches!(step, Step::Index(_)) {
                offset = next.span().start;
            }
            value = next;
        }
        offset
    }
}

/// Displays the path as it is parsed: `allow[0].host`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if number == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

/// Parses a value of TOML as a `T`. An error is the offset in the text, and the message with the path of the key.
pub(crate) fn from_toml_value<T: DeserializeOwned>(
    value: &Spanned<DeValue<'_>>,
) -> Result<T, (usize, String)> {
    serde_path_to_error::deserialize(ValueDeserializer::from(value.clone())).map_err(|error| {
        let (path, place) = (error.path().to_string(), Place::of_path(error.path()));
        let message = worded(error.inner().message());
        let message = match path.as_str() {
            "." => message,
            _ if message.starts_with("unknown key ") => message,
            path => format!("{path}: {message}"),
        };
        (place.offset(value), shown(&message))
    })
}

fn shown(text: &str) -> String {
    if text.len() > SHOWN {
        format!("{}…", &text[..text.floor_char_boundary(SHOWN)])
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::{Target, Volume};
    use super::*;

    #[test]
    fn type_error_names_its_key() {
        let reported =
            |text: &str| from_json::<Volume>(text.as_bytes()).expect_err(text).to_string();
        assert_eq!(
            reported(r#"{ "name": "a", "iops": "abc" }"#),
            "iops: \"abc\" is not a number from 1; write another number, or remove the key"
        );
        assert_eq!(
            reported(r#"{ "name": "a", "size": true }"#),
            "size: invalid type: boolean `true`, expected a size"
        );
        assert!(
            reported(r#"{ "name": "a", "sise": 1 }"#)
                .starts_with("sise: unknown key sise; did you mean size? (known: name, store, ")
        );
        assert_eq!(reported("{}"), "there is no name: add it");
        assert_eq!(reported("{ \"name\": "), "EOF while parsing a value at line 1 column 10");
        let twice = reported(r#"{ "name": "a", "name": "b" }"#);
        assert!(twice.ends_with("duplicate field `name`"), "{twice}");
        let deep = r#"{ "volume": [{ "name": "a" }, { "name": "b", "read-only": 1 }] }"#;
        let deep = from_json::<Document>(deep.as_bytes()).expect_err("no truth");
        assert_eq!(deep.key.as_deref(), Some("volume[1].read-only"));
        let luns = from_json::<Target>(br#"{ "name": "t", "luns": 3 }"#).expect_err("no table");
        assert_eq!(
            luns.to_string(),
            "luns: invalid type: integer `3`, expected a list of volumes, or a table of volumes by LUN"
        );
        let luns = from_json::<Target>(br#"{ "name": "t", "luns": { "x": "a" } }"#);
        let reported = luns.expect_err("no LUN").to_string();
        assert!(
            reported.starts_with("luns") && reported.contains("\"x\" is no LUN: write a number"),
            "{reported}"
        );
    }

    #[test]
    fn an_error_in_a_body_names_its_object() {
        let place = |kind, text: &str, key: &str| {
            let misfit = Mismatch { key: Some(key.to_owned()), message: "x".to_owned() };
            named(text.as_bytes(), kind, &misfit).and_then(|invalid| invalid.place())
        };
        let body = r#"{ "document": { "portal": [{ "tls": {}, "address": "::" }],
            "target": [{}, { "allow": [{ "host": 1 }], "name": "t" }] }, "force": 1 }"#;
        for (key, expected) in [
            ("document.portal[0].group", Some("portal/::.group")),
            ("document.target[1].allow[0].host", Some("target/t.allow[0].host")),
            ("document.target[1].chap[3]", Some("target/t.chap")),
            ("document.target[0].tid", None),
            ("document.target[9].tid", None),
            ("document.target", None),
            ("document.limits.sessions", Some("limits/.sessions")),
            ("force", None),
        ] {
            assert_eq!(place(None, body, key).as_deref(), expected, "{key}");
        }
        let portal = r#"{ "address": "here", "group": 1 }"#;
        let place = place(Some(ObjectKind::Portal), portal, "address");
        assert_eq!(place.as_deref(), Some("portal/here.address"));
    }

    #[test]
    fn an_error_in_a_document_names_its_line_object_and_key() {
        for (text, is_json, line, reported) in [
            (
                "[[volume]]\nname = \"x\"\nsize = \"big\"",
                false,
                Some(3),
                "volume/x.size: \"big\" is not a size",
            ),
            (
                "[[volume]]\nname = \"x\"\nsise = 1",
                false,
                Some(3),
                "volume/x.sise: unknown key sise; did you mean size?",
            ),
            ("[limits]\n\nsessions = 0", false, Some(3), "limits/.sessions: \"0\" is not a number"),
            ("volumes = []", false, Some(1), "volumes: unknown key volumes; did you mean volume?"),
            ("[[volume]]\nname = ", false, None, "line 2"),
            (
                r#"{ "volume": [{ "name": "x", "size": "big" }] }"#,
                true,
                None,
                "volume/x.size: \"big\" is not a size",
            ),
        ] {
            let (found, message) = parse_document(text, is_json).expect_err(text);
            assert_eq!(found, line, "{message}");
            assert!(message.contains(reported), "{message}");
        }
    }

    #[test]
    fn quoted_text_is_truncated() {
        let long = "x".repeat(1 << 20);
        let reported =
            from_json::<Volume>(format!("{{ \"{long}\": 1 }}").as_bytes()).expect_err("long");
        assert!(reported.to_string().len() < 3 * SHOWN, "{} bytes", reported.to_string().len());
    }
}
