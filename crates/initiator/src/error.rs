//! What goes wrong in a session.

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
use crate::url::{Portal, UrlError};

/// A sense key (SPC-4 4.5.6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SenseKey(pub u8);

#[allow(non_upper_case_globals)]
impl SenseKey {
    /// Nothing to say.
    pub const NoSense: Self = Self(0);
    /// Done, with some effort.
    pub const RecoveredError: Self = Self(1);
    /// Not accessible now.
    pub const NotReady: Self = Self(2);
    /// The medium failed.
    pub const MediumError: Self = Self(3);
    /// The device failed.
    pub const HardwareError: Self = Self(4);
    /// A request that the device cannot take.
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

/// What sense data says.
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
    /// The sense data of a command that ended with CHECK CONDITION.
    pub fn of(completion: &Completion) -> Option<Self> {
        const CHECK_CONDITION: u8 = 2;
        let has_sense = completion.response == 0 && completion.status == CHECK_CONDITION;
        has_sense.then(|| Self::parse(&completion.sense)).flatten()
    }

    /// Whether a write failed because the storage below a thin volume is full (SBC-4 4.7.3.6).
    pub fn is_out_of_space(&self) -> bool {
        (self.key, self.asc, self.ascq) == (SenseKey::DataProtect, 0x27, 0x07)
    }

    /// Takes sense data apart, fixed or descriptor format; `None` if it is neither.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? & 0x7f {
            0x70 | 0x71 => {
                // Targets may cut the last bytes off; what is missing is zero.
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

/// Why a session or a command failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// The host's name has no address, or no address of it answers.
    #[error("cannot connect to {portal}: {source}")]
    Connect {
        /// Where to.
        portal: Portal,
        /// What the system says.
        #[source]
        source: Arc<io::Error>,
    },
    /// No TLS with the portal.
    #[error("no TLS with {portal}: {source}")]
    Tls {
        /// The portal.
        portal: Portal,
        /// What is wrong.
        #[source]
        source: Arc<TlsError>,
    },
    /// No answer in time to a login, a discovery or a logout.
    #[error("no answer from {portal} within {after:?}")]
    TimedOut {
        /// Where.
        portal: Portal,
        /// The time that was given.
        after: Duration,
    },
    /// The target sends elsewhere, and from there elsewhere again.
    #[error("{portal} redirects, after too many redirections already")]
    RedirectedTooOften {
        /// The last address.
        portal: Portal,
    },
    /// The target redirects to something that is no address.
    #[error("redirected to {address:?}, which is no address")]
    RedirectedNowhere {
        /// What it says.
        address: String,
    },
    /// The URL's user, or the target's, cannot be one.
    #[error(transparent)]
    Identity(#[from] UrlError),
    /// The login failed or the target broke the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The connection was lost.
    #[error("connection lost: {0}")]
    Lost(#[source] Arc<io::Error>),
    /// The target did not end a command in the time that it had, and was told to abort it.
    #[error("the command with operation code {operation_code:02X}h had no end within {after:?}")]
    CommandTimedOut {
        /// The first byte of the CDB.
        operation_code: u8,
        /// The time that was given.
        after: Duration,
    },
    /// After a new login there is another unit at the same place.
    #[error(
        "the connection was lost, and what is there now is another disk: its size, serial number \
         or identifier has changed"
    )]
    UnitChanged,
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
    #[error("iSCSI response {0:02X}h: the target failed")]
    TargetFailure(u8),
    /// The target refused the request's PDU.
    #[error("request rejected: {0:?}")]
    Rejected(RejectReason),
    /// A task management function ended the command.
    #[error("the command was aborted")]
    Aborted,
    /// The command ended well with less data than asked for.
    #[error("{moved} bytes were moved where {wanted} were to be")]
    ShortTransfer {
        /// Bytes asked for.
        wanted: u32,
        /// Bytes that were moved.
        moved: u32,
    },
    /// The target's data make no sense.
    #[error("the answer to {command} makes no sense")]
    MalformedAnswer {
        /// The command.
        command: &'static str,
    },
    /// More blocks than a command can ask for or than the memory has.
    #[error("{blocks} blocks of {block_length} bytes do not fit a command")]
    TooLong {
        /// Blocks.
        blocks: u64,
        /// Bytes of a block.
        block_length: u32,
    },
}

/// SAM-5 5.3.1: nothing was done, and the command may be tried again.
const BUSY: u8 = 0x08;
/// The same, for want of room.
const TASK_SET_FULL: u8 = 0x28;

impl SessionError {
    /// The sense data, if the target sent some.
    pub const fn sense(&self) -> Option<Sense> {
        match self {
            Self::CheckCondition(sense) => Some(*sense),
            _ => None,
        }
    }

    /// Whether another login may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::TimedOut { .. } | Self::Lost(_) | Self::LoggedOut => true,
            Self::Tls { source, .. } => matches!(**source, TlsError::Lost(_)),
            // A target that starts may listen before it has its units.
            Self::Connection(ConnectionError::Login(login)) => {
                matches!(login, LoginError::Unavailable { .. } | LoginError::NotFound { .. })
            }
            Self::CheckCondition(sense) => matches!(
                sense.key,
                SenseKey::NotReady | SenseKey::UnitAttention | SenseKey::AbortedCommand
            ),
            Self::Status(status) => matches!(*status, BUSY | TASK_SET_FULL),
            _ => false,
        }
    }

    /// Whether the connection is gone, so that only a new session helps.
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
}
