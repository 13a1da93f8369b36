//! A logical unit: a volume, its identity, and the SCSI state.
//!
//! Every command reads the reservation, the mode bits and the stopped state, so these are in atomics. The other state
//! is behind locks that only rare commands take.

use crate::atomic::PreviousRun;
use crate::buffers::ReadWriteBuffers;
use crate::commands::mode;
use crate::condition::KnownStatus;
use crate::copy::{Operations, Watch};
use crate::device_type::DeviceType;
use crate::flags::Flags;
use crate::identifying_information::IdentifyingInformation;
use crate::medium::Medium;
use crate::modes::{ModeParameters, Modes};
use crate::nexus_id::{NO_NEXUS, NexusId};
use crate::pass_through;
use crate::phase;
use crate::protection::Protected;
use crate::reservations::Attached;
use crate::self_test::{Outcome, SelfTests};
use crate::task_set::TaskSet;
use crate::thresholds::Thresholds;
use crate::timestamp::Timestamp;
use crate::work::LongCommands;
use crate::{Completion, Identity, MetadataStore, ProtectionType, Sense, UnitAttention};
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::layers::ForgetKey;
use sarsen_block::{
    BlockError, Characteristics, Durability, Extent, Geometry, InvalidRequest, Io,
    StatusListener as _, Store, StoreStatus,
};
use sarsen_volume::{MediumPhase, Volume};
use std::io;
use std::sync::{Arc, Weak};

/// The parts of a new logical unit.
pub struct Parts {
    /// Its names.
    pub identity: Identity,
    /// The volume. The unit reads the characteristics of its store once; its geometry may change.
    pub volume: Arc<Volume>,
    /// The device type that the unit reports.
    pub device_type: DeviceType,
    /// True if the medium can be ejected and loaded. A CD's medium always can.
    pub removable: bool,
    /// The layer of the volume's store that processes protection information, if the store supports any.
    pub protected: Option<Arc<Protected>>,
    /// Replaces the key that encrypts the store's blocks, if they are encrypted.
    pub eraser: Option<Arc<dyn ForgetKey>>,
    /// The real device that executes the unit's commands. If it is set, the fields above are not used.
    pub pass_through: Option<pass_through::Device>,
}

impl Parts {
    /// Returns the parts of a disk.
    pub fn disk(identity: Identity, volume: Arc<Volume>) -> Self {
        Self {
            identity,
            volume,
            device_type: DeviceType::Disk,
            removable: false,
            protected: None,
            eraser: None,
            pass_through: None,
        }
    }
}

/// The limits in the Block Limits page (SBC-3 6.6.4), in blocks of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum length of READ, WRITE, VERIFY and WRITE AND VERIFY.
    pub maximum_transfer_blocks: u32,
    /// The optimal length of a transfer.
    pub optimal_transfer_blocks: u32,
    /// The maximum length of COMPARE AND WRITE.
    pub maximum_compare_and_write_blocks: u8,
    /// The maximum length of WRITE ATOMIC (SBC-4 6.6.4).
    pub maximum_atomic_blocks: u32,
    /// The maximum length of WRITE SAME.
    pub maximum_write_same_blocks: u64,
    /// The maximum number of blocks in one UNMAP.
    pub maximum_unmap_blocks: u32,
    /// The maximum number of descriptors in one UNMAP.
    pub maximum_unmap_descriptors: u32,
}

const MAXIMUM_TRANSFER_BYTES: u32 = 16 << 20;
const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;
/// The maximum size of an atomic write in bytes. The metadata stores all its data until it is on the medium.
const MAXIMUM_ATOMIC_BYTES: u32 = 1 << 20;
/// The maximum length of WRITE SAME, a power of two below 65536. libiscsi's test suite expects that if a WRITE SAME of
/// 65536 blocks is possible, a WRITE is too.
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

