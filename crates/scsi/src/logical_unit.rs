//! A logical unit: a store, its identity, and the state that SCSI adds to it.
//!
//! What every command looks at (reservation, mode bits, stopped) is in atomics; the rest is behind
//! locks that only unusual commands take.

use crate::atomic::Legacy;
use crate::buffers::Buffers;
use crate::command_table::Flags;
use crate::commands::mode;
use crate::condition::ConditionCell;
use crate::copy::{Operations, Watch, Watched};
use crate::identifying_information::IdentifyingInformation;
use crate::medium::Medium;
use crate::modes::{ModeParameters, Modes};
use crate::phase::MediumPhase;
use crate::protection::Protected;
use crate::reservations::{Attached, Reservations};
use crate::self_test::{Outcome, SelfTests};
use crate::task_set::TaskSet;
use crate::thresholds::Thresholds;
use crate::timestamp::Timestamp;
use crate::work::LongCommands;
use crate::{Completion, Identity, Keeper, PassThrough, ProtectionType, Sense, UnitAttention};
use async_lock::{Mutex as AsyncMutex, RwLock};
use sarsen_block::layers::ForgetKey;
use sarsen_block::{BlockError, Characteristics, Durability, Extent, Geometry, Io, Store};
use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which I_T nexus; 0 is none.
pub(crate) type NexusId = u64;
pub(crate) const NO_NEXUS: NexusId = 0;

/// PERIPHERAL DEVICE TYPE (SPC-4 6.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceType {
    /// Direct access block device.
    #[default]
    Disk = 0x00,
    /// CD/DVD device.
    Cd = 0x05,
}

/// What a logical unit is made of.
pub struct Parts {
    /// Its names.
    pub identity: Identity,
    /// What is below. Its characteristics are asked once; its geometry may change.
    pub store: Arc<dyn Store>,
    /// What it shows itself as.
    pub device_type: DeviceType,
    /// Its medium can be ejected and loaded; a CD's always can.
    pub removable: bool,
    /// Where it keeps what outlives the program, if anywhere.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// The type of protection information that its medium is formatted with, where its store
    /// keeps any.
    pub protection: Option<ProtectionType>,
    /// What forgets the key that the store's blocks are encrypted with, where they are.
    pub eraser: Option<Arc<dyn ForgetKey>>,
    /// The real device that its commands go to; then nothing of the above is asked.
    pub pass_through: Option<Arc<dyn PassThrough>>,
    /// Dropped with the unit, when its last command has ended and nobody knows it any more.
    pub companion: Option<Box<dyn Any + Send + Sync>>,
}

impl Parts {
    /// A disk that keeps nothing.
    pub fn disk(identity: Identity, store: Arc<dyn Store>) -> Self {
        Self {
            identity,
            store,
            device_type: DeviceType::Disk,
            removable: false,
            keeper: None,
            protection: None,
            eraser: None,
            pass_through: None,
            companion: None,
        }
    }
}

/// What the Block Limits page promises (SBC-3 6.6.4), in blocks of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest READ, WRITE, VERIFY or WRITE AND VERIFY.
    pub maximum_transfer_blocks: u32,
    /// The length of transfers that run best.
    pub optimal_transfer_blocks: u32,
    /// The longest COMPARE AND WRITE.
    pub maximum_compare_and_write_blocks: u8,
    /// The longest WRITE ATOMIC (SBC-4 6.6.4).
    pub maximum_atomic_blocks: u32,
    /// The longest WRITE SAME.
    pub maximum_write_same_blocks: u64,
    /// The most blocks of one UNMAP.
    pub maximum_unmap_blocks: u32,
    /// The most descriptors of one UNMAP.
    pub maximum_unmap_descriptors: u32,
}

