//! Errors in objects.

use super::Key;

/// An error in an object: its place, the problem and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", self.place().map_or_else(String::new, |place| format!("{place}: ")))]
pub struct Invalid {
    /// The object; `None` for an error in the objects together.
    pub key: Option<Key>,
    /// The path of the field in the object, such as `size` or `allow[0].host`; empty for the whole object.
    pub field: String,
    /// The problem and its remedy.
    pub message: String,
}

impl Invalid {
    /// Creates an error in a field of an object.
    pub(crate) fn new(key: Key, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: Some(key), field: field.into(), message: message.into() }
    }

    /// Creates an error in the objects together.
    pub(crate) fn of_all(message: impl Into<String>) -> Self {
        Self { key: None, field: String::new(), message: message.into() }
    }

    /// Returns the object and its field: `volume/data.size`. A value of a list is reported as the list.
    pub fn place(&self) -> Option<String> {
        let key = self.key.as_ref()?;
        let list = self.field.strip_suffix(']').and_then(|field| field.rsplit_once('['));
        let field = list.map_or(self.field.as_str(), |(list, _)| list);
        Some(if field.is_empty() { key.to_string() } else { format!("{key}.{field}") })
    }
}

/// An error in a field of an object that is not named yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    /// The path of the field; empty for the whole object.
    pub(crate) field: String,
    /// The problem and its remedy.
    pub(crate) message: String,
}

impl FieldError {
    /// Creates an error in a field.
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// Names the object.
    pub(crate) fn of(self, key: Key) -> Invalid {
        Invalid::new(key, self.field, self.message)
    }
}
