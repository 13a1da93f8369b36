//! Owned memory for payloads, aligned for O_DIRECT. The thread that drops a buffer keeps its memory for reuse.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of the first byte of every buffer: sufficient for O_DIRECT on every Linux device.
pub const ALIGNMENT: usize = 4096;
/// The smallest and largest buffer sizes that are kept for reuse.
const SMALLEST_CLASS: usize = 4096;
const LARGEST_CLASS: usize = 4 << 20;
const CLASS_COUNT: usize = (LARGEST_CLASS / SMALLEST_CLASS).ilog2() as usize + 1;
/// Maximum number of bytes that a thread keeps for reuse: enough for 32 writes of 512 KiB in flight. See
/// [`Buffer::share_kept_bytes`].
const KEPT_BYTES: usize = 16 << 20;
/// All threads together keep about this many bytes, but each thread keeps at least [`KEPT_BYTES_MIN`].
const KEPT_BYTES_OF_ALL: usize = 32 << 20;
const KEPT_BYTES_MIN: usize = 1 << 20;

/// Maximum number of bytes that a thread may keep now.
static KEPT_LIMIT: AtomicUsize = AtomicUsize::new(KEPT_BYTES);

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { classes: [const { Vec::new() }; CLASS_COUNT], kept: 0 })
    };
}

struct Pool {
    classes: [Vec<Vec<u8>>; CLASS_COUNT],
    /// Number of bytes in all classes, without the bytes for alignment.
    kept: usize,
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<Vec<u8>> {
        let storage = self.classes[class].pop()?;
        self.kept -= SMALLEST_CLASS << class;
        Some(storage)
    }

    /// Keeps a buffer. If there is no space for it, longer ones are freed: they serve fewer commands.
    fn give_back(&mut self, class: usize, storage: Vec<u8>) {
        let (bytes, limit) = (SMALLEST_CLASS << class, KEPT_LIMIT.load(Ordering::Relaxed));
        while self.kept + bytes > limit {
            let longer = (class + 1..CLASS_COUNT).rev().find_map(|longer| self.take(longer));
            if longer.is_none() {
                return;
            }
        }
        self.kept += bytes;
        self.classes[class].push(storage);
    }
}

/// Memory for one payload. The first byte is aligned to [`ALIGNMENT`].
///
/// The memory is a `Vec`, not a boxed slice. When the kernel writes into a `Buffer` (an io_uring read), a move of the
/// `Buffer` must not assert exclusive access to the bytes.
pub struct Buffer {
    storage: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Returns a buffer of `length` bytes with the contents of an earlier use. The caller must overwrite all of them
    /// before other code reads them.
    pub fn for_overwrite(length: usize) -> Self {
        let storage = match class_of(length) {
            Some(class) => POOL
                .try_with(|pool| pool.borrow_mut().take(class))
                .ok()
                .flatten()
                .unwrap_or_else(|| vec![0; (SMALLEST_CLASS << class) + ALIGNMENT]),
            None => vec![0; length + ALIGNMENT],
        };
        let start = storage.as_ptr().align_offset(ALIGNMENT);
        assert!(start + length <= storage.len(), "buffer class too small for {length} bytes");
        Self { storage, start, length }
    }

    /// Returns a buffer of `length` zero bytes.
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::for_overwrite(length);
        buffer.fill(0);
        buffer
    }

    /// Returns a buffer of `length` zero bytes in memory of exactly that size. The memory is not aligned and not kept
    /// for reuse. Meant for data that waits to be copied and is never passed to a store.
    pub fn zeroed_exact(length: usize) -> Self {
        Self { storage: vec![0; length], start: 0, length }
    }

    /// Returns the bytes of memory that a buffer of this length occupies: its [`Self::memory`].
    #[inline]
    pub const fn memory_for(length: usize) -> usize {
        match class_of(length) {
            Some(class) => (SMALLEST_CLASS << class) + ALIGNMENT,
            None => length.saturating_add(ALIGNMENT),
        }
    }

    /// Sets the number of threads that use buffers permanently. These threads share the memory that is kept for reuse.
    pub fn share_kept_bytes(thread_count: usize) {
        let share = KEPT_BYTES_OF_ALL / thread_count.max(1);
        KEPT_LIMIT.store(share.clamp(KEPT_BYTES_MIN, KEPT_BYTES), Ordering::Relaxed);
    }

    /// Frees the memory that the calling thread keeps for reuse.
    pub fn free_kept() {
        let kept = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            pool.kept = 0;
            std::mem::replace(&mut pool.classes, [const { Vec::new() }; CLASS_COUNT])
        });
        drop(kept);
    }

    /// Returns a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::for_overwrite(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Returns the bytes of memory that the buffer occupies. A short buffer occupies far more than its length.
    pub const fn memory(&self) -> usize {
        self.storage.capacity()
    }

    /// Shortens the buffer. Longer lengths are ignored.
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

