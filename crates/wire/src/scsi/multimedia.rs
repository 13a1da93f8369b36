//! CDs and DVDs (MMC-6): CDBs, mode pages and the data of the commands that describe a drive and its medium.

use super::assert_sizes;
use super::mode::PageHeader;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// MSF in READ TOC/PMA/ATIP: addresses are minutes, seconds and frames.
pub const FLAGS_MSF: u8 = 0x02;
/// POLLED in GET EVENT STATUS NOTIFICATION.
pub const FLAGS_POLLED: u8 = 0x01;
/// EXPECTED SECTOR TYPE in READ CD.
pub const FLAGS_SECTOR_TYPE: u8 = 0x1c;
/// CURRENT in a feature descriptor.
pub const FEATURE_CURRENT: u8 = 0x01;
/// PERSISTENT in a feature descriptor.
pub const FEATURE_PERSISTENT: u8 = 0x02;
/// The track number of the lead-out.
pub const LEAD_OUT_TRACK: u8 = 0xaa;

/// The read error recovery mode page.
pub const PAGE_READ_ERROR_RECOVERY: u8 = 0x01;
/// The power condition mode page.
pub const PAGE_POWER_CONDITION: u8 = 0x1a;
/// The timeout and protect mode page.
pub const PAGE_TIMEOUT_AND_PROTECT: u8 = 0x1d;
/// The CD/DVD capabilities and mechanical status mode page.
pub const PAGE_CAPABILITIES: u8 = 0x2a;

/// An address on a CD, in 75 frames per second, from two seconds before block 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Msf {
    /// M.
    pub minute: u8,
    /// S.
    pub second: u8,
    /// F.
    pub frame: u8,
}

/// READ TOC/PMA/ATIP (MMC-6 6.26).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadToc {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// MSF in bit 1.
    pub flags: u8,
    /// FORMAT in the low four bits.
    pub format: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// TRACK/SESSION NUMBER.
    pub track_or_session: u8,
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL; its two high bits were FORMAT in SFF-8020.
    pub control: u8,
}

/// GET CONFIGURATION (MMC-6 6.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GetConfiguration {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// RT in the low two bits.
    pub request_type: u8,
    /// STARTING FEATURE NUMBER.
    pub starting_feature: U16,
    /// Reserved.
    pub reserved: [u8; 3],
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// GET EVENT STATUS NOTIFICATION (MMC-6 6.7).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GetEventStatus {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// POLLED in bit 0.
    pub flags: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// NOTIFICATION CLASS REQUEST: a bit for each class.
    pub classes: u8,
    /// Reserved.
    pub reserved_5: [u8; 2],
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// READ DISC INFORMATION (MMC-6 6.21).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadDiscInformation {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// DATA TYPE in the low three bits.
    pub data_type: u8,
    /// Reserved.
    pub reserved: [u8; 5],
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// READ TRACK INFORMATION (MMC-6 6.27).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadTrackInformation {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// ADDRESS/NUMBER TYPE in the low two bits.
    pub address_type: u8,
    /// LOGICAL BLOCK ADDRESS, TRACK or SESSION NUMBER.
    pub address: U32,
    /// Reserved.
    pub reserved: u8,
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// READ DISC STRUCTURE (MMC-6 6.22).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadDiscStructure {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// MEDIA TYPE in the low four bits.
    pub media_type: u8,
    /// ADDRESS.
    pub address: U32,
    /// LAYER NUMBER.
    pub layer: u8,
    /// FORMAT CODE.
    pub format: u8,
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// AGID in the two high bits.
    pub agid: u8,
    /// CONTROL.
    pub control: u8,
}

/// MECHANISM STATUS (MMC-6 6.11).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MechanismStatus {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Reserved.
    pub reserved_1: [u8; 7],
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// Reserved.
    pub reserved_10: u8,
    /// CONTROL.
    pub control: u8,
}

/// GET PERFORMANCE (MMC-6 6.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GetPerformance {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// DATA TYPE in the low five bits.
    pub data_type: u8,
    /// STARTING LBA.
    pub starting_lba: U32,
    /// Reserved.
    pub reserved: [u8; 2],
    /// MAXIMUM NUMBER OF DESCRIPTORS.
    pub maximum_descriptors: U16,
    /// TYPE.
    pub performance_type: u8,
    /// CONTROL.
    pub control: u8,
}

