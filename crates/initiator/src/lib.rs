//! A user-space initiator: iSCSI sessions of one connection or several, on a current-thread runtime.
//!
//! [`Session::connect`] logs in to the logical unit that a [`Url`] names; its methods take `&self`,
//! and as many as one likes may wait at once: their commands share its connections. [`discover`]
//! asks a portal which targets there are. The protocol itself is in `sarsen_proto::iscsi::initiator`;
//! here are the socket, the futures, and what the common SCSI commands look like. [`transfer`] moves whole
//! disks and files; [`signature`] tells what a device holds before something is written over it;
//! [`nbd`] offers what an NBD server exports as a store.

mod connections;
mod discovery;
mod disk;
mod driver;
mod error;
mod establish;
mod identity;
mod info;
pub mod nbd;
pub mod phases;
mod reconnect;
mod session;
mod shared;
pub mod signature;
pub mod tls;
pub mod transfer;
mod url;

pub use discovery::{DiscoveredTarget, discover};
pub use disk::{Capacity, Inquiry};
pub use error::{Sense, SenseKey, SessionError};
pub use identity::{Chap, Identity};
pub use info::{BlockLimits, Caching, Provisioning};
pub use sarsen_proto::iscsi::chap::{Algorithm, Credentials, Secret};
pub use sarsen_proto::iscsi::initiator::{
    AuthenticationError, Completion, ConnectionError, DigestOffer, LoginError, Residual,
    TaskAttribute,
};
pub use sarsen_wire::iscsi::{LoginStatus, TaskManagementResponse};
pub use session::{Command, Session, SessionOptions, TransferRequest};
pub use tls::{TlsError, TlsOptions};
pub use url::{DiscoveryUrl, Portal, Url, UrlError};
