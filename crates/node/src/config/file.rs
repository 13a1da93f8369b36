//! The TOML file. Every error names file, line, key and remedy.
//!
//! ```toml
//! # A portal may name its portal group, 1 unless given: portals of one group are one way to the
//! # targets.
//! listen = ["10.0.0.1:3260", "10.0.1.1:3260,2"]
//! # Portals that are reached by TLS are tables: see `tls`.
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
//! luns = ["data"]  # LUN 0, 1, …; or by number: { 0 = "data", 5 = "more" }
//! # How initiators reach it by portal group, and which group they are to prefer: optimized (unless
//! # given), non-optimized, standby, unavailable or offline. Where an initiator changes it (SET TARGET
//! # PORT GROUPS), the change holds until the program ends.
//! access = { 1 = "optimized", 2 = "non-optimized" }
//! preferred = 1
//! # Initiators cannot change it; "both" unless given.
//! # alua = "implicit"
//! # It is reached through these portal groups alone.
//! # groups = [1, 2]
//! # Initiators are sent on when they log in; permanent unless they are to ask here again.
//! # redirect = { address = "san2.example:3260", permanent = true }
//! # Who may log in to it: see `access`.
//! # chap = ["host"]
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

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{self, Path};
use std::time::Duration;

use sarsen_block::BlockSize;
use sarsen_io::cores::FileEngine;
use sarsen_io::spin::Spin;
use sarsen_scsi::{AccessState, Alua, ProtectionType};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::CacheMode;
use super::access::{self, AccessConfig, parse_discovery};
use super::account::account_from_settings;
use super::api::parse_api_table;
use super::fault::parse_fault;
use super::host::parse_host_table;
use super::identity::IdentityConfig;
use super::isns::parse_isns_table;
use super::limits::{Limits, parse_time};
use super::portal::{parse_group, parse_portal, parse_portal_table};
use super::qos::{self, QosConfig};
use super::redirect::parse_redirect;
use super::{
    AtPlace, Config, ConfigError, LARGEST_LUN, StoreConfig, TargetConfig, VolumeConfig, nearest,
    parse_size,
};

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
const TARGET_KEYS: &[&str] =
    &["name", "alias", "tid", "luns", "access", "preferred", "alua", "groups", "redirect"];
/// The access states that a group can be set to.
pub(crate) const ACCESS_STATES: [(&str, AccessState); 5] = [
    ("optimized", AccessState::Optimized),
    ("non-optimized", AccessState::NonOptimized),
    ("standby", AccessState::Standby),
    ("unavailable", AccessState::Unavailable),
    ("offline", AccessState::Offline),
];
/// The parties that change access states.
pub(crate) const ALUA: [(&str, Alua); 2] = [("both", Alua::Both), ("implicit", Alua::Implicit)];
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
    let source = Source::new(path, text);
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError::new(source.place(offset), error.message().to_owned())
    })?;
    let mut config = Config::default();
    for (key, value) in table.get_ref() {
        let name: &str = key.get_ref();
        let place = source.place(key.span().start);
        match name {
            "listen" => {
                for (text, place) in source.strings(value, name)? {
                    config.listen.push(parse_portal(&text).at(place)?);
                }
            }
            "portal" => {
                for table in source.array(value, name)? {
                    config.listen.push(parse_portal_table(&source, table)?);
                }
            }
            "cores" => {
                let text = source.scalar(value, name)?;
                let cores = text.parse::<NonZeroUsize>();
                let cores = cores.map_err(|_| format!("cores = {text}: write a number from 1 on"));
                config.cores = Some(cores.at(&place)?);
            }
            "state" => config.state = Some(source.scalar(value, name)?.into()),
            "control" => config.control = Some(source.scalar(value, name)?.into()),
            "isns" => config.isns = Some(parse_isns_table(&source, value)?),
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
                for (settings, place) in source.tables(value, name)? {
                    config.accounts.push(account_from_settings(settings, &place)?);
                }
            }
            "host" => {
                for table in source.array(value, name)? {
                    config.hosts.push(parse_host_table(&source, table)?);
                }
            }
            "discovery" => config.discovery = parse_discovery(&source, value)?,
            "target" => {
                for table in source.array(value, name)? {
                    config.targets.push(parse_target(&source, table)?);
                }
            }
            "api" => config.api = Some(parse_api_table(&source, value)?),
            "limits" => config.limits = Limits::from_settings(source.table(value, name)?)?,
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
    let mut qos = QosConfig::default();
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
            key if qos::KEYS.contains(&key) => qos.take(key, &value).at(&place)?,
            _ => return Err(unknown_key(&place, &key, VOLUME_KEYS)),
        }
    }
    let missing = |key| ConfigError::missing(place, "the volume", key);
    qos.check().map_err(|(key, message)| ConfigError::new(&places[key], message))?;
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
    parse_time(text)
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

