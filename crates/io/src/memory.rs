//! Memory of a store that many cores read, write and send from at once.
//!
//! A region is address space that is reserved once. The kernel allocates each page when it is written. There is never a
//! Rust reference to the region's bytes, because they may change at any time. All data is copied in and out through raw
//! pointers, or the kernel gets its address.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use sarsen_block::SharedMemory;

/// The unit in which memory is returned to the system.
pub const PAGE: usize = 4096;

/// Data in a region up to this size may stay in the processor's caches until it is read. In a larger region it would
/// only evict other data, so writes bypass the caches. That also saves reading each line before it is overwritten.
const CACHED: usize = 64 << 20;

/// Sparse anonymous memory. Pages that were never written read as zero and occupy no memory.
///
/// Concurrent access to the same bytes is permitted: each byte that is read is the byte before or after each write in
/// flight. A caller that needs order must provide it.
pub struct Region {
    base: NonNull<u8>,
    /// Number of usable bytes, up to `room`; only grows.
    length: AtomicUsize,
    /// Bytes of reserved address space.
    room: usize,
}

// SAFETY: the region owns its mapping until it is dropped. Its address is only used for raw copies within bounds, which
// any thread may do at any time (see `write`).
unsafe impl Send for Region {}
// SAFETY: as above; no method returns a reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of `bytes` that cannot grow.
    pub fn new(bytes: usize) -> io::Result<Arc<Self>> {
        Self::with_room(bytes, bytes)
    }

    /// Creates a region of `bytes` with address space to grow to `room` in place. The room costs only addresses, no
    /// memory.
    pub fn with_room(bytes: usize, room: usize) -> io::Result<Arc<Self>> {
        let room = room
            .max(bytes)
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory of this process.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                room,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let region = Self { base, length: AtomicUsize::new(0), room };
        // Core dumps must not contain volumes. Kernels without this advice dump them.
        // SAFETY: the range is exactly this mapping, and the advice does not change its bytes.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), room, Advice::LinuxDontDump) };
        region.grow(bytes)?;
        Ok(Arc::new(region))
    }

    /// Makes the region `bytes` long; the new bytes are zero. Shorter lengths are ignored.
    pub fn grow(&self, bytes: usize) -> io::Result<()> {
        if bytes > self.room {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let length = bytes.next_multiple_of(PAGE);
        // SAFETY: the range starts at this mapping and ends within it; accessible pages stay accessible.
        unsafe {
            rustix::mm::mprotect(
                self.base.as_ptr().cast(),
                length,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        self.length.fetch_max(bytes, Ordering::Release);
        Ok(())
    }

    /// Returns the bytes to which the region can grow in place.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Returns the address of a range within the region.
    pub(crate) fn address(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length.load(Ordering::Acquire)),
            "{length} bytes at {offset} lie outside the region"
        );
        // SAFETY: the offset was just compared with the length, so the address is in the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies `bytes` to `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.address(offset, bytes.len());
        // SAFETY: `to` is valid for this length. No Rust reference to these bytes exists, so `bytes` cannot overlap
        // them and no assumption of the compiler about them can break. Other threads may copy the same bytes at the
        // same moment. The copy is of plain bytes, no code here branches on their values, and the region promises a mix
        // of old and new bytes.
        unsafe {
            if bytes.len() >= PAGE && self.length() > CACHED {
                copy_past_caches(bytes, to);
            } else {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
    }

    /// Sets `length` bytes at `offset` to zero; their pages stay.
    pub fn zero(&self, offset: usize, length: usize) {
        let to = self.address(offset, length);
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(to, 0, length) };
    }

    /// Sets `length` bytes at `offset` to zero, and returns the whole pages among them to the system.
    pub fn discard(&self, offset: usize, length: usize) -> io::Result<()> {
        let to = self.address(offset, length);
        let first = offset.next_multiple_of(PAGE);
        let end = (offset + length) / PAGE * PAGE;
        if first >= end {
            self.zero(offset, length);
            return Ok(());
        }
        self.zero(offset, first - offset);
        self.zero(end, offset + length - end);
        // SAFETY: the pages are within this private anonymous mapping (the base is aligned to a page), where DONTNEED
        // means that the next access finds zeroes. No reference to them exists.
        unsafe {
            rustix::mm::madvise(to.add(first - offset).cast(), end - first, Advice::LinuxDontNeed)?;
        }
        Ok(())
    }
}

/// Copies with stores that bypass the caches; the data is in memory when this returns.
///
/// # Safety As for `copy_nonoverlapping`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(bytes: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const VECTOR: usize = size_of::<__m128i>();
    const LINE: usize = 4 * VECTOR;
    let from = bytes.as_ptr();
    let head = to.align_offset(LINE).min(bytes.len());
    let tail = (bytes.len() - head) % LINE;
    // SAFETY: head, lines and tail are the pieces of the caller's range. The stores are to addresses that `head` has
    // aligned; SSE2 is part of x86-64. These stores are not ordered by themselves; the fence orders them before any
    // later store that makes the data known to other threads.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in (head..bytes.len() - tail).step_by(LINE) {
            for vector in (line..line + LINE).step_by(VECTOR) {
                let value = _mm_loadu_si128(from.add(vector).cast());
                _mm_stream_si128(to.add(vector).cast(), value);
            }
        }
        let done = bytes.len() - tail;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), tail);
        _mm_sfence();
    }
}

