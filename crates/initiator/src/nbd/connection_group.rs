//! The connections over which a store uses its export. They begin together, and the loss of one ends them all: all of them lead to
//! one server, which has lost its cache for all or for none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use sarsen_block::{BlockError, Buffer, Durability, Extent, Payload, Reply};
use sarsen_proto::nbd::client::Export;
use sarsen_wire::nbd::transmission;

use super::store::NbdOptions;
use super::{NbdConnection, NbdError, NbdUrl};
use crate::instance::Hold;

/// Number of connections to a server that permits several.
const COUNT: usize = 4;
/// How long a connection after the first one may take. A server may permit fewer than it has clients.
const FURTHER_LIMIT: Duration = Duration::from_secs(1);

/// A write of data or of zeroes.
#[derive(Clone)]
pub(super) struct BlockWrite {
    pub(super) extent: Extent,
    pub(super) kind: WriteKind,
}

#[derive(Clone)]
pub(super) enum WriteKind {
    Data(Arc<Buffer>),
    Zeroes { may_punch: bool },
}

/// All connections to an export (see the module).
pub(super) struct ConnectionGroup {
    all: Vec<NbdConnection>,
}

impl ConnectionGroup {
    /// Connects: once, or several times if the server permits it.
    pub(super) async fn connect(url: &NbdUrl, options: &NbdOptions) -> Result<Self, NbdError> {
        let first = NbdConnection::connect_with_limits(url, options).await?;
        let export = *first.export();
        let mut all = vec![first];
        if export.has(transmission::CAN_MULTI_CONN) {
            let options =
                NbdOptions { connect_limit: FURTHER_LIMIT.min(options.connect_limit), ..*options };
            while all.len() < COUNT {
                match NbdConnection::connect_with_limits(url, &options).await {
                    Ok(next) if *next.export() == export => all.push(next),
                    Ok(_) => return Err(NbdError::ExportChanged),
                    // The export also works over fewer connections.
                    Err(error) => {
                        tracing::debug!(export = %url, %error, "no further connection");
                        break;
                    }
                }
            }
        }
        Ok(Self { all })
    }

    /// Returns the server's description of the export.
    pub(super) fn export(&self) -> &Export {
        self.all[0].export()
    }

    /// Returns the connection with the fewest open requests.
    pub(super) fn least_busy(&self) -> &NbdConnection {
        self.all.iter().min_by_key(|connection| connection.open_requests()).expect("one or more")
    }

    /// Starts a write over one of the connections. `hold` is kept until the server has answered.
    pub(super) fn write(
        &self,
        write: &BlockWrite,
        durability: Durability,
        hold: Option<Hold>,
    ) -> Result<Reply<()>, BlockError> {
        let connection = self.least_busy();
        match &write.kind {
            WriteKind::Data(data) => {
                let data = Payload::Shared(data.clone());
                connection.try_write(write.extent, data, durability, hold)
            }
            WriteKind::Zeroes { may_punch } => {
                connection.zero(write.extent, durability, *may_punch, hold)
            }
        }
    }

    /// Waits until one of them has ended, and returns the reason.
    pub(super) async fn ended(&self) -> NbdError {
        select_all(self.all.iter().map(|connection| Box::pin(connection.ended()))).await.0
    }

    /// Ends all of them. What was not sent yet is never sent.
    pub(super) fn abort(&self, error: &NbdError) {
        self.all.iter().for_each(|connection| connection.abort(error.clone()));
    }

    /// Waits until all of them have ended.
    pub(super) async fn all_ended(&self) {
        for connection in &self.all {
            connection.ended().await;
        }
    }

    /// Disconnects after all open requests are answered, and waits for that up to `limit`.
    pub(super) async fn disconnect(&self, limit: Duration) {
        join_all(self.all.iter().map(|connection| connection.disconnect(limit))).await;
    }
}
