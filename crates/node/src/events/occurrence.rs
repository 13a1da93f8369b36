//! What can happen, and how it is told: how severe it is, in a sentence, and what to do.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use sarsen_proto::iscsi::target::RefusalReason;

use crate::control::schema::events::{Event, Severity};
use crate::statistics::Failure;

/// Whom a login, or a connection, is with, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) peer: SocketAddr,
    pub(crate) initiator: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) account: Option<String>,
    /// The session's handle, once it stands.
    pub(crate) tsih: Option<u16>,
    pub(crate) cid: Option<u16>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Occurrence {
    ServerStarted {
        version: String,
    },
    ServerStopping,
    /// A session was begun, or a connection joined one.
    LoggedIn {
        subject: Subject,
        joins: bool,
    },
    LoginRefused {
        subject: Subject,
        reason: RefusalReason,
    },
    /// Before the login.
    HandshakeFailed {
        peer: SocketAddr,
        why: String,
    },
    /// A connection in order, and its session with it if it was the last.
    LoggedOut {
        subject: Subject,
    },
    /// A connection without a logout.
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
    /// The configuration that holds is another.
    ConfigurationChanged {
        revision: Option<u64>,
        author: String,
        what: String,
    },
    VolumeError {
        volume: String,
        initiator: String,
        failure: Failure,
    },
    EventsNotKept {
        path: String,
        error: String,
    },
}

impl Occurrence {
    /// It as it is told.
    pub(super) fn event(&self, id: u64, unix_ms: u64) -> Event {
        let (kind, severity) = self.kind();
        Event {
            id,
            unix_ms,
            severity,
            kind: kind.to_owned(),
            message: self.message(),
            remedy: self.remedy(),
            subject: self.subject(),
        }
    }

    fn kind(&self) -> (&'static str, Severity) {
        match self {
            Self::ServerStarted { .. } => ("server_started", Severity::Info),
            Self::ServerStopping => ("server_stopping", Severity::Info),
            Self::LoggedIn { joins: false, .. } => ("session_begun", Severity::Info),
            Self::LoggedIn { joins: true, .. } => ("connection_added", Severity::Info),
            Self::LoginRefused { .. } => ("login_refused", Severity::Warning),
            Self::HandshakeFailed { .. } => ("handshake_failed", Severity::Warning),
            Self::LoggedOut { .. } => ("logged_out", Severity::Info),
            Self::ConnectionLost { .. } => ("connection_lost", Severity::Warning),
            Self::AccessRevoked { .. } => ("access_revoked", Severity::Warning),
            Self::TargetDrained { .. } => ("target_drained", Severity::Info),
            Self::TargetInService { .. } => ("target_in_service", Severity::Info),
            Self::ConfigurationChanged { .. } => ("configuration_changed", Severity::Info),
            Self::VolumeError { .. } => ("volume_error", Severity::Error),
            Self::EventsNotKept { .. } => ("events_not_kept", Severity::Error),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::ServerStarted { version } => format!("the server has started, version {version}"),
            Self::ServerStopping => "the server ends".into(),
            Self::LoggedIn { subject, joins } => {
                let what = if *joins { "added a connection to its session" } else { "logged in" };
                format!("{} {what}", subject.who())
            }
            Self::LoginRefused { subject, reason } => {
                format!("the login of {} was refused: {reason}", subject.who())
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
                    "the session of {} was ended, for its access was revoked: {why}",
                    subject.who()
                )
            }
            Self::TargetDrained { target, asked, dropped } => format!(
                "target {target} is out of service; {asked} sessions were asked to log out, \
                 {dropped} were dropped"
            ),
            Self::TargetInService { target } => format!("target {target} is in service again"),
            Self::ConfigurationChanged { author, what, .. } => {
                format!("{author} changed the configuration: {what}")
            }
            Self::VolumeError { volume, failure, .. } => {
                format!("volume {volume} answered a command with {}", failure.name())
            }
            Self::EventsNotKept { path, error } => {
                format!("events are kept in memory alone: {path}: {error}")
            }
        }
    }

    fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::LoginRefused { reason, .. } => remedy(*reason).to_owned(),
            Self::HandshakeFailed { .. } => {
                "hold the client's certificate against the portal's client-ca, and its name and time \
                 of validity; a client that speaks no TLS needs a portal without it"
                    .to_owned()
            }
            Self::ConnectionLost { .. } => {
                "if it comes again, look at the network between them, and at the initiator's log"
                    .to_owned()
            }
            Self::VolumeError { failure: Failure::MediumError, .. } => {
                "a block could not be read or written: look at the disk below and at the kernel's log, \
                 and at the log here for the block"
                    .to_owned()
            }
            Self::VolumeError { .. } => {
                "the store below failed: look at its disk and at the kernel's log".to_owned()
            }
            Self::EventsNotKept { .. } => {
                "make room on the state folder's disk, or make the folder writable; then the file is \
                 taken up again"
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
            Self::HandshakeFailed { peer, .. } => add("peer", Some(peer.to_string())),
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
            Self::EventsNotKept { path, .. } => add("path", Some(path.clone())),
            Self::ServerStarted { version } => add("version", Some(version.clone())),
            Self::ServerStopping => {}
        }
        subject
    }
}

