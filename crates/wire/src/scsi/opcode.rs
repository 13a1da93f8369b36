//! OPERATION CODE and SERVICE ACTION values (SPC-4 annex F, SBC-3 5.1). The types are open: a number without a name
//! stays representable.

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
    /// FORMAT UNIT.
    FORMAT_UNIT = 0x04;
    /// REASSIGN BLOCKS.
    REASSIGN_BLOCKS = 0x07;
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
    /// RECEIVE DIAGNOSTIC RESULTS.
    RECEIVE_DIAGNOSTIC_RESULTS = 0x1c;
    /// SEND DIAGNOSTIC.
    SEND_DIAGNOSTIC = 0x1d;
    /// PREVENT ALLOW MEDIUM REMOVAL.
    PREVENT_ALLOW_MEDIUM_REMOVAL = 0x1e;
    /// READ CAPACITY(10).
    READ_CAPACITY_10 = 0x25;
    /// READ(10).
    READ_10 = 0x28;
    /// WRITE(10).
    WRITE_10 = 0x2a;
    /// SEEK(10) (MMC).
    SEEK_10 = 0x2b;
    /// WRITE AND VERIFY(10).
    WRITE_AND_VERIFY_10 = 0x2e;
    /// VERIFY(10).
    VERIFY_10 = 0x2f;
    /// PRE-FETCH(10).
    PRE_FETCH_10 = 0x34;
    /// SYNCHRONIZE CACHE(10).
    SYNCHRONIZE_CACHE_10 = 0x35;
    /// READ DEFECT DATA(10).
    READ_DEFECT_DATA_10 = 0x37;
    /// WRITE BUFFER.
    WRITE_BUFFER = 0x3b;
    /// READ BUFFER(10).
    READ_BUFFER = 0x3c;
    /// WRITE SAME(10).
    WRITE_SAME_10 = 0x41;
    /// UNMAP.
    UNMAP = 0x42;
    /// READ TOC/PMA/ATIP (MMC).
    READ_TOC_PMA_ATIP = 0x43;
    /// GET CONFIGURATION (MMC).
    GET_CONFIGURATION = 0x46;
    /// SANITIZE.
    SANITIZE = 0x48;
    /// GET EVENT STATUS NOTIFICATION (MMC).
    GET_EVENT_STATUS_NOTIFICATION = 0x4a;
    /// LOG SELECT.
    LOG_SELECT = 0x4c;
    /// LOG SENSE.
    LOG_SENSE = 0x4d;
    /// READ DISC INFORMATION (MMC).
    READ_DISC_INFORMATION = 0x51;
    /// READ TRACK INFORMATION (MMC).
    READ_TRACK_INFORMATION = 0x52;
    /// MODE SELECT(10).
    MODE_SELECT_10 = 0x55;
    /// RESERVE(10), SPC-2.
    RESERVE_10 = 0x56;
    /// RELEASE(10), SPC-2.
    RELEASE_10 = 0x57;
    /// MODE SENSE(10).
    MODE_SENSE_10 = 0x5a;
    /// PERSISTENT RESERVE IN.
    PERSISTENT_RESERVE_IN = 0x5e;
    /// PERSISTENT RESERVE OUT.
    PERSISTENT_RESERVE_OUT = 0x5f;
    /// Commands of variable length: their SERVICE ACTION is in bytes 8 and 9 (SPC-4 4.2.5.2).
    VARIABLE_LENGTH = 0x7f;
    /// Third-party copy OUT: EXTENDED COPY and similar commands.
    THIRD_PARTY_COPY_OUT = 0x83;
    /// Third-party copy IN: RECEIVE COPY RESULTS and similar commands.
    THIRD_PARTY_COPY_IN = 0x84;
    /// READ(16).
    READ_16 = 0x88;
    /// COMPARE AND WRITE.
    COMPARE_AND_WRITE = 0x89;
    /// WRITE(16).
    WRITE_16 = 0x8a;
    /// ORWRITE(16).
    ORWRITE_16 = 0x8b;
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
    /// WRITE ATOMIC(16).
    WRITE_ATOMIC_16 = 0x9c;
    /// SERVICE ACTION IN(16).
    SERVICE_ACTION_IN_16 = 0x9e;
    /// SERVICE ACTION OUT(16).
    SERVICE_ACTION_OUT_16 = 0x9f;
    /// REPORT LUNS.
    REPORT_LUNS = 0xa0;
    /// SECURITY PROTOCOL IN.
    SECURITY_PROTOCOL_IN = 0xa2;
    /// MAINTENANCE IN.
    MAINTENANCE_IN = 0xa3;
    /// MAINTENANCE OUT.
    MAINTENANCE_OUT = 0xa4;
    /// READ(12).
    READ_12 = 0xa8;
    /// WRITE(12).
    WRITE_12 = 0xaa;
    /// GET PERFORMANCE (MMC).
    GET_PERFORMANCE = 0xac;
    /// READ DISC STRUCTURE (MMC).
    READ_DISC_STRUCTURE = 0xad;
    /// WRITE AND VERIFY(12).
    WRITE_AND_VERIFY_12 = 0xae;
    /// VERIFY(12).
    VERIFY_12 = 0xaf;
    /// SECURITY PROTOCOL OUT.
    SECURITY_PROTOCOL_OUT = 0xb5;
    /// READ DEFECT DATA(12).
    READ_DEFECT_DATA_12 = 0xb7;
    /// READ CD MSF (MMC).
    READ_CD_MSF = 0xb9;
    /// SET CD SPEED (MMC).
    SET_CD_SPEED = 0xbb;
    /// MECHANISM STATUS (MMC).
    MECHANISM_STATUS = 0xbd;
    /// READ CD (MMC).
    READ_CD = 0xbe;
    /// Variable length: READ(32).
    SA_READ_32 = 0x09;
    /// Variable length: VERIFY(32).
    SA_VERIFY_32 = 0x0a;
    /// Variable length: WRITE(32).
    SA_WRITE_32 = 0x0b;
    /// Variable length: WRITE AND VERIFY(32).
    SA_WRITE_AND_VERIFY_32 = 0x0c;
    /// Variable length: WRITE SAME(32).
    SA_WRITE_SAME_32 = 0x0d;
    /// SANITIZE: OVERWRITE.
    SA_SANITIZE_OVERWRITE = 0x01;
    /// SANITIZE: BLOCK ERASE.
    SA_SANITIZE_BLOCK_ERASE = 0x02;
    /// SANITIZE: CRYPTOGRAPHIC ERASE.
    SA_SANITIZE_CRYPTOGRAPHIC_ERASE = 0x03;
    /// SANITIZE: EXIT FAILURE MODE.
    SA_SANITIZE_EXIT_FAILURE_MODE = 0x1f;
    /// SERVICE ACTION IN(16): READ CAPACITY(16).
    SA_READ_CAPACITY_16 = 0x10;
    /// SERVICE ACTION IN(16): GET LBA STATUS.
    SA_GET_LBA_STATUS = 0x12;
    /// MAINTENANCE IN: REPORT SUPPORTED OPERATION CODES.
    SA_REPORT_SUPPORTED_OPERATION_CODES = 0x0c;
    /// MAINTENANCE IN: REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    SA_REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS = 0x0d;
    /// MAINTENANCE IN: REPORT TARGET PORT GROUPS.
    SA_REPORT_TARGET_PORT_GROUPS = 0x0a;
    /// MAINTENANCE IN: REPORT IDENTIFYING INFORMATION.
    SA_REPORT_IDENTIFYING_INFORMATION = 0x05;
    /// MAINTENANCE OUT: SET IDENTIFYING INFORMATION.
    SA_SET_IDENTIFYING_INFORMATION = 0x06;
    /// MAINTENANCE IN: REPORT TIMESTAMP.
    SA_REPORT_TIMESTAMP = 0x0f;
    /// MAINTENANCE OUT: SET TARGET PORT GROUPS.
    SA_SET_TARGET_PORT_GROUPS = 0x0a;
    /// MAINTENANCE OUT: SET TIMESTAMP.
    SA_SET_TIMESTAMP = 0x0f;
    /// Third-party copy OUT: EXTENDED COPY(LID1).
    SA_EXTENDED_COPY_LID1 = 0x00;
    /// Third-party copy OUT: POPULATE TOKEN.
    SA_POPULATE_TOKEN = 0x10;
    /// Third-party copy OUT: WRITE USING TOKEN.
    SA_WRITE_USING_TOKEN = 0x11;
    /// Third-party copy OUT: COPY OPERATION ABORT.
    SA_COPY_OPERATION_ABORT = 0x1c;
    /// Third-party copy IN: RECEIVE COPY STATUS(LID1).
    SA_RECEIVE_COPY_STATUS_LID1 = 0x00;
    /// Third-party copy IN: RECEIVE COPY DATA(LID1).
    SA_RECEIVE_COPY_DATA_LID1 = 0x01;
    /// Third-party copy IN: RECEIVE COPY OPERATING PARAMETERS.
    SA_RECEIVE_COPY_OPERATING_PARAMETERS = 0x03;
    /// Third-party copy IN: RECEIVE COPY FAILURE DETAILS(LID1).
    SA_RECEIVE_COPY_FAILURE_DETAILS_LID1 = 0x04;
    /// Third-party copy IN: RECEIVE COPY STATUS(LID4).
    SA_RECEIVE_COPY_STATUS_LID4 = 0x05;
    /// Third-party copy IN: RECEIVE ROD TOKEN INFORMATION.
    SA_RECEIVE_ROD_TOKEN_INFORMATION = 0x07;
    /// Third-party copy IN: REPORT ALL ROD TOKENS.
    SA_REPORT_ALL_ROD_TOKENS = 0x08;
}

/// Returns the number of bytes in a CDB with this OPERATION CODE, from its GROUP CODE (SPC-4 4.2.5.1). Returns `None`
/// where the group has no fixed length.
pub const fn cdb_length(operation_code: u8) -> Option<usize> {
    match operation_code >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}
