//! The document: the objects of a server as people and programs write them. In TOML it has the tables of the
//! configuration file, in JSON the same keys. `Config` is made from it and checks it.
//!
//! serde refuses unknown keys (`deny_unknown_fields`) and lists the known ones; the crate `serde_ignored` would report
//! only the path of an unknown key, after the document was accepted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use super::account::Account;
pub use super::host::Host;
pub use super::limits::Limits;
pub use super::pool::Pool;
pub use super::portal::{Portal, PortalAddress, Tls};
pub use super::redirect::Redirect;
use super::table;
pub use super::target::{Discovery, Luns, Rule, ShownLuns, Target};
pub use super::volume::Volume;

/// The objects of a server. An apply leaves objects that are not listed unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    /// The portals.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub portal: Vec<Portal>,
    /// The accounts with which initiators and targets authenticate.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub account: Vec<Account>,
    /// Named initiators, for access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub host: Vec<Host>,
    /// The pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub pool: Vec<Pool>,
    /// The volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub volume: Vec<Volume>,
    /// The targets, with their LUNs and access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub target: Vec<Target>,
    /// Access to discovery.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "table::optional"
    )]
    pub discovery: Option<Discovery>,
    /// Limits of what initiators may use: the keys of the configuration's `[limits]`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "table::optional"
    )]
    pub limits: Option<Limits>,
}

/// A size: a number of bytes, or a text such as `10GiB`. It is shown with the largest binary unit of which it is a
/// multiple.
#[derive(ToSchema)]
#[schema(value_type = String, example = "10GiB")]
#[allow(dead_code)] // only the OpenAPI document uses it
pub(crate) struct Size(String);
