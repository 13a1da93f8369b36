//! ROD tokens (SPC-4 5.17.6): 512 unpredictable bytes that represent the data of some blocks at one moment.
//!
//! The server copies nothing when it creates a token. A token is a point in time copy that is vulnerable to change: the
//! first write to one of its blocks revokes it (`watch`). Therefore it never represents other data than at its
//! creation. Every initiator that has the token may use it. In this way one host lets another host copy.

use super::{DEFAULT_INACTIVITY_S, MAXIMUM_INACTIVITY_S};
use crate::target::InitiatorDevice;
use crate::{AdditionalSense, Array, LogicalUnit, Sense, SenseKey};
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Extent;
use sarsen_wire::scsi::copy::{
    self as wire, IdentificationCscd, RodManagementToken, RodToken, WriteUsingTokenHeader,
};
use sarsen_wire::scsi::report::{CAPACITY_LBPME, CAPACITY_LBPRZ};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// The maximum number of tokens of one initiator. A further token cancels the one with the longest idle time.
const TOKENS_OF_AN_INITIATOR: usize = 256;
/// The maximum number of tokens of all initiators, including ended ones.
const TOKENS: usize = 4096;

/// The reason why a token cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenEnd {
    Revoked,
    Expired,
    Cancelled,
    Deleted,
}

impl TokenEnd {
    const fn sense(self) -> Sense {
        refused(match self {
            Self::Revoked => AdditionalSense::INVALID_TOKEN_OPERATION_TOKEN_REVOKED,
            Self::Expired => AdditionalSense::INVALID_TOKEN_OPERATION_TOKEN_EXPIRED,
            Self::Cancelled => AdditionalSense::INVALID_TOKEN_OPERATION_TOKEN_CANCELLED,
            Self::Deleted => AdditionalSense::INVALID_TOKEN_OPERATION_TOKEN_DELETED,
        })
    }
}

/// Returns the sense data for an invalid ROD TOKEN field of WRITE USING TOKEN.
const fn refused(additional: AdditionalSense) -> Sense {
    Sense::in_parameter_list(additional, offset_of!(WriteUsingTokenHeader, token) as u16)
}

/// One token.
pub(super) struct Token {
    bytes: RodToken,
    array: Weak<Array>,
    unit: Weak<LogicalUnit>,
    extents: Vec<Extent>,
    initiator: InitiatorDevice,
    inactivity_ms: u64,
    /// The time of the last use, in milliseconds since 1970.
    used_at: AtomicU64,
    /// Number of commands that read from the token now. It does not expire meanwhile.
    users: AtomicU32,
    end: Mutex<Option<TokenEnd>>,
}

impl Token {
    pub(super) fn to_wire(&self) -> RodToken {
        self.bytes
    }

    pub(super) fn is_live(&self) -> bool {
        self.end().is_none()
    }

    pub(super) fn stands_for(&self, extent: Extent) -> bool {
        let end = extent.saturating_end();
        self.extents.iter().any(|own| own.lba.0 < end && extent.lba.0 < own.end())
    }

    pub(super) fn revoke(&self) {
        self.end_as(TokenEnd::Revoked);
    }

    /// Ends the token if it was idle for too long. A clock that jumps back extends its life.
    pub(super) fn expire_if_idle(&self) {
        let Some(array) = self.array.upgrade() else { return self.end_as(TokenEnd::Cancelled) };
        let idle = array.host().unix_time_ms().saturating_sub(self.used_at.load(Ordering::Relaxed));
        if idle > self.inactivity_ms && self.users.load(Ordering::Relaxed) == 0 {
            self.end_as(TokenEnd::Expired);
        }
    }

    fn end(&self) -> MutexGuard<'_, Option<TokenEnd>> {
        self.end.lock()
    }

    /// Ends the token. The first reason is kept.
    fn end_as(&self, reason: TokenEnd) {
        self.end().get_or_insert(reason);
    }

    fn check(&self) -> Result<(), Sense> {
        match *self.end() {
            Some(end) => Err(end.sense()),
            None => Ok(()),
        }
    }
}

/// A token while a command reads from it.
pub(super) struct Use {
    token: Arc<Token>,
    pub(super) unit: Arc<LogicalUnit>,
    /// DEL_TKN: the token is deleted after this use.
    pub(super) is_last: bool,
}

impl Use {
    /// Checks whether all data that was read from the token so far is valid.
    pub(super) fn check(&self) -> Result<(), Sense> {
        self.token.check()
    }

    pub(super) fn extents(&self) -> &[Extent] {
        &self.token.extents
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(array) = self.token.array.upgrade() {
            self.token.used_at.store(array.host().unix_time_ms(), Ordering::Relaxed);
        }
        self.token.users.fetch_sub(1, Ordering::Relaxed);
        if self.is_last {
            self.token.end_as(TokenEnd::Deleted);
        }
    }
}

/// The parameters of a new token.
pub(super) struct TokenParameters {
    pub(super) unit: Arc<LogicalUnit>,
    pub(super) extents: Vec<Extent>,
    pub(super) initiator: InitiatorDevice,
    /// INACTIVITY TIMEOUT in seconds; 0 means the default.
    pub(super) inactivity_s: u32,
}

/// All tokens of an array, including recently ended ones.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<Vec<Arc<Token>>>);

