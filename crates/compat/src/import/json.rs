//! A reader of JSON objects that reports each unused field.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::draft::Draft;

/// An object and its path.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    pub(super) place: String,
    taken: BTreeSet<&'a str>,
}

impl<'a> Fields<'a> {
    /// None for a value that is not an object.
    pub(super) fn of(value: &'a Value, place: String) -> Option<Self> {
        value.as_object().map(|map| Self { map, place, taken: BTreeSet::new() })
    }

    fn take(&mut self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.taken.insert(key);
        Some(value).filter(|value| !value.is_null())
    }

    /// Takes a text, or a number as a text.
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        self.take(key).and_then(as_text)
    }

    /// Takes a text that is not empty.
    pub(super) fn filled(&mut self, key: &str) -> Option<String> {
        self.text(key).filter(|text| !text.is_empty() && text != "NULL")
    }

    /// Takes a number, or a text with a number.
    pub(super) fn number(&mut self, key: &str) -> Option<u64> {
        self.take(key).and_then(as_number)
    }

    /// Takes a boolean, or a number as a boolean.
    pub(super) fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.take(key)?;
        value.as_bool().or_else(|| as_number(value).map(|number| number != 0))
    }

    /// Takes an inner object.
    pub(super) fn object(&mut self, key: &str) -> Option<Self> {
        let place = format!("{}.{key}", self.place);
        self.take(key).and_then(|value| Self::of(value, place))
    }

    /// The objects of a list within; a value that is not an object is told of.
    pub(super) fn list(&mut self, draft: &mut Draft, key: &str) -> Vec<Self> {
        let place = format!("{}.{key}", self.place);
        let Some(value) = self.take(key) else { return Vec::new() };
        let Some(list) = value.as_array() else {
            draft.report_loss(
                &place,
                "a value that is not a list",
                "it is omitted; correct it and import again",
            );
            return Vec::new();
        };
        let mut objects = Vec::new();
        for (index, value) in list.iter().enumerate() {
            let place = format!("{place}[{index}]");
            match Self::of(value, place.clone()) {
                Some(fields) => objects.push(fields),
                None => draft.report_loss(
                    &place,
                    "a value that is not an object",
                    "it is omitted; correct it and import again",
                ),
            }
        }
        objects
    }

    /// Returns the keys of unused fields.
    pub(super) fn rest(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str).filter(|key| !self.taken.contains(key))
    }

    /// Reports every unused field.
    pub(super) fn finish(self, draft: &mut Draft) {
        for key in self.rest() {
            draft.pass_over(&self.place, key);
        }
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn as_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::Bool(flag) => Some(u64::from(*flag)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
