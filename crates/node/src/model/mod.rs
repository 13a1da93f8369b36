//! The kinds of objects that a server can have, each defined once: the structs that serde reads and writes as TOML and
//! JSON, and that the server works with. [`document`] is their file format.

mod account;
mod cache_mode;
mod certificate;
pub mod document;
mod fault;
mod host;
mod input;
mod invalid;
mod limits;
mod names;
mod network;
mod object;
mod orphan;
mod pool;
mod portal;
pub(crate) mod qos;
mod quantity;
mod redirect;
mod references;
mod remote;
mod revision;
mod size;
mod snapshot;
mod table;
mod target;
mod text;
mod values;
mod volume;
pub(crate) mod words;

pub(crate) use self::account::read_private;
pub use self::cache_mode::CacheMode;
pub use self::certificate::CertificatePattern;
pub use self::document::Document;
pub use self::fault::FaultConfig;
pub use self::input::{Mismatch, from_json, parse_document};
pub(crate) use self::input::{Place, Step, from_toml_value, named};
pub(crate) use self::invalid::FieldError;
pub use self::invalid::Invalid;
pub use self::limits::{Limit, Limits};
pub use self::names::{NamePattern, is_iscsi_name_byte, nearest, target_name_fault};
pub use self::network::{Network, parse_network};
pub(crate) use self::object::{Difference, differences, serial};
pub use self::object::{Key, Object, ObjectKind, Objects};
pub use self::orphan::Orphan;
pub use self::pool::DEFAULT_ALERT_PERCENT;
pub(crate) use self::portal::DEFAULT_PORTAL;
pub use self::portal::{DEFAULT_GROUP, parse_nbd_portal, parse_portal};
pub use self::qos::{BurstWindow, DEFAULT_WEIGHT, Rates, Weight};
pub(crate) use self::quantity::DURATION_PATTERN;
pub use self::quantity::{
    Bandwidth, ByteSize, Bytes, Count, GroupTag, Milliseconds, Mirror, Number, PathWait, Quantity,
    Rate, Size, Span, Stripes, Unit,
};
pub(crate) use self::redirect::parse_host_and_port;
pub use self::redirect::parse_redirect_address;
pub(crate) use self::references::referred;
pub use self::remote::{RemotePlace, RemoteUrl};
pub(crate) use self::remote::{is_device_path, is_same_device, remote_device};
pub use self::revision::Revision;
pub use self::size::{parse_size, render_rounded, render_size};
pub use self::snapshot::{SnapshotName, SnapshotPeriod, SnapshotSchedule};
pub(crate) use self::target::LARGEST_LUN;
pub use self::target::Login;
pub use self::volume::StoreKind;
pub(crate) use self::volume::metadata_folder;
pub use self::words::{Textual, Words};
pub use sarsen_pool::Tier;
