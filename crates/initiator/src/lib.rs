//! A user-space initiator: iSCSI sessions of one connection or several, on a current-thread runtime.
//!
//! [`Session::connect`] logs in to the logical unit that a [`Url`] names. Its methods take `&self`, and any number of
//! them may wait at once: their commands share the session's connections. [`discover`] asks a portal for its targets.
//! The protocol itself is in `sarsen_proto::iscsi::initiator`; this crate holds the socket, the futures, and the common
//! SCSI commands. [`transfer`] copies whole disks and files. [`signature`] reports the data on a device before a caller
//! overwrites it. [`nbd`] offers an export of an NBD server as a store.

mod capacity;
mod connections;
mod discovery;
mod disk;
mod driver;
mod error;
mod establish;
mod identity;
mod info;
pub mod nbd;
mod options;
pub mod phases;
mod reconnect;
mod session;
mod shared;
pub mod signature;
pub mod tls;
pub mod transfer;
mod url;
mod url_error;

pub use capacity::Capacity;
pub use discovery::{DiscoveredTarget, discover};
pub use disk::Inquiry;
pub use error::{Sense, SenseKey, SessionError};
pub use identity::{Chap, ChapCredentials};
pub use info::{BlockLimits, Caching, Provisioning};
pub use options::SessionOptions;
pub use sarsen_proto::iscsi::chap::{Algorithm, Credentials, Secret};
pub use sarsen_proto::iscsi::initiator::{
    AuthenticationError, Completion, ConnectionError, DigestOffer, LoginError, Residual,
    TaskAttribute,
};
pub use sarsen_wire::iscsi::{LoginStatus, TaskManagementResponse};
pub use session::{Command, Session, TransferRequest};
pub use tls::{TlsError, TlsOptions};
pub use url::{DiscoveryUrl, Portal, Url};
pub use url_error::UrlError;
