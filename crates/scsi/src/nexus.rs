//! An I_T nexus, and the handle through which a connection passes it commands. Each command is admitted and then passed
//! to its handler.

use crate::attention::{Attentions, Listener};
use crate::command_table::Row;
use crate::commands::block::moved_bytes;
use crate::commands::without_unit;
use crate::execution::{Execution, begin_after, begin_asking, begin_plain, refuse_full};
use crate::flags::Flags;
pub(crate) use crate::nexus_id::NexusId;
use crate::pass_through;
pub(crate) use crate::refusal::Refusal;
use crate::reservations::{NexusName, RequiredFlags};
use crate::target::{LunView, Luns, TargetDevice};
use crate::target_port_groups::TargetPortGroup;
use crate::task_set::{Interlock, NexusTasks};
use crate::{
    Abort, Access, Cdb, Command, Completion, LogicalUnit, Lun, Sense, TaskAbort, TaskAttribute,
    UnitAttention,
};
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Io;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The initiator side of a nexus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InitiatorPort {
    /// The initiator port name, such as `iqn.1993-08.org.debian:01:abc,i,0x00023d000001`.
    pub name: String,
    /// The authenticated identity of the initiator, as the transport names it. The name alone is not authenticated.
    pub proven: Option<String>,
}

impl InitiatorPort {
    /// Creates the port of an initiator without authentication.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), proven: None }
    }
}

/// An initiator, without the identifiers of its sessions. Two nexuses belong to the same initiator if both its name and
/// its authenticated identity are the same in both.
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
    /// True if this initiator may not write, even if other initiators may.
    pub(crate) read_only: bool,
}

impl Attachment {
    /// Checks whether this initiator may execute commands with these flags.
    fn check_writable(&self, flags: Flags) -> Result<(), Sense> {
        if self.read_only && flags.contains(Flags::WRITES) {
            Err(Sense::write_protected())
        } else {
            Ok(())
        }
    }
}

pub(crate) type Attachments = BTreeMap<Lun, Attachment>;

/// The state that all handles of one nexus share. The nexus ends with its last handle.
pub(crate) struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) device: Arc<TargetDevice>,
    /// The name by which reservations identify it.
    pub(crate) name: NexusName,
    pub(crate) relative_target_port: u16,
    pub(crate) target_port: Arc<TargetPortGroup>,
    initiator_port: InitiatorPort,
    /// Counts the replacements of `attachments`.
    generation: AtomicU64,
    attachments: Mutex<Arc<Attachments>>,
    /// Changes only together with `attachments`.
    view: Mutex<LunView>,
    listener: OnceLock<Listener>,
}

/// The next number of a nexus. Target port identifiers are not sufficient, since two targets may offer the same unit.
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

    /// Returns the initiator of the nexus.
    pub(crate) fn initiator(&self) -> Initiator {
        let InitiatorPort { name, proven } = &self.initiator_port;
        let name = name.rsplit_once(",i,").map_or(name.as_str(), |(initiator, _)| initiator);
        Initiator { name: name.into(), proven: proven.clone() }
    }

    /// Returns whether this initiator sees the whole target and may write it.
    pub(crate) fn has_whole_target(&self) -> bool {
        *self.view() == LunView::default()
    }

    fn view(&self) -> MutexGuard<'_, LunView> {
        self.view.lock()
    }

    /// Changes the shown units of `luns`. If the list changes, the initiator gets a unit attention.
    pub(crate) fn set_view(&self, view: LunView, luns: &Luns) {
        let is_changed = std::mem::replace(&mut *self.view(), view.clone()) != view;
        if is_changed {
            self.set_luns(luns);
            self.luns_changed();
        }
    }

    /// Notifies the initiator of a changed list of units.
    pub(crate) fn luns_changed(&self) {
        let attention = UnitAttention::ReportedLunsDataHasChanged;
        self.raise(attention);
        if let Some(listener) = self.listener.get() {
            // SPC-4 7.8: the condition concerns the target, which LUN 0 represents.
            listener(Lun(0), attention);
        }
    }

    fn listen(&self, listener: Listener) {
        let listener = self.listener.get_or_init(|| listener);
        for (&lun, Attachment { attentions, .. }) in self.attachments().iter() {
            attentions.listen(lun, listener);
        }
    }

    /// Returns the units that are attached now.
    pub(crate) fn attached(&self) -> Arc<Attachments> {
        self.attachments().clone()
    }

    fn attachments(&self) -> MutexGuard<'_, Arc<Attachments>> {
        self.attachments.lock()
    }

    /// Attaches to the units of the target's `luns` that are new in this initiator's view, and detaches from removed
    /// ones. Returns whether any LUN now has a different unit.
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

    /// Returns each shown unit once.
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

    /// Raises the condition on the units for which `is_reported` returns true.
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

