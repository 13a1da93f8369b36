//! GET EVENT STATUS NOTIFICATION and MECHANISM STATUS (MMC-6 6.7, 6.11). Each nexus receives each event of the medium
//! once, independently of other nexuses.

use crate::medium::Event as MediumEvent;
use crate::task::{Task, parameter_data};
use crate::{Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::multimedia as wire;
use zerocopy::IntoBytes;

/// Classes of events. The lowest class is reported first.
const CLASS_OPERATIONAL_CHANGE: u8 = 1;
const CLASS_POWER_MANAGEMENT: u8 = 2;
const CLASS_MEDIA: u8 = 4;
const CLASS_DEVICE_BUSY: u8 = 6;
const CLASSES: [u8; 4] =
    [CLASS_OPERATIONAL_CHANGE, CLASS_POWER_MANAGEMENT, CLASS_MEDIA, CLASS_DEVICE_BUSY];
const SUPPORTED: u8 = 1 << CLASS_OPERATIONAL_CHANGE
    | 1 << CLASS_POWER_MANAGEMENT
    | 1 << CLASS_MEDIA
    | 1 << CLASS_DEVICE_BUSY;
/// NEA: no requested class is supported.
const NO_EVENT_AVAILABLE: u8 = 0x80;

/// PERSISTENT PREVENTED in an operational change.
const PERSISTENTLY_PREVENTED: u8 = 0x80;
/// POWER STATUS: active.
const ACTIVE: u8 = 1;
/// MEDIA PRESENT and DOOR OR TRAY OPEN.
const MEDIA_PRESENT: u8 = 0x02;
const TRAY_OPEN: u8 = 0x01;

pub(super) fn get_event_status_notification(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::GetEventStatus>();
    if fields.flags & wire::FLAGS_POLLED == 0 {
        // Asynchronous operation is not supported.
        return Err(Sense::invalid_bit_in_cdb(1, 0));
    }
    let allocation_length = usize::from(fields.allocation_length.get());
    let mut classes = CLASSES.into_iter().filter(|class| fields.classes & 1 << class != 0);
    let Some(first) = classes.next() else {
        let header = wire::EventHeader {
            descriptor_length: 2.into(),
            class: NO_EVENT_AVAILABLE,
            supported: SUPPORTED,
        };
        return Ok(Io::Ready(parameter_data(header.as_bytes(), allocation_length)));
    };
    // Only the medium has events. Without an event the first class reports that nothing changed. An event that does not
    // fit stays pending.
    let fits = allocation_length > size_of::<wire::EventHeader>();
    let has_media = first == CLASS_MEDIA || classes.any(|class| class == CLASS_MEDIA);
    let medium_event = if has_media && fits {
        task.unit.medium().take_event(task.nexus.id)
    } else {
        MediumEvent::NoChange
    };
    let class = if medium_event == MediumEvent::NoChange { first } else { CLASS_MEDIA };
    let header = wire::EventHeader { descriptor_length: 6.into(), class, supported: SUPPORTED };
    let event = wire::Event {
        code: medium_event as u8,
        status: status(task.unit, class),
        parameters: 0.into(),
    };
    let bytes = [header.as_bytes(), event.as_bytes()].concat();
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

/// Returns the current status of a class, whether or not it changed.
fn status(unit: &LogicalUnit, class: u8) -> u8 {
    match class {
        CLASS_OPERATIONAL_CHANGE if unit.medium().is_persistently_prevented() => {
            PERSISTENTLY_PREVENTED
        }
        CLASS_POWER_MANAGEMENT => ACTIVE,
        CLASS_MEDIA if unit.medium().is_present() => MEDIA_PRESENT,
        CLASS_MEDIA => TRAY_OPEN,
        _ => 0,
    }
}

/// DOOR OPEN.
const DOOR_OPEN: u8 = 0x10;

pub(super) fn mechanism_status(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::MechanismStatus>();
    let header = wire::MechanismStatusHeader {
        changer: 0,
        mechanism: if task.unit.medium().is_present() { 0 } else { DOOR_OPEN },
        current_lba: [0; 3],
        slots: 0,
        slot_table_length: 0.into(),
    };
    Ok(Io::Ready(parameter_data(header.as_bytes(), fields.allocation_length.get().into())))
}
