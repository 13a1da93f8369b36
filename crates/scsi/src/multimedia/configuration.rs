//! GET CONFIGURATION, GET PERFORMANCE and SET CD SPEED (MMC-6 6.6, 6.8, 6.37): the features of the drive and of the
//! disc in it.

use super::Disc;
use crate::task::{Task, parameter_data};
use crate::{Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::multimedia as wire;
use zerocopy::IntoBytes;

/// Profiles.
const PROFILE_NONE: u16 = 0x0000;
const PROFILE_CD_ROM: u16 = 0x0008;
const PROFILE_DVD_ROM: u16 = 0x0010;

/// PHYSICAL INTERFACE STANDARD: the SCSI family. DBE: the drive reports device busy events.
const CORE: [u8; 8] = [0, 0, 0, 1, 0x01, 0, 0, 0];
/// OCEVENT: the drive reports operational changes.
const MORPHING: [u8; 4] = [0x02, 0, 0, 0];
/// A tray that ejects, loads and locks.
const REMOVABLE_MEDIUM: [u8; 4] = [0x20 | 0x10 | 0x08 | 0x01, 0, 0, 0];
/// Number of blocks in one error correction block of a DVD.
const DVD_BLOCKING: u16 = 16;

/// The reported speed in kilobytes per second: 40 times the speed of a CD. The server does not limit reads to it.
pub(super) const SPEED: u16 = 7056;

/// A feature (MMC-6 5.3).
struct Feature {
    code: u16,
    version: u8,
    /// True if the feature is always current, with any disc or none.
    persistent: bool,
    current: bool,
    data: Vec<u8>,
}

impl Feature {
    fn persistent(code: u16, version: u8, data: &[u8]) -> Self {
        Self { code, version, persistent: true, current: true, data: data.to_vec() }
    }

    fn while_current(code: u16, version: u8, current: bool, data: &[u8]) -> Self {
        Self { code, version, persistent: false, current, data: data.to_vec() }
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let persistent = if self.persistent { wire::FEATURE_PERSISTENT } else { 0 };
        let current = if self.current { wire::FEATURE_CURRENT } else { 0 };
        let header = wire::FeatureHeader {
            code: self.code.into(),
            flags: self.version << 2 | persistent | current,
            additional_length: self.data.len() as u8,
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&self.data);
    }
}

fn profile(disc: Option<Disc>) -> u16 {
    match disc {
        None => PROFILE_NONE,
        Some(Disc::Cd) => PROFILE_CD_ROM,
        Some(Disc::Dvd) => PROFILE_DVD_ROM,
    }
}

/// Returns all features, in ascending order of their codes.
fn features(unit: &LogicalUnit) -> Vec<Feature> {
    let disc = Disc::of(unit);
    let (is_cd, is_dvd) = (disc == Some(Disc::Cd), disc == Some(Disc::Dvd));
    let random_readable = wire::RandomReadable {
        block_size: (unit.geometry().block_size.bytes() as u32).into(),
        blocking: if is_dvd { DVD_BLOCKING } else { 1 }.into(),
        page_present: 0x01,
        reserved: 0,
    };
    let mut serial = unit.identity().serial.clone().into_bytes();
    serial.resize(serial.len().next_multiple_of(4), b' ');
    vec![
        Feature::persistent(0x0000, 0, &profile_list(disc)),
        Feature::persistent(0x0001, 2, &CORE),
        Feature::persistent(0x0002, 1, &MORPHING),
        Feature::persistent(0x0003, 1, &REMOVABLE_MEDIUM),
        Feature::while_current(0x0010, 0, disc.is_some(), random_readable.as_bytes()),
        // Multi-Read, CD Read without audio or C2 pointers, DVD Read.
        Feature::while_current(0x001d, 0, is_cd, &[]),
        Feature::while_current(0x001e, 2, is_cd, &[0; 4]),
        Feature::while_current(0x001f, 1, is_dvd, &[0; 4]),
        // Power Management, Timeout, Logical Unit Serial Number.
        Feature::persistent(0x0100, 0, &[]),
        Feature::persistent(0x0105, 1, &[0; 4]),
        Feature::persistent(0x0108, 0, &serial),
    ]
}

/// Returns the list of profiles, the better one first.
fn profile_list(disc: Option<Disc>) -> [u8; 8] {
    let mut list = [0; 8];
    for (entry, listed) in list.chunks_exact_mut(4).zip([PROFILE_DVD_ROM, PROFILE_CD_ROM]) {
        entry[..2].copy_from_slice(&listed.to_be_bytes());
        entry[2] = u8::from(profile(disc) == listed);
    }
    list
}

pub(super) fn get_configuration(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::GetConfiguration>();
    let starting = fields.starting_feature.get();
    let is_wanted: fn(&Feature, u16) -> bool = match fields.request_type & 0x03 {
        0 => |feature, starting| feature.code >= starting,
        1 => |feature, starting| feature.code >= starting && feature.current,
        2 => |feature, starting| feature.code == starting,
        _ => return Err(Sense::invalid_bit_in_cdb(1, 1)),
    };
    let mut descriptors = Vec::new();
    for feature in features(task.unit).iter().filter(|feature| is_wanted(feature, starting)) {
        feature.append_to(&mut descriptors);
    }
    let header = wire::ConfigurationHeader {
        data_length: (4 + descriptors.len() as u32).into(),
        reserved: 0.into(),
        current_profile: profile(Disc::of(task.unit)).into(),
    };
    let bytes = [header.as_bytes(), &descriptors].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get().into())))
}

