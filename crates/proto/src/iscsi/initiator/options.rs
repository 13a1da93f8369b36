//! The options of an initiator's login.

use sarsen_wire::iscsi::Isid;

use super::super::keys::{SessionType, TargetOffer, boolean_value};
use super::authentication::Authentication;

/// The offer of a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestOffer {
    /// No digest.
    #[default]
    None,
    /// CRC32C, if the target supports it.
    Prefer,
    /// CRC32C. Otherwise the login fails.
    Require,
}

impl DigestOffer {
    pub(super) const fn values(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Prefer => "CRC32C,None",
            Self::Require => "CRC32C",
        }
    }
}

/// The purpose of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionTarget {
    /// SCSI commands to the target of this iSCSI name.
    Named(String),
    /// Discovery of the targets.
    Discovery,
}

impl SessionTarget {
    pub(super) const fn session_type(&self) -> SessionType {
        match self {
            Self::Named(_) => SessionType::Normal,
            Self::Discovery => SessionType::Discovery,
        }
    }
}

/// A login's identity and offers. [`LoginOptions::new`] offers the values that suit most targets.
#[derive(Clone, Debug)]
pub struct LoginOptions {
    /// The iSCSI name of the initiator.
    pub initiator_name: String,
    /// The purpose of the session.
    pub target: SessionTarget,
    /// The ISID. With the initiator's name it identifies the initiator port: a second session of the same port to the
    /// same target replaces the first one.
    pub isid: Isid,
    /// CHAP as the only offer. `None` offers only AuthMethod=None.
    pub authentication: Option<Authentication>,
    /// HeaderDigest.
    pub header_digest: DigestOffer,
    /// DataDigest.
    pub data_digest: DigestOffer,
    /// InitialR2T: whether data beyond the immediate data must wait for an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: whether a command may carry data.
    pub immediate_data: bool,
    /// MaxBurstLength, in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst_length: u32,
    /// MaxRecvDataSegmentLength that we declare, in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u32,
    /// MaxConnections: maximum number of connections of a session. Only [`super::Session`] supports more than one.
    pub max_connections: u32,
    /// The maximum ErrorRecoveryLevel, up to 2. Only [`super::Session`] can replace a lost connection, which level 2
    /// requires.
    pub error_recovery_level: u32,
}

/// DefaultTime2Retain that the initiator offers at level 2: long enough for a short network failure.
const TIME2RETAIN_SECONDS: u32 = 20;

/// A login into an existing session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) tsih: u16,
    pub(super) cid: u16,
    /// ExpStatSN of the last connection with this CID, if the new connection replaces it (RFC 7143 §11.12.9).
    pub(super) exp_stat_sn: u32,
}

impl LoginOptions {
    /// Creates options that offer no digests, no unnecessary R2Ts, and long bursts.
    pub fn new(initiator_name: impl Into<String>, target: SessionTarget, isid: Isid) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            target,
            isid,
            authentication: None,
            header_digest: DigestOffer::None,
            data_digest: DigestOffer::None,
            initial_r2t: false,
            immediate_data: true,
            max_burst_length: 16 * 1024 * 1024 - 512,
            first_burst_length: 256 * 1024,
            max_recv_data_segment_length: 1024 * 1024,
            max_outstanding_r2t: 8,
            max_connections: 1,
            error_recovery_level: 0,
        }
    }

    /// Returns DefaultTime2Retain. Below level 2 no task outlives its connection.
    const fn time2retain(&self) -> u32 {
        if self.error_recovery_level < 2 { 0 } else { TIME2RETAIN_SECONDS }
    }

    /// Returns the same offers in the form of the key table, to answer keys that the target offers.
    pub(super) const fn as_offer(&self) -> TargetOffer {
        TargetOffer {
            header_digest: !matches!(self.header_digest, DigestOffer::None),
            data_digest: !matches!(self.data_digest, DigestOffer::None),
            max_connections: self.max_connections,
            initial_r2t: self.initial_r2t,
            immediate_data: self.immediate_data,
            max_recv_data_segment_length: self.max_recv_data_segment_length,
            max_burst_length: self.max_burst_length,
            first_burst_length: self.first_burst_length,
            default_time2wait: 0,
            default_time2retain: self.time2retain(),
            max_outstanding_r2t: self.max_outstanding_r2t,
            error_recovery_level: self.error_recovery_level,
        }
    }

    /// Returns the operational keys of a session's first login with the offered values, in the order of the standard.
    pub(super) fn operational(&self) -> Vec<(&'static str, String)> {
        let mut keys = self.operational_of_connection();
        keys.extend([
            ("DefaultTime2Wait", "0".to_owned()),
            ("DefaultTime2Retain", self.time2retain().to_string()),
            ("ErrorRecoveryLevel", self.error_recovery_level.to_string()),
        ]);
        if self.target.session_type() == SessionType::Normal {
            keys.extend([
                ("MaxConnections", self.max_connections.to_string()),
                ("InitialR2T", boolean_value(self.initial_r2t)),
                ("ImmediateData", boolean_value(self.immediate_data)),
                ("MaxBurstLength", self.max_burst_length.to_string()),
                // RFC 7143 §13.14: FirstBurstLength may not exceed MaxBurstLength.
                (
                    "FirstBurstLength",
                    self.first_burst_length.min(self.max_burst_length).to_string(),
                ),
                ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
                ("DataPDUInOrder", boolean_value(true)),
                ("DataSequenceInOrder", boolean_value(true)),
            ]);
        }
        keys
    }

    /// Returns the operational keys that each connection negotiates itself.
    pub(super) fn operational_of_connection(&self) -> Vec<(&'static str, String)> {
        vec![
            ("HeaderDigest", self.header_digest.values().to_owned()),
            ("DataDigest", self.data_digest.values().to_owned()),
            ("MaxRecvDataSegmentLength", self.max_recv_data_segment_length.to_string()),
        ]
    }
}
