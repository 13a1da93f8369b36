//! An I_T nexus, and the handle through which a connection gives it commands: the way of each
//! command from its CDB to its handler.

use crate::attention::{Attentions, Listener};
use crate::command_table::{Flags, Row};
use crate::commands::block::moved_bytes;
use crate::commands::without_unit;
use crate::execution::{Execution, begin_after, begin_asking, begin_plain, refuse_full};
pub(crate) use crate::logical_unit::NexusId;
use crate::pass_through;
use crate::reservations::{NexusName, RequiredFlags};
use crate::target::{LunView, Luns, TargetDevice};
use crate::target_port_groups::TargetPortGroup;
use crate::task_set::{Interlock, NexusTasks};
use crate::{
    Abort, Access, Cdb, Command, Completion, LogicalUnit, Lun, Sense, TaskAbort, TaskAttribute,
    UnitAttention,
};
use sarsen_block::Io;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The initiator's end of a nexus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InitiatorPort {
    /// The initiator port name, such as `iqn.1993-08.org.debian:01:abc,i,0x00023d000001`.
    pub name: String,
    /// Who the initiator has proved to be, in the transport's words. Anybody can claim a name.
    pub proven: Option<String>,
}

impl InitiatorPort {
    /// A port of an initiator that has proved nothing.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), proven: None }
    }
}

/// An initiator, without what tells its sessions apart: two nexuses are of one initiator if it has
/// the same name in both and has proved to be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Initiator {
    name: String,
    proven: Option<String>,
}

/// A logical unit as one nexus sees it.
#[derive(Clone)]
pub(crate) struct Attachment {
    pub(crate) unit: Arc<LogicalUnit>,
    pub(crate) attentions: Arc<Attentions>,
    pub(crate) gate: Arc<RequiredFlags>,
    pub(crate) tally: Arc<NexusTasks>,
    /// This initiator may not write, whoever else may.
    pub(crate) read_only: bool,
}

impl Attachment {
    /// Whether commands with these flags get past what this initiator may do.
    fn check_writable(&self, flags: Flags) -> Result<(), Sense> {
        match self.read_only && flags.contains(Flags::WRITES) {
            true => Err(Sense::write_protected()),
            false => Ok(()),
        }
    }
}

pub(crate) type Attachments = BTreeMap<Lun, Attachment>;

/// What all handles of one nexus share. Its end is the end of its last handle.
pub(crate) struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) device: Arc<TargetDevice>,
    /// What reservations know it by.
    pub(crate) name: NexusName,
    pub(crate) relative_target_port: u16,
    pub(crate) target_port: Arc<TargetPortGroup>,
    initiator_port: InitiatorPort,
    /// Counts the replacements of `attachments`.
    generation: AtomicU64,
    attachments: Mutex<Arc<Attachments>>,
    /// Changes with `attachments`.
    view: Mutex<LunView>,
    listener: OnceLock<Listener>,
}

/// Nexuses are told apart by a number, since two targets may offer one unit.
static NEXT_NEXUS: AtomicU64 = AtomicU64::new(1);

impl Nexus {
    pub(crate) fn new(
        device: Arc<TargetDevice>,
        initiator_port: InitiatorPort,
        target_port: Arc<TargetPortGroup>,
        view: LunView,
    ) -> Self {
        let initiator = initiator_port.name.as_str().into();
        Self {
            id: NEXT_NEXUS.fetch_add(1, Ordering::Relaxed),
            device,
            name: NexusName { initiator_port: initiator, target_port: target_port.number },
            relative_target_port: target_port.number,
            target_port,
            initiator_port,
            generation: AtomicU64::new(0),
            attachments: Mutex::default(),
            view: Mutex::new(view),
            listener: OnceLock::new(),
        }
    }

    /// Whose nexus it is.
    pub(crate) fn initiator(&self) -> Initiator {
        let InitiatorPort { name, proven } = &self.initiator_port;
        let name = name.rsplit_once(",i,").map_or(name.as_str(), |(initiator, _)| initiator);
        Initiator { name: name.into(), proven: proven.clone() }
    }

