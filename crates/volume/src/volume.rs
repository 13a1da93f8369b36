//! A volume: a store, and the state that all of its clients share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sarsen_block::{BlockError, Geometry, StopCause, Store};

use crate::gate::{ExclusiveGuard, SharedGuard, WriteGate};
use crate::phase::{MediumPhase, Phase};
use crate::records::MetadataStore;
use crate::reservations::Reservations;

/// A volume. All cores and all fronts share it.
pub struct Volume {
    store: Arc<dyn Store>,
    metadata: Option<Arc<dyn MetadataStore>>,
    write_gate: WriteGate,
    medium_phase: MediumPhase,
    reservations: Reservations,
    is_write_protected: AtomicBool,
}

/// The medium is not usable, whatever its store says: see [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotUsable;

impl From<NotUsable> for BlockError {
    fn from(_: NotUsable) -> Self {
        StopCause::OutOfService.into()
    }
}

impl Volume {
    /// Creates a volume over a store, with the state of its records. It blocks while it reads them. An error names the
    /// invalid record.
    pub fn open(
        store: Arc<dyn Store>,
        metadata: Option<Arc<dyn MetadataStore>>,
    ) -> io::Result<Arc<Self>> {
        let reservations = Reservations::load(metadata.as_ref())?;
        let medium_phase = MediumPhase::load(metadata.as_deref())?;
        Ok(Arc::new(Self {
            store,
            metadata,
            write_gate: WriteGate::default(),
            medium_phase,
            reservations,
            is_write_protected: AtomicBool::new(false),
        }))
    }

    /// Returns the store. Its users check what a client may do themselves: see [`crate::Attachment`].
    #[inline]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the geometry of the store.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    /// Returns the store of the volume's records, if any.
    pub fn metadata(&self) -> Option<&Arc<dyn MetadataStore>> {
        self.metadata.as_ref()
    }

    /// Returns the gate that every write passes.
    #[inline]
    pub fn write_gate(&self) -> &WriteGate {
        &self.write_gate
    }

    /// Returns the phase of the whole medium.
    #[inline]
    pub fn medium_phase(&self) -> &MediumPhase {
        &self.medium_phase
    }

    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Sets whether a client has write-protected the volume for all of them (SWP of the control mode page).
    pub fn set_write_protected(&self, is_protected: bool) {
        self.is_write_protected.store(is_protected, Ordering::Relaxed);
    }

    /// Returns whether a client has write-protected the volume.
    pub fn is_write_protected(&self) -> bool {
        self.is_write_protected.load(Ordering::Relaxed)
    }

    /// Checks that the medium has its usual phase.
    #[inline]
    pub fn check_usable(&self) -> Result<(), NotUsable> {
        if self.medium_phase.current() == Phase::Usual { Ok(()) } else { Err(NotUsable) }
    }

    /// Waits for shared access to the write gate, then checks the phase, which may have changed during the wait.
    pub async fn lock_writes_shared(&self) -> Result<SharedGuard, NotUsable> {
        let guard = self.write_gate.shared().await;
        self.check_usable().map(|()| guard)
    }

    /// Waits for exclusive access to the write gate, then checks the phase.
    pub async fn lock_writes_exclusive(&self) -> Result<ExclusiveGuard, NotUsable> {
        let guard = self.write_gate.exclusive().await;
        self.check_usable().map(|()| guard)
    }

    /// Waits until no atomic write happens, if that matters. None begins while the caller holds the guard. The caller
    /// must not hold the write gate.
    pub async fn guard_read(&self) -> Result<Option<SharedGuard>, NotUsable> {
        if self.medium_phase.guards_reads() {
            self.lock_writes_shared().await.map(Some)
        } else {
            Ok(None)
        }
    }
}
