//! The commands of a disk, as methods of a unit.

use sarsen_block::Buffer;
use sarsen_proto::iscsi::initiator::{Completion, Residual};
use sarsen_wire::scsi::cdb::{self, Block10, Block16, FLAGS_FUA, FLAGS_UNMAP, ServiceActionIn16};
use sarsen_wire::scsi::inquiry::StandardInquiry;
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::{
    Capacity10, Capacity16, LbaStatusDescriptor, LbaStatusHeader, LunListHeader, UnmapDescriptor,
    UnmapHeader,
};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{Capacity, Command, TransferRequest, Unit};
use crate::error::{SenseKey, SessionError};

/// The identification of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// PERIPHERAL QUALIFIER and DEVICE TYPE; 0 is a connected disk.
    pub peripheral: u8,
    /// VERSION.
    pub version: u8,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// PRODUCT REVISION LEVEL.
    pub revision: String,
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches([' ', '\0']).to_owned()
}

impl Unit {
    /// Sends TEST UNIT READY.
    pub async fn test_unit_ready(&self) -> Result<(), SessionError> {
        let cdb = [opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0];
        self.command(Command::new(&cdb, TransferRequest::None)).await?;
        Ok(())
    }

    /// Carries out a command that returns a maximum of `length` bytes.
    pub(crate) async fn fetch(&self, cdb: &[u8], length: u32) -> Result<Buffer, SessionError> {
        let completion = self.command(Command::new(cdb, TransferRequest::Read(length))).await?;
        Ok(completion.data.unwrap_or_else(|| Buffer::zeroed(0)))
    }

    /// Returns the target's logical unit numbers in the form that commands carry (SAM-5 4.7). If there are more than
    /// 2047, it returns the first ones.
    pub async fn report_luns(&self) -> Result<Vec<[u8; 8]>, SessionError> {
        const LENGTH: u32 = 16 * 1024;
        let cdb = cdb::ReportLuns {
            operation_code: opcode::REPORT_LUNS,
            reserved_1: 0,
            select_report: 0,
            reserved_3: [0; 3],
            allocation_length: U32::new(LENGTH),
            reserved_10: 0,
            control: 0,
        };
        let data = self.fetch(cdb.as_bytes(), LENGTH).await?;
        let (header, list) = LunListHeader::ref_from_prefix(&data)
            .map_err(|_| SessionError::MalformedAnswer { command: "REPORT LUNS" })?;
        let length = list.len().min(header.lun_list_length.get() as usize);
        Ok(list[..length].as_chunks().0.to_vec())
    }

    /// Returns the standard INQUIRY data.
    pub async fn inquiry(&self) -> Result<Inquiry, SessionError> {
        let data = self.inquiry_data(None).await?;
        // At least 36 bytes are mandatory (SPC-4 6.6.2); version descriptors may be missing.
        if data.len() < 36 {
            return Err(SessionError::MalformedAnswer { command: "INQUIRY" });
        }
        let mut inquiry = StandardInquiry::new_zeroed();
        let length = data.len().min(size_of::<StandardInquiry>());
        inquiry.as_mut_bytes()[..length].copy_from_slice(&data[..length]);
        Ok(Inquiry {
            peripheral: inquiry.peripheral,
            version: inquiry.version,
            vendor: words(&inquiry.vendor),
            product: words(&inquiry.product),
            revision: words(&inquiry.revision),
        })
    }

    /// Returns a page of vital product data, or the standard data, unparsed.
    pub async fn inquiry_data(&self, page: Option<u8>) -> Result<Buffer, SessionError> {
        const LENGTH: u16 = 255;
        let cdb = cdb::Inquiry {
            operation_code: opcode::INQUIRY,
            flags: u8::from(page.is_some()),
            page_code: page.unwrap_or(0),
            allocation_length: U16::new(LENGTH),
            control: 0,
        };
        self.fetch(cdb.as_bytes(), LENGTH.into()).await
    }

    /// Returns the capacity by READ CAPACITY(16), or by READ CAPACITY(10) if the unit does not support (16).
    pub async fn read_capacity(&self) -> Result<Capacity, SessionError> {
        let capacity = match self.read_capacity_16().await {
            Ok(capacity) => Capacity {
                blocks: capacity.last_lba.get().saturating_add(1),
                block_length: capacity.block_length.get(),
            },
            Err(error) => match error.sense() {
                Some(sense) if sense.key == SenseKey::IllegalRequest => {
                    self.read_capacity_10().await?
                }
                _ => return Err(error),
            },
        };
        // No file has offsets beyond this (off_t).
        let most = i64::MAX as u64;
        if capacity.block_length == 0 || capacity.blocks > most / u64::from(capacity.block_length) {
            return Err(SessionError::MalformedAnswer { command: "READ CAPACITY" });
        }
        *self.capacity.lock() = capacity;
        Ok(capacity)
    }