impl Tokens {
    /// Creates a token. The caller adds it to the unit's watch.
    pub(super) fn create(
        &self,
        array: &Arc<Array>,
        parameters: TokenParameters,
    ) -> Result<Arc<Token>, Sense> {
        let mut tokens = self.tokens();
        tokens.iter().for_each(|token| token.expire_if_idle());
        if tokens.len() >= TOKENS {
            tokens.retain(|token| token.is_live());
        }
        if tokens.len() >= TOKENS {
            let code = AdditionalSense::INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN;
            return Err(Sense::new(SenseKey::IllegalRequest, code));
        }
        let own = || {
            let live = tokens.iter().filter(|token| token.is_live());
            live.filter(|token| token.initiator == parameters.initiator)
        };
        if own().count() >= TOKENS_OF_AN_INITIATOR
            && let Some(idle) = own().min_by_key(|token| token.used_at.load(Ordering::Relaxed))
        {
            idle.end_as(TokenEnd::Cancelled);
        }
        let seconds = match parameters.inactivity_s {
            0 => DEFAULT_INACTIVITY_S,
            seconds => seconds.min(MAXIMUM_INACTIVITY_S),
        };
        let token = Arc::new(Token {
            bytes: bytes(array, &parameters),
            array: Arc::downgrade(array),
            unit: Arc::downgrade(&parameters.unit),
            extents: parameters.extents,
            initiator: parameters.initiator,
            inactivity_ms: u64::from(seconds) * 1000,
            used_at: AtomicU64::new(array.host().unix_time_ms()),
            users: AtomicU32::new(0),
            end: Mutex::default(),
        });
        tokens.push(token.clone());
        Ok(token)
    }

    /// Returns the token that an initiator sent (SPC-4 5.17.6.5).
    pub(super) fn open(&self, sent: &RodToken) -> Result<Use, Sense> {
        if sent.management.length.get() != wire::ROD_TOKEN_LENGTH {
            return Err(refused(AdditionalSense::INVALID_TOKEN_OPERATION_INVALID_TOKEN_LENGTH));
        }
        if sent.management.rod_type.get() != wire::ROD_POINT_IN_TIME_CHANGE_VULNERABLE {
            return Err(refused(AdditionalSense::INVALID_TOKEN_OPERATION_UNSUPPORTED_TOKEN_TYPE));
        }
        let tokens = self.tokens();
        let identifier = sent.management.identifier;
        let known = tokens.iter().find(|token| token.bytes.management.identifier == identifier);
        let Some(token) = known else {
            return Err(refused(AdditionalSense::INVALID_TOKEN_OPERATION_TOKEN_UNKNOWN));
        };
        if !is_equal(token.bytes.as_bytes(), sent.as_bytes()) {
            return Err(refused(AdditionalSense::INVALID_TOKEN_OPERATION_TOKEN_CORRUPT));
        }
        token.expire_if_idle();
        token.check()?;
        let Some(unit) = token.unit.upgrade() else {
            token.end_as(TokenEnd::Cancelled);
            return Err(TokenEnd::Cancelled.sense());
        };
        token.users.fetch_add(1, Ordering::Relaxed);
        Ok(Use { token: token.clone(), unit, is_last: false })
    }

    /// Returns the management data of an initiator's live tokens, which is not sufficient to use them.
    pub(super) fn of(&self, initiator: &InitiatorDevice) -> Vec<RodManagementToken> {
        let tokens = self.tokens();
        tokens.iter().for_each(|token| token.expire_if_idle());
        tokens
            .iter()
            .filter(|token| token.is_live() && token.initiator == *initiator)
            .map(|token| token.bytes.management)
            .collect()
    }

    fn tokens(&self) -> MutexGuard<'_, Vec<Arc<Token>>> {
        self.0.lock()
    }
}

/// Compares two tokens in constant time.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

/// Builds the bytes of a token (SPC-4 5.17.6.4, SBC-3 4.28.3).
fn bytes(array: &Array, parameters: &TokenParameters) -> RodToken {
    let unit = &parameters.unit;
    let block_size = unit.geometry().block_size;
    let mut identifier = [0; 8];
    let mut secret = [0; 352];
    array.host().fill_random(&mut identifier);
    array.host().fill_random(&mut secret);
    let blocks: u64 = parameters.extents.iter().map(|extent| extent.block_count).sum();
    let characteristics = unit.characteristics();
    RodToken {
        management: RodManagementToken {
            rod_type: wire::ROD_POINT_IN_TIME_CHANGE_VULNERABLE.into(),
            reserved: [0; 2],
            length: wire::ROD_TOKEN_LENGTH.into(),
            identifier: u64::from_be_bytes(identifier).into(),
            creator: creator(unit),
            byte_count: (u128::from(blocks) << block_size.shift()).into(),
            type_specific: [0; 32],
        },
        block_length: (block_size.bytes() as u32).into(),
        // P_TYPE and PROT_EN.
        protection: unit.protection_type().map_or(0, |kind| kind.p_type() << 1 | 1),
        exponents: characteristics.physical_block_exponent & 0x0f,
        provisioning: characteristics.unmap.map_or(0, |_| CAPACITY_LBPME | CAPACITY_LBPRZ).into(),
        reserved: [0; 24],
        target_device: [0; 32],
        secret,
    }
}

/// Returns the unit's designator in the form of a CSCD descriptor.
fn creator(unit: &LogicalUnit) -> IdentificationCscd {
    let mut designator = [0; 20];
    let naa = unit.identity().naa;
    designator[..naa.as_bytes().len()].copy_from_slice(naa.as_bytes());
    let [_, block_length @ ..] = (unit.geometry().block_size.bytes() as u32).to_be_bytes();
    IdentificationCscd {
        descriptor_type: wire::CSCD_IDENTIFICATION,
        device_type: unit.device_type() as u8,
        relative_initiator_port: 0.into(),
        code_set: 1,
        designator_type: 3,
        reserved: 0,
        designator_length: naa.as_bytes().len() as u8,
        designator,
        flags: 0,
        block_length,
    }
}
