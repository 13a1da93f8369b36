//! Words of documents for types of other crates.

use std::collections::BTreeMap;
use std::str::FromStr;

use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_scsi::{AccessState, Alua};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::nearest;
use super::{text, values};

/// A type whose values documents write as words.
pub(crate) trait Words: Copy + PartialEq + 'static {
    /// The words, each with its value.
    const WORDS: &'static [(&'static str, Self)];
}

impl Words for AccessState {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("optimized", Self::Optimized),
        ("non-optimized", Self::NonOptimized),
        ("standby", Self::Standby),
        ("unavailable", Self::Unavailable),
        ("offline", Self::Offline),
    ];
}

impl Words for Alua {
    const WORDS: &'static [(&'static str, Self)] =
        &[("both", Self::Both), ("implicit", Self::Implicit)];
}

impl Words for Algorithm {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("sha3-256", Self::Sha3),
        ("sha-256", Self::Sha256),
        ("sha1", Self::Sha1),
        ("md5", Self::Md5),
    ];
}

/// Returns the word of a value. A value without a word is written as the first one.
pub(crate) fn word<T: Words>(value: T) -> &'static str {
    let found = T::WORDS.iter().find(|(_, known)| *known == value);
    found.or(T::WORDS.first()).map_or("", |(word, _)| word)
}

/// Returns the value of a word. An error lists the words, and names the nearest.
pub(crate) fn parse<T: Words>(text: &str) -> Result<T, String> {
    let found = T::WORDS.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        let hint = nearest(text, words.iter().copied());
        format!("{text:?}: it must be one of {}{hint}", words.join(", "))
    })
}

/// A value that serde reads and writes as its word.
struct Word<T>(T);

impl<T: Words> FromStr for Word<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self)
    }
}

impl<T: Words> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(word(self.0))
    }
}

impl<'de, T: Words> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::parsed(deserializer)
    }
}

/// For an optional word.
pub(super) mod option {
    use super::*;

    pub(in super::super) fn serialize<T: Words, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Word).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, T: Words, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(Option::<Word<T>>::deserialize(deserializer)?.map(|word| word.0))
    }
}

/// For a list of words.
pub(super) mod list {
    use super::*;

    pub(in super::super) fn serialize<T: Words, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| word(*value)))
    }

    pub(in super::super) fn deserialize<'de, T: Words, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        Ok(text::list::<Word<T>, D>(deserializer)?.into_iter().map(|word| word.0).collect())
    }
}

/// For a table of words by the number of a portal group.
pub(super) mod by_group {
    use super::*;

    pub(in super::super) fn serialize<T: Words, S: Serializer>(
        values: &BTreeMap<u16, T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values.iter().map(|(group, value)| (group, word(*value))))
    }

    pub(in super::super) fn deserialize<'de, T: Words, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u16, T>, D::Error> {
        let words: BTreeMap<u16, Word<T>> = values::by_group(deserializer)?;
        Ok(words.into_iter().map(|(group, word)| (group, word.0)).collect())
    }
}
