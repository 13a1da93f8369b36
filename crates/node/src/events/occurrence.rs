//! The events: kind, severity, message and remedy of each.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use sarsen_pool::Scrubbed;
use sarsen_proto::iscsi::target::RefusalReason;
use sarsen_wire::iscsi::LoginStatus;

use crate::model::{Key, render_rounded};
use crate::problem::{MissingObject, Problem};
use crate::schema::events::{Event, Severity};
use crate::sessions::Login;
use sarsen_volume::statistics::Failure;

/// The kinds of events.
pub(crate) const KINDS: [&str; 31] = [
    "access_revoked",
    "api_token_refused",
    "api_tokens_refused",
    "configuration_changed",
    "connection_added",
    "connection_lost",
    "connections_rejected",
    "events_not_stored",
    "events_recreated",
    "handshake_failed",
    "logged_out",
    "login_aborted",
    "login_refused",
    "logins_suppressed",
    "pool_scrub_ended",
    "problem",
    "problem_solved",
    "scheduled_snapshot_failed",
    "server_started",
    "server_stopping",
    "session_begun",
    "snapshot_deleted",
    "snapshots_created",
    "state_copy_lost",
    "state_copy_replaced",
    "state_repaired",
    "target_drained",
    "target_in_service",
    "volume_error",
    "volume_filled",
    "volume_rolled_back",
];
/// Maximum number of objects that an event names. A change may affect thousands.
const NAMES: usize = 64;

/// The parties of a login or a connection, as far as they are known.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) peer: SocketAddr,
    pub(crate) initiator: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) account: Option<String>,
    /// The session's TSIH, once the session exists.
    pub(crate) tsih: Option<u16>,
    pub(crate) cid: Option<u16>,
}

impl Subject {
    /// Returns the parties of a login whose session does not exist yet.
    pub(crate) fn of(login: &Login) -> Self {
        let Login { client, target, .. } = login;
        Self {
            peer: client.peer,
            initiator: Some(client.name.clone()),
            target: target.clone(),
            account: client.account.clone(),
            tsih: None,
            cid: None,
        }
    }
}

/// An occurrence that the server reports as an event.
#[derive(Clone, Debug)]
pub(crate) enum Occurrence {
    ServerStarted {
        version: String,
    },
    ServerStopping,
    /// A session began, or a connection joined one.
    LoggedIn {
        subject: Subject,
        joins: bool,
    },
    LoginRefused {
        subject: Subject,
        reason: RefusalReason,
    },
    /// It came to no end: the initiator broke the protocol, or fell silent.
    LoginAborted {
        subject: Subject,
        why: String,
    },
    /// The refusals of a source were too many to tell each.
    LoginsSuppressed {
        source: IpAddr,
        count: u64,
    },
    /// Connections were closed before the login because of a limit.
    ConnectionsRejected {
        peer: SocketAddr,
        count: u64,
        limit: &'static str,
        why: String,
    },
    /// A TLS handshake failed before the login.
    HandshakeFailed {
        peer: SocketAddr,
        why: String,
    },
    /// A connection logged out. If it was the last one of its session, the session ended.
    LoggedOut {
        subject: Subject,
    },
    /// A connection ended without a logout.
    ConnectionLost {
        subject: Subject,
        why: String,
    },
    AccessRevoked {
        subject: Subject,
        why: String,
    },
    TargetDrained {
        target: String,
        asked: usize,
        dropped: usize,
    },
    TargetInService {
        target: String,
    },
    /// The configuration has changed.
    ConfigurationChanged {
        revision: Option<u64>,
        author: String,
        what: String,
        /// The names of the changed objects.
        names: Vec<String>,
    },
    VolumeError {
        volume: String,
        initiator: String,
        failure: Failure,
    },
    SnapshotsCreated {
        names: Vec<String>,
    },
    SnapshotDeleted {
        name: String,
        /// The bytes that become free, if they were counted.
        reclaimed_bytes: Option<u64>,
    },
    VolumeRolledBack {
        volume: String,
        snapshot: String,
    },
    VolumeFilled {
        volume: String,
        image: String,
    },
    /// A scrub is complete, or has failed.
    PoolScrubEnded {
        pool: String,
        result: Result<Scrubbed, String>,
    },
    ScheduledSnapshotFailed {
        volume: String,
        why: String,
    },
    /// An object is missing or has a problem.
    ProblemFound(Problem),
    /// It is as it is desired again.
    ProblemSolved(MissingObject),
    /// A client of the API sent a wrong token.
    ApiTokenRefused {
        peer: SocketAddr,
    },
    /// Clients of the API at one address sent more wrong tokens.
    ApiTokensRefused {
        source: IpAddr,
        count: u64,
    },
    EventsNotStored {
        path: String,
        error: String,
    },
    /// The log of events was damaged or missing, and a new one has begun.
    EventsRecreated {
        path: String,
        /// The new path of the damaged file.
        aside: Option<String>,
        why: String,
    },
    /// The state was damaged or missing, and its copy has replaced it.
    StateRepaired {
        path: String,
        why: String,
        /// The new path of the damaged file.
        aside: Option<String>,
        revision: u64,
    },
    /// The copy of the state was damaged or missing, and was written again.
    StateCopyReplaced {
        path: String,
        why: String,
    },
    /// The copy of the state cannot be written.
    StateCopyLost {
        path: String,
        error: String,
    },
}

