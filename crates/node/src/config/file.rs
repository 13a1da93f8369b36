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
//! store = "file"
//! path = "/srv/data.img"
//! size = "10GiB"
//! cache = "none"
//! # protection = 1
//! # The key is kept in the volume's state, and another one there after SANITIZE's CRYPTOGRAPHIC
//! # ERASE: whoever copies the volume copies its state, too.
//! # encrypted = true
//! # state = "/var/lib/sarsen/data"
//! # For drills: what is to go wrong. A list of strings is several faults.
//! # fault = "lost-write@1234"
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
//! The limits of initiators are in the table `[limits]`: see [`super::Limits`].
//!
//! The crate `serde_ignored` reports an unknown key without its line and without the known keys, which the errors here
//! name.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::BlockSize;
use sarsen_io::cores::FileEngine;
use sarsen_io::spin::Spin;
use sarsen_scsi::ProtectionType;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::CacheMode;
use super::api::parse_api_table;
use super::fault::parse_fault;
use super::identity::IdentityConfig;
use super::isns::parse_isns_table;
use super::{
    AtPlace, Config, ConfigError, Invalid, StoreConfig, VolumeConfig, nearest, parse_portal,
    parse_size,
};
use crate::model::{Key, Milliseconds, ObjectKind, Place, Step, Unit, from_toml_value, qos};

