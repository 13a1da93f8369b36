//! Sense data: named constructors, the mapping of store errors, and both byte formats.

use sarsen_block::{BlockError, InvalidRequest, MediumProblem, ProtectionField, StopCause};
use sarsen_wire::scsi::sense::{self as wire, DescriptorSense, FixedSense};
use zerocopy::IntoBytes;

/// SENSE KEY (SPC-4 4.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// NO SENSE.
    NoSense = 0x0,
    /// RECOVERED ERROR.
    RecoveredError = 0x1,
    /// NOT READY.
    NotReady = 0x2,
    /// MEDIUM ERROR.
    MediumError = 0x3,
    /// HARDWARE ERROR.
    HardwareError = 0x4,
    /// ILLEGAL REQUEST.
    IllegalRequest = 0x5,
    /// UNIT ATTENTION.
    UnitAttention = 0x6,
    /// DATA PROTECT.
    DataProtect = 0x7,
    /// COPY ABORTED.
    CopyAborted = 0xa,
    /// ABORTED COMMAND.
    AbortedCommand = 0xb,
    /// MISCOMPARE.
    Miscompare = 0xe,
}

/// ADDITIONAL SENSE CODE in the high byte, its QUALIFIER in the low one (SPC-4 annex F).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdditionalSense(pub u16);

