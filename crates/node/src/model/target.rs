//! Targets, with the volumes that they serve and the initiators that may log in; and access to discovery.
//!
//! ```toml
//! [discovery]                         # initiators authenticate before they discover targets
//! chap = ["host"]
//!
//! [[target]]
//! name = "iqn.2026-11.example:disks"
//! luns = ["a", "b"]                   # LUN 0, 1, …; or by number: { 0 = "a", 5 = "b" }
//! # Access states by portal group, and the preferred group: optimized (default), non-optimized, standby, unavailable
//! # or offline. A change by an initiator (SET TARGET PORT GROUPS) lasts until the program ends.
//! access = { 1 = "optimized", 2 = "non-optimized" }
//! preferred = 1
//! # Initiators cannot change it; "both" unless given.
//! # alua = "implicit"
//! # Only these portal groups serve it.
//! # groups = [1, 2]
//! # Initiators are redirected when they log in. Permanent: they need not ask here again.
//! # redirect = { address = "san2.example:3260", permanent = true }
//! chap = ["host", "backup"]           # accounts that may log in
//! own-account = "san"                 # with which the target authenticates itself, if it is asked to
//! algorithms = ["sha3-256", "sha-256"]
//!
//! [[target.allow]]                    # the first rule that matches permits the login; without rules all are permitted
//! initiator = "iqn.1993-08.org.debian:*"
//! address = "10.0.0.0/8"
//! account = "host"
//! certificate = "host.example"        # or sha256:HASH; at portals that ask for certificates
//! luns = { 0 = "b" }                  # or [1]: only this one, under its own number
//!
//! [[target.allow]]
//! account = "backup"
//! read-only = true
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_scsi::{AccessState, Alua};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::certificate::CertificatePattern;
use super::invalid::FieldError;
use super::names::{NamePattern, check_iscsi_name};
use super::network::Network;
use super::redirect::Redirect;
use super::values::is_false;
use super::words::Textual as _;
use super::{table, text, values, words};

/// The largest LUN of flat space addressing (SAM-5 4.7.7.1).
pub(crate) const LARGEST_LUN: u16 = 0x3fff;

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Target {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The target's number for `tgtadm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Volumes by logical unit number: `["a", "b"]` from LUN 0 on, or `{ 0 = "a", 5 = "b" }`.
    #[serde(default, skip_serializing_if = "Luns::is_empty")]
    pub luns: Luns,
    /// ALUA access states by portal group, such as `{ 1 = "optimized", 2 = "standby" }`. Default: `optimized`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "words::by_group")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub access: BTreeMap<u16, AccessState>,
    /// The portal group that is reported as preferred (ALUA).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::group")]
    pub preferred: Option<u16>,
    /// Whether initiators may change access states by SET TARGET PORT GROUPS (`both`), or only the server (`implicit`).
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub alua: Option<Alua>,
    /// The portal groups that serve this target. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::groups")]
    #[schema(value_type = Option<Vec<u16>>)]
    pub groups: Option<BTreeSet<u16>>,
    /// The server to which initiators are redirected when they log in.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "table::optional"
    )]
    pub redirect: Option<Redirect>,
    /// The accounts with which initiators may authenticate (CHAP). Default: none, and no authentication.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "text::list")]
    pub chap: Vec<String>,
    /// The account with which the target authenticates itself (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_account: Option<String>,
    /// The permitted CHAP algorithms. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "words::list")]
    #[schema(value_type = Vec<String>)]
    pub algorithms: Vec<Algorithm>,
    /// Access rules. The first rule that matches permits the login; without rules every initiator is permitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub allow: Vec<Rule>,
}

impl Target {
    /// Returns whether every initiator that reaches the target may log in.
    pub(crate) fn permits_everybody(&self) -> bool {
        self.chap.is_empty()
            && (self.allow.is_empty() || self.allow.iter().any(Rule::has_no_condition))
    }
}

/// Volumes by LUN: `{ "0": "a", "5": "b" }`, or `["a", "b"]` for LUNs from 0 on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = BTreeMap<String, String>)]
pub struct Luns(pub BTreeMap<u16, String>);

impl Luns {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Deref for Luns {
    type Target = BTreeMap<u16, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Luns {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl From<BTreeMap<u16, String>> for Luns {
    fn from(volumes: BTreeMap<u16, String>) -> Self {
        Self(volumes)
    }
}

impl<const N: usize> From<[(u16, String); N]> for Luns {
    fn from(volumes: [(u16, String); N]) -> Self {
        Self(volumes.into())
    }
}

/// An access rule of a target: it matches an initiator that fulfils all of its conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// A host by name, in place of the other conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The initiator's name, which may end with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub initiator: Option<NamePattern>,
    /// The initiator's address, or a network such as `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Network>,
    /// The account with which it authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The client certificate: one of its names, or `sha256:HASH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub certificate: Option<CertificatePattern>,
    /// The logical units that it sees: `[1, 3]`, or volumes by the LUNs that it sees, `{ 0 = "b" }`. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<ShownLuns>,
    /// Refuse its writes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
}

impl Rule {
    fn has_no_condition(&self) -> bool {
        let Self { host, initiator, address, account, certificate, luns: _, read_only: _ } = self;
        host.is_none()
            && initiator.is_none()
            && address.is_none()
            && account.is_none()
            && certificate.is_none()
    }
}

/// The logical units that a rule shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ShownLuns {
    /// LUNs of the target.
    Numbers(Vec<u16>),
    /// Volumes by the LUNs that the initiator sees.
    Volumes(BTreeMap<u16, String>),
}

/// Access to discovery (SendTargets).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Discovery {
    /// The accounts with which initiators may authenticate (CHAP). Default: none, and no authentication.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "text::list")]
    pub chap: Vec<String>,
    /// The account with which the server authenticates itself (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_account: Option<String>,
    /// The permitted CHAP algorithms. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "words::list")]
    #[schema(value_type = Vec<String>)]
    pub algorithms: Vec<Algorithm>,
}

