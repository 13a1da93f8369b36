//! OPERATION CODE and SERVICE ACTION values (SPC-4 annex F, SBC-3 5.1). Open: a number that has
//! no name here is still a number.

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: u8 = $value;)*
    };
}

numbers! {
    /// TEST UNIT READY.
    TEST_UNIT_READY = 0x00;
    /// REQUEST SENSE.
    REQUEST_SENSE = 0x03;
    /// READ(6).
    READ_6 = 0x08;
    /// WRITE(6).
    WRITE_6 = 0x0a;
    /// INQUIRY.
    INQUIRY = 0x12;
    /// MODE SELECT(6).
    MODE_SELECT_6 = 0x15;
    /// RESERVE(6), SPC-2.
    RESERVE_6 = 0x16;
    /// RELEASE(6), SPC-2.
    RELEASE_6 = 0x17;
    /// MODE SENSE(6).
    MODE_SENSE_6 = 0x1a;
    /// START STOP UNIT.
    START_STOP_UNIT = 0x1b;
    /// PREVENT ALLOW MEDIUM REMOVAL.
    PREVENT_ALLOW_MEDIUM_REMOVAL = 0x1e;
    /// READ CAPACITY(10).
    READ_CAPACITY_10 = 0x25;
    /// READ(10).
    READ_10 = 0x28;
    /// WRITE(10).
    WRITE_10 = 0x2a;
    /// WRITE AND VERIFY(10).
    WRITE_AND_VERIFY_10 = 0x2e;
    /// VERIFY(10).
    VERIFY_10 = 0x2f;
    /// PRE-FETCH(10).
    PRE_FETCH_10 = 0x34;
    /// SYNCHRONIZE CACHE(10).
    SYNCHRONIZE_CACHE_10 = 0x35;
    /// WRITE SAME(10).
    WRITE_SAME_10 = 0x41;
    /// UNMAP.
    UNMAP = 0x42;
    /// MODE SELECT(10).
    MODE_SELECT_10 = 0x55;
    /// RESERVE(10), SPC-2.
    RESERVE_10 = 0x56;
    /// RELEASE(10), SPC-2.
    RELEASE_10 = 0x57;
    /// MODE SENSE(10).
    MODE_SENSE_10 = 0x5a;
    /// READ(16).
    READ_16 = 0x88;
    /// COMPARE AND WRITE.
    COMPARE_AND_WRITE = 0x89;
    /// WRITE(16).
    WRITE_16 = 0x8a;
    /// WRITE AND VERIFY(16).
    WRITE_AND_VERIFY_16 = 0x8e;
    /// VERIFY(16).
    VERIFY_16 = 0x8f;
    /// PRE-FETCH(16).
    PRE_FETCH_16 = 0x90;
    /// SYNCHRONIZE CACHE(16).
    SYNCHRONIZE_CACHE_16 = 0x91;
    /// WRITE SAME(16).
    WRITE_SAME_16 = 0x93;
    /// SERVICE ACTION IN(16).
    SERVICE_ACTION_IN_16 = 0x9e;
    /// REPORT LUNS.
    REPORT_LUNS = 0xa0;
    /// MAINTENANCE IN.
    MAINTENANCE_IN = 0xa3;
    /// READ(12).
    READ_12 = 0xa8;
    /// WRITE(12).
    WRITE_12 = 0xaa;
    /// WRITE AND VERIFY(12).
    WRITE_AND_VERIFY_12 = 0xae;
    /// VERIFY(12).
    VERIFY_12 = 0xaf;
    /// SERVICE ACTION IN(16): READ CAPACITY(16).
    SA_READ_CAPACITY_16 = 0x10;
    /// SERVICE ACTION IN(16): GET LBA STATUS.
    SA_GET_LBA_STATUS = 0x12;
    /// MAINTENANCE IN: REPORT SUPPORTED OPERATION CODES.
    SA_REPORT_SUPPORTED_OPERATION_CODES = 0x0c;
    /// MAINTENANCE IN: REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    SA_REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS = 0x0d;
}

/// Bytes of a CDB with this OPERATION CODE, from its GROUP CODE (SPC-4 4.2.5.1); `None` where the
/// group does not fix it.
pub const fn cdb_length(operation_code: u8) -> Option<usize> {
    match operation_code >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}
