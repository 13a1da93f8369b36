//! Task management (RFC 7143 §4.2.3.3, §11.5, §11.6), and other requests that wait for tasks to end.
//!
//! An aborted task that still collects data ends at once. A task that the layer above executes ends when the layer
//! above completes it. Only then does the target answer the request, because an initiator that receives "function
//! complete" may reuse the blocks.

use sarsen_wire::iscsi::{
    Opcode, RawHeader, ScsiCommand, SerialNumber, TaskManagementFunction, TaskManagementRequest,
    TaskManagementResponse, TaskManagementResponsePdu,
};

use super::allegiance::Adoption;
use super::full_feature::{AfterRequest, FullFeature};
use super::link::Link;
use super::tasks::{Ending, Progress, Task, TaskId, is_same_unit};
use super::window::CmdSnPosition;
use super::{Environment, Event, Management, data_in};

/// The next step after the tasks that a request named have ended.
#[derive(Debug)]
pub(super) enum AfterAbort {
    /// The target answers the request with "function complete".
    Answer { initiator_task_tag: u32 },
    /// The layer above continues the function.
    HandOver(Management),
    /// The layer above is notified.
    Tell { token: u64 },
    /// The target answers the logout and closes the connection.
    Logout { initiator_task_tag: u32, whole_session: bool },
}

/// A request that waits for tasks.
#[derive(Debug)]
pub(super) struct Barrier {
    awaited: Vec<TaskId>,
    afterwards: AfterAbort,
}

impl Barrier {
    /// Notes that a task has ended. Returns whether no awaited task is left.
    pub(super) fn passes(&mut self, ended: TaskId) -> bool {
        self.awaited.retain(|&task| task != ended);
        self.is_passed()
    }

    /// Returns whether no awaited task is left.
    pub(super) fn is_passed(&self) -> bool {
        self.awaited.is_empty()
    }

    pub(super) fn into_afterwards(self) -> AfterAbort {
        self.afterwards
    }
}

/// The tasks that an abort named.
#[derive(Default)]
pub(super) struct Aborted {
    /// The tasks that the layer above still executes.
    pub(super) awaited: Vec<TaskId>,
    /// The LUNs of the tasks that were not aborted before.
    luns: Vec<[u8; 8]>,
}

pub(super) fn push_response(
    link: &mut Link,
    initiator_task_tag: u32,
    response: TaskManagementResponse,
) {
    let stamp = link.stamp();
    let mut pdu =
        TaskManagementResponsePdu::from(RawHeader::with_opcode(Opcode::TaskManagementResponse));
    pdu.response = response.0;
    pdu.initiator_task_tag = initiator_task_tag.into();
    pdu.reserved_tag = 0.into();
    pdu.stat_sn = stamp.stat_sn.into();
    pdu.exp_cmd_sn = stamp.exp_cmd_sn.into();
    pdu.max_cmd_sn = stamp.max_cmd_sn.into();
    link.answer(pdu, &[]);
}

impl FullFeature {
    pub(super) fn handle_task_management(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        environment: &mut dyn Environment,
    ) -> AfterRequest {
        use TaskManagementFunction as Function;
        let request = TaskManagementRequest::view(header);
        let tag = request.initiator_task_tag.get();
        let function = request.function();
        let lun = request.lun;
        let names_unit = matches!(
            function,
            Function::AbortTaskSet
                | Function::ClearAca
                | Function::ClearTaskSet
                | Function::LogicalUnitReset
        );
        if names_unit && !environment.unit_exists(lun) {
            push_response(link, tag, TaskManagementResponse::LunDoesNotExist);
            return AfterRequest::StayOpen;
        }
        // RFC 7143 §4.2.3.3: an immediate function affects all commands before it, and some of them may still arrive on
        // other connections.
        let cmd_sn = SerialNumber(request.cmd_sn.get());
        let member = link.session.member();
        if link.session.is_shared()
            && function != Function::AbortTask
            && link.session.with(|state| state.awaits(cmd_sn, member))
        {
            self.deferred.push(*header);
            return AfterRequest::StayOpen;
        }
        let is_shared = link.session.is_shared();
        let referenced = request.referenced_task_tag.get();
        let hand_over = AfterAbort::HandOver(Management { initiator_task_tag: tag, function, lun });
        let (all, afterwards) = match function {
            // A task of a lost connection may be aborted here (RFC 7143 §11.5.1).
            Function::AbortTask
                if link.parameters.error_recovery_level == 2
                    && !self.tasks.contains(referenced) =>
            {
                self.handed_over += 1;
                link.events.push_back(Event::Adopt(Adoption { request: *header }));
                return AfterRequest::StayOpen;
            }
            Function::AbortTask => return self.abort_task(link, request),
            Function::AbortTaskSet if is_shared => (false, hand_over),
            Function::AbortTaskSet => (false, AfterAbort::Answer { initiator_task_tag: tag }),
            Function::ClearTaskSet | Function::LogicalUnitReset => (false, hand_over),
            Function::TargetWarmReset | Function::TargetColdReset => (true, hand_over),
            Function::ClearAca => {
                let barrier = Barrier { awaited: Vec::new(), afterwards: hand_over };
                return self.wait_or_pass(link, barrier);
            }
            Function::TaskReassign if link.parameters.error_recovery_level < 2 => {
                push_response(link, tag, TaskManagementResponse::ReassignNotSupported);
                return AfterRequest::StayOpen;
            }
            Function::TaskReassign
                if self.tasks.contains(referenced) || link.kept.has(referenced) =>
            {
                push_response(link, tag, TaskManagementResponse::TaskStillAllegiant);
                return AfterRequest::StayOpen;
            }
            Function::TaskReassign => {
                self.handed_over += 1;
                link.events.push_back(Event::Adopt(Adoption { request: *header }));
                return AfterRequest::StayOpen;
            }
            _ => {
                push_response(link, tag, TaskManagementResponse::FunctionNotSupported);
                return AfterRequest::StayOpen;
            }
        };
        let is_meant = |its_lun| all || is_same_unit(its_lun, lun);
        self.forget_held(link, cmd_sn, is_meant);
        let Aborted { awaited, .. } =
            self.abort(link, |task| is_meant(task.lun).then_some(Ending::Silent));
        self.wait_or_pass(link, Barrier { awaited, afterwards })
    }

