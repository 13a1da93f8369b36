//! The TLS handshake of a connection, before its protocol begins, or within it.

use std::io::ErrorKind;

use sarsen_io::net::Stream;
use sarsen_io::time;
use tracing::{debug, warn};

use super::Front;
use crate::events::Occurrence;
use crate::tls::{self, ClientCertificate, Tls};

/// Runs the TLS handshake on the connection's own core, within the login timeout. Returns the stream and the valid
/// certificate of the client, if it has one. A connection whose handshake fails is closed.
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
            // Load balancers and monitors check whether the port is open.
            Err(error)
                if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
            {
                debug!(%peer, %error, "connection closed before a TLS handshake");
                return None;
            }
            Err(error) => {
                if tls::is_about_the_clients_certificate(&error) {
                    front.access.metrics.refused_certificate();
                }
                let reason = tls::reason(&error);
                front.access.log_rate_limited(peer, || {
                    warn!(%peer, "TLS handshake failed: {reason}");
                    let why = reason.to_string();
                    front.access.events.tell(&Occurrence::HandshakeFailed { peer, why });
                });
                return None;
            }
        },
        () = time::sleep_until(begun + front.settings().login_timeout) => {
            debug!(%peer, "no TLS handshake in time");
            return None;
        }
    };
    let client = match loaded.client(&stream.peer_certificates()) {
        Ok(client) => client,
        Err(error) => {
            front.access.log_rate_limited(peer, || {
                warn!(%peer, "a client counts as one without a certificate: its own: {error}");
            });
            None
        }
    };
    Some((stream, client))
}
