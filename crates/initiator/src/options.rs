//! The options of a session.

use std::time::Duration;

use sarsen_proto::iscsi::initiator::{DigestOffer, LoginOptions, SessionTarget};
use sarsen_wire::iscsi::Isid;

use crate::identity::ChapCredentials;
use crate::path_selector::PathSelector;

/// The maximum of connections, which is that of the standard (RFC 7143 §13.2).
const CONNECTION_LIMIT: u32 = 65535;
/// The default name of the initiator.
const DEFAULT_INITIATOR_NAME: &str = "iqn.2026-01.invalid.example:sarsen.initiator";

/// The options of a login.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The iSCSI name of the initiator.
    pub initiator_name: String,
    /// HeaderDigest.
    pub header_digest: DigestOffer,
    /// DataDigest.
    pub data_digest: DigestOffer,
    /// The initiator port; random values permit several sessions at the same time. The paths of an [`crate::IscsiStore`] have values
    /// that follow from this one and from their portals.
    pub isid: Isid,
    /// The user for URLs that name none: [`crate::discover`] has none.
    pub identity: Option<ChapCredentials>,
    /// How long the commands of an [`crate::IscsiStore`] wait for a path after all connections were lost, before they fail;
    /// `None` never logs in again. With a limit the session logs in again until it is dropped, and the store uses all portals of
    /// its URL as paths. It repeats reads and writes, and writes to the same blocks wait for each other.
    /// It keeps all writes since the last flush in memory, up to 64 MiB, before it flushes them. After a new login it
    /// writes them again, so use this only for disks to which no other initiator writes at the same time.
    pub reconnect_limit: Option<Duration>,
    /// Whether an [`crate::IscsiStore`] whose URL names one portal also uses the portals that the target reports there.
    pub discovers_portals: bool,
    /// How an [`crate::IscsiStore`] with several paths chooses one for each command.
    pub path_selector: PathSelector,
    /// The maximum of connections of a session; a target may grant fewer. The session sends commands over all of them.
    pub connections: u32,
    /// The highest level of error recovery, up to 2; a target may grant a lower one. At level 1 the sender repeats data
    /// that fails its digest. At level 2 the session recovers a lost connection, and commands do not fail. At level 0,
    /// or when recovery fails, the session is lost, too, and `reconnect_limit` applies.
    pub error_recovery_level: u8,
    /// How long a target may send nothing over a connection before the connection is taken for lost. After a third of this time
    /// the target is pinged. `None` waits as long as TCP does. While an [`crate::IscsiStore`] with several paths waits for answers,
    /// the limit is eight round trips and at least 300 ms.
    pub silence_limit: Option<Duration>,
    /// The time limit of connection and login together, and then of each discovery and logout.
    pub answer_limit: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            initiator_name: DEFAULT_INITIATOR_NAME.to_owned(),
            header_digest: DigestOffer::None,
            data_digest: DigestOffer::None,
            isid: random_isid(),
            identity: None,
            reconnect_limit: None,
            discovers_portals: true,
            path_selector: PathSelector::default(),
            connections: 1,
            error_recovery_level: 0,
            silence_limit: Some(Duration::from_secs(30)),
            answer_limit: Duration::from_secs(15),
        }
    }
}

/// An ISID of the random format (RFC 7143 §11.12.5).
pub(crate) fn random_isid() -> Isid {
    let mut isid = [0; 6];
    sarsen_io::random::fill(&mut isid);
    isid[0] = 0x80;
    Isid(isid)
}

impl SessionOptions {
    pub(crate) fn login(&self, target: &SessionTarget) -> LoginOptions {
        let mut login = LoginOptions::new(&self.initiator_name, target.clone(), self.isid);
        login.header_digest = self.header_digest;
        login.data_digest = self.data_digest;
        if matches!(target, SessionTarget::Named(_)) {
            login.max_connections = self.connections.clamp(1, CONNECTION_LIMIT);
            login.error_recovery_level = self.error_recovery_level.min(2).into();
        }
        login
    }
}