/// The reference of one connection to an I_T nexus. Clones share the nexus, which ends with the last one.
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

    /// Returns a number that identifies this nexus during the life of the program.
    pub fn id(&self) -> u64 {
        self.nexus.id
    }

    /// Sets the listener for conditions that the initiator should learn of without a command: a changed list of units
    /// or a changed capacity. Only the first call has an effect.
    pub fn listen(&self, listener: Listener) {
        self.nexus.listen(listener);
    }

    /// Returns the initiator side of the nexus.
    pub fn initiator_port(&self) -> &InitiatorPort {
        &self.nexus.initiator_port
    }

    /// Returns the number of Data-Out bytes that the command needs, by its CDB. It is 0 for commands that read, that
    /// are unknown, or whose CDB will be rejected.
    pub fn data_out_length(&mut self, lun: Option<Lun>, cdb: &Cdb) -> usize {
        self.data_out_length_within(lun, cdb, usize::MAX)
    }

    /// Returns the same for an initiator that announced `promised` bytes. For commands to a real device nothing else is
    /// known.
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
        if row.is_supported_by(&attachment.unit) {
            data_out(cdb, &attachment.unit).unwrap_or(0)
        } else {
            0
        }
    }

    /// Executes a command. [`Self::begin`] does the same at lower cost.
    pub fn execute(&mut self, lun: Option<Lun>, command: Command) -> Io<Completion> {
        match self.begin(lun, command) {
            Execution::Ended(completion) => Io::Ready(completion),
            Execution::UnderWay(under_way) => Io::pending(under_way),
        }
    }

    /// Begins a command, or queues it until its turn among the tasks of the unit. If the store responds immediately, so
    /// does this function. Dropping a command in progress does not undo it: a queued command is not executed, but a
    /// submitted write may still happen, and COMPARE AND WRITE is then no longer excluded.
    pub fn begin(&mut self, lun: Option<Lun>, command: Command) -> Execution {
        self.refresh();
        let Some(attachment) = lun.and_then(|lun| self.attachments.get(&lun)) else {
            let result = without_unit(&self.nexus, lun, &command.cdb);
            return Execution::Ended(result.unwrap_or_else(Completion::check_condition));
        };
        if command.attribute == TaskAttribute::Simple && attachment.tally.enter() {
            begin_plain(command, attachment, &self.nexus)
        } else {
            begin_asking(command, attachment, &self.nexus)
        }
    }

    /// Begins a command that is not executed before `wait` has ended. It is a task meanwhile: it has its position among
    /// the others and can be aborted. The output of `wait` is kept until the command has ended.
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

    /// Returns TASK SET FULL for a command that the transport cannot queue in addition to those that wait already.
    pub fn refuse_full(&mut self, lun: Lun) -> Option<Completion> {
        self.refresh();
        self.attachments.get(&lun).map(refuse_full)
    }

    /// Returns the number of bytes that a command transfers, compares or fills, by its CDB and its Data-Out.
    pub fn moved_bytes(&mut self, lun: Option<Lun>, command: &Command) -> u64 {
        self.refresh();
        let attachment = lun.and_then(|lun| self.attachments.get(&lun));
        attachment.map_or(0, |attachment| moved_bytes(command, &attachment.unit))
    }

    /// Returns the number of shown units.
    pub fn unit_count(&self) -> usize {
        self.attachments.len()
    }

    /// Aborts commands of this nexus by their [`Command::name`]. Queued commands end now and never begin. Executing
    /// commands run to their end, except long ones, which end soon.
    pub fn abort(&mut self, names: &[u64]) {
        for attachment in self.attachments.values() {
            attachment.unit.tasks().abort(self.nexus.id, names);
            attachment.unit.long_commands().end(self.nexus.id, |name| names.contains(&name));
        }
    }

    /// Aborts all commands of this nexus.
    pub fn abort_all(&mut self) {
        for attachment in self.attachments.values() {
            attachment.unit.tasks().abort_all(self.nexus.id);
            attachment.unit.long_commands().end(self.nexus.id, |_| true);
        }
    }

    /// Executes CLEAR TASK SET for this nexus, whose own tasks have ended. Returns the tasks of other nexuses that the
    /// transport must end (SAM-5 7.5). Those that have not begun never begin.
    pub fn clear_task_set(&mut self, lun: Lun) -> Option<TaskAbort> {
        let unit = self.logical_unit(lun)?;
        let abort = unit.tasks().clear(self.nexus.id);
        Some(TaskAbort { unit, abort })
    }

    /// Executes CLEAR ACA (SAM-5 7.4): ends the auto contingent allegiance of this nexus, if it has one.
    pub fn clear_aca(&mut self, lun: Lun) {
        if let Some(unit) = self.logical_unit(lun) {
            unit.tasks().clear_aca(self.nexus.id);
        }
    }

    /// Returns the tasks of other nexuses that the transport must end before a reset by this nexus: those of one unit,
    /// or of all shown units. Those that have not begun never begin.
    pub fn prepare_reset(&mut self, lun: Option<Lun>) -> Vec<TaskAbort> {
        let units = match lun {
            Some(lun) => self.logical_unit(lun).into_iter().collect(),
            None => self.nexus.units(),
        };
        let by = self.nexus.id;
        let abort = |unit: Arc<LogicalUnit>| TaskAbort { abort: unit.tasks().clear_all(by), unit };
        units.into_iter().map(abort).collect()
    }

    /// Returns the tasks that a command of this nexus ends, with their unit.
    pub fn task_abort(&mut self, lun: Lun, abort: Abort) -> Option<TaskAbort> {
        Some(TaskAbort { unit: self.logical_unit(lun)?, abort })
    }

    /// Returns whether this unit is at a LUN.
    pub fn has_at(&self, lun: Lun, unit: &Arc<LogicalUnit>) -> bool {
        self.attachments.get(&lun).is_some_and(|attachment| Arc::ptr_eq(&attachment.unit, unit))
    }

    /// Raises a unit attention after another nexus ended tasks of this nexus without a response (SAM-5 5.14).
    pub fn commands_cleared(&mut self, unit: &Arc<LogicalUnit>) {
        for attachment in self.attachments.values() {
            if Arc::ptr_eq(&attachment.unit, unit) {
                attachment.attentions.raise(UnitAttention::CommandsClearedByAnotherInitiator);
            }
        }
    }

    /// Executes LOGICAL UNIT RESET: ends reservations, restores the mode parameters and notifies every nexus. The
    /// transport ends the tasks. Returns whether the unit exists.
    pub fn logical_unit_reset(&mut self, lun: Lun) -> bool {
        let unit = self.logical_unit(lun);
        if let Some(unit) = &unit {
            unit.reset(UnitAttention::Reset);
        }
        unit.is_some()
    }

    /// Returns whether this initiator sees the whole target and may write it. An initiator with less may not reset the
    /// whole target or change its access states.
    pub fn has_whole_target(&self) -> bool {
        self.nexus.has_whole_target()
    }

    /// Resets every shown unit: warm, or `cold` as after power on.
    pub fn target_reset(&mut self, cold: bool) {
        let attention = if cold { UnitAttention::PowerOn } else { UnitAttention::Reset };
        for unit in self.nexus.units() {
            unit.reset(attention);
        }
    }

    /// Returns the unit at a LUN.
    pub fn logical_unit(&mut self, lun: Lun) -> Option<Arc<LogicalUnit>> {
        self.refresh();
        self.attachments.get(&lun).map(|attachment| attachment.unit.clone())
    }

    /// Closes the handle. The end of the last handle is I_T nexus loss: SPC-2 reservations end.
    pub fn close(self) {}

    /// Returns a number that changes when the list of units may have changed. Updates the list first.
    #[inline]
    pub fn generation(&mut self) -> u64 {
        self.refresh();
        self.generation
    }

    /// Updates the list of units and releases the removed ones. Every command calls this. An idle connection also calls
    /// it, so that the store of a removed unit can be closed.
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

