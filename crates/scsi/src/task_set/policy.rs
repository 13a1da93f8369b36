//! The task parameters of the control mode page (SPC-4 7.5.8).

use sarsen_wire::scsi::mode::ControlPage;

/// TST, in bits 7 to 5 of byte 2.
const TST: u8 = 0xe0;
const TST_SHIFT: u32 = 5;
/// QUEUE ALGORITHM MODIFIER and QERR in byte 3.
const QUEUE_ALGORITHM_MODIFIER: u8 = 0xf0;
const QUEUE_ALGORITHM_MODIFIER_SHIFT: u32 = 4;
const QERR: u8 = 0x06;
const QERR_SHIFT: u32 = 1;
/// UA_INTLCK_CTRL in byte 4.
const UA_INTLCK_CTRL: u8 = 0x30;
const UA_INTLCK_CTRL_SHIFT: u32 = 4;
/// TAS in byte 5.
const TAS: u8 = 0x40;

/// QERR: the tasks that a CHECK CONDITION ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnError {
    /// 00b: none.
    #[default]
    Continue = 0,
    /// 01b: all tasks of the task set.
    EndAll = 1,
    /// 11b: the tasks of the same nexus.
    EndOwn = 3,
}

/// UA_INTLCK_CTRL: the time at which a unit attention is cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Interlock {
    /// 00b: cleared by the first CHECK CONDITION that reports it.
    #[default]
    None = 0,
    /// 10b: cleared only by REQUEST SENSE.
    Holds = 2,
    /// 11b: as 10b. In addition, a unit attention reports BUSY, TASK SET FULL and RESERVATION CONFLICT.
    HoldsStatuses = 3,
}

/// The order of a unit's tasks, and the tasks that end together. By default there is one task set whose SIMPLE tasks
/// are reordered freely, and a failure ends no other task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// TST 001b: each nexus has a task set of its own.
    pub(crate) set_for_each_nexus: bool,
    /// QUEUE ALGORITHM MODIFIER 0h: the medium has the content that ORDERED commands of the nexus would leave.
    pub(crate) restricted_reordering: bool,
    pub(crate) on_error: OnError,
    /// TAS: a nexus whose task was ended by another nexus receives TASK ABORTED.
    pub(crate) task_aborted_status: bool,
    pub(crate) interlock: Interlock,
}

impl Policy {
    /// A policy in which all changeable fields differ from the default one.
    pub(crate) const OPPOSITE: Self = Self {
        set_for_each_nexus: true,
        restricted_reordering: true,
        on_error: OnError::EndOwn,
        task_aborted_status: true,
        interlock: Interlock::HoldsStatuses,
    };

    /// Returns the task bits of bytes 2 to 5 of the page.
    pub(crate) const fn to_bytes(self) -> [u8; 4] {
        let modifier = !self.restricted_reordering as u8;
        [
            (self.set_for_each_nexus as u8) << TST_SHIFT,
            modifier << QUEUE_ALGORITHM_MODIFIER_SHIFT | (self.on_error as u8) << QERR_SHIFT,
            (self.interlock as u8) << UA_INTLCK_CTRL_SHIFT,
            if self.task_aborted_status { TAS } else { 0 },
        ]
    }

    /// Returns the policy in these bytes of the page, or the byte and the highest bit of a field with a reserved value.
    pub(crate) const fn from_bytes(bytes: [u8; 4]) -> Result<Self, (u16, u8)> {
        let set_for_each_nexus = match (bytes[0] & TST) >> TST_SHIFT {
            0 => false,
            1 => true,
            _ => return Err((2, 7)),
        };
        let modifier = bytes[1] & QUEUE_ALGORITHM_MODIFIER;
        let restricted_reordering = match modifier >> QUEUE_ALGORITHM_MODIFIER_SHIFT {
            0 => true,
            1 => false,
            _ => return Err((3, 7)),
        };
        let on_error = match (bytes[1] & QERR) >> QERR_SHIFT {
            0 => OnError::Continue,
            1 => OnError::EndAll,
            3 => OnError::EndOwn,
            _ => return Err((3, 2)),
        };
        let interlock = match (bytes[2] & UA_INTLCK_CTRL) >> UA_INTLCK_CTRL_SHIFT {
            0 => Interlock::None,
            2 => Interlock::Holds,
            3 => Interlock::HoldsStatuses,
            _ => return Err((4, 5)),
        };
        let task_aborted_status = bytes[3] & TAS != 0;
        Ok(Self {
            set_for_each_nexus,
            restricted_reordering,
            on_error,
            task_aborted_status,
            interlock,
        })
    }

    /// Returns the policy in a control mode page. Fails like [`Self::from_bytes`].
    pub(crate) const fn of_page(page: &ControlPage) -> Result<Self, (u16, u8)> {
        Self::from_bytes([page.flags_2, page.queueing, page.flags_4, page.flags_5])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spc4_7_5_8_a_policy_survives_the_page_and_reserved_values_are_none() {
        let [first, second] = [Policy::default(), Policy::OPPOSITE];
        for policy in [first, second] {
            assert_eq!(Policy::from_bytes(policy.to_bytes()), Ok(policy));
        }
        assert_eq!(first.to_bytes(), [0x00, 0x10, 0x00, 0x00]);
        assert_eq!(second.to_bytes(), [0x20, 0x06, 0x30, 0x40]);
        for (bytes, field) in [
            ([0x40, 0x10, 0, 0], (2, 7)),
            ([0, 0x20, 0, 0], (3, 7)),
            ([0, 0x14, 0, 0], (3, 2)),
            ([0, 0x10, 0x10, 0], (4, 5)),
        ] {
            assert_eq!(Policy::from_bytes(bytes), Err(field), "{bytes:02x?}");
        }
    }
}