const MAXIMUM_TRANSFER_BYTES: u32 = 16 << 20;
const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;
/// All of it is kept beside the volume until it is in its place.
const MAXIMUM_ATOMIC_BYTES: u32 = 1 << 20;
/// A power of two below 65536: libiscsi's suite expects that a WRITE of 65536 blocks is possible
/// wherever a WRITE SAME of so many is.
const MAXIMUM_WRITE_SAME_BLOCKS: u64 = 1 << 15;
const MAXIMUM_UNMAP_BLOCKS: u32 = 1 << 20;
const MAXIMUM_UNMAP_DESCRIPTORS: u32 = 256;

impl Limits {
    const fn new(geometry: Geometry) -> Self {
        let shift = geometry.block_size.shift();
        Self {
            maximum_transfer_blocks: MAXIMUM_TRANSFER_BYTES >> shift,
            optimal_transfer_blocks: OPTIMAL_TRANSFER_BYTES >> shift,
            maximum_compare_and_write_blocks: u8::MAX,
            maximum_atomic_blocks: MAXIMUM_ATOMIC_BYTES >> shift,
            maximum_write_same_blocks: MAXIMUM_WRITE_SAME_BLOCKS,
            maximum_unmap_blocks: MAXIMUM_UNMAP_BLOCKS,
            maximum_unmap_descriptors: MAXIMUM_UNMAP_DESCRIPTORS,
        }
    }
}

/// One disk as initiators see it. Shared by all cores and by every target that offers it.
pub struct LogicalUnit {
    identity: Identity,
    volume_name: Mutex<Arc<str>>,
    device_type: DeviceType,
    store: Arc<dyn Store>,
    /// The same store, where it keeps protection information.
    protected: Option<Arc<Protected>>,
    keeper: Option<Arc<dyn Keeper>>,
    eraser: Option<Arc<dyn ForgetKey>>,
    pass_through: Option<Arc<dyn PassThrough>>,
    characteristics: Characteristics,
    limits: Limits,
    condition: ConditionCell,
    medium: Medium,
    modes: Modes,
    /// Held while the mode parameters change.
    mode_change: Mutex<()>,
    tasks: Arc<TaskSet>,
    thresholds: Thresholds,
    /// Revokes the tokens of blocks that change.
    watch: Arc<Watch>,
    /// The copies that were begun here.
    operations: Operations,
    long_commands: LongCommands,
    medium_phase: MediumPhase,
    /// What was left undone when the unit was there last.
    legacy: Legacy,
    /// Held shared by each write until it has ended, alone by COMPARE AND WRITE.
    write_gate: Arc<RwLock<()>>,
    /// Held by who waits to share the gate.
    gate_turn: AsyncMutex<()>,
    reservations: Reservations,
    /// Locked behind the reservations, where both are.
    attached: Mutex<Vec<Attached>>,
    buffers: Buffers,
    self_tests: SelfTests,
    timestamp: Timestamp,
    identifying_information: IdentifyingInformation,
    /// Last, so that it goes after all that the unit has.
    _companion: Option<Box<dyn Any + Send + Sync>>,
}

impl LogicalUnit {
    /// A disk over a store that keeps nothing beyond the life of the program.
    pub fn new(identity: Identity, store: Arc<dyn Store>) -> Arc<Self> {
        match Self::of_parts(Parts::disk(identity, store)) {
            Ok(unit) => unit,
            Err(error) => unreachable!("nothing was kept that could be read wrongly: {error}"),
        }
    }

