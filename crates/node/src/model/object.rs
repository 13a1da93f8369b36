//! The objects of a document, each with its kind and name. The server changes and stores them one by one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use itertools::{EitherOrBoth, Itertools as _};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::document::{Account, Discovery, Document, Host, Limits, Pool, Portal, Target, Volume};
use super::input::{Mismatch, from_json};

/// The kind of an object.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A network portal of the server.
    Portal,
    /// A name and a secret.
    Account,
    /// A named group of initiators.
    Host,
    /// Devices from which volumes get space.
    Pool,
    /// A volume.
    Volume,
    /// A target, through which initiators reach volumes.
    Target,
    /// The access rules of discovery sessions; a singleton.
    Discovery,
    /// The limits of initiators; a singleton.
    Limits,
}

impl ObjectKind {
    /// All kinds, in the order of a document.
    pub const ALL: [Self; 8] = [
        Self::Portal,
        Self::Account,
        Self::Host,
        Self::Pool,
        Self::Volume,
        Self::Target,
        Self::Discovery,
        Self::Limits,
    ];

    /// Returns whether a server has at most one object of this kind, which has no name.
    pub fn is_singleton(self) -> bool {
        matches!(self, Self::Discovery | Self::Limits)
    }

    /// Returns its table in a document.
    pub fn word(self) -> &'static str {
        match self {
            Self::Portal => "portal",
            Self::Account => "account",
            Self::Host => "host",
            Self::Pool => "pool",
            Self::Volume => "volume",
            Self::Target => "target",
            Self::Discovery => "discovery",
            Self::Limits => "limits",
        }
    }
}

/// The kind and the name of an object, which together are unique. Singletons have an empty name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ObjectKey)]
pub struct Key {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

impl Key {
    /// Returns the key of the object with this kind and name.
    pub fn new(kind: ObjectKind, name: &str) -> Self {
        Self { kind, name: name.to_owned() }
    }

    /// Parses the displayed form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (word, name) = text.split_once('/')?;
        let kind = ObjectKind::ALL.into_iter().find(|kind| kind.word() == word)?;
        Some(Self::new(kind, name))
    }
}

/// Displays the key as `volume/data`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ConfigBody)]
#[allow(missing_docs)] // each is the table of its name
pub enum Object {
    Portal(Portal),
    Account(Account),
    Host(Host),
    Pool(Pool),
    Volume(Box<Volume>),
    Target(Target),
    Discovery(Discovery),
    Limits(Limits),
}

impl Object {
    /// Returns its kind.
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Portal(_) => ObjectKind::Portal,
            Self::Account(_) => ObjectKind::Account,
            Self::Host(_) => ObjectKind::Host,
            Self::Pool(_) => ObjectKind::Pool,
            Self::Volume(_) => ObjectKind::Volume,
            Self::Target(_) => ObjectKind::Target,
            Self::Discovery(_) => ObjectKind::Discovery,
            Self::Limits(_) => ObjectKind::Limits,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Portal(portal) => portal.address.as_str(),
            Self::Account(account) => &account.name,
            Self::Host(host) => &host.name,
            Self::Pool(pool) => &pool.name,
            Self::Volume(volume) => &volume.name,
            Self::Target(target) => &target.name,
            Self::Discovery(_) | Self::Limits(_) => "",
        }
    }

    /// Returns its kind and name.
    pub fn key(&self) -> Key {
        Key::new(self.kind(), self.name())
    }

    /// Parses an object of this kind from JSON.
    pub fn from_json(kind: ObjectKind, text: &[u8]) -> Result<Self, Mismatch> {
        Ok(match kind {
            ObjectKind::Portal => Self::Portal(from_json(text)?),
            ObjectKind::Account => Self::Account(from_json(text)?),
            ObjectKind::Host => Self::Host(from_json(text)?),
            ObjectKind::Pool => Self::Pool(from_json(text)?),
            ObjectKind::Volume => {
                let volume: Volume = from_json(text)?;
                Self::Volume(volume.with_implied_store().into())
            }
            ObjectKind::Target => Self::Target(from_json(text)?),
            ObjectKind::Discovery => Self::Discovery(from_json(text)?),
            ObjectKind::Limits => Self::Limits(from_json(text)?),
        })
    }

    /// Returns the object without its secret.
    pub fn shown(&self) -> Self {
        match self {
            Self::Account(account) => Self::Account(Account { secret: None, ..account.clone() }),
            other => other.clone(),
        }
    }
}

/// The objects by key.
pub type Objects = BTreeMap<Key, Arc<Object>>;

/// Returns the serial number, which identifies a volume.
pub(crate) fn serial(object: &Object) -> Option<&str> {
    match object {
        Object::Volume(volume) => volume.serial.as_deref(),
        _ => None,
    }
}

/// A key at which two sets of objects differ.
pub(crate) struct Difference<'a> {
    pub(crate) key: &'a Key,
    pub(crate) before: Option<&'a Arc<Object>>,
    pub(crate) after: Option<&'a Arc<Object>>,
}

/// Returns the differences between two sets, both in the order of their keys. Most of ten thousand objects are shared
/// by both sets, and a comparison of pointers is enough for them.
pub(crate) fn differences<'a>(
    before: impl IntoIterator<Item = (&'a Key, &'a Arc<Object>)>,
    after: impl IntoIterator<Item = (&'a Key, &'a Arc<Object>)>,
) -> impl Iterator<Item = Difference<'a>> {
    let pairs =
        before.into_iter().merge_join_by(after, |(before, _), (after, _)| before.cmp(after));
    pairs.filter_map(|pair| match pair {
        EitherOrBoth::Both((_, before), (_, after))
            if Arc::ptr_eq(before, after) || before == after =>
        {
            None
        }
        EitherOrBoth::Both((key, before), (_, after)) => {
            Some(Difference { key, before: Some(before), after: Some(after) })
        }
        EitherOrBoth::Left((key, before)) => {
            Some(Difference { key, before: Some(before), after: None })
        }
        EitherOrBoth::Right((key, after)) => {
            Some(Difference { key, before: None, after: Some(after) })
        }
    })
}

impl Document {
    /// Returns the objects of the document.
    pub fn into_objects(self) -> impl Iterator<Item = Object> {
        let Self { portal, account, host, pool, volume, target, discovery, limits } = self;
        let things = portal.into_iter().map(Object::Portal);
        let things = things.chain(account.into_iter().map(Object::Account));
        let things = things.chain(host.into_iter().map(Object::Host));
        let things = things.chain(pool.into_iter().map(Object::Pool));
        let volume = volume.into_iter().map(Volume::with_implied_store);
        let things = things.chain(volume.map(|volume| Object::Volume(volume.into())));
        let things = things.chain(target.into_iter().map(Object::Target));
        things.chain(discovery.map(Object::Discovery)).chain(limits.map(Object::Limits))
    }

    /// Creates a document of these objects.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let mut document = Self::default();
        for object in objects {
            match object.clone() {
                Object::Portal(portal) => document.portal.push(portal),
                Object::Account(account) => document.account.push(account),
                Object::Host(host) => document.host.push(host),
                Object::Pool(pool) => document.pool.push(pool),
                Object::Volume(volume) => document.volume.push(*volume),
                Object::Target(target) => document.target.push(target),
                Object::Discovery(discovery) => document.discovery = Some(discovery),
                Object::Limits(limits) => document.limits = Some(limits),
            }
        }
        document
    }
}