    /// Whether all of the target is shown to this initiator, and may be written by it.
    pub(crate) fn has_whole_target(&self) -> bool {
        *self.view() == LunView::default()
    }

    fn view(&self) -> MutexGuard<'_, LunView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows other units of `luns` from here on. The initiator is told where that changes anything.
    pub(crate) fn set_view(&self, view: LunView, luns: &Luns) {
        let is_changed = std::mem::replace(&mut *self.view(), view.clone()) != view;
        if is_changed {
            self.set_luns(luns);
            self.luns_changed();
        }
    }

    /// The initiator has another list of units than before.
    pub(crate) fn luns_changed(&self) {
        let attention = UnitAttention::ReportedLunsDataHasChanged;
        self.raise(attention);
        if let Some(listener) = self.listener.get() {
            // SPC-4 7.8: it is about the target, which LUN 0 stands for.
            listener(Lun(0), attention);
        }
    }

    fn listen(&self, listener: Listener) {
        let listener = self.listener.get_or_init(|| listener);
        for (&lun, Attachment { attentions, .. }) in self.attachments().iter() {
            attentions.listen(lun, listener);
        }
    }

    /// The units as they are attached now.
    pub(crate) fn attached(&self) -> Arc<Attachments> {
        self.attachments().clone()
    }

