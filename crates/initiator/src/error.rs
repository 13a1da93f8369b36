//! Errors of a session.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sarsen_proto::iscsi::initiator::{Completion, ConnectionError, LoginError};
use sarsen_wire::iscsi::RejectReason;
use sarsen_wire::scsi::sense::{
    DESCRIPTOR_INFORMATION, DescriptorSense, FixedSense, InformationDescriptor, VALID,
};
use zerocopy::FromBytes;

use crate::tls::TlsError;
use crate::url::Portal;
use crate::url_error::UrlError;

/// A sense key (SPC-4 4.5.6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SenseKey(pub u8);

#[allow(non_upper_case_globals)]
impl SenseKey {
    /// No sense data to report.
    pub const NoSense: Self = Self(0);
    /// Completed with a recovery action.
    pub const RecoveredError: Self = Self(1);
    /// Not accessible now.
    pub const NotReady: Self = Self(2);
    /// The medium failed.
    pub const MediumError: Self = Self(3);
    /// The device failed.
    pub const HardwareError: Self = Self(4);
    /// A request that the device does not support.
    pub const IllegalRequest: Self = Self(5);
    /// Something happened to the unit since the last command.
    pub const UnitAttention: Self = Self(6);
    /// The blocks cannot be read or written: they are protected, or there is no space for them.
    pub const DataProtect: Self = Self(7);
    /// The command was aborted; it may be tried again.
    pub const AbortedCommand: Self = Self(0xb);
    /// COMPARE AND WRITE found other data.
    pub const Miscompare: Self = Self(0xe);
}

impl fmt::Debug for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NoSense => "NO SENSE",
            Self::RecoveredError => "RECOVERED ERROR",
            Self::NotReady => "NOT READY",
            Self::MediumError => "MEDIUM ERROR",
            Self::HardwareError => "HARDWARE ERROR",
            Self::IllegalRequest => "ILLEGAL REQUEST",
            Self::UnitAttention => "UNIT ATTENTION",
            Self::DataProtect => "DATA PROTECT",
            Self::AbortedCommand => "ABORTED COMMAND",
            Self::Miscompare => "MISCOMPARE",
            Self(other) => return write!(f, "SENSE KEY {other:X}h"),
        })
    }
}

/// The contents of sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// SENSE KEY.
    pub key: SenseKey,
    /// ADDITIONAL SENSE CODE.
    pub asc: u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub ascq: u8,
    /// INFORMATION, where it is valid.
    pub information: Option<u64>,
}

impl Sense {
    /// Returns the sense data of a command that ended with CHECK CONDITION.
    pub fn of(completion: &Completion) -> Option<Self> {
        const CHECK_CONDITION: u8 = 2;
        let has_sense = completion.response == 0 && completion.status == CHECK_CONDITION;
        has_sense.then(|| Self::parse(&completion.sense)).flatten()
    }

    /// Returns whether a write failed because the lower-layer storage of a thin volume is full (SBC-4 4.7.3.6).
    pub fn is_out_of_space(&self) -> bool {
        (self.key, self.asc, self.ascq) == (SenseKey::DataProtect, 0x27, 0x07)
    }

    /// Returns whether the unit may have lost acknowledged writes: "power on, reset, or bus device reset occurred" or "power on
    /// occurred".
    pub(crate) fn may_have_lost_cache(&self) -> bool {
        self.key == SenseKey::UnitAttention && self.asc == 0x29 && self.ascq <= 1
    }

    /// Returns whether the unit reports that its parameters, its identification or the LUN have changed.
    pub(crate) fn is_change(&self) -> bool {
        self.key == SenseKey::UnitAttention && matches!(self.asc, 0x2a | 0x3f)
    }

    /// Returns whether the unit may have dropped commands without an answer: a power on or reset of any kind, or commands that
    /// another initiator cleared.
    pub(crate) fn is_reset(&self) -> bool {
        self.key == SenseKey::UnitAttention && matches!(self.asc, 0x29 | 0x2f)
    }

    /// Parses sense data of the fixed or the descriptor format; returns `None` if it is neither.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? & 0x7f {
            0x70 | 0x71 => {
                // Targets may omit the last bytes; missing bytes are zero.
                let mut whole = [0; size_of::<FixedSense>()];
                let length = bytes.len().min(whole.len());
                whole[..length].copy_from_slice(&bytes[..length]);
                let sense = FixedSense::read_from_bytes(&whole).ok()?;
                let [asc, ascq] = sense.additional_sense.get().to_be_bytes();
                let valid = sense.response_code & VALID != 0;
                Some(Self {
                    key: SenseKey(sense.sense_key & 0xf),
                    asc,
                    ascq,
                    information: valid.then(|| sense.information.get().into()),
                })
            }
            0x72 | 0x73 => {
                let (sense, descriptors) = DescriptorSense::ref_from_prefix(bytes).ok()?;
                let [asc, ascq] = sense.additional_sense.get().to_be_bytes();
                Some(Self {
                    key: SenseKey(sense.sense_key & 0xf),
                    asc,
                    ascq,
                    information: information(descriptors),
                })
            }
            _ => None,
        }
    }
}

