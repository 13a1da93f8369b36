//! The commands of persistent reservations, and which of them an initiator sends.

use sarsen_block::Rng;
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::reservation::{APTPL, BasicList, PersistentReserveOut};
use zerocopy::{FromZeros, IntoBytes};

use crate::command::padded;
use crate::fencing::{Action, Nexus};

/// Service actions (SPC-4 6.16.1).
const REGISTER: u8 = 0x00;
const RESERVE: u8 = 0x01;
const RELEASE: u8 = 0x02;
const CLEAR: u8 = 0x03;
const PREEMPT: u8 = 0x04;
const PREEMPT_AND_ABORT: u8 = 0x05;
const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 0x06;

/// The use of reservations by a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Custom {
    /// Percentage of the commands that concern reservations.
    pub(crate) percent: u32,
    /// TYPE of all reservations (SPC-4 6.15.3.4).
    pub(crate) reservation_type: u8,
    /// APTPL: the reservations survive a restart of the server.
    pub(crate) persists: bool,
}

impl Custom {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];
        Self {
            percent: if rng.chance(50) { 0 } else { 2 + rng.below(12) as u32 },
            reservation_type: TYPES[rng.below(6) as usize],
            persists: rng.chance(50),
        }
    }

    /// Returns whether every registrant has access, not only the holder.
    pub(crate) const fn admits_registrants(self) -> bool {
        self.reservation_type > 3
    }

    /// Returns the CDB and the parameter list.
    pub(crate) fn bytes(self, action: Action) -> ([u8; 16], Vec<u8>) {
        let (service_action, own, other) = match action {
            Action::Register { key } => (REGISTER_AND_IGNORE_EXISTING_KEY, 0, key),
            Action::Unregister { key } => (REGISTER, key, 0),
            Action::Reserve { key } => (RESERVE, key, 0),
            Action::Release { key } => (RELEASE, key, 0),
            Action::Clear { key } => (CLEAR, key, 0),
            Action::Preempt { key, victim, aborts: false } => (PREEMPT, key, victim),
            Action::Preempt { key, victim, aborts: true } => (PREEMPT_AND_ABORT, key, victim),
        };
        let list = BasicList {
            reservation_key: own.into(),
            service_action_reservation_key: other.into(),
            flags: if self.persists { APTPL } else { 0 },
            ..BasicList::default()
        };
        let mut cdb = PersistentReserveOut::new_zeroed();
        cdb.operation_code = opcode::PERSISTENT_RESERVE_OUT;
        cdb.service_action = service_action;
        cdb.scope_and_type = match action {
            Action::Reserve { .. } | Action::Release { .. } | Action::Preempt { .. } => {
                self.reservation_type
            }
            Action::Register { .. } | Action::Unregister { .. } | Action::Clear { .. } => 0,
        };
        cdb.parameter_list_length = (size_of::<BasicList>() as u32).into();
        (padded(&cdb), list.as_bytes().to_vec())
    }
}

/// Draws the next action of a nexus from the registered keys; `fresh` is a new key.
pub(crate) fn draw(rng: &mut Rng, nexus: Nexus, keys: &[(Nexus, u64)], fresh: u64) -> Action {
    let Some(&(_, key)) = keys.iter().find(|(owner, _)| *owner == nexus) else {
        return Action::Register { key: fresh };
    };
    let others: Vec<u64> =
        keys.iter().filter(|(owner, _)| *owner != nexus).map(|(_, key)| *key).collect();
    let victim = others.get(rng.below(others.len() as u64) as usize);
    match (rng.below(100), victim) {
        (..35, _) => Action::Reserve { key },
        (..70, Some(&victim)) => Action::Preempt { key, victim, aborts: rng.chance(50) },
        (..90, _) => Action::Register { key: fresh },
        (..94, _) => Action::Release { key },
        (..97, _) => Action::Clear { key },
        _ => Action::Unregister { key },
    }
}
