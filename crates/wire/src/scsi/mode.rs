//! Mode parameters (SPC-4 7.5, SBC-3 6.5).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The read-write error recovery mode page.
pub const PAGE_READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
/// The verify error recovery mode page.
pub const PAGE_VERIFY_ERROR_RECOVERY: u8 = 0x07;
/// The caching mode page.
pub const PAGE_CACHING: u8 = 0x08;
/// The control mode page.
pub const PAGE_CONTROL: u8 = 0x0a;
/// The control extension mode page, a subpage of the control mode page.
pub const SUBPAGE_CONTROL_EXTENSION: u8 = 0x01;
/// The power condition mode page.
pub const PAGE_POWER_CONDITION: u8 = 0x1a;
/// The informational exceptions control mode page.
pub const PAGE_INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
/// The logical block provisioning page, a subpage of the informational exceptions control page.
pub const SUBPAGE_LOGICAL_BLOCK_PROVISIONING: u8 = 0x02;
/// Page code that requests all pages.
pub const PAGE_ALL: u8 = 0x3f;
/// Subpage code that requests all subpages.
pub const SUBPAGE_ALL: u8 = 0xff;
/// The bits of PAGE CODE.
pub const PAGE_CODE: u8 = 0x3f;
/// PS in MODE SENSE: the page can be saved.
pub const PARAMETERS_SAVEABLE: u8 = 0x80;
/// SPF: the page has a subpage code.
pub const SUBPAGE_FORMAT: u8 = 0x40;
/// WP in the device-specific parameter (SBC-3 6.5.1).
pub const DEVICE_SPECIFIC_WP: u8 = 0x80;
/// DPOFUA in the device-specific parameter.
pub const DEVICE_SPECIFIC_DPOFUA: u8 = 0x10;
/// LONGLBA in the header of the ten-byte commands.
pub const LONG_LBA: u8 = 0x01;
/// DBD in MODE SENSE.
pub const FLAGS_DBD: u8 = 0x08;
/// LLBAA in MODE SENSE(10).
pub const FLAGS_LLBAA: u8 = 0x10;
/// PF in MODE SELECT.
pub const FLAGS_PAGE_FORMAT: u8 = 0x10;
/// RTD in MODE SELECT.
pub const FLAGS_REVERT_TO_DEFAULTS: u8 = 0x02;
/// SP in MODE SELECT.
pub const FLAGS_SAVE_PAGES: u8 = 0x01;
/// WCE in the caching page.
pub const CACHING_WCE: u8 = 0x04;
/// LBPERE in the read-write error recovery page.
pub const ERROR_RECOVERY_LBPERE: u8 = 0x80;
/// SITUA in the logical block provisioning page.
pub const PROVISIONING_SITUA: u8 = 0x01;
/// ENABLED in a threshold descriptor.
pub const THRESHOLD_ENABLED: u8 = 0x80;
/// D_SENSE in the control page.
pub const CONTROL_D_SENSE: u8 = 0x04;
/// DPICZ in the control page.
pub const CONTROL_DPICZ: u8 = 0x08;
/// ATO in the control page.
pub const CONTROL_ATO: u8 = 0x80;
/// SWP in the control page.
pub const CONTROL_SWP: u8 = 0x08;

/// The mode parameter header of the six-byte commands.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header6 {
    /// MODE DATA LENGTH: the bytes after this one.
    pub mode_data_length: u8,
    /// MEDIUM TYPE.
    pub medium_type: u8,
    /// DEVICE-SPECIFIC PARAMETER.
    pub device_specific: u8,
    /// BLOCK DESCRIPTOR LENGTH.
    pub block_descriptor_length: u8,
}

/// The mode parameter header of the ten-byte commands.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header10 {
    /// MODE DATA LENGTH: the bytes after this field.
    pub mode_data_length: U16,
    /// MEDIUM TYPE.
    pub medium_type: u8,
    /// DEVICE-SPECIFIC PARAMETER.
    pub device_specific: u8,
    /// LONGLBA.
    pub long_lba: u8,
    /// Reserved.
    pub reserved: u8,
    /// BLOCK DESCRIPTOR LENGTH.
    pub block_descriptor_length: U16,
}

/// The short LBA mode parameter block descriptor (SBC-3 6.5.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ShortBlockDescriptor {
    /// NUMBER OF LOGICAL BLOCKS; FFFFFFFFh where it does not fit.
    pub block_count: U32,
    /// A reserved byte and the 24 bits of LOGICAL BLOCK LENGTH.
    pub block_length: U32,
}

/// The long LBA mode parameter block descriptor (SBC-3 6.5.2.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LongBlockDescriptor {
    /// NUMBER OF LOGICAL BLOCKS.
    pub block_count: U64,
    /// Reserved.
    pub reserved: [u8; 4],
    /// LOGICAL BLOCK LENGTH.
    pub block_length: U32,
}

/// The first bytes of a mode page in page_0 format.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    /// PS, SPF and PAGE CODE.
    pub page_code: u8,
    /// PAGE LENGTH: the bytes after this one.
    pub page_length: u8,
}

/// The first bytes of a mode page in sub_page format.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubpageHeader {
    /// PS, SPF and PAGE CODE.
    pub page_code: u8,
    /// SUBPAGE CODE.
    pub subpage_code: u8,
    /// PAGE LENGTH: the bytes after this field.
    pub page_length: U16,
}

