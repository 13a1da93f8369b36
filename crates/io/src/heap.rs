//! The allocator: that of glibc, configured to return memory to the system after use.
//!
//! Long blocks are mapped one by one and unmapped when they are freed. Short blocks come from heaps, whose free pages
//! [`give_back`] returns. Another allocator would help little: a layer above recycles the data of commands, so the
//! allocator's speed hardly matters. The allocator of glibc needs no dependency.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use sarsen_block::Buffer;

use crate::{threads, time};

/// Blocks from this length on are mapped one by one. By default glibc raises this length to the longest block that was
/// ever freed (maximum 32 MiB), and keeps shorter blocks in its heaps.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 128 << 10;

/// Delay before free memory is returned to the system, so that the next command can reuse it.
const DELAY: Duration = Duration::from_secs(1);

thread_local! {
    static IS_DUE: Cell<bool> = const { Cell::new(false) };
}

/// Sets the allocator up. Call it once, before threads start.
pub fn set_up() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and changes the allocator's own state, under its lock.
    unsafe {
        // If glibc refuses a setting, the previous one stays.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}

/// Returns unused memory to the system, after a short delay: buffers that the calling core keeps for reuse, and the
/// free pages of all heaps. Several calls at once count as one. Call it on a core.
pub fn give_back_soon() {
    if IS_DUE.replace(true) {
        return;
    }
    tokio::task::spawn_local(async {
        time::sleep_until(time::now() + DELAY).await;
        IS_DUE.set(false);
        Buffer::free_kept();
        // This locks each heap for a moment, so it runs on another thread: tasks wait for the core.
        let _ = threads::aside(async { give_back() }).await;
    });
}

/// Returns the free pages of all heaps to the system.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim changes only its own heaps, each under its lock.
    unsafe {
        libc::malloc_trim(0);
    }
}
