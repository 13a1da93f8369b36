//! The texts of documents for types of other crates, and words.

use std::collections::BTreeMap;
use std::str::FromStr;

use sarsen_block::BlockSize;
use sarsen_initiator::PathSelector;
use sarsen_initiator::transfer::ImageFormat;
use sarsen_io::cores::FileEngine;
use sarsen_io::spin::Spin;
use sarsen_pool::Tier;
use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_scsi::{AccessState, Alua, Designator, Naa, ProtectionType};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::cache_mode::CacheMode;
use super::names::nearest;
use super::volume::StoreKind;
use super::{text, values};

/// A type whose values documents write as texts.
pub trait Textual: Sized {
    /// Whether documents write them as numbers.
    const IS_NUMBER: bool = false;

    /// Parses a text. The error says what the text must be.
    fn parse(text: &str) -> Result<Self, String>;

    /// Returns its text.
    fn render(&self) -> String;
}

/// A type whose values documents write as words.
pub trait Words: Copy + PartialEq + 'static {
    /// The words, each with its value.
    const WORDS: &'static [(&'static str, Self)];
    /// Whether the words are numbers.
    const ARE_NUMBERS: bool = false;
}

impl Words for StoreKind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("ram", Self::Ram),
        ("file", Self::File),
        ("null", Self::Null),
        ("iso", Self::Iso),
        ("sg", Self::Sg),
        ("pool", Self::Pool),
        ("remote", Self::Remote),
    ];
}

impl Words for PathSelector {
    const WORDS: &'static [(&'static str, Self)] = &[
        (Self::ServiceTime.name(), Self::ServiceTime),
        (Self::QueueDepth.name(), Self::QueueDepth),
        (Self::RoundRobin.name(), Self::RoundRobin),
    ];
}

impl Words for Tier {
    const WORDS: &'static [(&'static str, Self)] = &[("slow", Self::Slow), ("fast", Self::Fast)];
}

impl Words for CacheMode {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("writeback", Self::WriteBack),
        ("writethrough", Self::WriteThrough),
        ("none", Self::None),
        ("directsync", Self::DirectSync),
        ("unsafe", Self::Unsafe),
    ];
}

/// The formats of images from which volumes are filled.
impl Words for ImageFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("qcow2", Self::Qcow2), ("raw", Self::Raw)];
}

/// A CD has blocks of another size, which no document writes.
impl Words for BlockSize {
    const WORDS: &'static [(&'static str, Self)] = &[("512", Self::B512), ("4096", Self::B4096)];
    const ARE_NUMBERS: bool = true;
}

impl Words for ProtectionType {
    const WORDS: &'static [(&'static str, Self)] =
        &[("1", Self::Type1), ("2", Self::Type2), ("3", Self::Type3)];
    const ARE_NUMBERS: bool = true;
}

impl Words for FileEngine {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("uring", Self::Uring), ("pool", Self::Pool)];
}

impl Words for Spin {
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("never", Self::Never)];
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

/// A value without a word is written as the first one. An error lists the words, and names the nearest.
impl<T: Words> Textual for T {
    const IS_NUMBER: bool = T::ARE_NUMBERS;

    fn parse(text: &str) -> Result<Self, String> {
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
            let hint = nearest(text, words.iter().copied());
            format!("{text:?}: it must be one of {}{hint}", words.join(", "))
        })
    }

    fn render(&self) -> String {
        let found = T::WORDS.iter().find(|(_, known)| known == self);
        found.or(T::WORDS.first()).map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
}

impl Textual for Naa {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| {
            format!(
                "{text:?}: 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6"
            )
        })
    }

    /// In lower case, as in the links of udev.
    fn render(&self) -> String {
        self.to_string().to_lowercase()
    }
}

impl Textual for Designator {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| {
            format!(
                "{text:?}: write naa:HEX, eui:HEX with 16, 24 or 32 digits, t10:TEXT with the vendor in eight \
                 characters first, or name:TEXT"
            )
        })
    }

    fn render(&self) -> String {
        self.to_string()
    }
}

/// A value that serde reads and writes as its text.
struct Text<T>(T);

impl<T: Textual> FromStr for Text<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        T::parse(text).map(Self)
    }
}

impl<T: Textual> Serialize for Text<&T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(self.0, serializer)
    }
}

impl<'de, T: Textual> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if T::IS_NUMBER {
            return text::parsed(deserializer);
        }
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

pub(crate) fn serialize<T: Textual, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let text = value.render();
    match text.parse() {
        Ok(number) if T::IS_NUMBER => serializer.serialize_u64(number),
        _ => serializer.serialize_str(&text),
    }
}

pub(crate) fn deserialize<'de, T: Textual, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Text::deserialize(deserializer)?.0)
}

/// For an optional value.
pub(crate) mod option {
    use super::*;

    pub(crate) fn serialize<T: Textual, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Text).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: Textual, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(Option::<Text<T>>::deserialize(deserializer)?.map(|text| text.0))
    }
}

/// For a list of values.
pub(super) mod list {
    use super::*;

    pub(in super::super) fn serialize<T: Textual, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(Text))
    }

    pub(in super::super) fn deserialize<'de, T: Textual, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        Ok(text::list::<Text<T>, D>(deserializer)?.into_iter().map(|text| text.0).collect())
    }
}

/// For a table of values by the number of a portal group.
pub(super) mod by_group {
    use super::*;

    pub(in super::super) fn serialize<T: Textual, S: Serializer>(
        values: &BTreeMap<u16, T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values.iter().map(|(group, value)| (group, Text(value))))
    }

    pub(in super::super) fn deserialize<'de, T: Textual, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u16, T>, D::Error> {
        let texts: BTreeMap<u16, Text<T>> = values::by_group(deserializer)?;
        Ok(texts.into_iter().map(|(group, text)| (group, text.0)).collect())
    }
}
