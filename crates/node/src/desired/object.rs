//! The things that a document lists, each with its kind and name: what changes, and what is kept, one by one.

use std::fmt;
use std::sync::Arc;

use itertools::{EitherOrBoth, Itertools as _};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::document::{Account, Discovery, Document, Host, Portal, Scalar, Target, Volume};
use super::typed_json::{JsonMismatch, from_json};
use std::collections::BTreeMap;

/// What kind of thing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// Where the server listens.
    Portal,
    /// A name and a secret.
    Account,
    /// Initiators under a name of ours.
    Host,
    /// A disk.
    Volume,
    /// What volumes are reached through.
    Target,
    /// Who may look for targets; there is one.
    Discovery,
    /// What initiators may take; there is one.
    Limits,
}

impl ObjectKind {
    /// All of them, in the order of a document.
    pub const ALL: [Self; 7] = [
        Self::Portal,
        Self::Account,
        Self::Host,
        Self::Volume,
        Self::Target,
        Self::Discovery,
        Self::Limits,
    ];

    /// Its table in a document.
    pub fn word(self) -> &'static str {
        match self {
            Self::Portal => "portal",
            Self::Account => "account",
            Self::Host => "host",
            Self::Volume => "volume",
            Self::Target => "target",
            Self::Discovery => "discovery",
            Self::Limits => "limits",
        }
    }
}

/// Which thing: of a kind there is one of each name. Those of which there is one have an empty name.
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
    /// The thing of that kind and name.
    pub fn new(kind: ObjectKind, name: &str) -> Self {
        Self { kind, name: name.to_owned() }
    }

    /// From how it is written.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (word, name) = text.split_once('/')?;
        let kind = ObjectKind::ALL.into_iter().find(|kind| kind.word() == word)?;
        Some(Self::new(kind, name))
    }
}

/// `volume/data`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)
    }
}

/// A thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ConfigBody)]
#[allow(missing_docs)] // each is the table of its name
pub enum Object {
    Portal(Portal),
    Account(Account),
    Host(Host),
    Volume(Volume),
    Target(Target),
    Discovery(Discovery),
    Limits(BTreeMap<String, Scalar>),
}

impl Object {
    /// Its kind.
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Portal(_) => ObjectKind::Portal,
            Self::Account(_) => ObjectKind::Account,
            Self::Host(_) => ObjectKind::Host,
            Self::Volume(_) => ObjectKind::Volume,
            Self::Target(_) => ObjectKind::Target,
            Self::Discovery(_) => ObjectKind::Discovery,
            Self::Limits(_) => ObjectKind::Limits,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Portal(portal) => &portal.address,
            Self::Account(account) => &account.name,
            Self::Host(host) => &host.name,
            Self::Volume(volume) => &volume.name,
            Self::Target(target) => &target.name,
            Self::Discovery(_) | Self::Limits(_) => "",
        }
    }

    /// Both.
    pub fn key(&self) -> Key {
        Key::new(self.kind(), self.name())
    }

    /// From JSON.
    pub fn from_json(kind: ObjectKind, text: &[u8]) -> Result<Self, JsonMismatch> {
        Ok(match kind {
            ObjectKind::Portal => Self::Portal(from_json(text)?),
            ObjectKind::Account => Self::Account(from_json(text)?),
            ObjectKind::Host => Self::Host(from_json(text)?),
            ObjectKind::Volume => Self::Volume(from_json(text)?),
            ObjectKind::Target => Self::Target(from_json(text)?),
            ObjectKind::Discovery => Self::Discovery(from_json(text)?),
            ObjectKind::Limits => Self::Limits(from_json(text)?),
        })
    }

    /// Without what is not shown.
    pub fn shown(&self) -> Self {
        match self {
            Self::Account(account) => Self::Account(Account { secret: None, ..account.clone() }),
            other => other.clone(),
        }
    }
}

/// All things there are.
pub type Objects = BTreeMap<Key, Arc<Object>>;

/// What a volume is known by.
pub(super) fn serial(object: &Object) -> Option<&str> {
    match object {
        Object::Volume(volume) => volume.serial.as_deref(),
        _ => None,
    }
}

/// A key under which one set has something else than the other.
pub(super) struct Difference<'a> {
    pub(super) key: &'a Key,
    pub(super) before: Option<&'a Arc<Object>>,
    pub(super) after: Option<&'a Arc<Object>>,
}

/// In what two sets differ, both in the order of their keys. Most of ten thousand things are the very same, which
/// is seen without looking at them.
pub(super) fn differences<'a>(
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
    /// What it lists.
    pub fn into_objects(self) -> impl Iterator<Item = Object> {
        let Self { portal, account, host, volume, target, discovery, limits } = self;
        let things = portal.into_iter().map(Object::Portal);
        let things = things.chain(account.into_iter().map(Object::Account));
        let things = things.chain(host.into_iter().map(Object::Host));
        let things = things.chain(volume.into_iter().map(Object::Volume));
        let things = things.chain(target.into_iter().map(Object::Target));
        things.chain(discovery.map(Object::Discovery)).chain(limits.map(Object::Limits))
    }

    /// A document that lists these.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let mut document = Self::default();
        for object in objects {
            match object.clone() {
                Object::Portal(portal) => document.portal.push(portal),
                Object::Account(account) => document.account.push(account),
                Object::Host(host) => document.host.push(host),
                Object::Volume(volume) => document.volume.push(volume),
                Object::Target(target) => document.target.push(target),
                Object::Discovery(discovery) => document.discovery = Some(discovery),
                Object::Limits(limits) => document.limits = Some(limits),
            }
        }
        document
    }
}