/// The read-write error recovery and verify error recovery mode pages (SBC-3 6.5.7, 6.5.9).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorRecoveryPage {
    /// 01h or 07h, and 0Ah.
    pub header: PageHeader,
    /// AWRE, ARRE, TB, RC, EER, PER, DTE and DCR; only the last four for VERIFY.
    pub flags: u8,
    /// READ RETRY COUNT or VERIFY RETRY COUNT.
    pub retry_count: u8,
    /// Obsolete.
    pub obsolete: [u8; 3],
    /// LBPERE, only for reads and writes.
    pub provisioning: u8,
    /// WRITE RETRY COUNT, only for reads and writes.
    pub write_retry_count: u8,
    /// Reserved.
    pub reserved: u8,
    /// RECOVERY TIME LIMIT or VERIFY RECOVERY TIME LIMIT, in milliseconds; 0 for unspecified.
    pub recovery_time_limit_ms: U16,
}

/// The caching mode page (SBC-3 6.5.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CachingPage {
    /// 08h and 12h.
    pub header: PageHeader,
    /// IC, ABPF, CAP, DISC, SIZE, WCE, MF and RCD.
    pub flags: u8,
    /// Retention priorities.
    pub retention_priority: u8,
    /// DISABLE PRE-FETCH TRANSFER LENGTH.
    pub disable_prefetch_transfer_length: U16,
    /// MINIMUM PRE-FETCH.
    pub minimum_prefetch: U16,
    /// MAXIMUM PRE-FETCH.
    pub maximum_prefetch: U16,
    /// MAXIMUM PRE-FETCH CEILING.
    pub maximum_prefetch_ceiling: U16,
    /// FSW, LBCSS, DRA and NV_DIS.
    pub flags_12: u8,
    /// NUMBER OF CACHE SEGMENTS.
    pub cache_segment_count: u8,
    /// CACHE SEGMENT SIZE.
    pub cache_segment_size: U16,
    /// Reserved and obsolete.
    pub reserved: [u8; 4],
}

/// The control mode page (SPC-4 7.5.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControlPage {
    /// 0Ah and 0Ah.
    pub header: PageHeader,
    /// TST, TMF_ONLY, DPICZ, D_SENSE, GLTSD and RLEC.
    pub flags_2: u8,
    /// QUEUE ALGORITHM MODIFIER, NUAR and QERR.
    pub queueing: u8,
    /// VS, RAC, UA_INTLCK_CTRL and SWP.
    pub flags_4: u8,
    /// ATO, TAS, ATMPE, RWWP and AUTOLOAD MODE.
    pub flags_5: u8,
    /// Obsolete.
    pub obsolete: [u8; 2],
    /// BUSY TIMEOUT PERIOD, in tenths of a second; FFFFh for unlimited.
    pub busy_timeout_period: U16,
    /// EXTENDED SELF-TEST COMPLETION TIME, in seconds.
    pub extended_self_test_completion_time: U16,
}

/// The control extension mode page (SPC-4 7.5.9).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControlExtensionPage {
    /// 0Ah with SPF, 01h and 001Ch.
    pub header: SubpageHeader,
    /// TCMOS, SCSIP and IALUAE.
    pub flags: u8,
    /// INITIAL COMMAND PRIORITY.
    pub initial_command_priority: u8,
    /// MAXIMUM SENSE DATA LENGTH; 0 for no limit.
    pub maximum_sense_data_length: u8,
    /// Reserved.
    pub reserved: [u8; 25],
}

/// The power condition mode page (SPC-4 7.5.13).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerConditionPage {
    /// 1Ah and 26h.
    pub header: PageHeader,
    /// PM_BG_PRECEDENCE and STANDBY_Y.
    pub flags_2: u8,
    /// IDLE_C, IDLE_B, IDLE_A and STANDBY_Z.
    pub flags_3: u8,
    /// IDLE_A CONDITION TIMER. All timers are in tenths of a second.
    pub idle_a: U32,
    /// STANDBY_Z CONDITION TIMER.
    pub standby_z: U32,
    /// IDLE_B CONDITION TIMER.
    pub idle_b: U32,
    /// IDLE_C CONDITION TIMER.
    pub idle_c: U32,
    /// STANDBY_Y CONDITION TIMER.
    pub standby_y: U32,
    /// Reserved.
    pub reserved: [u8; 15],
    /// CCF IDLE, CCF STANDBY and CCF STOPPED.
    pub flags_39: u8,
}

/// The logical block provisioning mode page (SBC-3 6.5.8) with its descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ProvisioningPage {
    /// 1Ch, 02h and 001Ch.
    pub header: SubpageHeader,
    /// SITUA.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 11],
    /// Threshold descriptors.
    pub thresholds: [ThresholdDescriptor; 2],
}

/// A threshold descriptor (SBC-3 6.5.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ThresholdDescriptor {
    /// ENABLED, THRESHOLD TYPE and THRESHOLD ARMING.
    pub flags: u8,
    /// THRESHOLD RESOURCE: a parameter code of the logical block provisioning log page.
    pub resource: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// THRESHOLD COUNT, in threshold sets.
    pub count: U32,
}

/// The informational exceptions control mode page (SBC-3 6.5.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InformationalExceptionsPage {
    /// 1Ch and 0Ah.
    pub header: PageHeader,
    /// PERF, EBF, EWASC, DEXCPT, TEST, EBACKERR and LOGERR.
    pub flags: u8,
    /// MRIE.
    pub method_of_reporting: u8,
    /// INTERVAL TIMER.
    pub interval_timer: U32,
    /// REPORT COUNT.
    pub report_count: U32,
}

assert_sizes!(
    Header6 = 4,
    Header10 = 8,
    ShortBlockDescriptor = 8,
    LongBlockDescriptor = 16,
    PageHeader = 2,
    SubpageHeader = 4,
    ErrorRecoveryPage = 12,
    ControlExtensionPage = 32,
    PowerConditionPage = 40,
    ProvisioningPage = 32,
    ThresholdDescriptor = 8,
    CachingPage = 20,
    ControlPage = 12,
    InformationalExceptionsPage = 12,
);