    fn attachments(&self) -> MutexGuard<'_, Arc<Attachments>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches to the units of the target's `luns` that are new to this initiator's view of them, and
    /// leaves those that are gone. Says whether it finds another unit anywhere than before.
    pub(crate) fn set_luns(&self, luns: &Luns) -> bool {
        let view = self.view();
        let luns = view.of(luns);
        let read_only = view.read_only;
        let mut attachments = self.attachments();
        let old = std::mem::take(&mut *attachments);
        let kept = |unit: &Arc<LogicalUnit>| {
            let old = old.values().find(|attachment| Arc::ptr_eq(&attachment.unit, unit))?;
            Some(Attachment { read_only, ..old.clone() })
        };
        let attach = |unit: &Arc<LogicalUnit>| {
            let (attentions, gate) = unit.attach(self.id, &self.name);
            let tally = unit.tasks().join(self.id);
            Attachment { unit: unit.clone(), attentions, gate, tally, read_only }
        };
        *attachments = Arc::new(
            luns.iter()
                .map(|(&lun, unit)| (lun, kept(unit).unwrap_or_else(|| attach(unit))))
                .collect(),
        );
        if let Some(listener) = self.listener.get() {
            for (&lun, Attachment { attentions, .. }) in attachments.iter() {
                attentions.listen(lun, listener);
            }
        }
        for Attachment { unit, .. } in old.values() {
            if !luns.values().any(|other| Arc::ptr_eq(unit, other)) {
                unit.detach(self.id);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        let stays = |(lun, unit): (&Lun, &Arc<LogicalUnit>)| {
            old.get(lun).is_some_and(|attachment| Arc::ptr_eq(&attachment.unit, unit))
        };
        old.len() != luns.len() || !luns.iter().all(stays)
    }

    /// The units that are shown, each once.
    fn units(&self) -> Vec<Arc<LogicalUnit>> {
        let mut units: Vec<Arc<LogicalUnit>> = Vec::new();
        for Attachment { unit, .. } in self.attached().values() {
            if !units.iter().any(|other| Arc::ptr_eq(other, unit)) {
                units.push(unit.clone());
            }
        }
        units
    }

    pub(crate) fn raise(&self, attention: UnitAttention) {
        self.raise_where(attention, |_| true);
    }

    /// Raises it on the units that `is_reported` says.
    pub(crate) fn raise_where(
        &self,
        attention: UnitAttention,
        is_reported: impl Fn(&Arc<LogicalUnit>) -> bool,
    ) {
        for Attachment { unit, attentions, .. } in self.attachments().values() {
            if is_reported(unit) {
                attentions.raise(attention);
            }
        }
    }

    pub(crate) fn clear(&self, attention: UnitAttention) {
        for attachment in self.attachments().values() {
            attachment.attentions.clear(attention);
        }
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        for attachment in self.attachments().values() {
            attachment.unit.detach(self.id);
        }
    }
}

/// One connection's hold on an I_T nexus. Clones share the nexus; the last one to go ends it.
#[derive(Clone)]
pub struct NexusHandle {
    nexus: Arc<Nexus>,
    attachments: Arc<Attachments>,
    generation: u64,
}

impl NexusHandle {
    pub(crate) fn new(nexus: Arc<Nexus>) -> Self {
        let generation = nexus.generation.load(Ordering::Acquire);
        let attachments = nexus.attachments().clone();
        Self { nexus, attachments, generation }
    }

    /// What tells this nexus from all others of this program's life.
    pub fn id(&self) -> u64 {
        self.nexus.id
    }

    /// Has somebody told what the initiator should hear of though it sends no command: other units,
    /// another capacity. The first one alone.
    pub fn listen(&self, listener: Listener) {
        self.nexus.listen(listener);
    }

    /// The initiator's end.
    pub fn initiator_port(&self) -> &InitiatorPort {
        &self.nexus.initiator_port
    }

    /// How many bytes of Data-Out the command takes, by its CDB: none for commands that read, that
    /// are unknown, or whose CDB will be refused.
    pub fn data_out_length(&mut self, lun: Option<Lun>, cdb: &Cdb) -> usize {
        self.data_out_length_within(lun, cdb, usize::MAX)
    }

    /// The same where the initiator has `promised` to send so much: of the commands of a real device
    /// nothing else is known.
    pub fn data_out_length_within(
        &mut self,
        lun: Option<Lun>,
        cdb: &Cdb,
        promised: usize,
    ) -> usize {
        self.refresh();
        let Some(attachment) = lun.and_then(|lun| self.attachments.get(&lun)) else { return 0 };
        if attachment.unit.pass_through().is_some() {
            return promised.min(pass_through::TRANSFER_LIMIT);
        }
        let Ok(row) = Row::of(cdb, attachment.unit.device_type()) else { return 0 };
        let Some(data_out) = row.data_out else { return 0 };
        match row.is_supported_by(&attachment.unit) {
            true => data_out(cdb, &attachment.unit).unwrap_or(0),
            false => 0,
        }
    }

    /// Executes a command, like [`Self::begin`], whose answer costs less.
    pub fn execute(&mut self, lun: Option<Lun>, command: Command) -> Io<Completion> {
        match self.begin(lun, command) {
            Execution::Ended(completion) => Io::Ready(completion),
            Execution::UnderWay(under_way) => Io::pending(under_way),
        }
    }

    /// Begins a command, or lets it wait for its turn among the tasks of the unit. A store that
    /// answers at once makes this answer at once. Dropping what is under way does not undo the
    /// command: what waited is not carried out, but a write that was submitted may still happen,
    /// and is then no longer kept apart from COMPARE AND WRITE.
    pub fn begin(&mut self, lun: Option<Lun>, command: Command) -> Execution {
        self.refresh();
        let Some(attachment) = lun.and_then(|lun| self.attachments.get(&lun)) else {
            let result = without_unit(&self.nexus, lun, &command.cdb);
            return Execution::Ended(result.unwrap_or_else(Completion::check_condition));
        };
        match command.attribute == TaskAttribute::Simple && attachment.tally.enter() {
            true => begin_plain(command, attachment, &self.nexus),
            false => begin_asking(command, attachment, &self.nexus),
        }
    }

    /// The same for a command that is not to be carried out before `wait` has ended, though it is a task
    /// meanwhile: it has its place among the others, and can be aborted. What `wait` gives is kept until
    /// the command has ended.
    pub fn begin_after<P: 'static>(
        &mut self,
        lun: Option<Lun>,
        command: Command,
        wait: impl Future<Output = P> + 'static,
    ) -> Execution {
        self.refresh();
        match lun.and_then(|lun| self.attachments.get(&lun)) {
            Some(attachment) => begin_after(command, attachment, &self.nexus, wait),
            None => self.begin(lun, command),
        }
    }

    /// The answer to a command that the transport does not let wait beside those that wait already:
    /// TASK SET FULL.
    pub fn refuse_full(&mut self, lun: Lun) -> Option<Completion> {
        self.refresh();
        self.attachments.get(&lun).map(refuse_full)
    }

    /// How many bytes a command moves, compares or fills, by its CDB and what came with it.
    pub fn moved_bytes(&mut self, lun: Option<Lun>, command: &Command) -> u64 {
        self.refresh();
        let attachment = lun.and_then(|lun| self.attachments.get(&lun));
        attachment.map_or(0, |attachment| moved_bytes(command, &attachment.unit))
    }

    /// How many units are shown.
    pub fn unit_count(&self) -> usize {
        self.attachments.len()
    }

    /// Commands of this nexus, by their [`Command::name`], are not to begin any more: those that
    /// wait end now. What has begun goes on to its end, but for what takes long, which ends soon.
    pub fn abort(&mut self, names: &[u64]) {
        for attachment in self.attachments.values() {
            attachment.unit.tasks().abort(self.nexus.id, names);
            attachment.unit.long_commands().end(self.nexus.id, |name| names.contains(&name));
        }
    }

    /// The same for all commands of this nexus.
    pub fn abort_all(&mut self) {
        for attachment in self.attachments.values() {
            attachment.unit.tasks().abort_all(self.nexus.id);
            attachment.unit.long_commands().end(self.nexus.id, |_| true);
        }
    }

    /// CLEAR TASK SET by this nexus, whose own tasks have ended: what the transport is to end of
    /// others (SAM-5 7.5). None of it begins any more.
    pub fn clear_task_set(&mut self, lun: Lun) -> Option<TaskAbort> {
        let unit = self.logical_unit(lun)?;
        let abort = unit.tasks().clear(self.nexus.id);
        Some(TaskAbort { unit, abort })
    }

    /// CLEAR ACA (SAM-5 7.4): ends the auto contingent allegiance of this nexus, if it has one.
    pub fn clear_aca(&mut self, lun: Lun) {
        if let Some(unit) = self.logical_unit(lun) {
            unit.tasks().clear_aca(self.nexus.id);
        }
    }

    /// What the transport is to end of others before a reset by this nexus: of one unit, or of all
    /// units that are shown here. None of it begins any more.
    pub fn prepare_reset(&mut self, lun: Option<Lun>) -> Vec<TaskAbort> {
        let units = match lun {
            Some(lun) => self.logical_unit(lun).into_iter().collect(),
            None => self.nexus.units(),
        };
        let by = self.nexus.id;
        let abort = |unit: Arc<LogicalUnit>| TaskAbort { abort: unit.tasks().clear_all(by), unit };
        units.into_iter().map(abort).collect()
    }

    /// The tasks that a command of this nexus ends, with the unit that they are of.
    pub fn task_abort(&mut self, lun: Lun, abort: Abort) -> Option<TaskAbort> {
        Some(TaskAbort { unit: self.logical_unit(lun)?, abort })
    }

    /// Whether this unit is at a number.
    pub fn has_at(&self, lun: Lun, unit: &Arc<LogicalUnit>) -> bool {
        self.attachments.get(&lun).is_some_and(|attachment| Arc::ptr_eq(&attachment.unit, unit))
    }

    /// Tasks of this nexus were ended by another one, without an answer: the next command is told
    /// (SAM-5 5.14).
    pub fn commands_cleared(&mut self, unit: &Arc<LogicalUnit>) {
        for attachment in self.attachments.values() {
            if Arc::ptr_eq(&attachment.unit, unit) {
                attachment.attentions.raise(UnitAttention::CommandsClearedByAnotherInitiator);
            }
        }
    }

    /// LOGICAL UNIT RESET: whether there is such a unit. Ends reservations, restores the mode
    /// parameters and tells every nexus; ending the tasks is the transport's part.
    pub fn logical_unit_reset(&mut self, lun: Lun) -> bool {
        let unit = self.logical_unit(lun);
        if let Some(unit) = &unit {
            unit.reset(UnitAttention::Reset);
        }
        unit.is_some()
    }

    /// Whether all of the target is shown to this initiator and may be written by it. Who has less has
    /// no say over the target as a whole: a reset of it, or a change of its access states.
    pub fn has_whole_target(&self) -> bool {
        self.nexus.has_whole_target()
    }

    /// Resets every unit that is shown here: warm, or `cold` as after power on.
    pub fn target_reset(&mut self, cold: bool) {
        let attention = if cold { UnitAttention::PowerOn } else { UnitAttention::Reset };
        for unit in self.nexus.units() {
            unit.reset(attention);
        }
    }

    /// The unit at a number.
    pub fn logical_unit(&mut self, lun: Lun) -> Option<Arc<LogicalUnit>> {
        self.refresh();
        self.attachments.get(&lun).map(|attachment| attachment.unit.clone())
    }

    /// Lets go of the nexus. The last handle's end is I_T nexus loss: SPC-2 reservations end.
    pub fn close(self) {}

    /// Another number than before where the units may be others, after taking up what has changed.
    #[inline]
    pub fn generation(&mut self) -> u64 {
        self.refresh();
        self.generation
    }

    /// Takes up a changed list of units and lets go of those that are gone. Every command does
    /// it; an idle connection does it so that a removed unit's store can close.
    #[inline]
    pub fn refresh(&mut self) {
        let generation = self.nexus.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.take_up(generation);
        }
    }

