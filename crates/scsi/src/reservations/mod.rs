//! The reservations of a unit, as SCSI sees those of its volume: the flags that a command needs, unit attentions, and
//! sense data.

pub(crate) mod transport_id;

use std::sync::Arc;

use sarsen_volume::reservations::{
    NexusName, Notice, Permission, PermissionCell, ReservationError,
};

use crate::attention::Attentions;
use crate::flags::Flags;
use crate::nexus_id::NexusId;
use crate::refusal::Refusal;
use crate::{AdditionalSense, LogicalUnit, Sense, SenseKey, UnitAttention};

/// Offsets of fields in the parameter lists of PERSISTENT RESERVE OUT.
const SERVICE_ACTION_RESERVATION_KEY: u16 = 8;
const SPEC_I_PT: (u16, u8) = (20, 3);
const TRANSPORT_IDS: u16 = 28;
const MOVE_TRANSPORT_ID: u16 = 24;

/// Returns the flags that a command needs to be executed with this permission.
#[inline]
pub(crate) fn needed(permission: Permission) -> Flags {
    match permission {
        Permission::All => Flags::NONE,
        Permission::Reads => Flags::ALLOWED_UNDER_WRITE_EXCLUSIVE,
        Permission::Nothing => Flags::ALLOWED_UNDER_EXCLUSIVE_ACCESS,
        Permission::Held => Flags::ALLOWED_WHEN_RESERVED,
    }
}

/// Returns the answer to a refused service action. `invalid_type` is the answer to an invalid SCOPE or TYPE.
pub(crate) fn refusal(error: ReservationError, invalid_type: Option<Sense>) -> Refusal {
    let resources = AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES;
    let release = AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
    Refusal::Sense(match error {
        ReservationError::Conflict => return Refusal::ReservationConflict,
        ReservationError::InvalidType => invalid_type.unwrap_or(Sense::invalid_field_in_cdb(2)),
        ReservationError::WrongTypeOfRelease => Sense::new(SenseKey::IllegalRequest, release),
        ReservationError::TooManyRegistrations => Sense::new(SenseKey::IllegalRequest, resources),
        ReservationError::Registered => {
            Sense::invalid_bit_in_parameter_list(SPEC_I_PT.0, SPEC_I_PT.1)
        }
        ReservationError::OtherRegistered => Sense::invalid_field_in_parameter_list(TRANSPORT_IDS),
        ReservationError::ZeroKey => {
            Sense::invalid_field_in_parameter_list(SERVICE_ACTION_RESERVATION_KEY)
        }
        ReservationError::NothingToMove => Sense::invalid_bit_in_cdb(1, 4),
        ReservationError::MoveToItself => Sense::invalid_field_in_parameter_list(MOVE_TRANSPORT_ID),
        ReservationError::NotSaved => Sense::save_failed(),
    })
}

const fn attention(notice: Notice) -> UnitAttention {
    match notice {
        Notice::ReservationsPreempted => UnitAttention::ReservationsPreempted,
        Notice::ReservationsReleased => UnitAttention::ReservationsReleased,
        Notice::RegistrationsPreempted => UnitAttention::RegistrationsPreempted,
    }
}

/// An I_T nexus that is attached to a unit.
pub(crate) struct Attached {
    pub(crate) id: NexusId,
    pub(crate) attentions: Arc<Attentions>,
}

impl LogicalUnit {
    /// Attaches a nexus: begins to queue its unit attentions and to check its commands against reservations.
    pub(crate) fn attach(
        &self,
        id: NexusId,
        name: &NexusName,
    ) -> (Arc<Attentions>, Arc<PermissionCell>) {
        let attentions = Arc::new(Attentions::default());
        attentions.raise(UnitAttention::PowerOn);
        self.medium().attach(id);
        let noticed = attentions.clone();
        let listener = Arc::new(move |notice| noticed.raise(attention(notice)));
        let permission = self.volume().attach(id, Some(name.clone()), Some(listener));
        self.attached().push(Attached { id, attentions: attentions.clone() });
        (attentions, permission)
    }

    /// Returns the known ports of an initiator: those with a session or a registration.
    pub(crate) fn known_initiator_ports(&self, device: &str) -> Vec<Arc<str>> {
        let names = self.volume().known_nexuses().into_iter();
        let mut ports: Vec<Arc<str>> = names
            .map(|name| name.initiator_port)
            .filter(|port| transport_id::is_of(port, device))
            .collect();
        ports.sort();
        ports.dedup();
        ports
    }
}