const TOP_KEYS: &[&str] = &[
    "listen",
    "portal",
    "cores",
    "io-engine",
    "spin",
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
const VOLUME_KEYS: &[&str] = &[
    "name",
    "store",
    "path",
    "size",
    "block-size",
    "cache",
    "read-only",
    "removable",
    "serial",
    "naa",
    "designators",
    "vendor",
    "product",
    "revision",
    "protection",
    "encrypted",
    "state",
    "limit",
    "delay",
    "fault",
    "iops",
    "bandwidth",
    "burst",
    "weight",
    "reserved-iops",
];
/// Keys of a volume whose value may be a list in the file. A flag repeats the key instead.
const REPEATED_KEYS: [&str; 2] = ["fault", "designators"];
pub(crate) const STORES: [&str; 5] = ["ram", "file", "null", "iso", "sg"];
pub(crate) const CACHES: [(&str, CacheMode); 5] = [
    ("writeback", CacheMode::WriteBack),
    ("writethrough", CacheMode::WriteThrough),
    ("none", CacheMode::None),
    ("directsync", CacheMode::DirectSync),
    ("unsafe", CacheMode::Unsafe),
];
const PROTECTION_TYPES: [(&str, ProtectionType); 3] =
    [("1", ProtectionType::Type1), ("2", ProtectionType::Type2), ("3", ProtectionType::Type3)];
const ENGINES: [(&str, FileEngine); 3] =
    [("auto", FileEngine::Auto), ("uring", FileEngine::Uring), ("pool", FileEngine::Pool)];
const SPINS: [(&str, Spin); 2] = [("auto", Spin::Auto), ("never", Spin::Never)];

/// A key with its value as text and its place, from the file or from a flag.
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: String,
}

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
                config.io_engine = parse_engine(&text).at(&place)?;
            }
            "spin" => {
                let text = source.scalar(value, name)?;
                config.spin = parse_spin(&text).at(&place)?;
            }
            "volume" => {
                for (settings, place) in source.tables(value, name)? {
                    config.volumes.push(volume_from_settings(settings, &place)?);
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

/// Parses `auto`, `uring` or `pool`.
pub fn parse_engine(text: &str) -> Result<FileEngine, String> {
    choose("io-engine", text, &ENGINES)
}

/// Parses `auto` or `never`.
pub fn parse_spin(text: &str) -> Result<Spin, String> {
    choose("spin", text, &SPINS)
}

/// Parses `writeback`, `writethrough`, `none`, `directsync` or `unsafe`.
pub fn parse_cache(text: &str) -> Result<CacheMode, String> {
    choose("cache", text, &CACHES)
}

pub(super) fn choose<T: Copy>(
    key: &str,
    text: &str,
    choices: &[(&'static str, T)],
) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let hint = nearest(text, names.iter().copied());
        format!("{key} = {text:?}: it must be one of {}{hint}", names.join(", "))
    })
}

pub(super) fn unknown_key(place: &str, key: &str, known: &[&str]) -> ConfigError {
    let hint = nearest(key, known.iter().copied());
    ConfigError::new(place, format!("unknown key {key}{hint} (known: {})", known.join(", ")))
}

pub(super) fn parse_truth(key: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{key} = {value}: write true or false"))
}

/// Creates a volume from its settings, from the file or from a flag.
pub(super) fn volume_from_settings(
    settings: Vec<Setting>,
    place: &str,
) -> Result<VolumeConfig, ConfigError> {
    let (mut name, mut store, mut path, mut size, mut cache) = (None, None, None, None, None);
    let (mut block_size, mut read_only, mut removable) = (None, None, None);
    let mut identity = IdentityConfig::default();
    let mut protection = None;
    let mut encrypted = None;
    let mut state = None;
    let mut limit = None;
    let mut delay = None;
    let mut faults = Vec::new();
    let (mut iops, mut bandwidth, mut burst) = (None, None, None);
    let (mut weight, mut reserved_iops) = (None, None);
    let mut size_place = place.to_owned();
    let places: BTreeMap<String, String> =
        settings.iter().map(|setting| (setting.key.clone(), setting.place.clone())).collect();
    for Setting { key, value, place } in settings {
        match key.as_str() {
            "name" => name = Some(value),
            "store" => {
                let stores = STORES.map(|name| (name, name));
                store = Some(choose("store", &value, &stores).at(&place)?);
            }
            "path" => path = Some(value),
            "size" => {
                size = Some(parse_size(&value).at(&place)?);
                size_place = place;
            }
            "cache" => cache = Some((choose("cache", &value, &CACHES).at(&place)?, place)),
            "block-size" => {
                block_size = match value.as_str() {
                    "512" => Some(BlockSize::B512),
                    "4096" => Some(BlockSize::B4096),
                    _ => {
                        let message = format!("block-size = {value}: write 512 or 4096");
                        return Err(ConfigError::new(place, message));
                    }
                }
            }
            "read-only" => read_only = Some(parse_truth(&key, &value).at(&place)?),
            "removable" => removable = Some(parse_truth(&key, &value).at(&place)?),
            "serial" | "naa" | "designators" | "vendor" | "product" | "revision" => {
                identity.take(&key, value).at(&place)?;
            }
            "protection" => {
                protection = Some(choose("protection", &value, &PROTECTION_TYPES).at(&place)?);
            }
            "encrypted" => {
                encrypted = Some((parse_truth(&key, &value).at(&place)?, place));
            }
            "state" => state = Some((value, place)),
            "limit" => limit = Some((parse_size(&value).at(&place)?, place)),
            "delay" => delay = Some(parse_delay(&value).at(&place)?),
            "fault" => faults.push(parse_fault(&value).at(&place)?),
            "iops" => iops = Some(value.parse().at(&place)?),
            "bandwidth" => bandwidth = Some(value.parse().at(&place)?),
            "burst" => burst = Some(value.parse().at(&place)?),
            "weight" => weight = Some(value.parse().at(&place)?),
            "reserved-iops" => reserved_iops = Some(value.parse().at(&place)?),
            _ => return Err(unknown_key(&place, &key, VOLUME_KEYS)),
        }
    }
    let missing = |key| ConfigError::missing(place, "the volume", key);
    let qos = qos::rates(iops, bandwidth, burst, weight, reserved_iops);
    qos::check(&qos).map_err(|error| ConfigError::new(&places[&error.field], error.message))?;
    let name = name.ok_or_else(|| missing("name"))?;
    let store = store.unwrap_or("file");
    let is_device = store == "sg";
    if is_device || store == "iso" {
        let given = [
            ("size", size.is_some()),
            ("cache", cache.is_some()),
            ("block-size", block_size.is_some()),
            ("state", state.is_some()),
            ("limit", limit.is_some()),
            ("protection", protection.is_some()),
            ("encrypted", encrypted.is_some()),
            ("read-only", read_only == Some(false) || is_device && read_only.is_some()),
            ("removable", removable == Some(false) || is_device && removable.is_some()),
            ("serial", is_device && identity.serial.is_some()),
            ("naa", is_device && identity.naa.is_some()),
            ("designators", is_device && identity.designators.is_some()),
            ("vendor", is_device && identity.vendor.is_some()),
            ("product", is_device && identity.product.is_some()),
            ("revision", is_device && identity.revision.is_some()),
            ("delay", is_device && delay.is_some()),
            ("fault", is_device && !faults.is_empty()),
        ];
        if let Some((key, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let why = if is_device {
                "a real device has its own properties"
            } else {
                "a CD is read-only and removable, and has the blocks of 2048 bytes of its image"
            };
            return Err(ConfigError::new(&places[*key], format!("{key}: {why}: remove it")));
        }
        let path = path.ok_or_else(|| missing("path"))?.into();
        let (store, block_size) = if is_device {
            (StoreConfig::Sg { path }, BlockSize::default())
        } else {
            (StoreConfig::Iso { path }, BlockSize::B2048)
        };
        let (read_only, removable) = (!is_device, !is_device);
        return Ok(VolumeConfig {
            name,
            store,
            block_size,
            read_only,
            removable,
            identity,
            protection,
            delay,
            encrypted: false,
            faults,
            qos,
        });
    }
    let block_size = block_size.unwrap_or_default();
    let (read_only, removable) = (read_only.unwrap_or(false), removable.unwrap_or(false));
    if let Some(size) = size
        && (size == 0 || !size.is_multiple_of(block_size.bytes() as u64))
    {
        let message = format!(
            "size = {size} bytes: it must be a multiple of the block size, {}, and not zero",
            block_size.bytes()
        );
        return Err(ConfigError::new(size_place, message));
    }
    if let Some((_, place)) = &state
        && (store != "file" || read_only)
    {
        let message = "only a writable file volume has a state folder; remove the key";
        return Err(ConfigError::new(place, message));
    }
    if let Some((_, place)) = &limit
        && store != "ram"
    {
        return Err(ConfigError::new(place, "only a RAM volume has a limit; remove the key"));
    }
    if protection.is_some() && store == "null" {
        let message = "a null volume stores no protection information; remove the key";
        return Err(ConfigError::new(place, message));
    }
    let encrypted = match &encrypted {
        Some((true, place)) => {
            check_encrypted(store, read_only, protection, place)?;
            true
        }
        Some((false, _)) | None => false,
    };
    let store = match store {
        "file" => StoreConfig::File {
            path: path.ok_or_else(|| missing("path"))?.into(),
            size,
            cache: cache.map_or(CacheMode::WriteBack, |(mode, _)| mode),
            state: state.map(|(folder, _)| folder.into()),
        },
        _ if cache.is_some() => {
            let place = cache.map_or(String::new(), |(_, place)| place);
            return Err(ConfigError::new(
                place,
                "only a file volume has a cache mode; remove the key",
            ));
        }
        _ if path.is_some() => {
            return Err(ConfigError::new(place, "only a file volume has a path; remove the key"));
        }
        "ram" => StoreConfig::Ram {
            size: size.ok_or_else(|| missing("size"))?,
            limit: limit.map(|(limit, _)| limit),
        },
        _ => StoreConfig::Null { size: size.ok_or_else(|| missing("size"))? },
    };
    Ok(VolumeConfig {
        name,
        store,
        block_size,
        read_only,
        removable,
        identity,
        protection,
        delay,
        encrypted,
        faults,
        qos,
    })
}

/// Parses `20ms` or `2s`.
fn parse_delay(text: &str) -> Result<Duration, String> {
    Milliseconds::parse(text)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("delay = {text:?}: write a duration in ms or s, such as 20ms or 2s"))
}

/// Rejects volumes that cannot be encrypted.
fn check_encrypted(
    store: &str,
    read_only: bool,
    protection: Option<ProtectionType>,
    place: &str,
) -> Result<(), ConfigError> {
    let message = match store {
        "null" => "encrypted: a null volume stores nothing; remove the key",
        "file" if read_only => {
            "encrypted: a read-only file volume has no state folder for the key; remove read-only"
        }
        _ if protection.is_some() => {
            "encrypted: protection information cannot be encrypted; remove one of the two keys"
        }
        _ => return Ok(()),
    };
    Err(ConfigError::new(place, message))
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

    /// Returns a list of tables, each as settings with its place.
    fn tables(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
    ) -> Result<Vec<(Vec<Setting>, String)>, ConfigError> {
        let table_settings = |item: &Spanned<DeValue<'_>>| {
            let place = self.place(item.span().start);
            let Some(table) = item.get_ref().as_table() else {
                let wanted = format!("a list of tables: write [[{key}]]");
                return Err(self.wrong_type(item, key, &wanted));
            };
            Ok((self.settings(table)?, place))
        };
        self.array(value, key)?.map(table_settings).collect()
    }

    fn settings(&self, table: &DeTable<'_>) -> Result<Vec<Setting>, ConfigError> {
        let mut settings = Vec::new();
        for (key, value) in table {
            let name = key.get_ref().to_string();
            if REPEATED_KEYS.contains(&name.as_str()) {
                let values = self.strings(value, &name)?.into_iter();
                settings.extend(values.map(|(value, place)| {
                    let key = name.clone();
                    Setting { key, value, place }
                }));
                continue;
            }
            let place = self.place(key.span().start);
            settings.push(Setting { value: self.scalar(value, &name)?, key: name, place });
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests;