    /// Returns the data of READ CAPACITY(16).
    pub(crate) async fn read_capacity_16(&self) -> Result<Capacity16, SessionError> {
        let length = size_of::<Capacity16>() as u32;
        let cdb = ServiceActionIn16 {
            operation_code: opcode::SERVICE_ACTION_IN_16,
            service_action: opcode::SA_READ_CAPACITY_16,
            lba: U64::ZERO,
            allocation_length: U32::new(length),
            flags: 0,
            control: 0,
        };
        let data = self.fetch(cdb.as_bytes(), length).await?;
        // Only the first twelve bytes are needed; targets differ in how many follow.
        let mut capacity = Capacity16::new_zeroed();
        let length = data.len().min(size_of::<Capacity16>());
        capacity.as_mut_bytes()[..length].copy_from_slice(&data[..length]);
        Ok(capacity)
    }

    async fn read_capacity_10(&self) -> Result<Capacity, SessionError> {
        let cdb = block_10(opcode::READ_CAPACITY_10, 0, 0, 0);
        let data = self.fetch(cdb.as_bytes(), size_of::<Capacity10>() as u32).await?;
        let (capacity, _) = Capacity10::ref_from_prefix(&data)
            .map_err(|_| SessionError::MalformedAnswer { command: "READ CAPACITY(10)" })?;
        Ok(Capacity {
            blocks: u64::from(capacity.last_lba.get()) + 1,
            block_length: capacity.block_length.get(),
        })
    }

    /// Reads `blocks` blocks from `lba`, by READ(16).
    pub async fn read(&self, lba: u64, blocks: u32) -> Result<Buffer, SessionError> {
        let block_length = self.capacity().block_length;
        let command = read(lba, blocks, block_length)?;
        received(self.command(command).await?, blocks * block_length)
    }

    /// Writes whole blocks from `lba` on, by WRITE(16). With `fua` they are on stable storage when this returns.
    pub async fn write(&self, lba: u64, data: Buffer, fua: bool) -> Result<(), SessionError> {
        let length = data.len();
        let command = write(lba, data, self.capacity().block_length, fua)?;
        moved(&self.command(command).await?, length)
    }

    /// Writes one block's data to each of `blocks` blocks from `lba` on, by WRITE SAME(16). With `unmap` the unit may
    /// deallocate the blocks instead, if they then read as that data.
    pub async fn write_same(
        &self,
        lba: u64,
        blocks: u32,
        block: Buffer,
        unmap: bool,
    ) -> Result<(), SessionError> {
        self.command(write_same(lba, blocks, block, unmap)).await?;
        Ok(())
    }

    /// Brings all written data to stable storage, by SYNCHRONIZE CACHE(10).
    pub async fn flush(&self) -> Result<(), SessionError> {
        self.command(synchronize_cache()).await?;
        Ok(())
    }

    /// Deallocates these runs of blocks: pairs of first block and number of blocks.
    pub async fn unmap(&self, extents: &[(u64, u32)]) -> Result<(), SessionError> {
        self.command(unmap(extents)?).await?;
        Ok(())
    }
}

/// Returns a READ(16).
pub(crate) fn read(lba: u64, blocks: u32, block_length: u32) -> Result<Command, SessionError> {
    let too_long = SessionError::TooLong { blocks: blocks.into(), block_length };
    let length = blocks.checked_mul(block_length).ok_or(too_long)?;
    let cdb = block_16(opcode::READ_16, 0, lba, blocks);
    Ok(Command::new(cdb.as_bytes(), TransferRequest::Read(length)))
}

/// Returns the data of a [`read`] of `wanted` bytes that ended with GOOD.
pub(crate) fn received(completion: Completion, wanted: u32) -> Result<Buffer, SessionError> {
    let data = completion.data.unwrap_or_else(|| Buffer::zeroed(0));
    if data.len() as u64 != u64::from(wanted) {
        return Err(SessionError::ShortTransfer { wanted, moved: data.len() as u32 });
    }
    Ok(data)
}

/// Returns a WRITE(16) of whole blocks.
pub(crate) fn write(
    lba: u64,
    data: Buffer,
    block_length: u32,
    fua: bool,
) -> Result<Command, SessionError> {
    let blocks = data.len() as u64 / u64::from(block_length.max(1));
    let fits =
        u32::try_from(data.len()).is_ok() && blocks * u64::from(block_length) == data.len() as u64;
    if !fits {
        return Err(SessionError::TooLong { blocks, block_length });
    }
    let flags = if fua { FLAGS_FUA } else { 0 };
    let cdb = block_16(opcode::WRITE_16, flags, lba, blocks as u32);
    Ok(Command::new(cdb.as_bytes(), TransferRequest::Write(data)))
}

