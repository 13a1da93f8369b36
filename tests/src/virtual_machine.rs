//! A front-end of vhost-user-blk and the driver of its disk, with one ring: what a disk sees of a virtual machine.
//!
//! The shared memory is a file, which this side reads and writes as a file. Layouts: QEMU, docs/interop/vhost-user.rst; VIRTIO 1.2, 2.7 and
//! 5.2.

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Number of the entries of the ring.
pub const ENTRIES: u16 = 64;
/// Maximum length of a part of a request.
pub const PART_BYTES: u32 = 4096;
/// Maximum number of requests at a time: each has three descriptors at most.
pub const SLOTS: u16 = ENTRIES / PARTS;

const PARTS: u16 = 3;
const LIMIT: Duration = Duration::from_secs(60);
const MEMORY: u64 = 1 << 20;
/// Where the memory is for the sender of the messages: not where it is for the virtual machine.
const USER_ADDRESS: u64 = 0x7000_0000_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x10000;

/// The types of requests.
pub mod request {
    /// Read.
    pub const READ: u32 = 0;
    /// Write.
    pub const WRITE: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// Return the identifier.
    pub const IDENTIFIER: u32 = 8;
    /// Deallocate.
    pub const DISCARD: u32 = 11;
    /// Write zeroes.
    pub const ZEROES: u32 = 13;
}

/// A part of a request.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes that the disk reads.
    Out(&'a [u8]),
    /// A buffer of so many bytes, which the disk writes.
    In(u32),
}