    /// Drops the named commands that wait for an earlier CmdSN and were sent before the function. Their CmdSNs count as
    /// received (RFC 7143 §4.2.3.3).
    fn forget_held(
        &mut self,
        link: &mut Link,
        before: SerialNumber,
        is_meant: impl Fn([u8; 8]) -> bool,
    ) {
        let meant: Vec<SerialNumber> = self
            .held_requests()
            .filter(|(cmd_sn, header)| {
                cmd_sn.is_before(before)
                    && header.basic().opcode() == Opcode::ScsiCommand
                    && is_meant(ScsiCommand::view(header).lun)
            })
            .map(|(cmd_sn, _)| cmd_sn)
            .collect();
        for cmd_sn in meant {
            self.forget_expected(link, cmd_sn);
        }
    }

    /// Executes ABORT TASK (RFC 7143 §11.5.1, §11.6.1). The target never rejects it, because initiators give up a
    /// target that does.
    pub(super) fn abort_task(
        &mut self,
        link: &mut Link,
        request: &TaskManagementRequest,
    ) -> AfterRequest {
        let tag = request.initiator_task_tag.get();
        let referenced = request.referenced_task_tag.get();
        // The answer also waits for a task that was aborted before: after "task does not exist", the initiator may
        // write its blocks again.
        let task = self.tasks.by_tag(referenced);
        if task.is_some_and(|task| is_same_unit(task.lun, request.lun)) {
            let aborted = self.abort(link, |task| {
                (task.id.initiator_task_tag == referenced).then_some(Ending::Silent)
            });
            let afterwards = AfterAbort::Answer { initiator_task_tag: tag };
            return self.wait_or_pass(link, Barrier { awaited: aborted.awaited, afterwards });
        }
        self.answer_abort_of_unknown(link, request);
        AfterRequest::StayOpen
    }

    fn answer_abort_of_unknown(&mut self, link: &mut Link, request: &TaskManagementRequest) {
        // A command that has not arrived, but whose CmdSN is still expected, counts as aborted.
        let ref_cmd_sn = SerialNumber(request.ref_cmd_sn.get());
        let cmd_sn = SerialNumber(request.cmd_sn.get());
        let still_expected = link.session.with(|state| state.window.standing(ref_cmd_sn))
            != CmdSnPosition::Outside
            && ref_cmd_sn.is_before(cmd_sn);
        let response = if still_expected {
            self.forget_expected(link, ref_cmd_sn);
            TaskManagementResponse::FunctionComplete
        } else {
            TaskManagementResponse::TaskDoesNotExist
        };
        push_response(link, request.initiator_task_tag.get(), response);
    }

    /// Aborts the tasks for which `ending` returns a value.
    pub(super) fn abort(
        &mut self,
        link: &mut Link,
        mut ending: impl FnMut(&Task) -> Option<Ending>,
    ) -> Aborted {
        let named: Vec<(TaskId, Ending)> = self
            .tasks
            .iter()
            .filter_map(|task| ending(task).map(|ending| (task.id, ending)))
            .collect();
        let mut aborted = Aborted::default();
        let mut to_end = Vec::new();
        for (id, ending) in named {
            let Some(task) = self.tasks.by_tag(id.initiator_task_tag) else { continue };
            if !task.is_aborted() {
                aborted.luns.push(task.lun);
            }
            match task.progress {
                Progress::Collecting | Progress::Answering => {
                    let task = self.end_task(link, id);
                    if let Some(mut task) = task.filter(|_| ending == Ending::Answered) {
                        data_in::push_task_aborted(&mut task, link);
                    }
                }
                Progress::Running => {
                    task.progress = Progress::Aborted(ending);
                    to_end.push(id);
                    aborted.awaited.push(id);
                }
                Progress::Aborted(_) => aborted.awaited.push(id),
            }
        }
        if !to_end.is_empty() {
            link.events.push_back(Event::Aborted(to_end));
        }
        aborted
    }

    /// Aborts tasks for [`super::Connection::abort_tasks`]. Returns the LUNs of the tasks that this call aborted.
    pub(super) fn abort_for_others(
        &mut self,
        link: &mut Link,
        token: u64,
        mut ending: impl FnMut(TaskId, [u8; 8]) -> Option<Ending>,
    ) -> Vec<[u8; 8]> {
        let Aborted { awaited, luns } = self.abort(link, |task| ending(task.id, task.lun));
        self.start_waiting(link);
        if awaited.is_empty() {
            link.events.push_back(Event::TasksEnded(token));
        } else {
            self.barriers.push(Barrier { awaited, afterwards: AfterAbort::Tell { token } });
        }
        luns
    }

    /// Aborts all tasks of the connection for a logout, which is answered when they have ended (RFC 7143 §11.14).
    pub(super) fn abort_for_logout(
        &mut self,
        link: &mut Link,
        initiator_task_tag: u32,
        whole_session: bool,
    ) -> AfterRequest {
        let Aborted { awaited, .. } = self.abort(link, |_| Some(Ending::Silent));
        let afterwards = AfterAbort::Logout { initiator_task_tag, whole_session };
        self.wait_or_pass(link, Barrier { awaited, afterwards })
    }
}