macro_rules! additional_sense {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl AdditionalSense { $($(#[$doc])* pub const $name: Self = Self($value);)* }
    };
}

additional_sense! {
    /// NO ADDITIONAL SENSE INFORMATION.
    NONE = 0x0000;
    /// LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE.
    LOGICAL_UNIT_NOT_READY_CAUSE_NOT_REPORTABLE = 0x0400;
    /// LOGICAL UNIT IS IN PROCESS OF BECOMING READY.
    LOGICAL_UNIT_IS_IN_PROCESS_OF_BECOMING_READY = 0x0401;
    /// LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED.
    INITIALIZING_COMMAND_REQUIRED = 0x0402;
    /// LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED.
    LOGICAL_UNIT_NOT_READY_MANUAL_INTERVENTION_REQUIRED = 0x0403;
    /// LOGICAL UNIT NOT READY, FORMAT IN PROGRESS.
    LOGICAL_UNIT_NOT_READY_FORMAT_IN_PROGRESS = 0x0404;
    /// LOGICAL UNIT NOT READY, OPERATION IN PROGRESS.
    LOGICAL_UNIT_NOT_READY_OPERATION_IN_PROGRESS = 0x0407;
    /// LOGICAL UNIT NOT READY, SELF-TEST IN PROGRESS.
    LOGICAL_UNIT_NOT_READY_SELF_TEST_IN_PROGRESS = 0x0409;
    /// LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION.
    LOGICAL_UNIT_NOT_ACCESSIBLE_ASYMMETRIC_ACCESS_STATE_TRANSITION = 0x040a;
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
    LOGICAL_UNIT_NOT_ACCESSIBLE_TARGET_PORT_IN_STANDBY_STATE = 0x040b;
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE.
    LOGICAL_UNIT_NOT_ACCESSIBLE_TARGET_PORT_IN_UNAVAILABLE_STATE = 0x040c;
    /// LOGICAL UNIT NOT READY, OFFLINE.
    LOGICAL_UNIT_NOT_READY_OFFLINE = 0x0412;
    /// LOGICAL UNIT NOT READY, SPACE ALLOCATION IN PROGRESS.
    LOGICAL_UNIT_NOT_READY_SPACE_ALLOCATION_IN_PROGRESS = 0x0414;
    /// LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS.
    LOGICAL_UNIT_NOT_READY_SANITIZE_IN_PROGRESS = 0x041b;
    /// WRITE ERROR.
    WRITE_ERROR = 0x0c00;
    /// OPERATION IN PROGRESS.
    OPERATION_IN_PROGRESS = 0x0016;
    /// LOGICAL UNIT COMMUNICATION FAILURE.
    LOGICAL_UNIT_COMMUNICATION_FAILURE = 0x0800;
    /// UNREACHABLE COPY TARGET.
    UNREACHABLE_COPY_TARGET = 0x0804;
    /// THIRD PARTY DEVICE FAILURE.
    THIRD_PARTY_DEVICE_FAILURE = 0x0d01;
    /// COPY TARGET DEVICE NOT REACHABLE.
    COPY_TARGET_DEVICE_NOT_REACHABLE = 0x0d02;
    /// INCORRECT COPY TARGET DEVICE TYPE.
    INCORRECT_COPY_TARGET_DEVICE_TYPE = 0x0d03;
    /// COPY TARGET DEVICE DATA UNDERRUN.
    COPY_TARGET_DEVICE_DATA_UNDERRUN = 0x0d04;
    /// COPY TARGET DEVICE DATA OVERRUN.
    COPY_TARGET_DEVICE_DATA_OVERRUN = 0x0d05;
    /// INVALID FIELD IN COMMAND INFORMATION UNIT.
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = 0x0e03;
    /// LOGICAL BLOCK GUARD CHECK FAILED.
    LOGICAL_BLOCK_GUARD_CHECK_FAILED = 0x1001;
    /// LOGICAL BLOCK APPLICATION TAG CHECK FAILED.
    LOGICAL_BLOCK_APPLICATION_TAG_CHECK_FAILED = 0x1002;
    /// LOGICAL BLOCK REFERENCE TAG CHECK FAILED.
    LOGICAL_BLOCK_REFERENCE_TAG_CHECK_FAILED = 0x1003;
    /// UNRECOVERED READ ERROR.
    UNRECOVERED_READ_ERROR = 0x1100;
    /// PARAMETER LIST LENGTH ERROR.
    PARAMETER_LIST_LENGTH_ERROR = 0x1a00;
    /// DEFECT LIST NOT FOUND.
    DEFECT_LIST_NOT_FOUND = 0x1c00;
    /// MISCOMPARE DURING VERIFY OPERATION.
    MISCOMPARE_DURING_VERIFY_OPERATION = 0x1d00;
    /// INVALID COMMAND OPERATION CODE.
    INVALID_COMMAND_OPERATION_CODE = 0x2000;
    /// ACCESS DENIED - NO ACCESS RIGHTS.
    ACCESS_DENIED_NO_ACCESS_RIGHTS = 0x2002;
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE = 0x2100;
    /// INVALID TOKEN OPERATION, CAUSE NOT REPORTABLE.
    INVALID_TOKEN_OPERATION_CAUSE_NOT_REPORTABLE = 0x2300;
    /// INVALID TOKEN OPERATION, UNSUPPORTED TOKEN TYPE.
    INVALID_TOKEN_OPERATION_UNSUPPORTED_TOKEN_TYPE = 0x2301;
    /// INVALID TOKEN OPERATION, REMOTE TOKEN USAGE NOT SUPPORTED.
    INVALID_TOKEN_OPERATION_REMOTE_TOKEN_USAGE_NOT_SUPPORTED = 0x2302;
    /// INVALID TOKEN OPERATION, REMOTE ROD TOKEN CREATION NOT SUPPORTED.
    INVALID_TOKEN_OPERATION_REMOTE_ROD_TOKEN_CREATION_NOT_SUPPORTED = 0x2303;
    /// INVALID TOKEN OPERATION, TOKEN UNKNOWN.
    INVALID_TOKEN_OPERATION_TOKEN_UNKNOWN = 0x2304;
    /// INVALID TOKEN OPERATION, TOKEN CORRUPT.
    INVALID_TOKEN_OPERATION_TOKEN_CORRUPT = 0x2305;
    /// INVALID TOKEN OPERATION, TOKEN REVOKED.
    INVALID_TOKEN_OPERATION_TOKEN_REVOKED = 0x2306;
    /// INVALID TOKEN OPERATION, TOKEN EXPIRED.
    INVALID_TOKEN_OPERATION_TOKEN_EXPIRED = 0x2307;
    /// INVALID TOKEN OPERATION, TOKEN CANCELLED.
    INVALID_TOKEN_OPERATION_TOKEN_CANCELLED = 0x2308;
    /// INVALID TOKEN OPERATION, TOKEN DELETED.
    INVALID_TOKEN_OPERATION_TOKEN_DELETED = 0x2309;
    /// INVALID TOKEN OPERATION, INVALID TOKEN LENGTH.
    INVALID_TOKEN_OPERATION_INVALID_TOKEN_LENGTH = 0x230a;
    /// INVALID FIELD IN CDB.
    INVALID_FIELD_IN_CDB = 0x2400;
    /// LOGICAL UNIT NOT SUPPORTED.
    LOGICAL_UNIT_NOT_SUPPORTED = 0x2500;
    /// INVALID FIELD IN PARAMETER LIST.
    INVALID_FIELD_IN_PARAMETER_LIST = 0x2600;
    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x2604;
    /// TOO MANY TARGET DESCRIPTORS.
    TOO_MANY_TARGET_DESCRIPTORS = 0x2606;
    /// UNSUPPORTED TARGET DESCRIPTOR TYPE CODE.
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE = 0x2607;
    /// TOO MANY SEGMENT DESCRIPTORS.
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x2608;
    /// UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE.
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE = 0x2609;
    /// UNEXPECTED INEXACT SEGMENT.
    UNEXPECTED_INEXACT_SEGMENT = 0x260a;
    /// INLINE DATA LENGTH EXCEEDED.
    INLINE_DATA_LENGTH_EXCEEDED = 0x260b;
    /// INVALID OPERATION FOR COPY SOURCE OR DESTINATION.
    INVALID_OPERATION_FOR_COPY_SOURCE_OR_DESTINATION = 0x260c;
    /// WRITE PROTECTED.
    WRITE_PROTECTED = 0x2700;
    /// LOGICAL UNIT SOFTWARE WRITE PROTECTED.
    LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED = 0x2702;
    /// SPACE ALLOCATION FAILED WRITE PROTECT.
    SPACE_ALLOCATION_FAILED_WRITE_PROTECT = 0x2707;
    /// NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED.
    NOT_READY_TO_READY_CHANGE = 0x2800;
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED.
    POWER_ON_RESET_OR_BUS_DEVICE_RESET_OCCURRED = 0x2900;
    /// POWER ON OCCURRED.
    POWER_ON_OCCURRED = 0x2901;
    /// BUS DEVICE RESET FUNCTION OCCURRED.
    BUS_DEVICE_RESET_FUNCTION_OCCURRED = 0x2903;
    /// MODE PARAMETERS CHANGED.
    MODE_PARAMETERS_CHANGED = 0x2a01;
    /// LOG PARAMETERS CHANGED.
    LOG_PARAMETERS_CHANGED = 0x2a02;
    /// RESERVATIONS PREEMPTED.
    RESERVATIONS_PREEMPTED = 0x2a03;
    /// RESERVATIONS RELEASED.
    RESERVATIONS_RELEASED = 0x2a04;
    /// REGISTRATIONS PREEMPTED.
    REGISTRATIONS_PREEMPTED = 0x2a05;
    /// ASYMMETRIC ACCESS STATE CHANGED.
    ASYMMETRIC_ACCESS_STATE_CHANGED = 0x2a06;
    /// IMPLICIT ASYMMETRIC ACCESS STATE TRANSITION FAILED.
    IMPLICIT_ASYMMETRIC_ACCESS_STATE_TRANSITION_FAILED = 0x2a07;
    /// CAPACITY DATA HAS CHANGED.
    CAPACITY_DATA_HAS_CHANGED = 0x2a09;
    /// TIMESTAMP CHANGED.
    TIMESTAMP_CHANGED = 0x2a10;
    /// COMMAND SEQUENCE ERROR.
    COMMAND_SEQUENCE_ERROR = 0x2c00;
    /// PREVIOUS BUSY STATUS.
    PREVIOUS_BUSY_STATUS = 0x2c07;
    /// PREVIOUS TASK SET FULL STATUS.
    PREVIOUS_TASK_SET_FULL_STATUS = 0x2c08;
    /// PREVIOUS RESERVATION CONFLICT STATUS.
    PREVIOUS_RESERVATION_CONFLICT_STATUS = 0x2c09;
    /// COMMANDS CLEARED BY ANOTHER INITIATOR.
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = 0x2f00;
    /// COMMANDS CLEARED BY DEVICE SERVER.
    COMMANDS_CLEARED_BY_DEVICE_SERVER = 0x2f02;
    /// CANNOT READ MEDIUM - INCOMPATIBLE FORMAT.
    CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT = 0x3002;
    /// MEDIUM FORMAT CORRUPTED.
    MEDIUM_FORMAT_CORRUPTED = 0x3100;
    /// FORMAT COMMAND FAILED.
    FORMAT_COMMAND_FAILED = 0x3101;
    /// SANITIZE COMMAND FAILED.
    SANITIZE_COMMAND_FAILED = 0x3103;
    /// THIN PROVISIONING SOFT THRESHOLD REACHED.
    THIN_PROVISIONING_SOFT_THRESHOLD_REACHED = 0x3807;
    /// SAVING PARAMETERS NOT SUPPORTED.
    SAVING_PARAMETERS_NOT_SUPPORTED = 0x3900;
    /// MEDIUM NOT PRESENT.
    MEDIUM_NOT_PRESENT = 0x3a00;
    /// MEDIUM NOT PRESENT - TRAY CLOSED.
    MEDIUM_NOT_PRESENT_TRAY_CLOSED = 0x3a01;
    /// MEDIUM NOT PRESENT - TRAY OPEN.
    MEDIUM_NOT_PRESENT_TRAY_OPEN = 0x3a02;
    /// LOGICAL UNIT FAILED SELF-TEST.
    LOGICAL_UNIT_FAILED_SELF_TEST = 0x3e03;
    /// INQUIRY DATA HAS CHANGED.
    INQUIRY_DATA_HAS_CHANGED = 0x3f03;
    /// DEVICE IDENTIFIER CHANGED.
    DEVICE_IDENTIFIER_CHANGED = 0x3f05;
    /// REPORTED LUNS DATA HAS CHANGED.
    REPORTED_LUNS_DATA_HAS_CHANGED = 0x3f0e;
    /// INTERNAL TARGET FAILURE.
    INTERNAL_TARGET_FAILURE = 0x4400;
    /// INVALID MESSAGE ERROR.
    INVALID_MESSAGE_ERROR = 0x4900;
    /// MEDIUM REMOVAL PREVENTED.
    MEDIUM_REMOVAL_PREVENTED = 0x5302;
    /// SYSTEM BUFFER FULL.
    SYSTEM_BUFFER_FULL = 0x5501;
    /// INSUFFICIENT RESERVATION RESOURCES.
    INSUFFICIENT_RESERVATION_RESOURCES = 0x5502;
    /// INSUFFICIENT RESOURCES.
    INSUFFICIENT_RESOURCES = 0x5503;
    /// INSUFFICIENT REGISTRATION RESOURCES.
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x5504;
    /// INSUFFICIENT RESOURCES TO CREATE ROD.
    INSUFFICIENT_RESOURCES_TO_CREATE_ROD = 0x550c;
    /// INSUFFICIENT RESOURCES TO CREATE ROD TOKEN.
    INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN = 0x550d;
    /// FAILURE PREDICTION THRESHOLD EXCEEDED.
    FAILURE_PREDICTION_THRESHOLD_EXCEEDED = 0x5d00;
    /// FAILURE PREDICTION THRESHOLD EXCEEDED (FALSE).
    FAILURE_PREDICTION_THRESHOLD_EXCEEDED_FALSE = 0x5dff;
    /// ILLEGAL MODE FOR THIS TRACK.
    ILLEGAL_MODE_FOR_THIS_TRACK = 0x6400;
}

/// The position of a rejected field in a CDB or a parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// Offset of the byte.
    pub byte: u16,
    /// The highest bit of the field.
    pub bit: Option<u8>,
    /// True if the field is in the CDB, false if it is in the parameter list.
    pub in_cdb: bool,
}

/// Sense data before its conversion to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    key: SenseKey,
    additional: AdditionalSense,
    information: Option<u64>,
    command_specific: Option<u64>,
    field: Option<FieldPointer>,
    progress: Option<u16>,
    descriptor_format: bool,
}

