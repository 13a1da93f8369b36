//! A unit as a virtio block device: its features, its configuration and its requests.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use sarsen_block::{Buffer, Data, Io};
use sarsen_proto::nbd::server::{Operation, Outcome};
use sarsen_wire::nbd::ErrorCode;
use sarsen_wire::vhost_user::PROTOCOL_FEATURES;
use sarsen_wire::virtio_blk::{
    Config, DiscardWriteZeroes, IDENTIFIER_LENGTH, RequestHeader, RequestType, SECTOR_BYTES,
    Status, UNMAP, feature,
};
use virtio_queue::DescriptorChain;
use vm_memory::GuestMemoryMmap;
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use super::super::disk::{Access, MAXIMUM_PAYLOAD};

/// Maximum number of queues: virtual machines have one for each of their processors.
pub(super) const QUEUES: usize = 64;
/// Maximum number of segments of a request, so that each fits into a queue of 128 entries, as QEMU's are.
pub(super) const SEGMENTS: u32 = 126;
/// Maximum length of a range that is deallocated or zeroed: long enough for a file system, and short enough for one request.
const RANGE_BYTES: u64 = 1 << 30;

/// The buffers of a request, in the memory of the virtual machine.
pub(super) type Chain = DescriptorChain<Arc<GuestMemoryMmap>>;

/// The result of a request.
pub(super) type Answer = Result<Option<Data>, Status>;

/// Returns the features of the device.
pub(super) fn features(access: &Access) -> u64 {
    let characteristics = access.volume().store().characteristics();
    let feature_if = |is_offered: bool, feature: u64| if is_offered { feature } else { 0 };
    let is_read_only = access.is_read_only();
    let can_unmap = characteristics.unmap.is_some() && !is_read_only;
    PROTOCOL_FEATURES
        | feature::VERSION_1
        | feature::EVENT_INDEX
        | feature::INDIRECT_DESCRIPTORS
        | feature::SEGMENTS
        | feature::BLOCK_SIZE
        | feature::TOPOLOGY
        | feature::MULTIQUEUE
        | feature_if(is_read_only, feature::READ_ONLY)
        // Also without a cache, which the unit may get later: a virtual machine keeps its features.
        | feature_if(!is_read_only, feature::FLUSH)
        | feature_if(can_unmap, feature::DISCARD)
        | feature_if(!is_read_only, feature::WRITE_ZEROES)
}

/// Returns the configuration of the device.
pub(super) fn config(access: &Access) -> Config {
    let characteristics = access.volume().store().characteristics();
    let block_bytes = access.block_size().bytes() as u32;
    let range_sectors = ((RANGE_BYTES / SECTOR_BYTES) as u32).into();
    let granularity = characteristics.unmap.map_or(1, |unmap| unmap.granularity_blocks);
    let granularity = granularity.saturating_mul(block_bytes) / SECTOR_BYTES as u32;
    Config {
        sectors: (access.bytes() / SECTOR_BYTES).into(),
        maximum_segments: SEGMENTS.into(),
        block_bytes: block_bytes.into(),
        physical_block_exponent: characteristics.physical_block_exponent,
        queues: (QUEUES as u16).into(),
        maximum_discard: range_sectors,
        maximum_discard_ranges: 1.into(),
        discard_alignment: granularity.into(),
        maximum_zeroes: range_sectors,
        maximum_zeroes_ranges: 1.into(),
        zeroes_may_unmap: characteristics.unmap.is_some().into(),
        ..Config::new_zeroed()
    }
}

/// A request that was taken from a ring.
pub(super) enum Request {
    Operation(Operation),
    Identifier,
}

