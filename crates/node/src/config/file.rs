//! The TOML file. Every error names file, line, key and remedy.
//!
//! ```toml
//! listen = ["10.0.0.1:3260", "10.0.1.1:3260,2"]
//! # Where `sarsen session` and `sarsen target` reach the server.
//! # control = "/run/sarsen/control.sock"
//! # Where the server keeps what it remembers of itself: its events.
//! # state = "/var/lib/sarsen"
//!
//! # The name server where initiators look for targets; entity is this server's name there, and at
//! # notice-port of each portal's address it may ask whether this server lives.
//! # isns = { server = "isns.example", entity = "san1.example", notice-port = 3206 }
//!
//! [[volume]]
//! name = "data"
//! path = "/srv/data.img"
//! size = "10GiB"
//!
//! [[target]]
//! name = "iqn.2026-11.example:disks"
//! luns = ["data"]
//!
//! # [[account]]
//! # name = "host"
//! # secret-file = "/etc/sarsen/host.secret"  # or secret-env = "HOST_SECRET"
//! ```
//!
//! The keys of each object are those of its struct in `model`.
//!
//! The crate `serde_ignored` reports an unknown key without its line and without the known keys, which the errors here
//! name.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::api::parse_api_table;
use super::isns::parse_isns_table;
use super::{AtPlace, Config, ConfigError, Invalid, VolumeConfig, nearest, parse_portal};
use crate::model::{Key, ObjectKind, Place, Step, Textual, from_toml_value};

const TOP_KEYS: &[&str] = &[
    "listen",
    "portal",
    "cores",
    "io-engine",
    "spin",
    "pool",
    "volume",
    "target",
    "control",
    "account",
    "host",
    "discovery",
    "isns",
    "limits",
    "api",
    "state",
];

/// Parses the text of a configuration file; `path` is for messages. The caller must then call [`Config::finish`].
pub fn parse_file(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let source = Arc::new(Source::new(path, text));
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError::new(source.place(offset), error.message().to_owned())
    })?;
    let mut config = Config { source: Some(source.clone()), ..Config::default() };
    let source = &*source;
    for (key, value) in table.get_ref() {
        let name: &str = key.get_ref();
        let place = source.place(key.span().start);
        match name {
            "listen" => {
                for (text, place) in source.strings(value, name)? {
                    config.listen.push(parse_portal(&text).at(place)?);
                }
            }
            "portal" => config.listen.extend(source.objects(value, name)?),
            "cores" => {
                let text = source.scalar(value, name)?;
                let cores = text.parse::<NonZeroUsize>();
                let cores = cores.map_err(|_| format!("cores = {text}: write a number from 1 on"));
                config.cores = Some(cores.at(&place)?);
            }
            "state" => config.state = Some(source.scalar(value, name)?.into()),
            "control" => config.control = Some(source.scalar(value, name)?.into()),
            "isns" => config.isns = Some(parse_isns_table(source, value)?),
            "io-engine" => {
                let text = source.scalar(value, name)?;
                config.io_engine = Textual::parse(&text).map_err(of_key(name)).at(&place)?;
            }
            "spin" => {
                let text = source.scalar(value, name)?;
                config.spin = Textual::parse(&text).map_err(of_key(name)).at(&place)?;
            }
            "pool" => config.pools = source.objects(value, name)?,
            "volume" => {
                let volumes: Vec<VolumeConfig> = source.objects(value, name)?;
                config.volumes =
                    volumes.into_iter().map(VolumeConfig::with_implied_store).collect();
                for (volume, table) in config.volumes.iter().zip(source.array(value, name)?) {
                    source.check_device_keys(volume, table)?;
                }
            }
            "account" => {
                source.refuse_secrets(value)?;
                config.accounts = source.objects(value, name)?;
            }
            "host" => config.hosts = source.objects(value, name)?,
            "discovery" => {
                config.discovery = source.object(value, name)?;
                source.refuse_empty_lists(value)?;
            }
            "target" => {
                config.targets = source.objects(value, name)?;
                for table in source.array(value, name)? {
                    source.refuse_empty_lists(table)?;
                }
            }
            "api" => config.api = Some(parse_api_table(source, value)?),
            "limits" => config.limits = source.object(value, name)?,
            _ => return Err(unknown_key(&place, name, TOP_KEYS)),
        }
    }
    Ok(config)
}

/// Returns the function that names the key of a value.
fn of_key(key: &str) -> impl FnOnce(String) -> String {
    move |message| format!("{key} = {message}")
}

pub(super) fn unknown_key(place: &str, key: &str, known: &[&str]) -> ConfigError {
    let hint = nearest(key, known.iter().copied());
    ConfigError::new(place, format!("unknown key {key}{hint} (known: {})", known.join(", ")))
}

/// The text of a file, for the places of errors.
#[derive(PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    text: String,
    /// Offsets of the line ends. The places of all values of ten thousand volumes are looked up here.
    line_ends: Vec<usize>,
}

/// Lists of which an empty one has two meanings, each with the remedy.
const NEVER_EMPTY: [(&str, &str); 3] = [
    ("chap", "name accounts, or remove the key if no authentication is required"),
    ("algorithms", "name at least one, or remove the key for all of them"),
    (
        "allow",
        "write [[target.allow]] for each permitted initiator, or remove the key to permit every initiator",
    ),
];

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.path).finish()
    }
}

impl Source {
    fn new(path: &Path, text: &str) -> Self {
        let line_ends = text.match_indices('\n').map(|(offset, _)| offset).collect();
        Self { path: path.to_owned(), text: text.to_owned(), line_ends }
    }