    #[cold]
    fn take_up(&mut self, generation: u64) {
        self.attachments = self.nexus.attachments().clone();
        self.generation = generation;
    }
}

impl std::fmt::Debug for NexusHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NexusHandle")
            .field("id", &self.nexus.id)
            .field("initiator_port", &self.nexus.initiator_port)
            .finish_non_exhaustive()
    }
}

/// Why a command is not begun.
#[derive(Debug)]
pub(crate) enum Refusal {
    Sense(Sense),
    ReservationConflict,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// What every command must pass before its handler: the order is SPC-4's of precedence.
pub(crate) fn admit(
    cdb: &Cdb,
    attachment: &Attachment,
    nexus: &Nexus,
) -> Result<&'static Row, Refusal> {
    let unit = &attachment.unit;
    let row = Row::of(cdb, unit.device_type()).and_then(|row| match row.is_supported_by(unit) {
        true => Ok(row),
        false => Err(row.unsupported()),
    });
    let flags = row.as_ref().map_or(Flags::NONE, |row| row.flags);
    if attachment.attentions.is_waiting()
        && !flags.contains(Flags::IGNORES_UNIT_ATTENTION)
        && let Some(attention) = next_attention(attachment)
    {
        return Err(attention.sense().into());
    }
    let row = row?;
    // SAM-5 5.3.3: RESERVATION CONFLICT comes before other statuses; then what the way to the unit
    // lets pass, then what the unit does.
    if !row.passes(cdb, attachment.gate.needed()) {
        return Err(Refusal::ReservationConflict);
    }
    nexus.target_port.check(row.access)?;
    attachment.check_writable(flags)?;
    admit_state(flags, unit)?;
    Ok(row)
}

