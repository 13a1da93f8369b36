//! The commands of a disk, as methods of a session.

use sarsen_block::Buffer;
use sarsen_proto::iscsi::initiator::Residual;
use sarsen_wire::scsi::cdb::{self, Block10, Block16, FLAGS_FUA, FLAGS_UNMAP, ServiceActionIn16};
use sarsen_wire::scsi::inquiry::StandardInquiry;
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::{
    Capacity10, Capacity16, LunListHeader, UnmapDescriptor, UnmapHeader,
};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::capacity::Capacity;
use crate::error::{SenseKey, SessionError};
use crate::reconnect::Unflushed;
use crate::session::{Command, Session, TransferRequest};

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

impl Session {
    /// Sends TEST UNIT READY.
    pub async fn test_unit_ready(&self) -> Result<(), SessionError> {
        let cdb = [opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0];
        self.command(Command::repeatable(&cdb, TransferRequest::None)).await?;
        Ok(())
    }

    /// Carries out a command that returns a maximum of `length` bytes.
    pub(crate) async fn fetch(&self, cdb: &[u8], length: u32) -> Result<Buffer, SessionError> {
        let completion =
            self.command(Command::repeatable(cdb, TransferRequest::Read(length))).await?;
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
        if capacity.block_length == 0 {
            return Err(SessionError::MalformedAnswer { command: "READ CAPACITY" });
        }
        self.note_capacity(capacity);
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

    fn length_of(&self, blocks: u32) -> Result<u32, SessionError> {
        let block_length = self.capacity().block_length;
        blocks
            .checked_mul(block_length)
            .ok_or(SessionError::TooLong { blocks: blocks.into(), block_length })
    }

    /// Reads `blocks` blocks from `lba`, by READ(16).
    pub async fn read(&self, lba: u64, blocks: u32) -> Result<Buffer, SessionError> {
        let wanted = self.length_of(blocks)?;
        let cdb = block_16(opcode::READ_16, 0, lba, blocks);
        let data = self.fetch(cdb.as_bytes(), wanted).await?;
        if data.len() as u64 != u64::from(wanted) {
            return Err(SessionError::ShortTransfer { wanted, moved: data.len() as u32 });
        }
        Ok(data)
    }

    /// Writes whole blocks from `lba` on, by WRITE(16). With `fua` they are on stable storage when this returns.
    pub async fn write(&self, lba: u64, data: Buffer, fua: bool) -> Result<(), SessionError> {
        let block_length = self.capacity().block_length;
        let blocks = data.len() as u64 / u64::from(block_length.max(1));
        let too_long = SessionError::TooLong { blocks, block_length };
        let count = u32::try_from(blocks).map_err(|_| too_long.clone())?;
        if self.length_of(count)? as usize != data.len() {
            return Err(too_long);
        }
        let flags = if fua { FLAGS_FUA } else { 0 };
        let cdb = block_16(opcode::WRITE_16, flags, lba, count);
        let end = lba.saturating_add(blocks);
        let length = data.len() as u32;
        let (wanted, moved) = match self.change(&cdb_of(&cdb), data, (lba, end), fua).await? {
            Residual::None | Residual::Underflow(0) | Residual::Overflow(0) => return Ok(()),
            // RFC 7143 §11.4.5: even with GOOD a target may have skipped a part.
            Residual::Underflow(count) => (length, length.saturating_sub(count)),
            Residual::Overflow(count) => (length.saturating_add(count), length),
        };
        Err(SessionError::ShortTransfer { wanted, moved })
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
        let flags = if unmap { FLAGS_UNMAP } else { 0 };
        let cdb = block_16(opcode::WRITE_SAME_16, flags, lba, blocks);
        // Zero blocks means all blocks that follow (SBC-4 5.50).
        let end = if blocks == 0 { u64::MAX } else { lba.saturating_add(blocks.into()) };
        self.change(&cdb_of(&cdb), block, (lba, end), false).await?;
        Ok(())
    }

    /// Brings all written data to stable storage, by SYNCHRONIZE CACHE(10).
    pub async fn flush(&self) -> Result<(), SessionError> {
        let kept = self.reconnection.as_ref().map(|reconnection| &reconnection.unflushed);
        let answered = kept.map(Unflushed::answered).unwrap_or_default();
        let cdb = block_10(opcode::SYNCHRONIZE_CACHE_10, 0, 0, 0);
        self.command(Command::repeatable(cdb.as_bytes(), TransferRequest::None)).await?;
        if let Some(kept) = kept {
            kept.forget(&answered);
        }
        Ok(())
    }

    /// Deallocates these runs of blocks: pairs of first block and number of blocks.
    pub async fn unmap(&self, extents: &[(u64, u32)]) -> Result<(), SessionError> {
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
        let first = extents.iter().map(|extent| extent.0).min().unwrap_or(0);
        let ends = extents.iter().map(|&(lba, blocks)| lba.saturating_add(blocks.into()));
        let end = ends.max().unwrap_or(0);
        self.change(&cdb_of(&cdb), Buffer::copy_of(&list), (first, end), false).await?;
        Ok(())
    }
}

/// Returns a CDB, padded with zeroes.
fn cdb_of(cdb: &(impl IntoBytes + Immutable)) -> [u8; 16] {
    let mut whole = [0; 16];
    whole[..cdb.as_bytes().len()].copy_from_slice(cdb.as_bytes());
    whole
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
