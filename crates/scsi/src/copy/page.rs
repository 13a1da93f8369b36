//! The Third-party Copy page (SPC-4 7.8.17, SBC-3 6.6.7): the limits of the copy manager.

use super::{
    DEFAULT_INACTIVITY_S, MAXIMUM_CSCDS, MAXIMUM_DESCRIPTOR_BYTES, MAXIMUM_INACTIVITY_S,
    MAXIMUM_OPERATIONS, MAXIMUM_RANGES, MAXIMUM_SEGMENT_BYTES, MAXIMUM_SEGMENTS,
    MAXIMUM_TOKEN_BYTES, OPTIMAL_TOKEN_BYTES,
};
use crate::LogicalUnit;
use sarsen_block::BlockSize;
use sarsen_wire::scsi::{copy as wire, copy_page as page, opcode};
use zerocopy::IntoBytes;

/// The supported segment and CSCD descriptors, in ascending order.
pub(super) const DESCRIPTOR_TYPES: &[u8] = &[
    wire::SEGMENT_BLOCK_TO_BLOCK,
    wire::SEGMENT_VERIFY,
    wire::SEGMENT_BLOCK_TO_BLOCK_WITH_OFFSET,
    wire::CSCD_IDENTIFICATION,
];

/// Returns the page without its header.
pub(crate) fn third_party_copy(unit: &LogicalUnit) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |descriptor_type: u16, body: &[u8]| {
        let header = page::DescriptorHeader {
            descriptor_type: descriptor_type.into(),
            length: (body.len().next_multiple_of(4) as u16).into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    };
    add(page::BLOCK_DEVICE_ROD_LIMITS, rod_limits(unit).as_bytes());
    add(page::SUPPORTED_COMMANDS, &supported_commands());
    add(page::PARAMETER_DATA, parameter_data().as_bytes());
    add(page::SUPPORTED_DESCRIPTORS, &counted(DESCRIPTOR_TYPES));
    let [high, low] = wire::CSCD_ID_THIS_UNIT.to_be_bytes();
    add(page::SUPPORTED_CSCD_IDS, &[0, 2, high, low]);
    add(page::ROD_TOKEN_FEATURES, token_features().as_bytes());
    add(page::SUPPORTED_ROD_TYPES, &rod_types());
    add(page::GENERAL_COPY_OPERATIONS, copy_operations().as_bytes());
    bytes
}

/// Returns a list with its length in one byte in front.
fn counted(list: &[u8]) -> Vec<u8> {
    [&[list.len() as u8], list].concat()
}

fn rod_limits(unit: &LogicalUnit) -> page::BlockDeviceRodLimits {
    let shift = unit.geometry().block_size.shift();
    page::BlockDeviceRodLimits {
        reserved: [0; 6],
        maximum_range_descriptors: (MAXIMUM_RANGES as u16).into(),
        maximum_inactivity_timeout: MAXIMUM_INACTIVITY_S.into(),
        default_inactivity_timeout: DEFAULT_INACTIVITY_S.into(),
        maximum_token_transfer_size: (MAXIMUM_TOKEN_BYTES >> shift).into(),
        optimal_transfer_count: (OPTIMAL_TOKEN_BYTES >> shift).into(),
    }
}

/// The service actions of the copy manager's commands, which all disks support. A test compares them with the command
/// table.
pub(crate) const COMMANDS: [(u8, &[u8]); 2] = [
    (
        opcode::THIRD_PARTY_COPY_OUT,
        &[
            opcode::SA_EXTENDED_COPY_LID1,
            opcode::SA_POPULATE_TOKEN,
            opcode::SA_WRITE_USING_TOKEN,
            opcode::SA_COPY_OPERATION_ABORT,
        ],
    ),
    (
        opcode::THIRD_PARTY_COPY_IN,
        &[
            opcode::SA_RECEIVE_COPY_STATUS_LID1,
            opcode::SA_RECEIVE_COPY_DATA_LID1,
            opcode::SA_RECEIVE_COPY_OPERATING_PARAMETERS,
            opcode::SA_RECEIVE_COPY_FAILURE_DETAILS_LID1,
            opcode::SA_RECEIVE_COPY_STATUS_LID4,
            opcode::SA_RECEIVE_ROD_TOKEN_INFORMATION,
            opcode::SA_REPORT_ALL_ROD_TOKENS,
        ],
    ),
];