impl Sense {
    /// Creates sense data with a key and an additional sense code.
    pub const fn new(key: SenseKey, additional: AdditionalSense) -> Self {
        Self {
            key,
            additional,
            information: None,
            command_specific: None,
            field: None,
            progress: None,
            descriptor_format: false,
        }
    }

    /// Returns NO SENSE without further information.
    pub const fn none() -> Self {
        Self::new(SenseKey::NoSense, AdditionalSense::NONE)
    }

    /// Reports an unsupported operation code.
    pub const fn invalid_operation_code() -> Self {
        let sense = Self::illegal_request(AdditionalSense::INVALID_COMMAND_OPERATION_CODE);
        sense.at(FieldPointer { byte: 0, bit: None, in_cdb: true })
    }

    /// Reports an invalid field of the CDB that begins in `byte`.
    pub const fn invalid_field_in_cdb(byte: u16) -> Self {
        let sense = Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_CDB);
        sense.at(FieldPointer { byte, bit: None, in_cdb: true })
    }

    /// Reports an invalid field of the CDB whose highest bit is `bit` of `byte`.
    pub const fn invalid_bit_in_cdb(byte: u16, bit: u8) -> Self {
        let sense = Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_CDB);
        sense.at(FieldPointer { byte, bit: Some(bit), in_cdb: true })
    }

    /// Reports an invalid field of the parameter list that begins in `byte`.
    pub const fn invalid_field_in_parameter_list(byte: u16) -> Self {
        let sense = Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
        sense.at(FieldPointer { byte, bit: None, in_cdb: false })
    }

    /// Reports an invalid field of the parameter list that begins at `offset`; its field pointer has 16 bits.
    pub(crate) fn invalid_parameter_at(offset: usize) -> Self {
        Self::invalid_field_in_parameter_list(u16::try_from(offset).unwrap_or(u16::MAX))
    }

    /// Reports an invalid field of the parameter list whose highest bit is `bit` of `byte`.
    pub const fn invalid_bit_in_parameter_list(byte: u16, bit: u8) -> Self {
        let sense = Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
        sense.at(FieldPointer { byte, bit: Some(bit), in_cdb: false })
    }

    /// Reports an invalid field of the parameter list that begins in `byte`, with a specific additional sense code.
    pub const fn in_parameter_list(additional: AdditionalSense, byte: u16) -> Self {
        Self::illegal_request(additional).at(FieldPointer { byte, bit: None, in_cdb: false })
    }

    /// Reports the failure of a copy in a segment, with the byte of its parameter list that caused it, if any (SPC-4
    /// 5.17.7.4).
    pub const fn copy_aborted(
        additional: AdditionalSense,
        segment: u16,
        byte: Option<u16>,
    ) -> Self {
        let sense = Self::new(SenseKey::CopyAborted, additional);
        let sense = sense.with_command_specific(segment as u64);
        match byte {
            Some(byte) => sense.at(FieldPointer { byte, bit: None, in_cdb: false }),
            None => sense,
        }
    }

    /// Reports that the parameter list ends within one of its structures.
    pub const fn parameter_list_length_error() -> Self {
        Self::illegal_request(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)
    }

    /// Reports that the transport's expected length does not match the command (FCP-4 9.4.2; iSCSI follows it by
    /// convention).
    pub const fn invalid_field_in_command_information_unit() -> Self {
        Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
    }

    /// Reports blocks after the last one.
    pub const fn lba_out_of_range() -> Self {
        Self::illegal_request(AdditionalSense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE)
    }

    /// Reports an unsupported logical unit.
    pub const fn logical_unit_not_supported() -> Self {
        Self::illegal_request(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED)
    }

    /// Reports that saved mode pages are not supported.
    pub const fn saving_parameters_not_supported() -> Self {
        Self::illegal_request(AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED)
    }

    /// Reports that a nexus prevents the removal of the medium.
    pub const fn medium_removal_prevented() -> Self {
        Self::illegal_request(AdditionalSense::MEDIUM_REMOVAL_PREVENTED)
    }

    /// Reports that state that must outlive the program could not be saved.
    pub const fn save_failed() -> Self {
        Self::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE)
    }

    /// Reports that blocks could not be written, or that writes are stopped after a failed flush.
    pub const fn write_error() -> Self {
        Self::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR)
    }

    /// Reports that START STOP UNIT stopped the unit.
    pub const fn stopped() -> Self {
        Self::new(SenseKey::NotReady, AdditionalSense::INITIALIZING_COMMAND_REQUIRED)
    }

    /// Reports that the unit's backing is out of service until an administrator repairs it.
    pub const fn unavailable() -> Self {
        Self::new(
            SenseKey::NotReady,
            AdditionalSense::LOGICAL_UNIT_NOT_READY_MANUAL_INTERVENTION_REQUIRED,
        )
    }

    /// Reports that the initiator has no permission for this command.
    pub const fn no_access_rights() -> Self {
        Self::new(SenseKey::IllegalRequest, AdditionalSense::ACCESS_DENIED_NO_ACCESS_RIGHTS)
    }

    /// Reports that the store is read-only.
    pub const fn write_protected() -> Self {
        Self::new(SenseKey::DataProtect, AdditionalSense::WRITE_PROTECTED)
    }

    /// Reports that SWP is set in the control mode page.
    pub const fn software_write_protected() -> Self {
        Self::new(SenseKey::DataProtect, AdditionalSense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED)
    }

    /// Reports a miscompare. The first different byte is at `offset` of the Data-Out (SBC-3 5.2).
    pub const fn miscompare(offset: u64) -> Self {
        let additional = AdditionalSense::MISCOMPARE_DURING_VERIFY_OPERATION;
        Self { information: Some(offset), ..Self::new(SenseKey::Miscompare, additional) }
    }

    /// Reports a wrong field of protection information (SBC-3 4.22.5).
    pub const fn protection(key: SenseKey, field: ProtectionField) -> Self {
        let additional = match field {
            ProtectionField::Guard => AdditionalSense::LOGICAL_BLOCK_GUARD_CHECK_FAILED,
            ProtectionField::ApplicationTag => {
                AdditionalSense::LOGICAL_BLOCK_APPLICATION_TAG_CHECK_FAILED
            }
            ProtectionField::ReferenceTag => {
                AdditionalSense::LOGICAL_BLOCK_REFERENCE_TAG_CHECK_FAILED
            }
        };
        Self::new(key, additional)
    }

    const fn illegal_request(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::IllegalRequest, additional)
    }

    const fn at(self, field: FieldPointer) -> Self {
        Self { field: Some(field), ..self }
    }

    /// Adds INFORMATION.
    #[must_use]
    pub const fn with_information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// Adds COMMAND-SPECIFIC INFORMATION.
    #[must_use]
    pub const fn with_command_specific(self, information: u64) -> Self {
        Self { command_specific: Some(information), ..self }
    }

    /// Adds PROGRESS INDICATION, in 65536ths (SPC-4 4.5.2.4.4), for NOT READY and NO SENSE.
    #[must_use]
    pub const fn with_progress(self, progress: u16) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Selects descriptor format (D_SENSE) or fixed format.
    #[must_use]
    pub const fn in_descriptor_format(self, descriptor_format: bool) -> Self {
        Self { descriptor_format, ..self }
    }

    /// Returns SENSE KEY.
    pub const fn key(&self) -> SenseKey {
        self.key
    }

    /// Returns ADDITIONAL SENSE CODE and QUALIFIER.
    pub const fn additional(&self) -> AdditionalSense {
        self.additional
    }

    /// Returns INFORMATION.
    pub const fn information(&self) -> Option<u64> {
        self.information
    }

    /// Returns the rejected field.
    pub const fn field(&self) -> Option<FieldPointer> {
        self.field
    }

    /// Returns the bytes in the selected format.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.descriptor_format { self.descriptor_bytes() } else { self.fixed_bytes() }
    }

    /// Returns SENSE KEY SPECIFIC.
    fn key_specific(&self) -> Option<wire::FieldPointer> {
        if let Some(progress) = self.progress {
            return Some(wire::FieldPointer { flags: wire::SKSV, field: progress.into() });
        }
        let field = self.field?;
        let which = if field.in_cdb { wire::COMMAND_DATA } else { 0 };
        let bit = field.bit.map_or(0, |bit| wire::BIT_POINTER_VALID | (bit & 0x07));
        Some(wire::FieldPointer { flags: wire::SKSV | which | bit, field: field.byte.into() })
    }

    fn fixed_bytes(&self) -> Vec<u8> {
        // SPC-4 4.5.3: fixed format omits information of more than 32 bits, and VALID is 0 then.
        let information = self.information.and_then(|value| u32::try_from(value).ok());
        let valid = if information.is_some() { wire::VALID } else { 0 };
        let fixed = FixedSense {
            response_code: wire::RESPONSE_FIXED_CURRENT | valid,
            sense_key: self.key as u8,
            information: information.unwrap_or(0).into(),
            additional_sense_length: (size_of::<FixedSense>() - 8) as u8,
            command_specific_information: self
                .command_specific
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(0)
                .into(),
            additional_sense: self.additional.0.into(),
            field_pointer: self.key_specific().unwrap_or_default(),
            ..FixedSense::default()
        };
        fixed.as_bytes().to_vec()
    }

    fn descriptor_bytes(&self) -> Vec<u8> {
        let mut descriptors = Vec::new();
        if let Some(information) = self.information {
            let descriptor = wire::InformationDescriptor {
                descriptor_type: wire::DESCRIPTOR_INFORMATION,
                additional_length: 0x0a,
                valid: wire::VALID,
                reserved: 0,
                information: information.into(),
            };
            descriptors.extend_from_slice(descriptor.as_bytes());
        }
        if let Some(information) = self.command_specific {
            let descriptor = wire::InformationDescriptor {
                descriptor_type: wire::DESCRIPTOR_COMMAND_SPECIFIC_INFORMATION,
                additional_length: 0x0a,
                valid: 0,
                reserved: 0,
                information: information.into(),
            };
            descriptors.extend_from_slice(descriptor.as_bytes());
        }
        if let Some(field_pointer) = self.key_specific() {
            let descriptor = wire::SenseKeySpecificDescriptor {
                descriptor_type: wire::DESCRIPTOR_SENSE_KEY_SPECIFIC,
                additional_length: 0x06,
                field_pointer,
                ..Default::default()
            };
            descriptors.extend_from_slice(descriptor.as_bytes());
        }
        let header = DescriptorSense {
            response_code: wire::RESPONSE_DESCRIPTOR_CURRENT,
            sense_key: self.key as u8,
            additional_sense: self.additional.0.into(),
            reserved: [0; 3],
            additional_sense_length: descriptors.len() as u8,
        };
        [header.as_bytes(), &descriptors].concat()
    }
}