fn information(mut descriptors: &[u8]) -> Option<u64> {
    while let [kind, length, ..] = *descriptors {
        if kind == DESCRIPTOR_INFORMATION {
            let (descriptor, _) = InformationDescriptor::ref_from_prefix(descriptors).ok()?;
            return (descriptor.valid & VALID != 0).then(|| descriptor.information.get());
        }
        descriptors = descriptors.get(2 + usize::from(length)..)?;
    }
    None
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:02X}h/{:02X}h", self.key, self.asc, self.ascq)?;
        self.information.map_or(Ok(()), |information| write!(f, ", information {information}"))
    }
}

/// The reason why a session or a command failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// The host's name has no address, or no address of it answers.
    #[error("cannot connect to {portal}: {source}")]
    Connect {
        /// The portal.
        portal: Portal,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// No TLS with the portal.
    #[error("cannot use TLS with {portal}: {source}")]
    Tls {
        /// The portal.
        portal: Portal,
        /// The error.
        #[source]
        source: Arc<TlsError>,
    },
    /// No answer in time to a login, a discovery or a logout.
    #[error("no answer from {portal} within {after:?}")]
    TimedOut {
        /// The portal.
        portal: Portal,
        /// The time limit.
        after: Duration,
    },
    /// The target redirects too many times in a row.
    #[error(
        "the target redirected the login too many times, last to {portal}; correct the redirections"
    )]
    RedirectedTooOften {
        /// The last address.
        portal: Portal,
    },
    /// The target redirects to an invalid address.
    #[error("the target redirected the login to {address:?}, which is not an address")]
    RedirectedNowhere {
        /// The target's text.
        address: String,
    },
    /// The URL's user or the target's user is invalid.
    #[error(transparent)]
    Identity(#[from] UrlError),
    /// The login failed or the target broke the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The connection was lost.
    #[error("connection lost: {0}")]
    Lost(#[source] Arc<io::Error>),
    /// The target did not end a command within its time limit, so the initiator asked it to abort the command.
    #[error(
        "the target did not end the command with operation code {operation_code:02X}h within {after:?}"
    )]
    CommandTimedOut {
        /// The first byte of the CDB.
        operation_code: u8,
        /// The time limit.
        after: Duration,
    },
    /// The LUN is another unit than before.
    #[error(
        "the logical unit is not the same any more: its identifier, serial number, block length or \
         size has changed"
    )]
    UnitChanged,
    /// A portal leads to another unit than the other portals.
    #[error(
        "{portal} leads to another logical unit than the other portals: its identifier, serial number, block length or size \
         differs"
    )]
    OtherUnit {
        /// The portal.
        portal: Portal,
    },
    /// The unit cannot be a store.
    #[error(
        "a unit with blocks of {block_length} bytes cannot be used; 512, 2048 and 4096 are possible"
    )]
    BlockLength {
        /// Bytes of a block.
        block_length: u32,
    },
    /// The session is logged out.
    #[error("the session is logged out")]
    LoggedOut,
    /// The command ended with CHECK CONDITION.
    #[error("CHECK CONDITION: {0}")]
    CheckCondition(Sense),
    /// The command ended with another status than GOOD.
    #[error("SCSI status {0:02X}h")]
    Status(u8),
    /// The target could not carry the command out at all.
    #[error("the target did not execute the command (iSCSI response {0:02X}h)")]
    TargetFailure(u8),
    /// The target refused the request's PDU.
    #[error("request rejected: {0:?}")]
    Rejected(RejectReason),
    /// A task management function ended the command.
    #[error("the command was aborted")]
    Aborted,
    /// The command ended with GOOD but moved less data than the initiator asked for.
    #[error("the target transferred {moved} bytes instead of {wanted}")]
    ShortTransfer {
        /// Bytes asked for.
        wanted: u32,
        /// Bytes that were moved.
        moved: u32,
    },
    /// The target's data is malformed.
    #[error("the response to {command} is invalid")]
    MalformedAnswer {
        /// The command.
        command: &'static str,
    },
    /// More blocks than one command or the memory can hold.
    #[error("{blocks} blocks of {block_length} bytes are too long for one command")]
    TooLong {
        /// Blocks.
        blocks: u64,
        /// Bytes of a block.
        block_length: u32,
    },
}

/// SAM-5 5.3.1: the target did not carry out the command, and the initiator may try it again.
const BUSY: u8 = 0x08;
/// The same, because the task set is full.
const TASK_SET_FULL: u8 = 0x28;
/// Another I_T nexus has aborted the command, which may have been carried out in part.
const TASK_ABORTED: u8 = 0x40;

/// The protection information of the data does not fit to it.
const PROTECTION_CHECK_FAILED: u8 = 0x10;

/// "Logical unit not ready", for any cause.
const NOT_READY: u8 = 0x04;