const fn class_of(length: usize) -> Option<usize> {
    if length > LARGEST_CLASS {
        return None;
    }
    let length = if length < SMALLEST_CLASS { SMALLEST_CLASS } else { length };
    Some((length.next_power_of_two() / SMALLEST_CLASS).ilog2() as usize)
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let storage = std::mem::take(&mut self.storage);
        let Some(class) = class_of(storage.len().saturating_sub(ALIGNMENT)) else { return };
        if storage.len() != (SMALLEST_CLASS << class) + ALIGNMENT {
            return;
        }
        // If the thread's pool no longer exists, the buffer is freed.
        let _ = POOL.try_with(|pool| pool.borrow_mut().give_back(class, storage));
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.length]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_aligned_and_reused() {
        for length in [0, 1, 512, 4096, 4097, 65536, LARGEST_CLASS, LARGEST_CLASS + 1] {
            let buffer = Buffer::zeroed(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.as_ptr().align_offset(ALIGNMENT), 0, "{length}");
        }
        let first = Buffer::for_overwrite(4096).as_ptr();
        assert_eq!(first, Buffer::for_overwrite(100).as_ptr(), "the thread reuses what it dropped");
    }

    #[test]
    fn zeroed_buffer_hides_earlier_content() {
        Buffer::for_overwrite(8192).fill(0xee);
        assert!(Buffer::zeroed(8192).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn memory_of_buffer_is_known_before_allocation() {
        for length in [0, 1, 512, 4096, 4097, 65536, LARGEST_CLASS, LARGEST_CLASS + 1, 16 << 20] {
            assert_eq!(Buffer::for_overwrite(length).memory(), Buffer::memory_for(length));
        }
        let compact = Buffer::zeroed_exact(512);
        assert_eq!((compact.len(), compact.memory()), (512, 512));
        assert!(Buffer::memory_for(usize::MAX) >= LARGEST_CLASS);
    }

    #[test]
    fn cached_memory_can_be_freed() {
        drop(Buffer::for_overwrite(65536));
        assert!(POOL.with_borrow(|pool| pool.kept) > 0);
        Buffer::free_kept();
        assert_eq!(POOL.with_borrow(|pool| pool.kept), 0);
        assert!(POOL.with_borrow(|pool| pool.classes.iter().all(Vec::is_empty)));
    }

    #[test]
    fn the_pool_keeps_a_bounded_amount() {
        let many: Vec<_> = (0..64).map(|_| Buffer::for_overwrite(LARGEST_CLASS)).collect();
        drop(many);
        let kept = || POOL.with_borrow(|pool| pool.kept);
        assert_eq!(kept(), KEPT_BYTES);
        // A few long buffers do not keep the short ones out.
        let short = Buffer::for_overwrite(SMALLEST_CLASS);
        drop(short);
        assert_eq!(kept(), KEPT_BYTES - LARGEST_CLASS + SMALLEST_CLASS);
        Buffer::free_kept();
        drop((0..64).map(|_| Buffer::for_overwrite(LARGEST_CLASS)).collect::<Vec<_>>());
        let again = Buffer::for_overwrite(LARGEST_CLASS);
        assert_eq!(kept(), KEPT_BYTES - LARGEST_CLASS);
        drop(again);
        assert_eq!(kept(), KEPT_BYTES);
    }
}