/// READ CD (MMC-6 6.19).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadCd {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// EXPECTED SECTOR TYPE and DAP.
    pub flags: u8,
    /// STARTING LOGICAL BLOCK ADDRESS.
    pub lba: U32,
    /// TRANSFER LENGTH, big-endian.
    pub block_count: [u8; 3],
    /// SYNC, HEADER CODES, USER DATA, EDC & ECC and C2 ERROR.
    pub selection: u8,
    /// SUB-CHANNEL SELECTION in the low three bits.
    pub sub_channel: u8,
    /// CONTROL.
    pub control: u8,
}

/// READ CD MSF (MMC-6 6.20).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadCdMsf {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// EXPECTED SECTOR TYPE and DAP.
    pub flags: u8,
    /// Reserved.
    pub reserved: u8,
    /// The first sector.
    pub start: Msf,
    /// The sector after the last one.
    pub end: Msf,
    /// See [`ReadCd::selection`].
    pub selection: u8,
    /// SUB-CHANNEL SELECTION in the low three bits.
    pub sub_channel: u8,
    /// CONTROL.
    pub control: u8,
}

/// The header of READ TOC/PMA/ATIP data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TocHeader {
    /// TOC DATA LENGTH: the bytes after this field.
    pub data_length: U16,
    /// FIRST TRACK or SESSION NUMBER.
    pub first: u8,
    /// LAST TRACK or SESSION NUMBER.
    pub last: u8,
}

/// A track in formats 0000b and 0001b (MMC-6 6.26.3.2, 6.26.3.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TocTrack {
    /// Reserved.
    pub reserved_0: u8,
    /// ADR and CONTROL.
    pub adr_and_control: u8,
    /// TRACK NUMBER.
    pub track: u8,
    /// Reserved.
    pub reserved_3: u8,
    /// TRACK START ADDRESS: a block address, or a reserved byte and M, S and F.
    pub start: [u8; 4],
}

/// An entry of the raw table of contents, format 0010b (MMC-6 6.26.3.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawTocEntry {
    /// SESSION NUMBER.
    pub session: u8,
    /// ADR and CONTROL.
    pub adr_and_control: u8,
    /// TNO.
    pub tno: u8,
    /// POINT.
    pub point: u8,
    /// MIN, SEC and FRAME.
    pub position: Msf,
    /// ZERO.
    pub zero: u8,
    /// PMIN, PSEC and PFRAME.
    pub pointed: Msf,
}

/// The header of GET CONFIGURATION data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConfigurationHeader {
    /// DATA LENGTH: the bytes after this field.
    pub data_length: U32,
    /// Reserved.
    pub reserved: U16,
    /// CURRENT PROFILE.
    pub current_profile: U16,
}

/// The header of a feature descriptor (MMC-6 5.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FeatureHeader {
    /// FEATURE CODE.
    pub code: U16,
    /// VERSION in bits 5 to 2, PERSISTENT and CURRENT.
    pub flags: u8,
    /// ADDITIONAL LENGTH: a multiple of four.
    pub additional_length: u8,
}

/// The random readable feature after its header (MMC-6 5.3.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RandomReadable {
    /// LOGICAL BLOCK SIZE.
    pub block_size: U32,
    /// BLOCKING: number of blocks that the drive reads together.
    pub blocking: U16,
    /// PP: the drive has a read error recovery page.
    pub page_present: u8,
    /// Reserved.
    pub reserved: u8,
}

/// The header of GET EVENT STATUS NOTIFICATION data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EventHeader {
    /// EVENT DESCRIPTOR LENGTH: the bytes after this field.
    pub descriptor_length: U16,
    /// NEA and NOTIFICATION CLASS.
    pub class: u8,
    /// SUPPORTED EVENT CLASSES.
    pub supported: u8,
}

/// An event of any class.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Event {
    /// EVENT CODE in the low four bits.
    pub code: u8,
    /// Status, which each class defines.
    pub status: u8,
    /// Parameters, which each class defines.
    pub parameters: U16,
}

/// The MECHANISM STATUS data of a drive without a changer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MechanismStatusHeader {
    /// FAULT, CHANGER STATE and CURRENT SLOT.
    pub changer: u8,
    /// MECHANISM STATE and DOOR OPEN.
    pub mechanism: u8,
    /// CURRENT LBA.
    pub current_lba: [u8; 3],
    /// NUMBER OF SLOTS AVAILABLE.
    pub slots: u8,
    /// LENGTH OF SLOT TABLES.
    pub slot_table_length: U16,
}

