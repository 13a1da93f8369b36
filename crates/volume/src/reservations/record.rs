//! The record of registrations and the reservation that survives a loss of power (SPC-4 5.12.5.1).

use super::state::{NexusName, Registration, Reservation, ReservationState, Type};
use std::io;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION: u32 = 1;
/// HOLDER if all registrants hold the reservation, or if there is none.
const NO_HOLDER: u32 = u32::MAX;

/// The header of the record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: U32,
    /// The type of the reservation; 0 if there is none.
    reservation_type: u8,
    reserved: [u8; 3],
    /// The index of the registration that holds it.
    holder: U32,
    /// The number of registrations that follow.
    count: U32,
}

/// The header of each registration. The name of the initiator port follows.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    key: U64,
    target_port: U16,
    name_length: U16,
}

const _: () = assert!(size_of::<Header>() == 16 && size_of::<Entry>() == 12);

/// Returns the record of a state. It is empty if the state need not outlive the program.
pub(super) fn encode(state: &ReservationState) -> Vec<u8> {
    if !state.aptpl || state.registrations.is_empty() {
        return Vec::new();
    }
    let holder = state
        .reservation
        .as_ref()
        .and_then(|held| held.holder.as_ref())
        .and_then(|name| state.registrations.iter().position(|known| known.nexus == *name));
    let header = Header {
        version: VERSION.into(),
        reservation_type: state.reservation.as_ref().map_or(0, |held| held.reservation_type as u8),
        reserved: [0; 3],
        holder: holder.map_or(NO_HOLDER, |index| index as u32).into(),
        count: (state.registrations.len() as u32).into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    for Registration { nexus, key } in &state.registrations {
        let name = nexus.initiator_port.as_bytes();
        let entry = Entry {
            key: (*key).into(),
            target_port: nexus.target_port.into(),
            name_length: (name.len() as u16).into(),
        };
        bytes.extend_from_slice(entry.as_bytes());
        bytes.extend_from_slice(name);
    }
    bytes
}

/// Returns the state in a record.
pub(super) fn decode(bytes: &[u8]) -> io::Result<ReservationState> {
    parse(bytes).map_err(|problem| {
        let message = format!(
            "what was kept of persistent reservations cannot be used ({problem}): start the version \
             of this program that wrote it, or remove the record \"reservations\" to start without them"
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn parse(bytes: &[u8]) -> Result<ReservationState, &'static str> {
    let (header, mut rest) = Header::ref_from_prefix(bytes).map_err(|_| "it is too short")?;
    if header.version.get() != VERSION {
        return Err("its version is unknown");
    }
    let mut registrations = Vec::new();
    for _ in 0..header.count.get() {
        let (entry, behind) = Entry::ref_from_prefix(rest).map_err(|_| "it is too short")?;
        let length = usize::from(entry.name_length.get());
        let (name, behind) = behind.split_at_checked(length).ok_or("it is too short")?;
        let name = str::from_utf8(name).map_err(|_| "a name is no text")?;
        let nexus = NexusName { initiator_port: name.into(), target_port: entry.target_port.get() };
        registrations.push(Registration { nexus, key: entry.key.get() });
        rest = behind;
    }
    if !rest.is_empty() || header.reserved != [0; 3] {
        return Err("there is more than there should be");
    }
    let holder = match header.holder.get() {
        NO_HOLDER => None,
        index => {
            let known = registrations.get(index as usize).ok_or("the holder is not registered")?;
            Some(known.nexus.clone())
        }
    };
    let reservation = match header.reservation_type {
        0 if holder.is_some() => return Err("a holder of nothing"),
        0 => None,
        code => {
            let reservation_type = Type::from_code(code).ok_or("an unknown type")?;
            Some(Reservation { holder, reservation_type })
        }
    };
    // SPC-4 6.15.2: PRGENERATION is zero after each power on.
    let state = ReservationState { generation: 0, registrations, reservation, aptpl: true };
    state.check_invariants()?;
    Ok(state)
}