/// The unit attention to be told; with an interlock it waits on until REQUEST SENSE (SPC-4 7.5.8).
fn next_attention(attachment: &Attachment) -> Option<UnitAttention> {
    match attachment.unit.tasks().policy().interlock {
        Interlock::None => attachment.attentions.take(),
        Interlock::Holds | Interlock::HoldsStatuses => attachment.attentions.first(),
    }
}

/// What a nexus may do with a unit now, whichever command does it: copies ask it, for each unit that
/// they read and write.
pub(crate) fn admit_access(
    flags: Flags,
    access: Access,
    attachment: &Attachment,
    nexus: &Nexus,
) -> Result<(), Refusal> {
    let unit = &attachment.unit;
    if !flags.contains(unit.needed_by(nexus.id)) {
        return Err(Refusal::ReservationConflict);
    }
    nexus.target_port.check(access)?;
    attachment.check_writable(flags)?;
    admit_state(flags, unit)
}

fn admit_state(flags: Flags, unit: &LogicalUnit) -> Result<(), Refusal> {
    unit.medium_phase().check(flags)?;
    if flags.contains(Flags::NEEDS_MEDIUM) {
        unit.medium().check()?;
        unit.condition().check()?;
        unit.tasks().unended().check()?;
    }
    if flags.contains(Flags::WRITES) {
        unit.check_writable()?;
    }
    Ok(())
}