impl Target {
    /// Returns whether portals of this group reach the target.
    pub fn is_reached_through(&self, group: u16) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Returns those of the groups whose portals reach the target.
    pub(crate) fn reached_groups(&self, groups: &BTreeSet<u16>) -> BTreeSet<u16> {
        groups.iter().copied().filter(|group| self.is_reached_through(*group)).collect()
    }

    /// Returns the configured access state of a group.
    pub(crate) fn access_state(&self, group: u16) -> AccessState {
        self.access.get(&group).copied().unwrap_or(AccessState::Optimized)
    }

    /// Checks the keys against each other.
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        check_iscsi_name(&self.name).map_err(|message| FieldError::new("name", message))?;
        let wrong = |field: &str, what: String| {
            Err(FieldError::new(field, format!("target {}: {what}", self.name)))
        };
        if self.tid == Some(0) {
            return wrong("tid", "tid = 0: write a number from 1 on".to_owned());
        }
        if let Some(lun) = self.luns.keys().find(|lun| **lun > LARGEST_LUN) {
            let what = format!("{lun} is no LUN: write a number from 0 to {LARGEST_LUN}");
            return wrong("luns", what);
        }
        let mut named = self.access.keys().copied().chain(self.preferred);
        if let Some(group) = named.find(|group| !self.is_reached_through(*group)) {
            let what = format!("access or preferred has group {group}, which groups does not have");
            return wrong("groups", what);
        }
        if self.groups.as_ref().is_some_and(BTreeSet::is_empty) {
            let what = "groups is empty, so no initiator can reach the target; remove the key";
            return wrong("groups", what.to_owned());
        }
        for (index, rule) in self.allow.iter().enumerate() {
            rule.check().map_err(|FieldError { field, message }| {
                FieldError::new(format!("allow[{index}].{field}"), message)
            })?;
        }
        self.login().check()
    }

    /// Returns its rules of logins.
    pub fn login(&self) -> Login<'_> {
        let Self { chap, own_account, algorithms, allow, .. } = self;
        Login { chap, own_account: own_account.as_deref(), algorithms, rules: allow }
    }
}

impl Rule {
    /// Checks the keys against each other.
    fn check(&self) -> Result<(), FieldError> {
        let given = [
            ("initiator", self.initiator.is_some()),
            ("address", self.address.is_some()),
            ("account", self.account.is_some()),
            ("certificate", self.certificate.is_some()),
        ];
        match given.iter().find(|(_, is_given)| self.host.is_some() && *is_given) {
            Some((key, _)) => Err(FieldError::new(
                "host",
                format!("host: the host defines {key}; remove {key} from the rule"),
            )),
            None => Ok(()),
        }
    }
}

/// The rules of logins to a target, or of discovery sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login<'a> {
    /// The accounts of which an initiator must authenticate as one. If empty, no authentication is necessary.
    pub chap: &'a [String],
    /// The account with which the server authenticates itself.
    pub own_account: Option<&'a str>,
    /// The accepted algorithms. If empty: all.
    pub algorithms: &'a [Algorithm],
    /// The rules. The first matching rule permits the login. If empty, every initiator is permitted.
    pub rules: &'a [Rule],
}

impl Login<'_> {
    /// Returns whether initiators must authenticate.
    pub fn requires_authentication(&self) -> bool {
        !self.chap.is_empty()
    }

    /// Checks the keys against each other.
    fn check(&self) -> Result<(), FieldError> {
        let twice = |index: &usize| self.algorithms[..*index].contains(&self.algorithms[*index]);
        if let Some(index) = (0..self.algorithms.len()).find(twice) {
            let word = self.algorithms[index].render();
            let message = format!("algorithms lists {word} twice: remove one");
            return Err(FieldError::new(format!("algorithms[{index}]"), message));
        }
        if self.requires_authentication() {
            return Ok(());
        }
        if self.own_account.is_some() {
            let message = "own-account: mutual CHAP needs chap; add chap, or remove own-account";
            return Err(FieldError::new("own-account", message));
        }
        if !self.algorithms.is_empty() {
            let message = "algorithms: CHAP is not required here; add chap, or remove algorithms";
            return Err(FieldError::new("algorithms", message));
        }
        Ok(())
    }
}

impl Discovery {
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        self.login().check()
    }

    /// Returns its rules of logins.
    pub fn login(&self) -> Login<'_> {
        let Self { chap, own_account, algorithms } = self;
        Login { chap, own_account: own_account.as_deref(), algorithms, rules: &[] }
    }
}
