//! The gate that separates exclusive writes from all others.

use std::sync::Arc;

use async_lock::{Mutex, RwLock, RwLockReadGuardArc, RwLockWriteGuardArc};

/// Shared access to the gate. No exclusive write happens while it is held.
pub type SharedGuard = RwLockReadGuardArc<()>;
/// Exclusive access to the gate. No other write happens while it is held.
pub type ExclusiveGuard = RwLockWriteGuardArc<()>;

/// The gate of a volume. Each write holds it shared until its end. A write that must not overlap with others (COMPARE
/// AND WRITE, an atomic write, an operation on the whole medium) holds it exclusively.
#[derive(Default)]
pub struct WriteGate {
    lock: Arc<RwLock<()>>,
    /// Held during the wait for shared access.
    turn: Mutex<()>,
}

impl WriteGate {
    /// Returns shared access, unless it would have to wait.
    #[inline]
    pub fn try_shared(&self) -> Option<SharedGuard> {
        self.lock.try_read_arc()
    }

    /// Waits for shared access.
    pub async fn shared(&self) -> SharedGuard {
        match self.lock.try_read_arc() {
            Some(guard) => guard,
            None => {
                // Only one task waits at a time. Several waiting tasks would wake each other endlessly while exclusive
                // writers follow each other.
                let _turn = self.turn.lock().await;
                self.lock.read_arc().await
            }
        }
    }

    /// Returns exclusive access, unless it would have to wait.
    pub fn try_exclusive(&self) -> Option<ExclusiveGuard> {
        self.lock.try_write_arc()
    }

    /// Waits for exclusive access.
    pub async fn exclusive(&self) -> ExclusiveGuard {
        self.lock.write_arc().await
    }
}
