//! The handle through which a connection passes commands to an I_T nexus.

use std::sync::Arc;

use sarsen_block::Io;

use crate::attention::Listener;
use crate::command_table::Row;
use crate::commands::block;
use crate::commands::without_unit;
use crate::execution::{Execution, begin_after, begin_through_queue, begin_unqueued, refuse_full};
use crate::target::{AttachedUnit, Attachments, Nexus};
use crate::{
    AbortedTasks, AbortedUnitTasks, Cdb, Command, Completion, InitiatorPort, LogicalUnit, Lun,
    LunView, TargetDevice, TaskAttribute, UnitAttention,
};

impl TargetDevice {
    /// Opens an I_T nexus to all units, through the port with this number; `None` if there is none. The first command
    /// on each unit reports a unit attention.
    pub fn open_nexus(
        self: &Arc<Self>,
        initiator_port: InitiatorPort,
        relative_target_port: u16,
    ) -> Option<NexusHandle> {
        self.open_nexus_showing(initiator_port, relative_target_port, LunView::default())
    }

    /// Opens an I_T nexus to the units in `view`.
    pub fn open_nexus_showing(
        self: &Arc<Self>,
        initiator_port: InitiatorPort,
        relative_target_port: u16,
        view: LunView,
    ) -> Option<NexusHandle> {
        self.add_nexus(initiator_port, relative_target_port, view).map(NexusHandle::new)
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
        let generation = nexus.generation();
        let attachments = nexus.attached();
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
            return promised.min(block::TRANSFER_LIMIT);
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
            begin_unqueued(command, attachment, &self.nexus)
        } else {
            begin_through_queue(command, attachment, &self.nexus)
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
        let Some(AttachedUnit { unit, .. }) = attachment else { return 0 };
        if unit.pass_through().is_some() {
            return block::expected_bytes(command, unit);
        }
        let row = Row::of(&command.cdb, unit.device_type());
        row.map_or(0, |row| (row.moved_bytes)(command, unit))
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
    pub fn clear_task_set(&mut self, lun: Lun) -> Option<AbortedUnitTasks> {
        let unit = self.logical_unit(lun)?;
        let abort = unit.tasks().clear(self.nexus.id);
        Some(AbortedUnitTasks { unit, abort })
    }

    /// Executes CLEAR ACA (SAM-5 7.4): ends the auto contingent allegiance of this nexus, if it has one.
    pub fn clear_aca(&mut self, lun: Lun) {
        if let Some(unit) = self.logical_unit(lun) {
            unit.tasks().clear_aca(self.nexus.id);
        }
    }

    /// Returns the tasks of other nexuses that the transport must end before a reset by this nexus: those of one unit,
    /// or of all shown units. Those that have not begun never begin.
    pub fn prepare_reset(&mut self, lun: Option<Lun>) -> Vec<AbortedUnitTasks> {
        let units = match lun {
            Some(lun) => self.logical_unit(lun).into_iter().collect(),
            None => self.nexus.units(),
        };
        let by = self.nexus.id;
        let abort =
            |unit: Arc<LogicalUnit>| AbortedUnitTasks { abort: unit.tasks().clear_all(by), unit };
        units.into_iter().map(abort).collect()
    }

    /// Returns the tasks that a command of this nexus ends, with their unit.
    pub fn tasks_to_abort(&mut self, lun: Lun, abort: AbortedTasks) -> Option<AbortedUnitTasks> {
        Some(AbortedUnitTasks { unit: self.logical_unit(lun)?, abort })
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
        let generation = self.nexus.generation();
        if generation != self.generation {
            self.take_up(generation);
        }
    }

    #[cold]
    fn take_up(&mut self, generation: u64) {
        self.attachments = self.nexus.attached();
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
