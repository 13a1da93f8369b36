//! The allocator: glibc's, set up so that memory which was used once is given back to the system.
//!
//! Long blocks are mapped one by one and unmapped when they are freed; short ones come from heaps,
//! whose free pages [`give_back`] returns. Why not another allocator: the data of commands is
//! recycled above it, so its speed does not show, and this one is there without a dependency.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use sarsen_block::Buffer;

use crate::{threads, time};

/// Blocks from this length on are mapped one by one. Unless it is set, glibc raises it to the
/// longest block that was ever freed (32 MiB at most), and keeps blocks up to it in its heaps.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 128 << 10;

/// Memory is given back so long after it became free: what comes again at once finds it.
const DELAY: Duration = Duration::from_secs(1);

thread_local! {
    static IS_DUE: Cell<bool> = const { Cell::new(false) };
}

/// Sets the allocator up. To be called once, before threads are started.
pub fn set_up() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and changes the allocator's own state, under its lock.
    unsafe {
        // A setting that is refused leaves the one before.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}

/// Gives memory that nothing uses back to the system, a moment later: buffers that the calling core
/// keeps for reuse, and the free pages of all heaps. Many calls at once are one. To be called on a
/// core.
pub fn give_back_soon() {
    if IS_DUE.replace(true) {
        return;
    }
    tokio::task::spawn_local(async {
        time::sleep_until(time::now() + DELAY).await;
        IS_DUE.set(false);
        Buffer::free_kept();
        // It takes each heap's lock for a moment: not here, where others wait for the core.
        let _ = threads::aside(async { give_back() }).await;
    });
}

/// Gives the free pages of all heaps back to the system.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim looks after its own heaps, each under its lock.
    unsafe {
        libc::malloc_trim(0);
    }
}