/// A logical unit: a volume, as SCSI initiators see it. All cores and all targets that offer it share it.
pub struct LogicalUnit {
    identity: Identity,
    device_type: DeviceType,
    /// The store of the volume, if it supports protection information.
    protected: Option<Arc<Protected>>,
    eraser: Option<Arc<dyn ForgetKey>>,
    pass_through: Option<pass_through::Device>,
    characteristics: Characteristics,
    limits: Limits,
    status: Arc<StoreStatus>,
    known_status: Mutex<KnownStatus>,
    medium: Medium,
    modes: Modes,
    /// Held during a change of the mode parameters.
    mode_change: Mutex<()>,
    tasks: Arc<TaskSet>,
    thresholds: Thresholds,
    /// Revokes the tokens of changed blocks.
    watch: Arc<Watch>,
    /// The copies that commands to this unit started.
    operations: Operations,
    long_commands: LongCommands,
    /// Work that the previous run of the unit left unfinished.
    previous_run: PreviousRun,
    attached: Mutex<Vec<Attached>>,
    buffers: ReadWriteBuffers,
    self_tests: SelfTests,
    timestamp: Timestamp,
    identifying_information: IdentifyingInformation,
    /// The last field, so that the volume ends after all others.
    volume: Arc<Volume>,
}

impl LogicalUnit {
    /// Creates a unit from these parts, with the state of its records. It blocks while it reads them. An error names
    /// the invalid record. Interrupted work continues when the unit is added to a [`crate::TargetDevice`].
    pub fn of_parts(parts: Parts) -> io::Result<Arc<Self>> {
        let Parts { identity, volume, device_type, removable, protected, eraser, pass_through } =
            parts;
        let store = volume.store();
        let characteristics = store.characteristics();
        let space = if characteristics.unmap.is_some_and(|unmap| unmap.tells_space) {
            store.space()
        } else {
            Io::Ready(Err(InvalidRequest::Unsupported.into()))
        };
        let space = match space {
            Io::Ready(space) => space.ok(),
            // This function cannot wait. The size of the medium is known without waiting.
            Io::Pending(_) => None,
        };
        let watch: Arc<Watch> = Arc::default();
        volume.report_changes(watch.clone());
        let identifying_information =
            IdentifyingInformation::load(volume.metadata().map(|metadata| &**metadata))?;
        let status = store.status().clone();
        let known_status = Mutex::new(KnownStatus::of(&**store));
        let unit = Self {
            identity,
            device_type,
            eraser,
            pass_through,
            modes: Modes::new(ModeParameters::default_of(
                &characteristics,
                volume.geometry(),
                space,
            )),
            mode_change: Mutex::new(()),
            characteristics,
            limits: Limits::new(volume.geometry()),
            volume,
            protected,
            watch,
            operations: Operations::default(),
            long_commands: LongCommands::default(),
            status,
            known_status,
            medium: Medium::new(device_type, removable || device_type == DeviceType::Cd),
            tasks: Arc::default(),
            thresholds: Thresholds::default(),
            previous_run: PreviousRun::default(),
            attached: Mutex::new(Vec::new()),
            buffers: ReadWriteBuffers::default(),
            self_tests: SelfTests::default(),
            timestamp: Timestamp::default(),
            identifying_information,
        };
        match mode::load(&unit)? {
            Some(saved) => unit.change_modes(NO_NEXUS, saved, true),
            None => unit.configure(&unit.modes.current()),
        }
        unit.previous_run.load(&unit)?;
        let unit = Arc::new(unit);
        let listener: Weak<Self> = Arc::downgrade(&unit);
        unit.status.subscribe(listener);
        // It may have changed meanwhile.
        unit.status_changed();
        Ok(unit)
    }

    /// Returns the volume behind the unit, for other views of it.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the names of the unit.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the device type that the unit reports.
    pub fn device_type(&self) -> DeviceType {
        self.device_type
    }

    /// Returns the store of the unit's records, if any.
    pub fn metadata(&self) -> Option<&Arc<dyn MetadataStore>> {
        self.volume.metadata()
    }

    /// Returns the object that replaces the encryption key, if the blocks are encrypted.
    pub(crate) fn eraser(&self) -> Option<&Arc<dyn ForgetKey>> {
        self.eraser.as_ref()
    }

    /// Returns whether a real device executes the unit's commands.
    pub fn is_pass_through(&self) -> bool {
        self.pass_through.is_some()
    }

    /// Returns the real device that executes the unit's commands, if any.
    pub(crate) fn pass_through(&self) -> Option<&pass_through::Device> {
        self.pass_through.as_ref()
    }