/// TYPE of GET PERFORMANCE: performance, and write speeds. The drive has no write speeds.
const TYPE_PERFORMANCE: u8 = 0x00;
const TYPE_WRITE_SPEED: u8 = 0x03;
/// WRITE and EXCEPT in DATA TYPE.
const DATA_TYPE_WRITE: u8 = 0x04;
const DATA_TYPE_EXCEPT: u8 = 0x03;

pub(super) fn get_performance(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::GetPerformance>();
    let last_lba = super::block_count(task.unit).saturating_sub(1);
    let descriptors = match fields.performance_type {
        TYPE_PERFORMANCE if fields.data_type & DATA_TYPE_WRITE != 0 => Vec::new(),
        // MMC-6 6.8.2.2: 01b and 10b request exceptions from the nominal performance. There are none.
        TYPE_PERFORMANCE if fields.data_type & DATA_TYPE_EXCEPT != 0 => Vec::new(),
        TYPE_PERFORMANCE => wire::NominalPerformance {
            start_lba: fields.starting_lba,
            start_performance: u32::from(SPEED).into(),
            end_lba: last_lba.into(),
            end_performance: u32::from(SPEED).into(),
        }
        .as_bytes()
        .to_vec(),
        TYPE_WRITE_SPEED => Vec::new(),
        _ => return Err(Sense::invalid_field_in_cdb(10)),
    };
    if fields.starting_lba.get() > last_lba {
        return Err(Sense::lba_out_of_range());
    }
    let header = wire::PerformanceHeader {
        length: (4 + descriptors.len() as u32).into(),
        flags: 0,
        reserved: [0; 3],
    };
    let maximum = usize::from(fields.maximum_descriptors.get());
    let allowed = maximum * size_of::<wire::NominalPerformance>();
    let bytes = [header.as_bytes(), &descriptors[..descriptors.len().min(allowed)]].concat();
    Ok(Io::Ready(parameter_data(&bytes, usize::MAX)))
}

/// Ignores the requested speed: each disc is read as fast as possible.
pub(super) fn set_cd_speed(_task: Task<'_>) -> Result<Io<Completion>, Sense> {
    Ok(Io::Ready(Completion::good()))
}