impl Subject {
    fn who(&self) -> String {
        let initiator = self.initiator.as_deref().unwrap_or("an initiator that gave no name");
        match &self.target {
            Some(target) => format!("{initiator} ({}) to {target}", self.peer),
            None => format!("{initiator} ({}) to discovery", self.peer),
        }
    }
}

/// What to do so that a login is not refused again.
fn remedy(reason: RefusalReason) -> &'static str {
    use RefusalReason::*;
    match reason {
        MovedTemporarily | MovedPermanently => {
            "nothing, if the initiator follows; else give it the new address"
        }
        Malformed | MissingParameter | UnknownSessionType | InvalidDuringLogin => {
            "the initiator breaks the protocol: trace its session, and tell its makers"
        }
        NoCommonMethod => {
            "let the initiator use CHAP, with an algorithm of the target's list; without CHAP at the \
             initiator, take the chap key off the target"
        }
        ProofMissing => {
            "give the initiator the name and secret of an account that the target lists in chap"
        }
        UnknownAccount => {
            "the initiator's CHAP name is no account here: correct it, or add the account"
        }
        WrongSecret => {
            "give the initiator the secret of its account here, or the account a new one"
        }
        ReflectedChallenge => {
            "somebody answers with our own challenge, which is an attack or a misguided proxy: find out \
             who is at that address"
        }
        NoOwnCredentials => {
            "the initiator wants the target to prove who it is: give the target an own-account, or turn \
             mutual CHAP off at the initiator"
        }
        SameSecret => "the initiator's two secrets are the same: give own-account another one",
        InitiatorNotAllowed => {
            "add the initiator's name to a rule (allow) of the target, if it is to get in"
        }
        AddressNotAllowed => {
            "add the address to the rule that has the initiator's name, if it is to get in"
        }
        AccountNotAllowed => {
            "list the account in chap, or in a rule, of the target, if it is to get in"
        }
        CertificateNotAllowed => "add the name in the client's certificate to a rule of the target",
        AccessRevoked => {
            "its access was taken away on purpose: give it back by a rule, or let the initiator forget the target"
        }
        NoSuchTarget => {
            "the initiator asks for a target that is not here: let it discover targets anew, or correct the name"
        }
        UnsupportedVersion => "the initiator is not one of RFC 7143",
        TooManyConnections => {
            "raise limits.connections-per-session, or lower the initiator's number of connections"
        }
        CannotIncludeInSession => {
            "two initiators use one session's name: give each a name, or an ISID, of its own"
        }
        NoSuchSession => "nothing: the initiator begins a session anew when its own is gone",
        NotInService => {
            "the target is drained, or the server ends: `sarsen target undrain` brings it back"
        }
        OutOfResources => {
            "there is no room: see limits.sessions and limits.sessions-per-target, and who has so many; \
             or a store holds the session that this one replaces"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_login_names_who_why_and_what_to_do() {
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
            "the login of iqn.x:host (192.0.2.7:4711) to iqn.x:disk was refused: wrong secret"
        );
        assert!(event.remedy.expect("some").contains("secret of its account"));
        assert_eq!(event.subject["reason"], "wrong_secret");
        assert_eq!((event.id, event.unix_ms, event.severity), (7, 8, Severity::Warning));
    }
}