/// Without such stores this is an ordinary copy.
///
/// # Safety As for `copy_nonoverlapping`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past_caches(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller guarantees it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

impl SharedMemory for Region {
    fn length(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.address(offset, into.len());
        // SAFETY: as in `write`; `into` is borrowed exclusively and cannot be part of the region.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and the last owner is dropping it, so no code uses its addresses. The
        // kernel copied or pinned the data that it sends from it during the call.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.room) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(region: &Region, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xaa; length];
        region.copy_out(offset, &mut bytes);
        bytes
    }

    #[test]
    fn unwritten_bytes_are_zero_and_written_ones_stay() {
        let region = Region::new(1 << 30).unwrap();
        assert_eq!(read(&region, (1 << 30) - 512, 512), vec![0; 512]);
        region.write(4000, &[7; 200]);
        assert_eq!(read(&region, 4000, 200), vec![7; 200]);
        region.zero(4010, 10);
        assert_eq!(read(&region, 4009, 12), [&[7][..], &[0; 10], &[7]].concat());
    }

    #[test]
    fn discard_zeroes_edges_and_pages_alike() {
        let region = Region::new(8 * PAGE).unwrap();
        region.write(0, &[9; 8 * PAGE]);
        region.discard(100, 3 * PAGE).unwrap();
        assert_eq!(read(&region, 99, 1), [9]);
        assert_eq!(read(&region, 100, 3 * PAGE), vec![0; 3 * PAGE]);
        assert_eq!(read(&region, 100 + 3 * PAGE, 1), [9]);
        region.discard(PAGE * 5 + 1, 17).unwrap();
        assert_eq!(read(&region, PAGE * 5, 19), [&[9][..], &[0; 17], &[9]].concat());
    }

    #[test]
    fn streaming_copy_is_complete_at_any_alignment() {
        let region = Region::new(2 * CACHED).unwrap();
        let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at * 7 + at / 256) as u8 | 1).collect();
        for (offset, skipped, length) in [
            (0, 0, PAGE),
            (1, 3, PAGE),
            (63, 1, PAGE + 1),
            (64, 0, 2 * PAGE + 63),
            (5, 16, 2 * PAGE),
        ] {
            region.zero(0, 4 * PAGE);
            region.write(PAGE + offset, &bytes[skipped..skipped + length]);
            assert_eq!(read(&region, PAGE + offset, length), bytes[skipped..skipped + length]);
            assert_eq!(read(&region, PAGE + offset - 1, 1), [0]);
            assert_eq!(read(&region, PAGE + offset + length, 1), [0]);
        }
    }

    #[test]
    fn grows_in_place_up_to_its_room() {
        let region = Region::with_room(512, 1 << 40).unwrap();
        region.write(0, &[1; 512]);
        region.grow(1 << 39).unwrap();
        assert_eq!(region.length(), 1 << 39);
        assert_eq!(read(&region, 511, 2), [1, 0]);
        region.write((1 << 39) - 1, &[2]);
        assert!(region.grow((1 << 40) + 1).is_err());
    }

    #[test]
    #[should_panic(expected = "outside the region")]
    fn a_copy_past_the_end_is_our_bug() {
        Region::new(4096).unwrap().write(4095, &[1, 2]);
    }
}