/// The only mapping from errors of a store to sense data.
impl From<&BlockError> for Sense {
    fn from(error: &BlockError) -> Self {
        match error {
            BlockError::Invalid(request) => match request {
                InvalidRequest::OutOfRange { .. } => Self::lba_out_of_range(),
                InvalidRequest::ReadOnly => Self::write_protected(),
                InvalidRequest::Unsupported => Self::invalid_operation_code(),
                InvalidRequest::Rejected(_) => {
                    Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_CDB)
                }
            },
            BlockError::Medium { lba, problem } => {
                let sense = match problem {
                    MediumProblem::Read(_) => {
                        Self::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR)
                    }
                    MediumProblem::Write(_) => Self::write_error(),
                    MediumProblem::Protection(field) => {
                        Self::protection(SenseKey::AbortedCommand, *field)
                    }
                };
                sense.with_information(lba.0)
            }
            BlockError::NoSpace { lba } => {
                let additional = AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT;
                Self::new(SenseKey::DataProtect, additional).with_information(lba.0)
            }
            // The sense key tells initiators that they may send the command again (SPC-4 4.5.6).
            BlockError::Transient(_) => {
                Self::new(SenseKey::AbortedCommand, AdditionalSense::INTERNAL_TARGET_FAILURE)
            }
            // Multipath drivers of initiators try another path after NOT READY, and not after HARDWARE ERROR.
            BlockError::Unreachable(_) => {
                Self::new(SenseKey::NotReady, AdditionalSense::LOGICAL_UNIT_COMMUNICATION_FAILURE)
            }
            BlockError::Fenced => Self::no_access_rights(),
            // Retries do not help, as for a failed medium, and initiators treat this error as final.
            BlockError::Stopped(StopCause::FlushFailed) => Self::write_error(),
            BlockError::Stopped(StopCause::OutOfService) => Self::unavailable(),
        }
    }
}

