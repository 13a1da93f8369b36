//! JSON as one of our types. What does not fit is told by its key: who wrote `iops=abc` has never seen a line and
//! a column.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why JSON is not what it is to be.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", .key.as_ref().map_or(String::new(), |key| format!("{key}: ")))]
pub struct Misfit {
    /// The key whose value is wrong: `volume[3].iops`.
    pub key: Option<String>,
    /// What is wrong with it.
    pub message: String,
}

/// Text of JSON as a `T`.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Misfit> {
    serde_json::from_slice(text).map_err(|error| misfit::<T>(text, &error))
}

/// Looks at it again, more slowly, for the key.
fn misfit<T: DeserializeOwned>(text: &[u8], error: &serde_json::Error) -> Misfit {
    let again = serde_json::from_slice::<Value>(text).ok();
    match again.map(serde_path_to_error::deserialize::<_, T>) {
        Some(Err(error)) => {
            let key = error.path().to_string();
            // The whole is called a dot.
            Misfit { key: (key != ".").then_some(key), message: error.inner().to_string() }
        }
        // It is no JSON, or says something twice: there a line tells more.
        None | Some(Ok(_)) => Misfit { key: None, message: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::{Document, Target, Volume};
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_by_its_key() {
        let told = |text: &str| from_json::<Volume>(text.as_bytes()).expect_err(text).to_string();
        assert_eq!(
            told(r#"{ "name": "a", "iops": "abc" }"#),
            "iops: invalid type: string \"abc\", expected u64"
        );
        assert_eq!(told(r#"{ "name": "a", "size": true }"#), "size: write a number or a text");
        assert!(told(r#"{ "name": "a", "sise": 1 }"#).starts_with("sise: unknown field `sise`"));
        assert_eq!(told("{}"), "missing field `name`");
        assert_eq!(told("{ \"name\": "), "EOF while parsing a value at line 1 column 10");
        let twice = told(r#"{ "name": "a", "name": "b" }"#);
        assert_eq!(twice, "duplicate field `name` at line 1 column 21");
        let deep = r#"{ "volume": [{ "name": "a" }, { "name": "b", "read-only": 1 }] }"#;
        let deep = from_json::<Document>(deep.as_bytes()).expect_err("no truth");
        assert_eq!(deep.key.as_deref(), Some("volume[1].read-only"));
        let luns = from_json::<Target>(br#"{ "name": "t", "luns": 3 }"#).expect_err("no table");
        assert_eq!(luns.to_string(), "luns: write a list of volumes, or a table of volumes by LUN");
    }
}