    /// Returns the backing store. If the medium has protection information, this store checks it in plain reads and
    /// generates it in plain writes.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.volume.store()
    }

    /// Returns the store with protection information, if it supports that.
    pub(crate) fn protected(&self) -> Option<&Arc<Protected>> {
        self.protected.as_ref()
    }

    /// Returns the type of protection information of the medium's format.
    pub(crate) fn protection_type(&self) -> Option<ProtectionType> {
        self.protected.as_ref()?.protection_type()
    }

    /// Returns the limits in the Block Limits page.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the phase of the whole medium.
    pub(crate) fn medium_phase(&self) -> &MediumPhase {
        self.volume.medium_phase()
    }

    pub(crate) fn previous_run(&self) -> &PreviousRun {
        &self.previous_run
    }

    pub(crate) fn characteristics(&self) -> &Characteristics {
        &self.characteristics
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    /// Returns the number of bytes in `block_count` blocks. The caller has limited that number.
    pub(crate) fn byte_count(&self, block_count: u64) -> usize {
        (block_count as usize) << self.geometry().block_size.shift()
    }

    /// Rejects blocks outside the medium. An empty extent may begin directly after the last block.
    pub(crate) fn check_range(&self, extent: Extent) -> Result<(), Sense> {
        if extent.fits(self.geometry().block_count) {
            Ok(())
        } else {
            Err(Sense::lba_out_of_range())
        }
    }

    /// Returns the status of the store.
    pub(crate) fn status(&self) -> &StoreStatus {
        &self.status
    }

    /// Returns the status of the store that initiators know.
    pub(crate) fn known_status(&self) -> MutexGuard<'_, KnownStatus> {
        self.known_status.lock()
    }

    pub(crate) fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Returns the buffers of WRITE BUFFER.
    pub(crate) fn buffers(&self) -> &ReadWriteBuffers {
        &self.buffers
    }

    /// Returns the self-tests of the unit.
    pub(crate) fn self_tests(&self) -> &SelfTests {
        &self.self_tests
    }

    /// Returns the identifying information of the unit.
    pub(crate) fn identifying_information(&self) -> &IdentifyingInformation {
        &self.identifying_information
    }

    /// Returns the timestamp of the unit.
    pub(crate) fn timestamp(&self) -> &Timestamp {
        &self.timestamp
    }

    /// Returns an error if writes are rejected now.
    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        if self.characteristics.read_only {
            return Err(Sense::write_protected());
        }
        if self.volume.is_write_protected() {
            Err(Sense::software_write_protected())
        } else {
            Ok(())
        }
    }

    /// Returns when a write may be acknowledged. If the volatile cache is disabled, each write is durable. The caller
    /// asks behind the write gate (see [`Self::flush_after_writes`]).
    pub(crate) fn durability(&self, force_unit_access: bool) -> Durability {
        let write_through =
            self.characteristics.volatile_cache && !self.modes.is_write_cache_enabled();
        if force_unit_access || write_through { Durability::Durable } else { Durability::Volatile }
    }

    /// Returns the mode parameters of the unit.
    pub(crate) fn modes(&self) -> &Modes {
        &self.modes
    }

    fn mode_change(&self) -> MutexGuard<'_, ()> {
        self.mode_change.lock()
    }

    /// Applies mode parameters for `changer`. If any of them changes, the other nexuses get a unit attention.
    pub(crate) fn change_modes(&self, changer: NexusId, parameters: ModeParameters, saved: bool) {
        let _guard = self.mode_change();
        self.configure(&parameters);
        if self.modes.set(parameters, saved) {
            self.raise_except(changer, UnitAttention::ModeParametersChanged);
        }
    }

    /// Passes mode parameters to the components that use them.
    fn configure(&self, parameters: &ModeParameters) {
        self.tasks.set_policy(parameters.tasks);
        self.volume.set_write_protected(parameters.software_write_protect);
        if self.characteristics.unmap.is_some_and(|unmap| unmap.tells_space) {
            self.thresholds.configure(&parameters.provisioning);
        }
        if let Some(protected) = &self.protected {
            protected.set_policy(parameters.application_tag_owned, parameters.unchecked_when_zero);
        }
    }

    /// Returns the thresholds of the unit's space.
    pub(crate) fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Returns the tasks of the unit.
    pub(crate) fn tasks(&self) -> &Arc<TaskSet> {
        &self.tasks
    }

    /// Returns the nexuses that are attached to the unit.
    pub(crate) fn attached(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.attached.lock()
    }

    /// Handles I_T nexus loss (SAM-5 6.3.4).
    pub(crate) fn detach(&self, nexus: NexusId) {
        self.volume.detach(nexus);
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

    /// Resets the logical unit (SAM-5 6.3.3). Persistent reservations stay (SPC-4 5.12.5.1). The transport ends the
    /// tasks.
    pub(crate) fn reset(&self, attention: UnitAttention) {
        self.volume.end_exclusive_use(None);
        self.medium.reset();
        self.self_tests.end(Outcome::Interrupted);
        self.buffers.forget_all();
        self.tasks.reset();
        self.operations.end_all();
        let _guard = self.mode_change();
        self.configure(&self.modes.restore());
        self.raise_except(NO_NEXUS, attention);
    }

    /// Returns the completion of a command, with its sense data in the format that D_SENSE selects.
    pub(crate) fn complete(&self, result: Result<Completion, Sense>) -> Completion {
        match result {
            Ok(completion) => completion,
            Err(sense) => {
                let descriptor_format = self.modes.has_descriptor_sense();
                Completion::check_condition(sense.in_descriptor_format(descriptor_format))
            }
        }
    }

    /// Waits for `future`, then completes the command.
    pub(crate) fn complete_after(
        self: &Arc<Self>,
        future: impl Future<Output = Result<Completion, Sense>> + 'static,
    ) -> Io<Completion> {
        let unit = Arc::clone(self);
        Io::pending(async move { unit.complete(future.await) })
    }

    /// Completes the command with the result of `then`, whose argument is the store's result.
    pub(crate) fn finish<T: 'static>(
        self: &Arc<Self>,
        answer: Io<Result<T, BlockError>>,
        then: impl FnOnce(T) -> Completion + 'static,
    ) -> Io<Completion> {
        match answer {
            Io::Ready(result) => Io::Ready(self.complete(result.map(then).map_err(Sense::from))),
            Io::Pending(future) => self.complete_after(async move { Ok(future.await.map(then)?) }),
        }
    }

    /// Writes the cache after all writes that were started as volatile have ended, so that no write in the cache is
    /// missed.
    pub(crate) fn flush_after_writes(self: &Arc<Self>) -> Io<Completion> {
        let unit = Arc::clone(self);
        self.complete_after(async move { unit.write_out_cache().await })
    }

    /// Writes the cache within another command.
    pub(crate) async fn write_out_cache(&self) -> Result<Completion, Sense> {
        self.volume.write_gate().wait_for_writes().await;
        self.store().flush().wait().await?;
        Ok(Completion::good())
    }

    /// Submits one write of an extent. It excludes COMPARE AND WRITE there until it has ended.
    pub(crate) fn write_shared(
        self: &Arc<Self>,
        extent: Extent,
        submit: impl FnOnce(&Self) -> Io<Result<(), BlockError>> + 'static,
    ) -> Io<Completion> {
        let Some(guard) = self.volume.write_gate().try_shared(extent) else {
            let unit = Arc::clone(self);
            return self.complete_after(async move {
                let _guard = unit.lock_writes_shared(extent).await?;
                submit(&unit).wait().await?;
                Ok(Completion::good())
            });
        };
        // The same check as after a wait for the gate: the state of the medium may have changed since the command was
        // admitted.
        if let Err(sense) = phase::check(self.medium_phase(), Flags::NEEDS_MEDIUM) {
            return Io::Ready(self.complete(Err(sense)));
        }
        match submit(self) {
            Io::Ready(result) => {
                Io::Ready(self.complete(result.map(|()| Completion::good()).map_err(Sense::from)))
            }
            Io::Pending(future) => self.complete_after(async move {
                let result = future.await;
                drop(guard);
                result?;
                Ok(Completion::good())
            }),
        }
    }

    /// Returns the watch that revokes the tokens of changed blocks.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns the copies that commands to this unit started.
    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Returns the commands that can be ended during their execution.
    pub(crate) fn long_commands(&self) -> &LongCommands {
        &self.long_commands
    }
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalUnit").field("identity", &self.identity).finish_non_exhaustive()
    }
}