impl Occurrence {
    /// Returns the event that reports the occurrence.
    pub(super) fn event(&self, id: u64, unix_ms: u64) -> Event {
        let (kind, severity) = self.kind();
        debug_assert!(KINDS.contains(&kind), "{kind} is asked for by its name");
        Event {
            id,
            unix_ms,
            severity,
            kind: kind.to_owned(),
            message: self.message(),
            remedy: self.remedy(),
            subject: self.subject(),
            names: self.names(),
        }
    }

    /// Returns the names of affected objects in addition to the subject, up to the maximum.
    fn names(&self) -> Vec<String> {
        match self {
            Self::ConfigurationChanged { names, .. } | Self::SnapshotsCreated { names } => {
                names.iter().take(NAMES).cloned().collect()
            }
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> (&'static str, Severity) {
        match self {
            Self::ServerStarted { .. } => ("server_started", Severity::Info),
            Self::ServerStopping => ("server_stopping", Severity::Info),
            Self::LoggedIn { joins: false, .. } => ("session_begun", Severity::Info),
            Self::LoggedIn { joins: true, .. } => ("connection_added", Severity::Info),
            Self::LoginRefused { .. } => ("login_refused", Severity::Warning),
            Self::LoginAborted { .. } => ("login_aborted", Severity::Warning),
            Self::LoginsSuppressed { .. } => ("logins_suppressed", Severity::Warning),
            Self::ConnectionsRejected { .. } => ("connections_rejected", Severity::Warning),
            Self::HandshakeFailed { .. } => ("handshake_failed", Severity::Warning),
            Self::LoggedOut { .. } => ("logged_out", Severity::Info),
            Self::ConnectionLost { .. } => ("connection_lost", Severity::Warning),
            Self::AccessRevoked { .. } => ("access_revoked", Severity::Warning),
            Self::TargetDrained { .. } => ("target_drained", Severity::Info),
            Self::TargetInService { .. } => ("target_in_service", Severity::Info),
            Self::ConfigurationChanged { .. } => ("configuration_changed", Severity::Info),
            Self::VolumeError { .. } => ("volume_error", Severity::Error),
            Self::SnapshotsCreated { .. } => ("snapshots_created", Severity::Info),
            Self::SnapshotDeleted { .. } => ("snapshot_deleted", Severity::Info),
            Self::VolumeRolledBack { .. } => ("volume_rolled_back", Severity::Info),
            Self::VolumeFilled { .. } => ("volume_filled", Severity::Info),
            Self::PoolScrubEnded { result, .. } => {
                let severity = match result {
                    Ok(Scrubbed {
                        lost_bytes: 0, repaired_bytes: 0, differing_bytes: 0, ..
                    }) => Severity::Info,
                    Ok(Scrubbed { lost_bytes: 0, .. }) => Severity::Warning,
                    Ok(_) | Err(_) => Severity::Error,
                };
                ("pool_scrub_ended", severity)
            }
            Self::ScheduledSnapshotFailed { .. } => ("scheduled_snapshot_failed", Severity::Error),
            Self::ProblemFound(_) => ("problem", Severity::Error),
            Self::ProblemSolved(_) => ("problem_solved", Severity::Info),
            Self::ApiTokenRefused { .. } => ("api_token_refused", Severity::Warning),
            Self::ApiTokensRefused { .. } => ("api_tokens_refused", Severity::Warning),
            Self::EventsNotStored { .. } => ("events_not_stored", Severity::Error),
            Self::EventsRecreated { .. } => ("events_recreated", Severity::Warning),
            Self::StateRepaired { .. } => ("state_repaired", Severity::Error),
            Self::StateCopyReplaced { .. } => ("state_copy_replaced", Severity::Warning),
            Self::StateCopyLost { .. } => ("state_copy_lost", Severity::Error),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::ServerStarted { version } => format!("the server has started, version {version}"),
            Self::ServerStopping => "the server stops".into(),
            Self::LoggedIn { subject, joins } => {
                let what = if *joins { "added a connection to its session" } else { "logged in" };
                format!("{} {what}", subject.who())
            }
            Self::LoginRefused { subject, reason } => {
                let account = subject.account.as_ref();
                let account = account.map_or(String::new(), |name| format!(" as account {name}"));
                // A login that violates the protocol has not named its target.
                let who = match reason.status() {
                    LoginStatus::InitiatorError | LoginStatus::MissingParameter => subject.name(),
                    _ => subject.who(),
                };
                format!("the login of {who}{account} was refused: {reason}")
            }
            Self::LoginAborted { subject, why } => {
                format!("the login of {} was aborted: {why}", subject.name())
            }
            Self::LoginsSuppressed { source, count } => {
                format!("{count} more logins from {source} were refused within seconds")
            }
            Self::ConnectionsRejected { peer, count, why, .. } => {
                let ip = peer.ip();
                let what = match count {
                    1 => format!("a connection from {ip} was"),
                    count => format!("{count} connections from {ip} were"),
                };
                format!("{what} closed before the login: {why}")
            }
            Self::HandshakeFailed { peer, why } => {
                format!("the TLS handshake with {peer} failed: {why}")
            }
            Self::LoggedOut { subject } => format!("{} logged out", subject.who()),
            Self::ConnectionLost { subject, why } => {
                format!("the connection of {} was lost: {why}", subject.who())
            }
            Self::AccessRevoked { subject, why } => {
                format!(
                    "the session of {} was terminated, because its access was revoked: {why}",
                    subject.who()
                )
            }
            Self::TargetDrained { target, asked, dropped } => format!(
                "target {target} is out of service; {asked} sessions were asked to log out, \
                 {dropped} were terminated"
            ),
            Self::TargetInService { target } => format!("target {target} is in service again"),
            Self::ConfigurationChanged { author, what, .. } => {
                format!("{author} changed the configuration: {what}")
            }
            Self::VolumeError { volume, failure, .. } => {
                format!("a command of volume {volume} failed with {}", failure.name())
            }
            Self::SnapshotsCreated { names } => match names.as_slice() {
                [name] => format!("snapshot {name} was created"),
                [first, second] => format!("snapshots {first} and {second} were created"),
                [first, others @ ..] => {
                    format!("snapshot {first} and {} others were created", others.len())
                }
                [] => String::new(),
            },
            Self::SnapshotDeleted { name, reclaimed_bytes: None } => {
                format!("snapshot {name} was deleted")
            }
            Self::SnapshotDeleted { name, reclaimed_bytes: Some(bytes) } => {
                format!("snapshot {name} was deleted, which gives back {}", render_rounded(*bytes))
            }
            Self::VolumeRolledBack { volume, snapshot } => {
                format!("volume {volume} was rolled back to snapshot {snapshot}")
            }
            Self::VolumeFilled { volume, image } => {
                format!("volume {volume} is filled from {image}, which it does not need any more")
            }
            Self::PoolScrubEnded { pool, result: Ok(scrubbed) } => {
                let Scrubbed { read_bytes, repaired_bytes, differing_bytes, lost_bytes, .. } =
                    *scrubbed;
                let of = |bytes: u64, what: &str| match bytes {
                    0 => String::new(),
                    bytes => format!(", {} {what}", render_rounded(bytes)),
                };
                let found = of(repaired_bytes, "repaired from other copies")
                    + &of(
                        differing_bytes,
                        "without checksums differed between copies, and are equal now (of two copies, nothing shows which was right)",
                    );
                let lost = match lost_bytes {
                    0 => String::new(),
                    bytes => format!(
                        ". {} are lost: no copy is intact. Restore what they belong to from a backup",
                        render_rounded(bytes)
                    ),
                };
                let read = render_rounded(read_bytes);
                format!("the scrub of pool {pool} is complete: {read} read{found}{lost}")
            }
            Self::PoolScrubEnded { pool, result: Err(why) } => {
                format!("the scrub of pool {pool} ended early: {why}")
            }
            Self::ScheduledSnapshotFailed { volume, why } => {
                format!("a scheduled snapshot of volume {volume} was not created: {why}")
            }
            Self::ProblemFound(Problem { why, .. }) => why.clone(),
            Self::ProblemSolved(lacking) => format!("{lacking} works again"),
            Self::ApiTokenRefused { peer } => {
                format!("the API refused a wrong token from {}", peer.ip())
            }
            Self::ApiTokensRefused { source, count } => {
                format!("the API refused {count} more wrong tokens from {source} within a minute")
            }
            Self::EventsNotStored { path, error } => {
                format!("events are stored in memory only: {path}: {error}")
            }
            Self::EventsRecreated { path, aside, why } => {
                let aside = aside
                    .as_ref()
                    .map_or(String::new(), |aside| format!("; the old file is now {aside}"));
                format!("the event log was created again: {path}: {why}{aside}")
            }
            Self::StateRepaired { path, why, aside, revision } => {
                let aside = aside.as_ref();
                let aside = aside
                    .map_or(String::new(), |aside| format!("; the damaged file is now {aside}"));
                format!(
                    "the state was repaired from its copy, at revision {revision}: {path}: {why}{aside}"
                )
            }
            Self::StateCopyReplaced { path, why } => {
                format!("the copy of the state was written again: {path}: {why}")
            }
            Self::StateCopyLost { path, error } => {
                format!("the state has no copy: {path}: {error}")
            }
        }
    }

    fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::LoginRefused { reason, .. } => remedy(*reason).to_owned(),
            Self::LoginAborted { .. } => {
                "if this repeats, check the network to the initiator for lost packets, and update the \
                 initiator; `sarsen session trace --initiator` shows its requests"
                    .to_owned()
            }
            Self::LoginsSuppressed { .. } => {
                "the previous events have the reasons: correct them, or block that address"
                    .to_owned()
            }
            Self::ConnectionsRejected { limit, .. } => format!(
                "raise limits.{limit} if these connections are wanted; `sarsen session list` shows the initiators \
                 with many"
            ),
            Self::HandshakeFailed { .. } => {
                "check that the portal's client-ca issued the client's certificate, and that it is valid now; a \
                 client without TLS needs a portal without TLS"
                    .to_owned()
            }
            Self::ConnectionLost { .. } => {
                "if this repeats, check the network to the initiator, and the initiator's log"
                    .to_owned()
            }
            Self::AccessRevoked { .. } => {
                "if the initiator still needs access, correct the rules of the target, then log in again at the \
                 initiator"
                    .to_owned()
            }
            Self::TargetDrained { .. } => {
                "after the maintenance, `sarsen target undrain` puts the target in service again".to_owned()
            }
            Self::VolumeError { failure: Failure::MediumError, .. } => {
                "a block could not be read or written: check the backing disk and the kernel's log; the server's \
                 log has the number of the block"
                    .to_owned()
            }
            Self::VolumeError { failure: Failure::NoSpace, .. } => {
                "its disk or thin pool is full: free space there, or raise the limit of a RAM volume; no restart is \
                 needed"
                    .to_owned()
            }
            Self::VolumeError { .. } => {
                "the backing store failed: check its disk and the kernel's log".to_owned()
            }
            Self::ScheduledSnapshotFailed { .. } => {
                "free space in the pool, or see `sarsen doctor`; the server tries again each minute"
                    .to_owned()
            }
            Self::ProblemFound(_) => {
                "do what the message says; the server serves all other objects, and tries this one again"
                    .to_owned()
            }
            Self::ApiTokenRefused { .. } | Self::ApiTokensRefused { .. } => {
                "if the client is yours, give it the token (api.token in the state folder); if not, block its \
                 address"
                    .to_owned()
            }
            Self::EventsNotStored { .. } => {
                "free space on the state folder's disk, or make the folder writable; the server then writes the \
                 file again"
                    .to_owned()
            }
            Self::EventsRecreated { .. } | Self::StateRepaired { .. } | Self::StateCopyReplaced { .. } => {
                "check the disk of the state folder and the kernel's log; if an administrator changed the \
                 file, no action is needed"
                    .to_owned()
            }
            Self::StateCopyLost { .. } => {
                "free space on the state folder's disk, or make the folder writable; the next change writes the copy \
                 again; until then a damaged state cannot be repaired"
                    .to_owned()
            }
            _ => return None,
        })
    }

    fn subject(&self) -> BTreeMap<String, String> {
        let mut subject = BTreeMap::new();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                subject.insert(key.to_owned(), value);
            }
        };
        match self {
            Self::LoggedIn { subject, .. }
            | Self::LoginRefused { subject, .. }
            | Self::LoginAborted { subject, .. }
            | Self::LoggedOut { subject }
            | Self::ConnectionLost { subject, .. }
            | Self::AccessRevoked { subject, .. } => {
                add("peer", Some(subject.peer.to_string()));
                add("initiator", subject.initiator.clone());
                add("target", subject.target.clone());
                add("account", subject.account.clone());
                add("tsih", subject.tsih.map(|tsih| tsih.to_string()));
                add("cid", subject.cid.map(|cid| cid.to_string()));
                if let Self::LoginRefused { reason, .. } = self {
                    add("reason", Some(reason.name().to_owned()));
                }
            }
            Self::HandshakeFailed { peer, .. } | Self::ApiTokenRefused { peer } => {
                add("peer", Some(peer.to_string()));
            }
            Self::LoginsSuppressed { source, .. } | Self::ApiTokensRefused { source, .. } => {
                add("peer", Some(source.to_string()));
            }
            Self::ConnectionsRejected { peer, limit, .. } => {
                add("peer", Some(peer.to_string()));
                add("limit", Some((*limit).to_owned()));
            }
            Self::TargetDrained { target, .. } | Self::TargetInService { target } => {
                add("target", Some(target.clone()));
            }
            Self::ConfigurationChanged { revision, author, .. } => {
                add("revision", revision.map(|revision| revision.to_string()));
                add("author", Some(author.clone()));
            }
            Self::VolumeError { volume, initiator, failure } => {
                add("volume", Some(volume.clone()));
                add("initiator", Some(initiator.clone()));
                add("error", Some(failure.name().to_owned()));
            }
            Self::SnapshotDeleted { name, .. } => add("snapshot", Some(name.clone())),
            Self::VolumeRolledBack { volume, snapshot } => {
                add("volume", Some(volume.clone()));
                add("snapshot", Some(snapshot.clone()));
            }
            Self::VolumeFilled { volume, .. } | Self::ScheduledSnapshotFailed { volume, .. } => {
                add("volume", Some(volume.clone()));
            }
            Self::PoolScrubEnded { pool, .. } => add("pool", Some(pool.clone())),
            Self::SnapshotsCreated { names } => {
                if let [name] = names.as_slice() {
                    add("snapshot", Some(name.clone()));
                    add("volume", name.split_once('@').map(|(volume, _)| volume.to_owned()));
                }
            }
            Self::ProblemFound(Problem { lacking, .. }) | Self::ProblemSolved(lacking) => {
                let Key { kind, name } = lacking.key();
                add(kind.word(), Some(name));
            }
            Self::EventsNotStored { path, .. }
            | Self::EventsRecreated { path, .. }
            | Self::StateRepaired { path, .. }
            | Self::StateCopyReplaced { path, .. }
            | Self::StateCopyLost { path, .. } => add("path", Some(path.clone())),
            Self::ServerStarted { version } => add("version", Some(version.clone())),
            Self::ServerStopping => {}
        }
        subject
    }
}

