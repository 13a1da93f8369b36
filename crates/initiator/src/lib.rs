//! A user-space initiator: iSCSI sessions of one connection or several, on a current-thread runtime.
//!
//! A [`Session`] is one I_T nexus, a [`Unit`] is one logical unit of it with the common SCSI commands, and an [`IscsiStore`] offers a
//! unit as a block store that survives lost connections ([`nbd`] does the same with an export of an NBD server: both are a
//! [`RemoteDisk`]). Any number of callers may wait at once: their commands share the session's connections. [`discover`] asks a
//! portal for its targets. The protocol itself is in `sarsen_proto::iscsi::initiator`; this crate holds the socket and the
//! futures. [`transfer`] copies whole disks and files. [`signature`] reports the data on a device before a caller overwrites
//! it.

mod connections;
mod discovery;
mod driver;
mod error;
mod establish;
mod flush_failure;
mod identity;
mod instance;
mod iscsi_store;
mod kept_writes;
pub mod nbd;
mod options;
mod path_selector;
mod path_set;
pub mod phases;
mod remote_disk;
mod session;
pub mod signature;
pub mod tls;
pub mod transfer;
mod unit;
mod url;
mod url_error;
mod write_ranges;

pub use discovery::{DiscoveredTarget, discover};
pub use error::{LOGICAL_UNIT_NOT_SUPPORTED, Sense, SenseKey, SessionError};
pub use identity::{Chap, ChapCredentials};
pub use iscsi_store::IscsiStore;
pub use options::SessionOptions;
pub use path_selector::PathSelector;
pub use remote_disk::{PathStatus, RemoteDisk};
pub use sarsen_proto::iscsi::chap::{Algorithm, Credentials, Secret};
pub use sarsen_proto::iscsi::initiator::{
    AuthenticationError, Completion, ConnectionError, DigestOffer, LoginError, Residual,
    TaskAttribute,
};
pub use sarsen_wire::iscsi::{LoginStatus, TaskManagementResponse};
pub use session::Session;
pub use tls::{TlsError, TlsOptions};
pub use unit::{
    BlockLimits, Caching, Capacity, Command, Inquiry, Provisioning, TransferRequest, Unit,
};
pub use url::{DiscoveryUrl, Portal, Url};
pub use url_error::UrlError;
