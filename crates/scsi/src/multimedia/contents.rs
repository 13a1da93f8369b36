//! READ TOC/PMA/ATIP, READ DISC INFORMATION and READ TRACK INFORMATION (MMC-6 6.26, 6.21, 6.27): one
//! closed session with one data track from block 0.

use super::{block_count, msf_of};
use crate::task::{Task, parameter_data};
use crate::{Completion, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::multimedia::{self as wire, LEAD_OUT_TRACK, Msf};
use zerocopy::IntoBytes;

/// ADR 1h: the entry contains a position. CONTROL 4h: a data track.
const ADR_AND_CONTROL: u8 = 0x14;
/// The number of the only session and the only track.
const ONLY: u8 = 1;
/// POINTs of the raw table: the first track, the last one, the lead-out.
const POINT_FIRST_TRACK: u8 = 0xa0;
const POINT_LAST_TRACK: u8 = 0xa1;
const POINT_LEAD_OUT: u8 = 0xa2;

pub(super) fn read_toc(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadToc>();
    // SFF-8020 defined FORMAT in the bits of CONTROL, and some hosts still use them.
    let format = match fields.format & 0x0f {
        0 => fields.control >> 6,
        format => format,
    };
    let address: fn(u32) -> [u8; 4] = match fields.flags & wire::FLAGS_MSF {
        0 => u32::to_be_bytes,
        _ => |lba| {
            let Msf { minute, second, frame } = msf_of(lba);
            [0, minute, second, frame]
        },
    };
    let entries = match format {
        0 => tracks(fields.track_or_session, block_count(task.unit), address)?,
        1 => entry(ONLY, address(0)).as_bytes().to_vec(),
        2 if fields.track_or_session > ONLY => return Err(Sense::invalid_field_in_cdb(6)),
        2 => raw_entries(block_count(task.unit)),
        // The program memory area, ATIP and CD-TEXT exist only on writable discs and audio discs.
        _ => return Err(Sense::invalid_bit_in_cdb(2, 3)),
    };
    let header =
        wire::TocHeader { data_length: (2 + entries.len() as u16).into(), first: ONLY, last: ONLY };
    let bytes = [header.as_bytes(), &entries].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get().into())))
}

fn entry(track: u8, start: [u8; 4]) -> wire::TocTrack {
    wire::TocTrack { reserved_0: 0, adr_and_control: ADR_AND_CONTROL, track, reserved_3: 0, start }
}

/// Returns format 0000b: the tracks from `first` on, and the lead-out.
fn tracks(first: u8, lead_out: u32, address: fn(u32) -> [u8; 4]) -> Result<Vec<u8>, Sense> {
    if first > ONLY && first != LEAD_OUT_TRACK {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    let mut entries = Vec::new();
    if first != LEAD_OUT_TRACK {
        entries.push(entry(ONLY, address(0)));
    }
    entries.push(entry(LEAD_OUT_TRACK, address(lead_out)));
    Ok(entries.as_bytes().to_vec())
}

/// Returns format 0010b: the entries of the lead-in, always in minutes, seconds and frames.
fn raw_entries(lead_out: u32) -> Vec<u8> {
    let zero = Msf { minute: 0, second: 0, frame: 0 };
    let of_track = Msf { minute: ONLY, ..zero };
    let points = [
        (POINT_FIRST_TRACK, of_track),
        (POINT_LAST_TRACK, of_track),
        (POINT_LEAD_OUT, msf_of(lead_out)),
        (ONLY, msf_of(0)),
    ];
    let entries = points.map(|(point, pointed)| wire::RawTocEntry {
        session: ONLY,
        adr_and_control: ADR_AND_CONTROL,
        tno: 0,
        point,
        position: zero,
        zero: 0,
        pointed,
    });
    entries.as_bytes().to_vec()
}

/// STATE OF LAST SESSION and DISC STATUS: both complete; not ERASABLE.
const COMPLETE: u8 = 0x0c | 0x02;
/// URU: the disc may be used without restriction.
const UNRESTRICTED: u8 = 0x20;
/// The value of addresses that a complete disc does not have.
const NO_ADDRESS: u32 = u32::MAX;

pub(super) fn read_disc_information(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadDiscInformation>();
    if fields.data_type & 0x07 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    let information = wire::DiscInformation {
        length: (size_of::<wire::DiscInformation>() as u16 - 2).into(),
        status: COMPLETE,
        first_track: ONLY,
        sessions: ONLY,
        first_track_in_last_session: ONLY,
        last_track_in_last_session: ONLY,
        validity: UNRESTRICTED,
        disc_type: 0,
        high_bytes: [0; 3],
        disc_identification: 0.into(),
        lead_in: NO_ADDRESS.into(),
        lead_out: NO_ADDRESS.into(),
        bar_code: [0; 8],
        application_code: 0,
        opc_tables: 0,
    };
    let allocation_length = fields.allocation_length.get().into();
    Ok(Io::Ready(parameter_data(information.as_bytes(), allocation_length)))
}

/// TRACK MODE: uninterrupted data. DATA MODE: mode 1.
const TRACK_MODE: u8 = 0x04;
const DATA_MODE: u8 = 0x01;

pub(super) fn read_track_information(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadTrackInformation>();
    let size = block_count(task.unit);
    let address = fields.address.get();
    match fields.address_type & 0x03 {
        0 if address >= size => return Err(Sense::lba_out_of_range()),
        0 => {}
        1 | 2 if address == u32::from(ONLY) => {}
        1 | 2 => return Err(Sense::invalid_field_in_cdb(2)),
        _ => return Err(Sense::invalid_bit_in_cdb(1, 1)),
    }
    let information = wire::TrackInformation {
        length: (size_of::<wire::TrackInformation>() as u16 - 2).into(),
        track: ONLY,
        session: ONLY,
        reserved: 0,
        track_mode: TRACK_MODE,
        data_mode: DATA_MODE,
        validity: 0,
        start: 0.into(),
        next_writable: 0.into(),
        free_blocks: 0.into(),
        packet_size: 0.into(),
        size: size.into(),
        last_recorded: 0.into(),
        high_bytes: [0; 2],
        reserved_34: [0; 2],
    };
    let allocation_length = fields.allocation_length.get().into();
    Ok(Io::Ready(parameter_data(information.as_bytes(), allocation_length)))
}