/// Standard disc information (MMC-6 6.21.3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscInformation {
    /// DISC INFORMATION LENGTH: the bytes after this field.
    pub length: U16,
    /// DATA TYPE, ERASABLE, STATE OF LAST SESSION and DISC STATUS.
    pub status: u8,
    /// NUMBER OF FIRST TRACK ON DISC.
    pub first_track: u8,
    /// NUMBER OF SESSIONS, low byte.
    pub sessions: u8,
    /// FIRST TRACK NUMBER IN LAST SESSION, low byte.
    pub first_track_in_last_session: u8,
    /// LAST TRACK NUMBER IN LAST SESSION, low byte.
    pub last_track_in_last_session: u8,
    /// DID_V, DBC_V, URU, DAC_V and BG FORMAT STATUS.
    pub validity: u8,
    /// DISC TYPE.
    pub disc_type: u8,
    /// The high bytes of the three numbers above.
    pub high_bytes: [u8; 3],
    /// DISC IDENTIFICATION.
    pub disc_identification: U32,
    /// LAST SESSION LEAD-IN START ADDRESS.
    pub lead_in: U32,
    /// LAST POSSIBLE LEAD-OUT START ADDRESS.
    pub lead_out: U32,
    /// DISC BAR CODE.
    pub bar_code: [u8; 8],
    /// DISC APPLICATION CODE.
    pub application_code: u8,
    /// NUMBER OF OPC TABLES.
    pub opc_tables: u8,
}

/// Track information (MMC-6 6.27.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TrackInformation {
    /// TRACK INFORMATION LENGTH: the bytes after this field.
    pub length: U16,
    /// LOGICAL TRACK NUMBER, low byte.
    pub track: u8,
    /// SESSION NUMBER, low byte.
    pub session: u8,
    /// Reserved.
    pub reserved: u8,
    /// DAMAGE, COPY and TRACK MODE.
    pub track_mode: u8,
    /// RT, BLANK, PACKET, FP and DATA MODE.
    pub data_mode: u8,
    /// LRA_V and NWA_V.
    pub validity: u8,
    /// LOGICAL TRACK START ADDRESS.
    pub start: U32,
    /// NEXT WRITABLE ADDRESS.
    pub next_writable: U32,
    /// FREE BLOCKS.
    pub free_blocks: U32,
    /// FIXED PACKET SIZE or BLOCKING FACTOR.
    pub packet_size: U32,
    /// LOGICAL TRACK SIZE.
    pub size: U32,
    /// LAST RECORDED ADDRESS.
    pub last_recorded: U32,
    /// The high bytes of the two numbers.
    pub high_bytes: [u8; 2],
    /// Reserved.
    pub reserved_34: [u8; 2],
}

/// The header of READ DISC STRUCTURE data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StructureHeader {
    /// DISC STRUCTURE DATA LENGTH: the bytes after this field.
    pub length: U16,
    /// Reserved.
    pub reserved: U16,
}

/// The known bytes of a DVD's physical format information (MMC-6 6.22.3.2.1). The whole is 2,048 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PhysicalFormat {
    /// DISK CATEGORY and PART VERSION.
    pub category: u8,
    /// DISC SIZE and MAXIMUM RATE.
    pub size_and_rate: u8,
    /// NUMBER OF LAYERS, TRACK PATH and LAYER TYPE.
    pub layers: u8,
    /// LINEAR DENSITY and TRACK DENSITY.
    pub densities: u8,
    /// STARTING PHYSICAL SECTOR NUMBER OF DATA AREA, after a reserved byte.
    pub first_sector: U32,
    /// END PHYSICAL SECTOR NUMBER OF DATA AREA, after a reserved byte.
    pub last_sector: U32,
    /// END SECTOR NUMBER IN LAYER 0, after a reserved byte.
    pub last_sector_of_layer_0: U32,
    /// BCA.
    pub burst_cutting_area: u8,
}

/// A supported format of READ DISC STRUCTURE (MMC-6 6.22.3.1.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StructureListEntry {
    /// FORMAT CODE.
    pub format: u8,
    /// SDS and RDS.
    pub flags: u8,
    /// STRUCTURE LENGTH.
    pub length: U16,
}

/// The header of GET PERFORMANCE data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PerformanceHeader {
    /// PERFORMANCE DATA LENGTH: the bytes after this field.
    pub length: U32,
    /// WRITE and EXCEPT.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 3],
}