    /// A unit of these parts, in the state that its keeper kept. Blocks while that is read; an
    /// error says which record is wrong. What was cut off is finished when the unit becomes a part
    /// of a [`crate::TargetDevice`].
    pub fn of_parts(parts: Parts) -> io::Result<Arc<Self>> {
        let Parts { identity, store, device_type, removable, .. } = parts;
        let Parts { keeper, protection, eraser, pass_through, companion, .. } = parts;
        let characteristics = store.characteristics();
        let space = match characteristics.unmap.is_some_and(|unmap| unmap.tells_space) {
            true => store.space(),
            false => Io::Ready(Err(BlockError::Unsupported)),
        };
        let space = match space {
            Io::Ready(space) => space.ok(),
            // This function cannot wait: the size of the medium is known without waiting.
            Io::Pending(_) => None,
        };
        let watch = Arc::default();
        let store = Watched::over(store, Arc::clone(&watch));
        let protected =
            characteristics.protection.then(|| Arc::new(Protected::new(store.clone(), protection)));
        let store = protected.clone().map_or(store, |protected| protected);
        let identifying_information = IdentifyingInformation::load(keeper.as_deref())?;
        let reservations = Reservations::load(keeper.as_ref())?;
        let medium_phase = MediumPhase::load(keeper.as_deref())?;
        let unit = Self {
            volume_name: Mutex::new(identity.volume.as_str().into()),
            identity,
            device_type,
            keeper,
            eraser,
            pass_through,
            modes: Modes::new(ModeParameters::default_of(
                &characteristics,
                store.geometry(),
                space,
            )),
            mode_change: Mutex::new(()),
            characteristics,
            limits: Limits::new(store.geometry()),
            store,
            protected,
            watch,
            operations: Operations::default(),
            long_commands: LongCommands::default(),
            condition: ConditionCell::default(),
            medium: Medium::new(device_type, removable || device_type == DeviceType::Cd),
            tasks: Arc::default(),
            thresholds: Thresholds::default(),
            medium_phase,
            legacy: Legacy::default(),
            write_gate: Arc::new(RwLock::new(())),
            gate_turn: AsyncMutex::new(()),
            reservations,
            attached: Mutex::new(Vec::new()),
            buffers: Buffers::default(),
            self_tests: SelfTests::default(),
            timestamp: Timestamp::default(),
            identifying_information,
            _companion: companion,
        };
        match mode::load(&unit)? {
            Some(saved) => unit.change_modes(NO_NEXUS, saved, true),
            None => unit.configure(&unit.modes.current()),
        }
        unit.legacy.load(&unit)?;
        Ok(Arc::new(unit))
    }