/// ADDITIONAL SENSE CODE of "logical unit not supported" (SPC-4 Annex F.2).
pub const LOGICAL_UNIT_NOT_SUPPORTED: u8 = 0x25;

const fn is_busy_status(status: u8) -> bool {
    matches!(status, BUSY | TASK_SET_FULL | TASK_ABORTED)
}

/// Returns whether the unit did not carry the command out now, and may a little later.
pub(crate) fn is_busy(completion: &Completion) -> bool {
    let is_not_ready = |sense: Sense| sense.key == SenseKey::NotReady && sense.asc == NOT_READY;
    is_busy_status(completion.status) || Sense::of(completion).is_some_and(is_not_ready)
}

/// Returns whether the target has aborted the command, and may carry out a repetition (SPC-4 table 43). Its data may be wrong: then another
/// attempt has no other result.
pub(crate) fn is_aborted(sense: Sense) -> bool {
    sense.key == SenseKey::AbortedCommand && sense.asc != PROTECTION_CHECK_FAILED
}

impl SessionError {
    /// Returns the sense data, if the target sent any.
    pub const fn sense(&self) -> Option<Sense> {
        match self {
            Self::CheckCondition(sense) => Some(*sense),
            _ => None,
        }
    }

    /// Returns whether another login may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::TimedOut { .. } | Self::Lost(_) | Self::LoggedOut => true,
            Self::Tls { source, .. } => matches!(**source, TlsError::Lost(_)),
            // A target that starts may listen before its units are available.
            Self::Connection(ConnectionError::Login(login)) => {
                matches!(login, LoginError::Unavailable { .. } | LoginError::NotFound { .. })
            }
            // A target that starts, or whose configuration changes, may lack the unit for a moment.
            Self::CheckCondition(sense) => {
                let keys = [SenseKey::NotReady, SenseKey::UnitAttention, SenseKey::AbortedCommand];
                keys.contains(&sense.key) || sense.asc == LOGICAL_UNIT_NOT_SUPPORTED
            }
            Self::Status(status) => is_busy_status(*status),
            _ => false,
        }
    }

    /// Returns whether no further login can succeed before a user changes something.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::Identity(_)
            | Self::RedirectedTooOften { .. }
            | Self::RedirectedNowhere { .. } => true,
            Self::Tls { source, .. } => !matches!(**source, TlsError::Lost(_)),
            Self::Connection(error) => matches!(
                error,
                ConnectionError::Login(LoginError::Denied { .. } | LoginError::Authentication(_))
            ),
            _ => false,
        }
    }

    /// Returns whether the target discarded a command whose data it received damaged.
    pub(crate) const fn is_digest_rejection(&self) -> bool {
        matches!(self, Self::Rejected(RejectReason::DataDigestError))
    }

    /// Returns whether the connection is lost, so that only a new session helps.
    pub const fn is_connection_lost(&self) -> bool {
        matches!(self, Self::Connection(_) | Self::Lost(_) | Self::LoggedOut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spc4_4_5_both_formats_of_sense_data_are_read() {
        let fixed = [0xf0, 0, 5, 0, 0, 1, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];
        let read = Sense::parse(&fixed).unwrap();
        assert_eq!((read.key, read.asc, read.ascq), (SenseKey::IllegalRequest, 0x21, 0));
        assert_eq!(read.information, Some(256));
        let descriptor =
            [0x72, 6, 0x29, 1, 0, 0, 0, 16, 2, 2, 0, 0, 0, 0xa, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        let read = Sense::parse(&descriptor).unwrap();
        assert_eq!((read.key, read.asc, read.ascq), (SenseKey::UnitAttention, 0x29, 1));
        assert_eq!(read.information, Some(7));
        assert_eq!(read.to_string(), "UNIT ATTENTION, 29h/01h, information 7");
    }

    #[test]
    fn sense_data_cut_short_or_of_another_kind() {
        let read = Sense::parse(&[0x70, 0, 3]).unwrap();
        assert_eq!((read.key, read.asc), (SenseKey::MediumError, 0));
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&[0x7f, 0]), None);
    }

    #[test]
    fn sam5_5_3_1_a_unit_that_is_busy_is_asked_again_and_a_reserved_one_is_not() {
        const RESERVATION_CONFLICT: u8 = 0x18;
        assert!(SessionError::Status(BUSY).is_transient());
        assert!(SessionError::Status(TASK_SET_FULL).is_transient());
        assert!(!SessionError::Status(RESERVATION_CONFLICT).is_transient());
    }

    #[test]
    fn spc4_table_43_an_aborted_command_is_repeated_unless_its_data_is_wrong() {
        let sense = |asc| Sense { key: SenseKey::AbortedCommand, asc, ascq: 0, information: None };
        assert!(is_aborted(sense(0x44)));
        assert!(!is_aborted(sense(PROTECTION_CHECK_FAILED)));
        assert!(!is_aborted(Sense { key: SenseKey::MediumError, ..sense(0x44) }));
    }
}