fn parse_target(
    source: &Source<'_>,
    table: &Spanned<DeValue<'_>>,
) -> Result<TargetConfig, ConfigError> {
    let place = source.place(table.span().start);
    let entries = table
        .get_ref()
        .as_table()
        .ok_or("target is a list of tables: write [[target]]")
        .at(&place)?;
    let (mut name, mut alias, mut luns) = (None, None, BTreeMap::new());
    let (mut access, mut preferred) = (BTreeMap::new(), None);
    let (mut alua, mut groups, mut redirect) = (Alua::default(), None, None);
    let mut login = AccessConfig::default();
    for (key, value) in entries {
        match key.get_ref().as_ref() {
            "name" => name = Some(source.scalar(value, "name")?),
            "alias" => alias = Some(source.scalar(value, "alias")?),
            "tid" => check_tid(source, value)?,
            "luns" => luns = parse_luns(source, value)?,
            "access" => access = parse_access(source, value)?,
            "preferred" => {
                let place = source.place(value.span().start);
                let group = parse_group(&source.scalar(value, "preferred")?);
                preferred = Some(group.at(place)?);
            }
            "alua" => {
                let place = source.place(value.span().start);
                alua = choose("alua", &source.scalar(value, "alua")?, &ALUA).at(place)?;
            }
            "groups" => groups = Some(parse_groups(source, value)?),
            "redirect" => redirect = Some(parse_redirect(source, value)?),
            key if access::TARGET_KEYS.contains(&key) => login.take(source, key, value)?,
            other => {
                let known = [TARGET_KEYS, &access::TARGET_KEYS].concat();
                return Err(unknown_key(&source.place(key.span().start), other, &known));
            }
        }
    }
    let name = name.ok_or_else(|| ConfigError::missing(&place, "the target", "name"))?;
    Ok(TargetConfig { name, alias, luns, access, preferred, alua, groups, redirect, login })
}

/// Checks the number with which `tgtadm` identifies a target. The server does not use it.
fn check_tid(source: &Source<'_>, value: &Spanned<DeValue<'_>>) -> Result<(), ConfigError> {
    let text = source.scalar(value, "tid")?;
    match text.parse::<u32>() {
        Ok(1..) => Ok(()),
        _ => {
            let place = source.place(value.span().start);
            Err(ConfigError::new(place, format!("tid = {text}: write a number from 1 on")))
        }
    }
}

/// Parses `["a", "b"]`, or `{ 0 = "a", 5 = "b" }`.
fn parse_luns(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<BTreeMap<u16, String>, ConfigError> {
    let Some(table) = value.get_ref().as_table() else {
        let volumes = source.strings(value, "luns")?;
        if volumes.len() > usize::from(LARGEST_LUN) + 1 {
            let wanted = format!("a list of {} volumes at most", LARGEST_LUN + 1);
            return Err(source.wrong_type(value, "luns", &wanted));
        }
        return Ok((0..).zip(volumes.into_iter().map(|(text, _)| text)).collect());
    };
    let mut luns = BTreeMap::new();
    for (key, value) in table {
        let wrong = |message| ConfigError::new(source.place(key.span().start), message);
        let number: &str = key.get_ref();
        let lun = number.parse().ok().filter(|lun| *lun <= LARGEST_LUN).ok_or_else(|| {
            wrong(format!("luns: {number:?} is no LUN: write a number from 0 to {LARGEST_LUN}"))
        })?;
        if luns.insert(lun, source.scalar(value, "luns")?).is_some() {
            return Err(wrong(format!("luns has {lun} twice; remove one")));
        }
    }
    Ok(luns)
}

/// Parses `[1, 2]`.
fn parse_groups(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<BTreeSet<u16>, ConfigError> {
    let texts = source.strings(value, "groups")?.into_iter();
    texts.map(|(text, place)| parse_group(&text).at(place)).collect()
}

/// Parses `{ tag = "state" }`.
fn parse_access(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<BTreeMap<u16, AccessState>, ConfigError> {
    let table = value.get_ref().as_table().ok_or_else(|| {
        source.wrong_type(value, "access", "a table: write { 1 = \"optimized\", 2 = \"standby\" }")
    })?;
    let mut access = BTreeMap::new();
    for (key, value) in table {
        let wrong = |message| ConfigError::new(source.place(key.span().start), message);
        let group = parse_group(key.get_ref()).map_err(wrong)?;
        let state = choose("access", &source.scalar(value, "access")?, &ACCESS_STATES);
        let state = state.map_err(wrong)?;
        if access.insert(group, state).is_some() {
            return Err(wrong(format!("access has group {group} twice; remove one")));
        }
    }
    Ok(access)
}

pub(super) struct Source<'a> {
    path: path::Display<'a>,
    /// Offsets of the line ends. The places of all values of ten thousand volumes are looked up here.
    line_ends: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(path: &'a Path, text: &str) -> Self {
        let line_ends = text.match_indices('\n').map(|(offset, _)| offset).collect();
        Self { path: path.display(), line_ends }
    }

    /// Returns `file:line` of a byte.
    pub(super) fn place(&self, offset: usize) -> String {
        let ended = self.line_ends.partition_point(|&end| end < offset);
        format!("{}:{}", self.path, ended + 1)
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

    /// Returns one table as settings.
    fn table(&self, value: &Spanned<DeValue<'_>>, key: &str) -> Result<Vec<Setting>, ConfigError> {
        match value.get_ref().as_table() {
            Some(table) => self.settings(table),
            None => Err(self.wrong_type(value, key, &format!("a table: write [{key}]"))),
        }
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