    /// Returns `file:line` of a byte.
    pub(super) fn place(&self, offset: usize) -> String {
        let ended = self.line_ends.partition_point(|&end| end < offset);
        format!("{}:{}", self.path.display(), ended + 1)
    }

    /// Returns an error in an object, with its line if the file has the object.
    pub(super) fn error(source: Option<&Self>, invalid: Invalid) -> ConfigError {
        let place = invalid.key.as_ref().and_then(|key| source?.place_of(key, &invalid.field));
        match place {
            Some(place) => ConfigError::new(place, invalid.message),
            None => invalid.into(),
        }
    }

    /// Returns the place of a field. Of several objects with the same name, the last one counts.
    fn place_of(&self, key: &Key, field: &str) -> Option<String> {
        let table = DeTable::parse(&self.text).ok()?;
        let value = table.get_ref().get(key.kind.word())?;
        let mut steps = Place::of_field(field);
        if let Some(objects) = value.get_ref().as_array() {
            let name = if key.kind == ObjectKind::Portal { "address" } else { "name" };
            let is_it = |object: &Spanned<DeValue<'_>>| {
                let named = object.get_ref().as_table().and_then(|table| table.get(name));
                named.and_then(|value| value.get_ref().as_str()) == Some(key.name.as_str())
            };
            steps.0.insert(0, Step::Index(objects.iter().rposition(is_it)?));
        }
        Some(self.place(steps.offset(value)))
    }

    /// Parses an object.
    fn object<T: DeserializeOwned>(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
    ) -> Result<T, ConfigError> {
        if value.get_ref().as_table().is_none() {
            return Err(self.wrong_type(value, key, &format!("a table: write [{key}]")));
        }
        from_toml_value(value)
            .map_err(|(offset, message)| ConfigError::new(self.place(offset), message))
    }

    /// Parses a list of objects.
    fn objects<T: DeserializeOwned>(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
    ) -> Result<Vec<T>, ConfigError> {
        let object = |item: &Spanned<DeValue<'_>>| {
            if item.get_ref().as_table().is_none() {
                let wanted = format!("a list of tables: write [[{key}]]");
                return Err(self.wrong_type(item, key, &wanted));
            }
            self.object(item, key)
        };
        self.array(value, key)?.map(object).collect()
    }

    /// Refuses keys that a real device, or a CD, does not have, even if their value is `false`.
    fn check_device_keys(
        &self,
        volume: &VolumeConfig,
        table: &Spanned<DeValue<'_>>,
    ) -> Result<(), ConfigError> {
        if !volume.is_device() {
            return Ok(());
        }
        let fields = from_toml_value(table).unwrap_or_default();
        volume.check_device_keys(&fields).map_err(|error| {
            let offset = Place::of_field(&error.field).offset(table);
            ConfigError::new(self.place(offset), error.message)
        })
    }

    /// Refuses secrets: a configuration file is displayed and copied.
    fn refuse_secrets(&self, accounts: &Spanned<DeValue<'_>>) -> Result<(), ConfigError> {
        let tables = accounts.get_ref().as_array().into_iter().flat_map(|list| list.iter());
        let keys =
            tables.filter_map(|item| item.get_ref().as_table()).flat_map(|table| table.keys());
        match keys.into_iter().find(|key| key.get_ref() == "secret") {
            Some(key) => Err(ConfigError::new(
                self.place(key.span().start),
                "secret: this file may not contain secrets; write secret-file = PATH or secret-env = NAME",
            )),
            None => Ok(()),
        }
    }

    /// Refuses empty lists of rules.
    fn refuse_empty_lists(&self, value: &Spanned<DeValue<'_>>) -> Result<(), ConfigError> {
        let Some(table) = value.get_ref().as_table() else { return Ok(()) };
        for (key, remedy) in NEVER_EMPTY {
            if let Some(list) = table.get(key)
                && list.get_ref().as_array().is_some_and(|list| list.is_empty())
            {
                let place = self.place(list.span().start);
                return Err(ConfigError::new(place, format!("{key} = []: {remedy}")));
            }
        }
        Ok(())
    }

    pub(super) fn wrong_type(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
        wanted: &str,
    ) -> ConfigError {
        ConfigError::new(self.place(value.span().start), format!("{key} is to be {wanted}"))
    }

    /// Returns a string, number or boolean as text.
    pub(super) fn scalar(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
    ) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => Ok(number.to_string()),
            DeValue::Boolean(value) => Ok(value.to_string()),
            _ => Err(self.wrong_type(value, key, "a string, a number or true or false")),
        }
    }

    pub(super) fn array<'v, 'i>(
        &self,
        value: &'v Spanned<DeValue<'i>>,
        key: &str,
    ) -> Result<impl Iterator<Item = &'v Spanned<DeValue<'i>>>, ConfigError> {
        match value.get_ref().as_array() {
            Some(array) => Ok(array.iter()),
            None => Err(self.wrong_type(value, key, "a list")),
        }
    }

    /// Returns a list of strings (or one string), each with its place.
    pub(super) fn strings(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
    ) -> Result<Vec<(String, String)>, ConfigError> {
        if let DeValue::String(text) = value.get_ref() {
            return Ok(vec![(text.to_string(), self.place(value.span().start))]);
        }
        self.array(value, key)?
            .map(|item| Ok((self.scalar(item, key)?, self.place(item.span().start))))
            .collect()
    }
}

#[cfg(test)]
mod tests;