/// Returns the header of a request.
pub fn header(code: u32, sector: u64) -> Vec<u8> {
    [&code.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// Returns the range of a discard or of zeroes.
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// Returns numbers as the payload of a message.
pub fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// A connection to a disk.
#[derive(Debug)]
pub struct Connection(UnixStream);

impl Connection {
    /// Connects to the socket of a disk.
    pub fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Self(stream))
    }

    /// Sends a message.
    pub fn send(&self, code: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        const VERSION: u32 = 1;
        self.send_with([code, VERSION, payload.len() as u32], payload, descriptors)
    }

    /// Sends a message with this header: the code, the flags, the length.
    pub fn send_with(
        &self,
        header: [u32; 3],
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let is_room = control.push(SendAncillaryMessage::ScmRights(descriptors));
            ensure!(is_room, "too many descriptors");
        }
        let header = numbers(&header);
        sendmsg(&self.0, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL)?;
        (&self.0).write_all(payload)?;
        Ok(())
    }

    /// Returns the payload of the next reply.
    pub fn reply(&self) -> Result<Vec<u8>> {
        let mut header = [0; 12];
        (&self.0).read_exact(&mut header)?;
        let length = u32::from_ne_bytes(header[8..].try_into()?);
        let mut payload = vec![0; length as usize];
        (&self.0).read_exact(&mut payload)?;
        Ok(payload)
    }

    /// Asks for a number.
    pub fn ask(&self, code: u32) -> Result<u64> {
        self.send(code, &[], &[])?;
        Ok(u64::from_ne_bytes(self.reply()?.as_slice().try_into()?))
    }

    /// Waits until the disk closes the connection, or sends something.
    pub fn is_closed(&self) -> Result<bool> {
        match (&self.0).read(&mut [0; 64]) {
            Ok(count) => Ok(count == 0),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the size of the disk in sectors.
    pub fn sectors(&self) -> Result<u64> {
        self.send(24, &[numbers(&[0, 8, 0]), vec![0; 8]].concat(), &[])?;
        let reply = self.reply()?;
        Ok(u64::from_le_bytes(reply.get(12..20).context("a configuration")?.try_into()?))
    }

    /// Passes the memory of a virtual machine.
    pub fn share(&self, memory: &File, bytes: u64) -> Result<()> {
        let region = [0, bytes, USER_ADDRESS, 0].map(u64::to_ne_bytes).concat();
        self.send(5, &[numbers(&[1, 0]), region].concat(), &[memory.as_fd()])
    }
}

/// The memory of a virtual machine, with its ring. Both outlive a connection.
#[derive(Debug)]
pub struct VirtualMachine {
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    /// Number of the requests that were submitted.
    available: u16,
    /// Number of the completions that were seen.
    used: u16,
}

impl VirtualMachine {
    /// Creates the memory, with an empty ring.
    pub fn new() -> Result<Self> {
        let memory = File::from(rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC)?);
        memory.set_len(MEMORY)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { memory, kick: event()?, call: event()?, available: 0, used: 0 })
    }

    /// Sets the used index of the empty ring, which is then not that of the first request.
    pub fn with_used_index(mut self, index: u16) -> Result<Self> {
        self.memory.write_all_at(&index.to_le_bytes(), USED + 2)?;
        self.used = index;
        Ok(self)
    }

    /// Returns the memory.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Connects to a disk, and starts the ring at the first request that is not complete, as QEMU does.
    pub fn connect(&self, socket: &Path) -> Result<Connection> {
        let connection = Connection::open(socket)?;
        let features = connection.ask(1)?;
        // Without EVENT_IDX, each side is always notified.
        let features = features & !(1 << 29);
        connection.send(2, &features.to_ne_bytes(), &[])?;
        connection.share(&self.memory, MEMORY)?;
        connection.send(8, &numbers(&[0, ENTRIES.into()]), &[])?;
        let base = self.number_at(USED + 2)?;
        connection.send(10, &numbers(&[0, base.into()]), &[])?;
        let addresses = [USER_ADDRESS, USER_ADDRESS + USED, USER_ADDRESS + AVAILABLE, 0];
        let addresses = addresses.map(u64::to_ne_bytes).concat();
        connection.send(9, &[numbers(&[0, 0]), addresses].concat(), &[])?;
        let first_ring = 0_u64.to_ne_bytes();
        connection.send(13, &first_ring, &[self.call.as_fd()])?;
        connection.send(12, &first_ring, &[self.kick.as_fd()])?;
        connection.send(18, &numbers(&[0, 1]), &[])?;
        Ok(connection)
    }

    /// Stops the ring. Returns the number of its first entry that is not complete.
    pub fn stop(&self, connection: &Connection) -> Result<u32> {
        connection.send(11, &numbers(&[0, 0]), &[])?;
        let state = connection.reply()?;
        Ok(u32::from_ne_bytes(state.get(4..).context("a state")?.try_into()?))
    }

    fn number_at(&self, address: u64) -> Result<u16> {
        let mut number = [0; 2];
        self.memory.read_exact_at(&mut number, address)?;
        Ok(u16::from_le_bytes(number))
    }

    fn part_address(slot: u16, part: u16) -> u64 {
        BUFFERS + u64::from(slot * PARTS + part) * u64::from(PART_BYTES)
    }

    /// Submits a request in a slot that is free.
    pub fn submit(&mut self, slot: u16, parts: &[Part<'_>]) -> Result<()> {
        // VIRTQ_DESC_F_NEXT, VIRTQ_DESC_F_WRITE.
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        let first = slot * PARTS;
        for (index, part) in (0..).zip(parts) {
            let address = Self::part_address(slot, index);
            let (length, kind) = match part {
                Part::Out(bytes) => {
                    self.memory.write_all_at(bytes, address)?;
                    (bytes.len() as u32, 0)
                }
                Part::In(length) => (*length, WRITE),
            };
            let has_next = usize::from(index) + 1 < parts.len();
            let flags = kind | if has_next { NEXT } else { 0 };
            let descriptor = [
                &address.to_le_bytes()[..],
                &length.to_le_bytes(),
                &flags.to_le_bytes(),
                &(first + index + 1).to_le_bytes(),
            ];
            self.memory.write_all_at(&descriptor.concat(), u64::from(first + index) * 16)?;
        }
        let entry = AVAILABLE + 4 + u64::from(self.available % ENTRIES) * 2;
        self.memory.write_all_at(&first.to_le_bytes(), entry)?;
        self.available = self.available.wrapping_add(1);
        self.publish(self.available)
    }

    /// Publishes the available index, and kicks.
    pub fn publish(&self, available: u16) -> Result<()> {
        self.memory.write_all_at(&available.to_le_bytes(), AVAILABLE + 2)?;
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    /// Waits for the next completion: the slot of the request, and the number of bytes that the device has written.
    pub fn completed(&mut self) -> Result<(u16, u32)> {
        while self.number_at(USED + 2)? == self.used {
            let mut ready = [PollFd::new(&self.call, PollFlags::IN)];
            let limit = Timespec::try_from(LIMIT)?;
            ensure!(poll(&mut ready, Some(&limit))? > 0, "no completion within {LIMIT:?}");
            rustix::io::read(&self.call, &mut [0; 8])?;
        }
        let mut element = [0; 8];
        let place = USED + 4 + u64::from(self.used % ENTRIES) * 8;
        self.memory.read_exact_at(&mut element, place)?;
        self.used = self.used.wrapping_add(1);
        let (first, written) = element.split_at(4);
        let first = u32::from_le_bytes(first.try_into()?) as u16;
        Ok((first / PARTS, u32::from_le_bytes(written.try_into()?)))
    }

    /// Returns whether there are no completions but those that were returned.
    pub fn all_is_seen(&self) -> Result<bool> {
        Ok(self.number_at(USED + 2)? == self.used)
    }

    /// Returns the bytes of a part of a request.
    pub fn part(&self, slot: u16, part: u16, length: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.memory.read_exact_at(&mut bytes, Self::part_address(slot, part))?;
        Ok(bytes)
    }

    /// Submits a request whose last part is its status, and waits for it. Returns the status.
    pub fn status_of(&mut self, code: u32, sector: u64, part: Option<Part<'_>>) -> Result<u8> {
        let header = header(code, sector);
        let parts = [Some(Part::Out(&header)), part, Some(Part::In(1))];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        self.submit(0, &parts)?;
        let (slot, _) = self.completed()?;
        ensure!(slot == 0, "slot {slot} is complete");
        Ok(self.part(0, parts.len() as u16 - 1, 1)?[0])
    }
}
