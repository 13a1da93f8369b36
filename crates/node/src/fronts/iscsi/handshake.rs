//! What comes before iSCSI at a portal with TLS.

use sarsen_io::net::Stream;
use sarsen_io::time;
use tracing::{debug, info};

use super::Front;
use crate::tls::{self, ClientCertificate, Tls};

/// Shakes hands, on the connection's own core and within the time of a login; gives who came, if it
/// has shown that. A connection that does not make it is closed.
pub(super) async fn shake_hands(
    stream: Stream,
    tls: &Tls,
    front: &Front,
) -> Option<(Stream, Option<ClientCertificate>)> {
    let peer = stream.peer_addr();
    let begun = time::now();
    let loaded = tls.current(begun);
    let stream = tokio::select! {
        result = stream.accept_tls(loaded.server.clone()) => match result {
            Ok(stream) => stream,
            Err(error) => {
                info!(%peer, "TLS handshake failed: {}", tls::reason(&error));
                return None;
            }
        },
        () = time::sleep_until(begun + front.settings.login_timeout) => {
            debug!(%peer, "no TLS handshake in time");
            return None;
        }
    };
    let client = match loaded.client(&stream.peer_certificates()) {
        Ok(client) => client,
        Err(error) => {
            info!(%peer, "let in as a client without a certificate: its own does not hold: {error}");
            None
        }
    };
    Some((stream, client))
}