/// Nominal performance between two blocks (MMC-6 6.8.3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NominalPerformance {
    /// START LBA.
    pub start_lba: U32,
    /// START PERFORMANCE, in kilobytes per second.
    pub start_performance: U32,
    /// END LBA.
    pub end_lba: U32,
    /// END PERFORMANCE.
    pub end_performance: U32,
}

/// The read error recovery mode page (MMC-6 7.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadErrorRecoveryPage {
    /// 01h and 0Ah.
    pub header: PageHeader,
    /// ERROR RECOVERY PARAMETER.
    pub parameter: u8,
    /// READ RETRY COUNT.
    pub read_retry_count: u8,
    /// Reserved, EMCDR and the fields for writing.
    pub reserved: [u8; 8],
}

/// The power condition mode page (SPC-4 7.5.13, the short form of MMC-6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerConditionPage {
    /// 1Ah and 0Ah.
    pub header: PageHeader,
    /// Reserved.
    pub reserved: u8,
    /// IDLE and STANDBY.
    pub flags: u8,
    /// IDLE CONDITION TIMER, in tenths of a second.
    pub idle_timer: U32,
    /// STANDBY CONDITION TIMER, in tenths of a second.
    pub standby_timer: U32,
}

/// The timeout and protect mode page (MMC-6 7.7).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TimeoutAndProtectPage {
    /// 1Dh and 08h.
    pub header: PageHeader,
    /// Reserved.
    pub reserved: [u8; 2],
    /// G3ENABLE, TMOE, DISP and SWPP.
    pub flags: u8,
    /// Reserved.
    pub reserved_5: u8,
    /// GROUP 1 MINIMUM TIME-OUT, in seconds.
    pub group_1: U16,
    /// GROUP 2 MINIMUM TIME-OUT, in seconds.
    pub group_2: U16,
}

/// The CD/DVD capabilities and mechanical status mode page (MMC-3 6.3.11, which all hosts support).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapabilitiesPage {
    /// 2Ah and 1Eh.
    pub header: PageHeader,
    /// Media that the drive reads.
    pub reads: u8,
    /// Media that the drive writes.
    pub writes: u8,
    /// Sectors, sessions and analogue play.
    pub plays: u8,
    /// Digital audio and error pointers.
    pub audio: u8,
    /// LOADING MECHANISM TYPE, EJECT, PREVENT JUMPER, LOCK STATE and LOCK.
    pub mechanism: u8,
    /// Changer and volume levels.
    pub changer: u8,
    /// Obsolete: MAXIMUM READ SPEED, in kilobytes per second.
    pub maximum_read_speed: U16,
    /// NUMBER OF VOLUME LEVELS SUPPORTED.
    pub volume_levels: U16,
    /// BUFFER SIZE SUPPORTED, in kilobytes.
    pub buffer_size: U16,
    /// Obsolete: CURRENT READ SPEED.
    pub current_read_speed: U16,
    /// Obsolete and reserved bytes, and fields of drives that write.
    pub reserved: [u8; 6],
    /// COPY MANAGEMENT REVISION SUPPORTED.
    pub copy_management_revision: U16,
    /// Reserved, ROTATION CONTROL SELECTED and write speeds.
    pub reserved_24: [u8; 8],
}

assert_sizes!(
    Msf = 3,
    ReadToc = 10,
    GetConfiguration = 10,
    GetEventStatus = 10,
    ReadDiscInformation = 10,
    ReadTrackInformation = 10,
    ReadDiscStructure = 12,
    MechanismStatus = 12,
    GetPerformance = 12,
    ReadCd = 12,
    ReadCdMsf = 12,
    TocHeader = 4,
    TocTrack = 8,
    RawTocEntry = 11,
    ConfigurationHeader = 8,
    FeatureHeader = 4,
    RandomReadable = 8,
    EventHeader = 4,
    Event = 4,
    MechanismStatusHeader = 8,
    DiscInformation = 34,
    TrackInformation = 36,
    StructureHeader = 4,
    PhysicalFormat = 17,
    StructureListEntry = 4,
    PerformanceHeader = 8,
    NominalPerformance = 16,
    ReadErrorRecoveryPage = 12,
    PowerConditionPage = 12,
    TimeoutAndProtectPage = 10,
    CapabilitiesPage = 32,
);