fn supported_commands() -> Vec<u8> {
    let of = |(operation_code, actions): (u8, &[u8])| {
        [&[operation_code][..], &counted(actions)].concat()
    };
    counted(&COMMANDS.map(of).concat())
}

fn parameter_data() -> page::ParameterData {
    page::ParameterData {
        reserved: [0; 4],
        maximum_cscd_count: (MAXIMUM_CSCDS as u16).into(),
        maximum_segment_count: (MAXIMUM_SEGMENTS as u16).into(),
        maximum_descriptor_list_length: (MAXIMUM_DESCRIPTOR_BYTES as u32).into(),
        maximum_inline_data_length: 0.into(),
        reserved_16: [0; 12],
    }
}

fn token_features() -> page::RodTokenFeatures {
    let block_device = page::BlockDeviceRodFeatures {
        peripheral: 0,
        reserved_1: 0,
        length: (size_of::<page::BlockDeviceRodFeatures>() as u16 - 4).into(),
        reserved_4: [0; 2],
        optimal_length_granularity: 0.into(),
        maximum_bytes: MAXIMUM_TOKEN_BYTES.into(),
        optimal_bytes: OPTIMAL_TOKEN_BYTES.into(),
        optimal_bytes_to_token: MAXIMUM_TOKEN_BYTES.into(),
        optimal_bytes_from_token: OPTIMAL_TOKEN_BYTES.into(),
        reserved_40: [0; 8],
    };
    page::RodTokenFeatures {
        // Tokens of other copy managers are not supported.
        remote_tokens: 0,
        reserved_1: [0; 11],
        minimum_token_lifetime: 0.into(),
        maximum_token_lifetime: u32::MAX.into(),
        maximum_token_inactivity_timeout: MAXIMUM_INACTIVITY_S.into(),
        reserved_24: [0; 18],
        features_length: (size_of_val(&block_device) as u16).into(),
        block_device,
    }
}

fn rod_types() -> Vec<u8> {
    let both = page::ROD_TYPE_TOKEN_IN | page::ROD_TYPE_TOKEN_OUT;
    let types = [
        rod_type(wire::ROD_POINT_IN_TIME_DEFAULT, page::ROD_TYPE_TOKEN_OUT),
        rod_type(wire::ROD_POINT_IN_TIME_CHANGE_VULNERABLE, both),
        rod_type(wire::ROD_POINT_IN_TIME_ANY, page::ROD_TYPE_TOKEN_OUT),
        rod_type(wire::ROD_BLOCK_DEVICE_ZERO, page::ROD_TYPE_TOKEN_IN),
    ];
    let header =
        page::RodTypesHeader { reserved: [0; 2], length: (size_of_val(&types) as u16).into() };
    [header.as_bytes(), types.as_bytes()].concat()
}

fn rod_type(rod_type: u32, flags: u8) -> page::RodType {
    page::RodType {
        rod_type: rod_type.into(),
        flags,
        reserved_5: 0,
        preference: 0.into(),
        reserved_8: [0; 56],
    }
}

fn copy_operations() -> page::GeneralCopyOperations {
    page::GeneralCopyOperations {
        total_concurrent_copies: (MAXIMUM_OPERATIONS as u32).into(),
        maximum_identified_concurrent_copies: (MAXIMUM_OPERATIONS as u32).into(),
        maximum_segment_length: (MAXIMUM_SEGMENT_BYTES as u32).into(),
        data_segment_granularity: BlockSize::B512.shift() as u8,
        inline_data_granularity: 0,
        reserved: [0; 18],
    }
}
