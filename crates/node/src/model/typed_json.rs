//! Conversion of JSON into types of this program. An error names the key that does not fit: a caller that passed
//! `iops=abc` knows no line and column.

use serde::de::DeserializeOwned;

/// Maximum bytes of a key or a message that are shown. Both repeat the client's text, which may have any length.
const SHOWN: usize = 500;

/// The reason why JSON does not fit its type.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", .key.as_ref().map_or(String::new(), |key| format!("{key}: ")))]
pub struct JsonMismatch {
    /// The key whose value is wrong: `volume[3].iops`.
    pub key: Option<String>,
    /// The problem of its value.
    pub message: String,
}

/// Parses the text of JSON as a `T`.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, JsonMismatch> {
    serde_json::from_slice(text).map_err(|error| misfit::<T>(text, error))
}

/// Parses the text again, more slowly, to find the key. This builds a `T` up to the error, not a tree of values, which
/// takes a hundred times the length of the text.
fn misfit<T: DeserializeOwned>(text: &[u8], error: serde_json::Error) -> JsonMismatch {
    // For invalid JSON there is no key; its line is more useful.
    if !error.is_data() {
        return JsonMismatch { key: None, message: error.to_string() };
    }
    let mut text = serde_json::Deserializer::from_slice(text);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut text) else {
        return JsonMismatch { key: None, message: error.to_string() };
    };
    let key = error.path().to_string();
    let error = error.into_inner();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = error.to_string();
    let message = message.strip_suffix(&place).unwrap_or(&message);
    // A path of a single dot denotes the whole document.
    JsonMismatch { key: (key != ".").then(|| shown(&key)), message: shown(message) }
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
    use super::super::document::{Document, Target, Volume};
    use super::*;

    #[test]
    fn type_error_names_its_key() {
        let reported =
            |text: &str| from_json::<Volume>(text.as_bytes()).expect_err(text).to_string();
        assert_eq!(
            reported(r#"{ "name": "a", "iops": "abc" }"#),
            "iops: invalid type: string \"abc\", expected u64"
        );
        assert_eq!(
            reported(r#"{ "name": "a", "size": true }"#),
            "size: invalid type: boolean `true`, expected a number or a text"
        );
        assert!(
            reported(r#"{ "name": "a", "sise": 1 }"#).starts_with("sise: unknown field `sise`")
        );
        assert_eq!(reported("{}"), "missing field `name`");
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
            reported.starts_with("luns") && reported.ends_with("\"x\" is no LUN"),
            "{reported}"
        );
    }

    #[test]
    fn quoted_text_is_truncated() {
        let long = "x".repeat(1 << 20);
        let reported =
            from_json::<Volume>(format!("{{ \"{long}\": 1 }}").as_bytes()).expect_err("long");
        assert!(reported.to_string().len() < 3 * SHOWN, "{} bytes", reported.to_string().len());
    }
}