/// Checks whether a command may be executed by its handler. The order of the checks is the precedence of SPC-4.
pub(crate) fn admit(
    cdb: &Cdb,
    attachment: &Attachment,
    nexus: &Nexus,
) -> Result<&'static Row, Refusal> {
    let unit = &attachment.unit;
    let row = Row::of(cdb, unit.device_type())
        .and_then(|row| if row.is_supported_by(unit) { Ok(row) } else { Err(row.unsupported()) });
    let flags = row.as_ref().map_or(Flags::NONE, |row| row.flags);
    if attachment.attentions.is_waiting()
        && !flags.contains(Flags::IGNORES_UNIT_ATTENTION)
        && let Some(attention) = next_attention(attachment)
    {
        return Err(attention.sense().into());
    }
    let row = row?;
    // SAM-5 5.3.3: RESERVATION CONFLICT has precedence over other statuses. The state of the port is checked next, and
    // then the state of the unit.
    if !row.passes(cdb, attachment.gate.needed()) {
        return Err(Refusal::ReservationConflict);
    }
    nexus.target_port.check(row.access)?;
    attachment.check_writable(flags)?;
    admit_state(flags, unit)?;
    Ok(row)
}

/// Returns the unit attention to report. With an interlock it stays pending until REQUEST SENSE (SPC-4 7.5.8).
fn next_attention(attachment: &Attachment) -> Option<UnitAttention> {
    match attachment.unit.tasks().policy().interlock {
        Interlock::None => attachment.attentions.take(),
        Interlock::Holds | Interlock::HoldsStatuses => attachment.attentions.first(),
    }
}

/// Checks whether a nexus may access a unit now, with any command. Copies call it for each unit that they read or
/// write.
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
        unit.tasks().unfinished().check()?;
    }
    if flags.contains(Flags::WRITES) {
        unit.check_writable()?;
    }
    Ok(())
}
