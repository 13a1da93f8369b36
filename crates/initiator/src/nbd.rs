//! Exports of NBD servers: [`NbdConnection`] is one over one connection, and [`NbdStore`] survives lost connections.

mod connection;
mod connection_group;
mod driver;
mod store;
mod url;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::BlockError;
pub use sarsen_proto::nbd::ClientError;
pub use sarsen_proto::nbd::client::StatusExtent;
pub use sarsen_wire::nbd::ReplyCode;

pub use self::connection::NbdConnection;
pub use self::store::{NbdOptions, NbdStore};
pub use self::url::{NbdPlace, NbdUrl, NbdUrlError};
use crate::tls::TlsError;

/// Errors of a connection to an NBD server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NbdError {
    /// The host's name has no address.
    #[error("{place}: cannot find the host: {source}")]
    Resolve {
        /// The server.
        place: String,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// No server accepts the connection.
    #[error("{place}: cannot connect: {source}")]
    Connect {
        /// The server.
        place: String,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server did not answer.
    #[error("{place}: no answer within {limit:?}")]
    TimedOut {
        /// The server.
        place: String,
        /// The time limit.
        limit: Duration,
    },
    /// The connection was lost.
    #[error("the connection was lost: {0}")]
    Lost(#[source] Arc<io::Error>),
    /// The server violated the protocol, or rejected the request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The export cannot be used as a disk with blocks of 512 or 4,096 bytes.
    #[error(
        "{url}: an export of {bytes} bytes with blocks of {minimum_block} bytes cannot be used as a disk"
    )]
    Unfit {
        /// The export.
        url: Box<NbdUrl>,
        /// The server's smallest block.
        minimum_block: u32,
        /// Size of the export.
        bytes: u64,
    },
    /// TLS with the server has failed.
    #[error("{place}: TLS failed: {source}")]
    Tls {
        /// The server.
        place: String,
        /// The reason.
        #[source]
        source: Arc<TlsError>,
    },
    /// After a lost connection, the server offers the export with other properties.
    #[error(
        "the export is read-only or not, or has other blocks, functions or limits, than before: correct that at the server, or open the disk again"
    )]
    ExportChanged,
    /// After a lost connection, the server refuses a write that it has acknowledged before.
    #[error("a write since the last flush cannot be written again: {0}")]
    NotWrittenAgain(#[source] Arc<BlockError>),
    /// The store itself closed the connection.
    #[error("the connection has been closed")]
    Closed,
}

impl NbdError {
    /// Returns the message without the URL of the export.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        match self {
            Self::Resolve { place, .. }
            | Self::Connect { place, .. }
            | Self::TimedOut { place, .. }
            | Self::Tls { place, .. } => {
                text.strip_prefix(&format!("{place}: ")).map(str::to_owned).unwrap_or(text)
            }
            Self::Lost(_)
            | Self::Client(_)
            | Self::Unfit { .. }
            | Self::ExportChanged
            | Self::NotWrittenAgain(_)
            | Self::Closed => text,
        }
    }
}