/// Returns an error if a command that ended with GOOD has not moved all of `length` bytes.
pub(crate) fn moved(completion: &Completion, length: usize) -> Result<(), SessionError> {
    let length = length as u32;
    let (wanted, moved) = match completion.residual {
        Residual::None | Residual::Underflow(0) | Residual::Overflow(0) => return Ok(()),
        // RFC 7143 §11.4.5: even with GOOD a target may have skipped a part.
        Residual::Underflow(count) => (length, length.saturating_sub(count)),
        Residual::Overflow(count) => (length.saturating_add(count), length),
    };
    Err(SessionError::ShortTransfer { wanted, moved })
}

/// Returns a WRITE SAME(16): see [`Unit::write_same`].
pub(crate) fn write_same(lba: u64, blocks: u32, block: Buffer, unmap: bool) -> Command {
    let flags = if unmap { FLAGS_UNMAP } else { 0 };
    let cdb = block_16(opcode::WRITE_SAME_16, flags, lba, blocks);
    Command::new(cdb.as_bytes(), TransferRequest::Write(block))
}

/// Returns a SYNCHRONIZE CACHE(10) of the whole unit.
pub(crate) fn synchronize_cache() -> Command {
    let cdb = block_10(opcode::SYNCHRONIZE_CACHE_10, 0, 0, 0);
    Command::new(cdb.as_bytes(), TransferRequest::None)
}

/// Returns a GET LBA STATUS for the blocks from `lba` on, with space for one descriptor.
pub(crate) fn lba_status(lba: u64) -> Command {
    let length = (size_of::<LbaStatusHeader>() + size_of::<LbaStatusDescriptor>()) as u32;
    let cdb = ServiceActionIn16 {
        operation_code: opcode::SERVICE_ACTION_IN_16,
        service_action: opcode::SA_GET_LBA_STATUS,
        lba: lba.into(),
        allocation_length: U32::new(length),
        flags: 0,
        control: 0,
    };
    Command::new(cdb.as_bytes(), TransferRequest::Read(length))
}

/// Returns the first descriptor of the data of an [`lba_status`].
pub(crate) fn first_run(data: &[u8]) -> Option<LbaStatusDescriptor> {
    let (header, rest) = LbaStatusHeader::ref_from_prefix(data).ok()?;
    let (descriptor, _) = LbaStatusDescriptor::ref_from_prefix(rest).ok()?;
    let reported = header.parameter_data_length.get() as usize + size_of::<U32>();
    let is_whole = reported >= size_of::<LbaStatusHeader>() + size_of::<LbaStatusDescriptor>();
    is_whole.then_some(*descriptor)
}

/// Returns an UNMAP of these runs of blocks: pairs of first block and number of blocks.
pub(crate) fn unmap(extents: &[(u64, u32)]) -> Result<Command, SessionError> {
    let too_long = SessionError::TooLong { blocks: extents.len() as u64, block_length: 16 };
    let descriptors = extents.len() * size_of::<UnmapDescriptor>();
    let length = u16::try_from(size_of::<UnmapHeader>() + descriptors).map_err(|_| too_long)?;
    let header = UnmapHeader {
        data_length: U16::new(length - size_of::<U16>() as u16),
        block_descriptor_data_length: U16::new(length - size_of::<UnmapHeader>() as u16),
        reserved: [0; 4],
    };
    let mut list = header.as_bytes().to_vec();
    for &(lba, blocks) in extents {
        let descriptor =
            UnmapDescriptor { lba: lba.into(), block_count: blocks.into(), reserved: [0; 4] };
        list.extend_from_slice(descriptor.as_bytes());
    }
    let cdb = cdb::Unmap {
        operation_code: opcode::UNMAP,
        flags: 0,
        reserved: [0; 4],
        group: 0,
        parameter_list_length: U16::new(length),
        control: 0,
    };
    Ok(Command::new(cdb.as_bytes(), TransferRequest::Write(Buffer::copy_of(&list))))
}

fn block_16(operation_code: u8, flags: u8, lba: u64, blocks: u32) -> Block16 {
    Block16 {
        operation_code,
        flags,
        lba: lba.into(),
        block_count: blocks.into(),
        group: 0,
        control: 0,
    }
}

fn block_10(operation_code: u8, flags: u8, lba: u32, blocks: u16) -> Block10 {
    Block10 {
        operation_code,
        flags,
        lba: lba.into(),
        group: 0,
        block_count: blocks.into(),
        control: 0,
    }
}
