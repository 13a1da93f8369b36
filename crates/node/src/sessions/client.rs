//! Clients, and their logins, whatever their protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use sarsen_proto::iscsi::keys::SessionType;
use sarsen_scsi::Lun;
use sarsen_wire::iscsi::Isid;

use crate::portal::Portal;
use crate::tls::ClientCertificate;

/// A client, as access rules, limits, lists and events know it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its name, by its own statement: the initiator name of iSCSI. A client of a protocol without names has its
    /// address in place of a name.
    pub(crate) name: String,
    /// Its network address.
    pub(crate) peer: SocketAddr,
    /// The account as which it authenticated.
    pub(crate) account: Option<String>,
    /// Its verified certificate.
    pub(crate) certificate: Option<ClientCertificate>,
}

/// The origin of a connection, before its client has a name.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) peer: SocketAddr,
    /// The server's address that the client uses.
    pub(crate) local: SocketAddr,
    /// The verified certificate.
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) portal: Arc<Portal>,
}

impl Origin {
    /// Returns the login of a client with this name, without authentication and for a new session.
    pub(crate) fn login(&self, name: String, target: Option<String>) -> Login {
        let Self { peer, local, certificate, portal } = self.clone();
        let client = Client { name, peer, account: None, certificate };
        Login { client, portal, local, target, only: None, end: None, cid: 0 }
    }
}

/// A login of a client through a portal.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) client: Client,
    pub(crate) portal: Arc<Portal>,
    /// The server's address that the client uses.
    pub(crate) local: SocketAddr,
    /// The target; `None` for a discovery without a target.
    pub(crate) target: Option<String>,
    /// The only unit of the target that the client uses, if its protocol selects one at the login.
    pub(crate) only: Option<Lun>,
    /// The client's end of the session, by which a login replaces or joins a session. Protocols without it have only
    /// new sessions with one connection.
    pub(crate) end: Option<SessionEnd>,
    /// The connection's id within the session.
    pub(crate) cid: u16,
}

/// The initiator's end of an iSCSI session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionEnd {
    pub(crate) isid: Isid,
    pub(crate) session_type: SessionType,
    /// The TSIH of the session that the connection joins, or 0 for a new session.
    pub(crate) tsih: u16,
}

#[cfg(test)]
impl Login {
    /// Returns the login of a client at 10.0.0.1 that has not authenticated.
    pub(crate) fn of_anonymous(name: &str, target: &str) -> Self {
        let peer = SocketAddr::from(([10, 0, 0, 1], 5000));
        let portal = Portal::new(peer, crate::protocol::Protocol::Iscsi, 1, None);
        let origin = Origin { peer, local: peer, certificate: None, portal };
        let isid = Isid([0x80, 0, 0, 0, 0, 1]);
        Self {
            end: Some(SessionEnd { isid, session_type: SessionType::Normal, tsih: 0 }),
            ..origin.login(name.into(), Some(target.into()))
        }
    }
}