impl From<BlockError> for Sense {
    fn from(error: BlockError) -> Self {
        Self::from(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sarsen_block::{Direction, Extent, Lba};

    fn medium(lba: u64) -> Sense {
        let source = std::io::Error::from_raw_os_error(5);
        BlockError::medium(Lba(lba), Direction::Read, source).into()
    }

    /// The values are those of SPC-4 4.5.6 and annex F.
    #[test]
    fn each_class_of_error_has_its_sense() {
        let other = || std::io::Error::other("a reason");
        let lba = Lba(7);
        let protection = MediumProblem::Protection(ProtectionField::Guard);
        let out_of_range = InvalidRequest::OutOfRange { extent: Extent::new(9, 1), block_count: 9 };
        let errors: [(BlockError, u8, u16, Option<u64>); 13] = [
            (out_of_range.into(), 0x5, 0x2100, None),
            (InvalidRequest::ReadOnly.into(), 0x7, 0x2700, None),
            (InvalidRequest::Unsupported.into(), 0x5, 0x2000, None),
            (InvalidRequest::Rejected(other()).into(), 0x5, 0x2400, None),
            (BlockError::medium(lba, Direction::Read, other()), 0x3, 0x1100, Some(7)),
            (BlockError::medium(lba, Direction::Write, other()), 0x3, 0x0c00, Some(7)),
            (BlockError::Medium { lba, problem: protection }, 0xb, 0x1001, Some(7)),
            (BlockError::NoSpace { lba }, 0x7, 0x2707, Some(7)),
            (BlockError::Transient(other()), 0xb, 0x4400, None),
            (BlockError::Unreachable(other()), 0x2, 0x0800, None),
            (BlockError::Fenced, 0x5, 0x2002, None),
            (StopCause::FlushFailed.into(), 0x3, 0x0c00, None),
            (StopCause::OutOfService.into(), 0x2, 0x0403, None),
        ];
        for (error, key, additional, information) in errors {
            let sense = Sense::from(&error);
            assert_eq!((sense.key() as u8, sense.additional().0), (key, additional), "{error}");
            assert_eq!(sense.information(), information, "{error}");
        }
    }

    #[test]
    fn spc4_4_5_3_fixed_format_carries_the_address_with_valid() {
        let bytes = medium(0x1234).to_bytes();
        assert_eq!(bytes.len(), 18);
        assert_eq!(bytes[..8], [0xf0, 0, 3, 0, 0, 0x12, 0x34, 10]);
        assert_eq!(bytes[12..14], [0x11, 0]);
    }

    #[test]
    fn spc4_4_5_3_fixed_format_leaves_out_an_address_of_more_than_32_bits() {
        let bytes = medium(1 << 32).to_bytes();
        assert_eq!(bytes[..7], [0x70, 0, 3, 0, 0, 0, 0]);
    }

    #[test]
    fn spc4_4_5_2_descriptor_format_carries_a_long_address() {
        let bytes = medium(1 << 32).in_descriptor_format(true).to_bytes();
        assert_eq!(bytes[..8], [0x72, 3, 0x11, 0, 0, 0, 0, 12]);
        assert_eq!(bytes[8..], [0, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn spc4_4_5_2_4_2_field_pointer_names_byte_and_bit() {
        let sense = Sense::invalid_bit_in_cdb(1, 7);
        assert_eq!(sense.to_bytes()[15..], [0xcf, 0, 1]);
        assert_eq!(sense.in_descriptor_format(true).to_bytes()[8..], [2, 6, 0, 0, 0xcf, 0, 1, 0]);
    }
}
