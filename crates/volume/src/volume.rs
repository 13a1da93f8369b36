//! A volume: a store, and the state that all of its clients share.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sarsen_block::{BlockError, Geometry, StopCause, Store};

use crate::gate::{ExclusiveGuard, Regions, SharedGuard, WriteGate};
use crate::guarded::{ChangeListener, GuardedStore};
use crate::health::Health;
use crate::history::ChangeHistory;
use crate::phase::{MediumPhase, Phase};
use crate::records::MetadataStore;
use crate::reservations::Reservations;

/// The parts of a new volume.
pub struct Parts {
    /// Its name.
    pub name: String,
    /// Its store, with all layers.
    pub store: Arc<dyn Store>,
    /// The health, to which the backing below the layers may report, too.
    pub health: Arc<Health>,
    /// The store of the records that outlive the program, if any.
    pub metadata: Option<Arc<dyn MetadataStore>>,
    /// What has changed since earlier states, if that is known.
    pub history: Option<Arc<dyn ChangeHistory>>,
    /// An object that is dropped with the volume, after its last request has ended and its last view was dropped.
    pub companion: Option<Box<dyn Any + Send + Sync>>,
}

impl Parts {
    /// Returns the parts of a volume without records.
    pub fn new(name: &str, store: Arc<dyn Store>) -> Self {
        let health = Arc::new(Health::new(store.status().clone()));
        let (metadata, history, companion) = (None, None, None);
        Self { name: name.to_owned(), store, health, metadata, history, companion }
    }
}

/// A volume. All cores and all fronts share it.
pub struct Volume {
    name: Mutex<Arc<str>>,
    health: Arc<Health>,
    guarded: Arc<GuardedStore>,
    /// The same store.
    store: Arc<dyn Store>,
    metadata: Option<Arc<dyn MetadataStore>>,
    history: Option<Arc<dyn ChangeHistory>>,
    write_gate: WriteGate,
    medium_phase: MediumPhase,
    reservations: Reservations,
    is_write_protected: AtomicBool,
    /// The last field, so that it is dropped after all others.
    _companion: Option<Box<dyn Any + Send + Sync>>,
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
    /// Creates a volume from these parts, with the state of its records. It blocks while it reads them. An error names
    /// the invalid record.
    pub fn open(parts: Parts) -> io::Result<Arc<Self>> {
        let Parts { name, store, health, metadata, history, companion } = parts;
        let reservations = Reservations::load(metadata.as_ref())?;
        let medium_phase = MediumPhase::load(metadata.as_deref())?;
        let guarded = Arc::new(GuardedStore::new(store, health.clone()));
        Ok(Arc::new(Self {
            name: Mutex::new(name.into()),
            health,
            store: guarded.clone(),
            guarded,
            metadata,
            history,
            write_gate: WriteGate::default(),
            medium_phase,
            reservations,
            is_write_protected: AtomicBool::new(false),
            _companion: companion,
        }))
    }

    /// Returns the current name.
    pub fn name(&self) -> Arc<str> {
        self.name.lock().clone()
    }

    /// Renames the volume.
    pub fn rename(&self, name: &str) {
        *self.name.lock() = name.into();
    }

    /// Reports changes of blocks to a listener from now on, before they happen. A volume has one listener.
    pub fn report_changes(&self, listener: Arc<dyn ChangeListener>) {
        self.guarded.report_to(listener);
    }

    /// Returns the store. Its users check what a client may do themselves: see [`crate::Attachment`].
    #[inline]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the health.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
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

    /// Returns what has changed since earlier states, if that is known.
    pub fn history(&self) -> Option<&Arc<dyn ChangeHistory>> {
        self.history.as_ref()
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

    /// Waits for shared access to regions of the write gate, then checks the phase, which may have changed during the
    /// wait.
    pub async fn lock_writes_shared(
        &self,
        regions: impl Into<Regions>,
    ) -> Result<SharedGuard, NotUsable> {
        let guard = self.write_gate.shared(regions).await;
        self.check_usable().map(|()| guard)
    }

    /// Waits for exclusive access to regions of the write gate, then checks the phase.
    pub async fn lock_writes_exclusive(
        &self,
        regions: impl Into<Regions>,
    ) -> Result<ExclusiveGuard, NotUsable> {
        let guard = self.write_gate.exclusive(regions).await;
        self.check_usable().map(|()| guard)
    }

    /// Waits until no atomic write happens in these regions, if that matters. None begins there while the caller holds the
    /// guard. The caller must not hold the write gate.
    pub async fn guard_read(
        &self,
        regions: impl Into<Regions>,
    ) -> Result<Option<SharedGuard>, NotUsable> {
        if self.medium_phase.guards_reads() {
            self.lock_writes_shared(regions).await.map(Some)
        } else {
            Ok(None)
        }
    }
}