impl Request {
    /// Reads a request. Without `flush_negotiated`, the driver sends no flush, and each write is durable.
    pub(super) fn read(
        access: &Access,
        chain: &Chain,
        flush_negotiated: bool,
    ) -> Result<Self, Status> {
        let broken = |_| Status::IoError;
        let memory = chain.memory();
        let mut input = chain.clone().reader(memory).map_err(broken)?;
        let mut head = [0; size_of::<RequestHeader>()];
        input.read_exact(&mut head).map_err(|_| Status::IoError)?;
        let head = RequestHeader::read_from_bytes(&head).map_err(|_| Status::IoError)?;
        let (durable, sector) = (!flush_negotiated, head.sector.get());
        let operation = match RequestType(head.code.get()) {
            RequestType::Read => {
                let output = chain.clone().writer(memory).map_err(broken)?;
                // The last byte is that of the status.
                let length = (output.available_bytes() as u64).saturating_sub(1);
                let offset = byte_offset(access, sector, length, MAXIMUM_PAYLOAD.into())?;
                Operation::Read { offset, length }
            }
            RequestType::Write => {
                let length = input.available_bytes();
                let offset = byte_offset(access, sector, length as u64, MAXIMUM_PAYLOAD.into())?;
                let mut data = Buffer::for_overwrite(length);
                input.read_exact(&mut data).map_err(|_| Status::IoError)?;
                Operation::Write { offset, data, durable }
            }
            RequestType::Flush => Operation::Flush,
            RequestType::GetIdentifier => return Ok(Self::Identifier),
            code @ (RequestType::Discard | RequestType::WriteZeroes) => {
                let mut range = [0; size_of::<DiscardWriteZeroes>()];
                input.read_exact(&mut range).map_err(|_| Status::IoError)?;
                let range =
                    DiscardWriteZeroes::read_from_bytes(&range).map_err(|_| Status::IoError)?;
                let allowed = if code == RequestType::Discard { 0 } else { UNMAP };
                if input.available_bytes() > 0 || range.flags.get() & !allowed != 0 {
                    return Err(Status::Unsupported);
                }
                let length = u64::from(range.sectors.get()) * SECTOR_BYTES;
                let offset = byte_offset(access, range.sector.get(), length, RANGE_BYTES)?;
                if code == RequestType::Discard {
                    Operation::Trim { offset, length, durable }
                } else {
                    let (may_punch, fast) = (range.flags.get() & UNMAP != 0, false);
                    Operation::WriteZeroes { offset, length, durable, may_punch, fast }
                }
            }
            _ => return Err(Status::Unsupported),
        };
        Ok(Self::Operation(operation))
    }

    /// Returns the length of its data.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Operation(Operation::Read { length, .. }) => *length as usize,
            Self::Operation(Operation::Write { data, .. }) => data.len(),
            _ => 0,
        }
    }

    /// Starts the request.
    pub(super) fn start(self, access: &Arc<Access>) -> Io<Answer> {
        let operation = match self {
            Self::Operation(operation) => operation,
            Self::Identifier => {
                let mut identifier = [0; IDENTIFIER_LENGTH];
                let name = access.volume().name();
                let length = name.len().min(IDENTIFIER_LENGTH);
                identifier[..length].copy_from_slice(&name.as_bytes()[..length]);
                return Io::Ready(Ok(Some(Buffer::copy_of(&identifier).into())));
            }
        };
        access.execute(operation).map(|result| match result {
            Ok(Outcome::Data(data)) => Ok(Some(data)),
            Ok(Outcome::Done | Outcome::Status(_)) => Ok(None),
            Err(ErrorCode::NotSupported) => Err(Status::Unsupported),
            Err(_) => Err(Status::IoError),
        })
    }
}

/// Writes the answer to the request of a chain. Returns the number of bytes that were written.
pub(super) fn write_answer(chain: &Chain, answer: Answer) -> u32 {
    let write = || -> Option<u32> {
        let memory = chain.memory();
        let mut output = chain.clone().writer(memory).ok()?;
        let mut last = output.split_at(output.available_bytes().checked_sub(1)?).ok()?;
        let status = match answer {
            Ok(None) => Status::Ok,
            Ok(Some(data)) => match output.write_all(&data.into_buffer()) {
                Ok(()) => Status::Ok,
                Err(_) => Status::IoError,
            },
            Err(status) => status,
        };
        last.write_all(status.0.as_bytes()).ok()?;
        Some(output.bytes_written() as u32 + 1)
    };
    // A request without room for its status gets none.
    write().unwrap_or(0)
}

/// Returns the offset of a range in bytes. The disk must have the range, which must be aligned to its blocks and not too long.
fn byte_offset(access: &Access, sector: u64, length: u64, limit: u64) -> Result<u64, Status> {
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::IoError)?;
    let block_bytes = access.block_size().bytes() as u64;
    let end = offset.checked_add(length).ok_or(Status::IoError)?;
    let is_aligned = offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes);
    let is_valid = is_aligned && length > 0 && length <= limit && end <= access.bytes();
    if is_valid { Ok(offset) } else { Err(Status::IoError) }
}