impl Subject {
    fn who(&self) -> String {
        format!("{} to {}", self.name(), self.target.as_deref().unwrap_or("discovery"))
    }

    fn name(&self) -> String {
        let initiator = self.initiator.as_deref().unwrap_or("an initiator without a name");
        format!("{initiator} ({})", self.peer)
    }
}

/// Returns what to do so that the login succeeds.
fn remedy(reason: RefusalReason) -> &'static str {
    use RefusalReason::*;
    match reason {
        MovedTemporarily | MovedPermanently => {
            "nothing, if the initiator follows the redirection; otherwise give it the new address"
        }
        Malformed | UnknownSessionType | InvalidDuringLogin => {
            "the initiator violates the protocol: update it; `sarsen session trace --initiator` records its \
             requests for a bug report"
        }
        InvalidName => {
            "correct the initiator's own name, or the target's name at the initiator: an iSCSI name is \
             iqn.YYYY-MM.reversed.domain:anything, without spaces and control characters"
        }
        MissingParameter => {
            "the initiator sends no name of its own, or no target name: set both at the initiator"
        }
        NoCommonMethod => {
            "turn CHAP on at the initiator, with the name and secret of an account that the target lists \
             in chap, and with an algorithm that the target accepts"
        }
        ChapNotConfigured => {
            "turn CHAP off at the initiator; or, to use CHAP, create an account with the initiator's name and \
             secret, and list it in chap of the target (or of discovery)"
        }
        ProofMissing => {
            "give the initiator the name and secret of an account that the target lists in chap; NBD has no accounts: \
             for its clients, permit an address or a certificate"
        }
        UnknownAccount => {
            "no account has the initiator's CHAP name: correct the name, or create the account"
        }
        WrongSecret => {
            "give the initiator the secret of its account, or give the account a new secret"
        }
        ReflectedChallenge => {
            "the client sent the server's own challenge back, which is an attack or a broken proxy: find out \
             which machine has that address"
        }
        NoOwnCredentials => {
            "the initiator requires mutual CHAP: give the target an own-account, or turn mutual CHAP off at the \
             initiator"
        }
        SameSecret => {
            "the account and the target's own-account have the same secret, which is not secure: give one of \
             them another secret, here and at the initiator"
        }
        InitiatorNotAllowed => {
            "to permit it, add the initiator's name to a rule (allow) of the target; for a client of NBD, which has no \
             name, its address or certificate"
        }
        AddressNotAllowed => "to permit it, add the address to a rule (allow) of the target",
        AccountNotAllowed => "to permit it, list the account in chap or in a rule of the target",
        CertificateNotAllowed => {
            "to permit it, add the name in the client's certificate to a rule of the target; a client without a \
             certificate needs one"
        }
        AccessRevoked => {
            "an administrator revoked its access: add a rule to permit it again, or remove the target at the \
             initiator"
        }
        NoSuchTarget => {
            "the target does not exist: repeat discovery at the initiator, or correct the name there"
        }
        NoSuchExport => {
            "correct the name at the client, or see the rules of the target, and whether its volume is in service"
        }
        UnsupportedVersion => {
            "the client does not support RFC 7143: update it, or find out which program uses that address"
        }
        TooManyConnections => {
            "raise limits.connections-per-session, or lower the initiator's number of connections"
        }
        CannotIncludeInSession => {
            "two initiators use the same name and ISID: give each initiator a name of its own"
        }
        NoSuchSession => "nothing: the initiator creates a new session",
        NotInService => {
            "the target was taken out of service: `sarsen target undrain` puts it in service again; if the server \
             ends, start it again"
        }
        OutOfResources => {
            "a limit is reached: raise limits.sessions or limits.sessions-per-target, or log out unneeded sessions \
             (`sarsen session list`); if a hung disk keeps the session that this one replaces, repair the disk"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_login_names_initiator_reason_and_remedy() {
        let subject = Subject {
            peer: SocketAddr::from(([192, 0, 2, 7], 4711)),
            initiator: Some("iqn.x:host".into()),
            target: Some("iqn.x:disk".into()),
            account: Some("web".into()),
            tsih: None,
            cid: None,
        };
        let reason = RefusalReason::WrongSecret;
        let event = Occurrence::LoginRefused { subject, reason }.event(7, 8);
        assert_eq!(
            event.message,
            "the login of iqn.x:host (192.0.2.7:4711) to iqn.x:disk as account web was refused: \
             wrong secret"
        );
        assert!(event.remedy.expect("some").contains("secret of its account"));
        assert_eq!(event.subject["reason"], "wrong_secret");
        assert_eq!((event.id, event.unix_ms, event.severity), (7, 8, Severity::Warning));
    }

    #[test]
    fn a_change_of_thousands_of_things_is_a_small_event() {
        let names = (0..10_000).map(|number| format!("volume-{number}")).collect();
        let (author, what) = ("ada@san".into(), "10,000 volumes".into());
        let changed = Occurrence::ConfigurationChanged { revision: Some(7), author, what, names };
        let event = changed.event(1, 2);
        assert_eq!((event.names.len(), &*event.names[0]), (NAMES, "volume-0"));
    }

    #[test]
    fn each_refusal_has_remedy() {
        use RefusalReason::*;
        let subject = Subject {
            peer: SocketAddr::from(([192, 0, 2, 7], 4711)),
            initiator: Some("iqn.x:host".into()),
            target: Some("iqn.x:disk".into()),
            account: None,
            tsih: None,
            cid: None,
        };
        // What a person does begins with one of these; "nothing" is said where there is nothing to do.
        const DEEDS: [&str; 12] = [
            "nothing", "update", "set both", "give", "correct", "find out", "turn", "add", "list",
            "raise", "lower", "undrain",
        ];
        for reason in [
            MovedTemporarily,
            MovedPermanently,
            Malformed,
            InvalidName,
            NoCommonMethod,
            ChapNotConfigured,
            ProofMissing,
            UnknownAccount,
            WrongSecret,
            ReflectedChallenge,
            NoOwnCredentials,
            SameSecret,
            InitiatorNotAllowed,
            AddressNotAllowed,
            AccountNotAllowed,
            CertificateNotAllowed,
            AccessRevoked,
            NoSuchTarget,
            NoSuchExport,
            UnsupportedVersion,
            TooManyConnections,
            MissingParameter,
            CannotIncludeInSession,
            UnknownSessionType,
            NoSuchSession,
            InvalidDuringLogin,
            NotInService,
            OutOfResources,
        ] {
            let event = Occurrence::LoginRefused { subject: subject.clone(), reason }.event(1, 2);
            for reported in ["iqn.x:host", "192.0.2.7:4711", &reason.to_string()] {
                assert!(event.message.contains(reported), "{reason:?}: {}", event.message);
            }
            let remedy = event.remedy.expect("a remedy");
            assert!(DEEDS.iter().any(|deed| remedy.contains(deed)), "{reason:?}: {remedy}");
        }
    }

    #[test]
    fn rejected_connection_is_reported_with_its_limit() {
        let peer = SocketAddr::from(([192, 0, 2, 7], 4711));
        let away = |count| Occurrence::ConnectionsRejected {
            peer,
            count,
            limit: "logins-per-source",
            why: "too many".into(),
        };
        let event = away(1).event(1, 2);
        assert_eq!(
            event.message,
            "a connection from 192.0.2.7 was closed before the login: too many"
        );
        assert!(event.remedy.expect("a remedy").starts_with("raise limits.logins-per-source"));
        assert!(away(7).event(1, 2).message.starts_with("7 connections from 192.0.2.7 were"));
    }
}