    /// What the volume is called now: nothing that initiators see.
    pub fn volume_name(&self) -> Arc<str> {
        self.volume_name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls the volume something else.
    pub fn rename(&self, name: &str) {
        *self.volume_name.lock().unwrap_or_else(PoisonError::into_inner) = name.into();
    }

    /// Its names.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What it shows itself as.
    pub fn device_type(&self) -> DeviceType {
        self.device_type
    }

    /// Where it keeps what outlives the program.
    pub fn keeper(&self) -> Option<&Arc<dyn Keeper>> {
        self.keeper.as_ref()
    }

    /// What forgets the key that its blocks are encrypted with.
    pub(crate) fn eraser(&self) -> Option<&Arc<dyn ForgetKey>> {
        self.eraser.as_ref()
    }

    /// The real device that its commands go to.
    pub(crate) fn pass_through(&self) -> Option<&Arc<dyn PassThrough>> {
        self.pass_through.as_ref()
    }

    /// What is below. Where the medium has protection information, plain reads are checked against
    /// it and plain writes bring theirs.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The store, where it can keep protection information.
    pub(crate) fn protected(&self) -> Option<&Arc<Protected>> {
        self.protected.as_ref()
    }

    /// The type of protection information that the medium is formatted with.
    pub(crate) fn protection_type(&self) -> Option<ProtectionType> {
        self.protected.as_ref()?.protection_type()
    }

    /// What it promises in the Block Limits page.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Tells every initiator that the store has another size: call it after a resize.
    pub fn capacity_changed(&self) {
        self.raise_except(NO_NEXUS, UnitAttention::CapacityDataHasChanged);
    }

    /// What the whole medium is going through.
    pub(crate) fn medium_phase(&self) -> &MediumPhase {
        &self.medium_phase
    }

    pub(crate) fn legacy(&self) -> &Legacy {
        &self.legacy
    }

    pub(crate) fn characteristics(&self) -> &Characteristics {
        &self.characteristics
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    /// Bytes in `block_count` blocks, which are known to be few.
    pub(crate) fn byte_count(&self, block_count: u64) -> usize {
        (block_count as usize) << self.geometry().block_size.shift()
    }

    /// Refuses blocks outside the medium. An empty extent may lie just behind its last block.
    pub(crate) fn check_range(&self, extent: Extent) -> Result<(), Sense> {
        match extent.fits(self.geometry().block_count) {
            true => Ok(()),
            false => Err(Sense::lba_out_of_range()),
        }
    }

    /// The report of the host about its backing.
    pub(crate) fn condition(&self) -> &ConditionCell {
        &self.condition
    }

    pub(crate) fn medium(&self) -> &Medium {
        &self.medium
    }

    /// What WRITE BUFFER wrote.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Its self-tests.
    pub(crate) fn self_tests(&self) -> &SelfTests {
        &self.self_tests
    }

    /// What initiators wrote onto it.
    pub(crate) fn identifying_information(&self) -> &IdentifyingInformation {
        &self.identifying_information
    }

    /// Its clock.
    pub(crate) fn timestamp(&self) -> &Timestamp {
        &self.timestamp
    }

    /// Why a write is refused now, if it is.
    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        if self.characteristics.read_only {
            return Err(Sense::write_protected());
        }
        match self.modes.is_write_protected() {
            true => Err(Sense::software_write_protected()),
            false => Ok(()),
        }
    }

    /// When a write may be acknowledged: a volatile cache that was switched off makes each one
    /// durable. To be asked behind the write gate (see [`Self::flush_after_writes`]).
    pub(crate) fn durability(&self, force_unit_access: bool) -> Durability {
        let write_through =
            self.characteristics.volatile_cache && !self.modes.is_write_cache_enabled();
        match force_unit_access || write_through {
            true => Durability::Durable,
            false => Durability::Volatile,
        }
    }

    /// Its mode parameters.
    pub(crate) fn modes(&self) -> &Modes {
        &self.modes
    }

    fn mode_change(&self) -> MutexGuard<'_, ()> {
        self.mode_change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes mode parameters hold for `changer`; the other nexuses are told if that changes any.
    pub(crate) fn change_modes(&self, changer: NexusId, parameters: ModeParameters, saved: bool) {
        let _guard = self.mode_change();
        self.configure(&parameters);
        if self.modes.set(parameters, saved) {
            self.raise_except(changer, UnitAttention::ModeParametersChanged);
        }
    }

    /// Passes mode parameters on to those whom they concern.
    fn configure(&self, parameters: &ModeParameters) {
        self.tasks.set_policy(parameters.tasks);
        if self.characteristics.unmap.is_some_and(|unmap| unmap.tells_space) {
            self.thresholds.configure(&parameters.provisioning);
        }
        if let Some(protected) = &self.protected {
            protected.set_policy(parameters.application_tag_owned, parameters.unchecked_when_zero);
        }
    }

    /// The thresholds of its room.
    pub(crate) fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Its tasks.
    pub(crate) fn tasks(&self) -> &Arc<TaskSet> {
        &self.tasks
    }

    /// Who may do what with it.
    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// The nexuses that it knows.
    pub(crate) fn attached(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// I_T nexus loss (SAM-5 6.3.4).
    pub(crate) fn detach(&self, nexus: NexusId) {
        self.end_spc2_reservation(Some(nexus));
        self.buffers.forget(nexus);
        self.medium.detach(nexus);
        self.tasks.leave(nexus);
        self.operations.end_of(nexus);
        self.attached().retain(|attached| attached.id != nexus);
    }

    pub(crate) fn raise_for(&self, chosen: NexusId, attention: UnitAttention) {
        for attached in self.attached().iter().filter(|attached| attached.id == chosen) {
            attached.attentions.raise(attention);
        }
    }

    pub(crate) fn raise_except(&self, spared: NexusId, attention: UnitAttention) {
        for attached in self.attached().iter().filter(|attached| attached.id != spared) {
            attached.attentions.raise(attention);
        }
    }

    /// Logical unit reset (SAM-5 6.3.3): persistent reservations stay (SPC-4 5.12.5.1). The tasks
    /// are the transport's to end.
    pub(crate) fn reset(&self, attention: UnitAttention) {
        self.end_spc2_reservation(None);
        self.medium.reset();
        self.self_tests.end(Outcome::Interrupted);
        self.buffers.forget_all();
        self.tasks.reset();
        self.operations.end_all();
        let _guard = self.mode_change();
        self.configure(&self.modes.restore());
        self.raise_except(NO_NEXUS, attention);
    }

    /// The end of a command, its sense data in the format that D_SENSE asks for.
    pub(crate) fn complete(&self, result: Result<Completion, Sense>) -> Completion {
        match result {
            Ok(completion) => completion,
            Err(sense) => {
                let descriptor_format = self.modes.has_descriptor_sense();
                Completion::check_condition(sense.in_descriptor_format(descriptor_format))
            }
        }
    }

    /// Waits for what `future` does, then completes the command.
    pub(crate) fn pending(
        self: &Arc<Self>,
        future: impl Future<Output = Result<Completion, Sense>> + 'static,
    ) -> Io<Completion> {
        let unit = Arc::clone(self);
        Io::pending(async move { unit.complete(future.await) })
    }

    /// Completes the command with what `then` makes of a store's answer.
    pub(crate) fn finish<T: 'static>(
        self: &Arc<Self>,
        answer: Io<Result<T, BlockError>>,
        then: impl FnOnce(T) -> Completion + 'static,
    ) -> Io<Completion> {
        match answer {
            Io::Ready(result) => Io::Ready(self.complete(result.map(then).map_err(Sense::from))),
            Io::Pending(future) => self.pending(async move { Ok(future.await.map(then)?) }),
        }
    }

    /// Writes the cache when no write is under way that was begun as volatile, so that it holds
    /// nothing afterwards that this does not cover.
    pub(crate) fn flush_after_writes(self: &Arc<Self>) -> Io<Completion> {
        let unit = Arc::clone(self);
        self.pending(async move { unit.write_out_cache().await })
    }

    /// The same, within another command.
    pub(crate) async fn write_out_cache(&self) -> Result<Completion, Sense> {
        drop(self.write_gate.write_arc().await);
        self.store.flush().wait().await?;
        Ok(Completion::good())
    }

    /// Submits one write, excluded against COMPARE AND WRITE until it has ended.
    pub(crate) fn write_shared(
        self: &Arc<Self>,
        submit: impl FnOnce(&Self) -> Io<Result<(), BlockError>> + 'static,
    ) -> Io<Completion> {
        let Some(guard) = self.write_gate.try_read_arc() else {
            let unit = Arc::clone(self);
            return self.pending(async move {
                let _guard = unit.write_beside_others().await?;
                submit(&unit).wait().await?;
                Ok(Completion::good())
            });
        };
        // As whoever waits for the gate does: the medium may have become another one since the
        // command was admitted.
        if let Err(sense) = self.medium_phase.check(Flags::NEEDS_MEDIUM) {
            return Io::Ready(self.complete(Err(sense)));
        }
        match submit(self) {
            Io::Ready(result) => {
                Io::Ready(self.complete(result.map(|()| Completion::good()).map_err(Sense::from)))
            }
            Io::Pending(future) => self.pending(async move {
                let result = future.await;
                drop(guard);
                result?;
                Ok(Completion::good())
            }),
        }
    }

    /// What revokes the tokens of blocks that change.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The copies that were begun by commands to this unit.
    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Its commands that can be ended while they are carried out.
    pub(crate) fn long_commands(&self) -> &LongCommands {
        &self.long_commands
    }

    /// The gate that every write passes.
    pub(crate) fn write_gate(&self) -> &Arc<RwLock<()>> {
        &self.write_gate
    }

    pub(crate) fn gate_turn(&self) -> &AsyncMutex<()> {
        &self.gate_turn
    }
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalUnit").field("identity", &self.identity).finish_non_exhaustive()
    }
}
