//! Task management (RFC 7143 §4.2.3.3, §11.5, §11.6) and whatever else has to wait for tasks
//! to end.
//!
//! Ending a task means: if its data is still being collected, it is forgotten at once; if the
//! layer above carries it out, its end is awaited. Only then is the request answered: an
//! initiator that hears "function complete" may reuse the blocks.

use sarsen_wire::iscsi::{
    Opcode, RawHeader, SerialNumber, TaskManagementFunction, TaskManagementRequest,
    TaskManagementResponse, TaskManagementResponsePdu,
};

use super::full_feature::FullFeature;
use super::link::Link;
use super::tasks::{AbortScope, Progress, Task, TaskId, is_same_unit};
use super::window::Standing;
use super::{Environment, Event, Management};

/// What happens when the tasks that a request named have ended.
#[derive(Debug)]
pub(super) enum Afterwards {
    /// The request is answered with "function complete".
    Answer { initiator_task_tag: u32 },
    /// The layer above carries on with it.
    HandOver(Management),
    /// The layer above is told.
    Tell { token: u64 },
    /// The logout is answered and the connection closed.
    Logout { initiator_task_tag: u32 },
}

/// A request that waits for tasks.
#[derive(Debug)]
pub(super) struct Barrier {
    awaited: Vec<TaskId>,
    afterwards: Afterwards,
}

impl Barrier {
    /// The task has ended. Says whether it was the last one.
    pub(super) fn passes(&mut self, ended: TaskId) -> bool {
        self.awaited.retain(|&task| task != ended);
        self.awaited.is_empty()
    }

    pub(super) fn into_afterwards(self) -> Afterwards {
        self.afterwards
    }
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
    link.output.push(pdu, &[]);
}

impl FullFeature {
    pub(super) fn handle_task_management(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        environment: &mut dyn Environment,
    ) -> Option<(Barrier, bool)> {
        use TaskManagementFunction as Function;
        let request = TaskManagementRequest::view(header);
        let tag = request.initiator_task_tag.get();
        let function = request.function();
        let names_unit = matches!(
            function,
            Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset
        );
        if names_unit && !environment.unit_exists(request.lun) {
            push_response(link, tag, TaskManagementResponse::LunDoesNotExist);
            return None;
        }
        let management = Management { initiator_task_tag: tag, function, lun: request.lun };
        let (scope, afterwards) = match function {
            Function::AbortTask => return self.abort_task(link, request),
            Function::AbortTaskSet => {
                (AbortScope::Unit(request.lun), Afterwards::Answer { initiator_task_tag: tag })
            }
            Function::ClearTaskSet | Function::LogicalUnitReset => {
                (AbortScope::Unit(request.lun), Afterwards::HandOver(management))
            }
            Function::TargetWarmReset | Function::TargetColdReset => {
                (AbortScope::All, Afterwards::HandOver(management))
            }
            Function::TaskReassign => {
                push_response(link, tag, TaskManagementResponse::ReassignNotSupported);
                return None;
            }
            _ => {
                push_response(link, tag, TaskManagementResponse::FunctionNotSupported);
                return None;
            }
        };
        let awaited = self.abort(link, |task| scope.covers(task));
        let passed = awaited.is_empty();
        Some((Barrier { awaited, afterwards }, passed))
    }

    /// RFC 7143 §11.5.1, §11.6.1. Never refused: initiators give a target up for that.
    fn abort_task(
        &mut self,
        link: &mut Link,
        request: &TaskManagementRequest,
    ) -> Option<(Barrier, bool)> {
        let tag = request.initiator_task_tag.get();
        let referenced = request.referenced_task_tag.get();
        let found = self.tasks.by_tag(referenced).is_some_and(|task| {
            is_same_unit(task.lun, request.lun) && task.progress != Progress::Aborted
        });
        if found {
            let awaited = self.abort(link, |task| task.id.initiator_task_tag == referenced);
            let passed = awaited.is_empty();
            let afterwards = Afterwards::Answer { initiator_task_tag: tag };
            return Some((Barrier { awaited, afterwards }, passed));
        }
        // A command that has not arrived, but whose CmdSN is still expected, counts as aborted.
        let ref_cmd_sn = SerialNumber(request.ref_cmd_sn.get());
        let cmd_sn = SerialNumber(request.cmd_sn.get());
        let still_expected =
            link.window.standing(ref_cmd_sn) != Standing::Outside && ref_cmd_sn.is_before(cmd_sn);
        let response = if still_expected {
            self.forget_expected(ref_cmd_sn);
            TaskManagementResponse::FunctionComplete
        } else {
            TaskManagementResponse::TaskDoesNotExist
        };
        push_response(link, tag, response);
        None
    }

    /// Ends tasks; gives those whose end has to be awaited.
    pub(super) fn abort(
        &mut self,
        link: &mut Link,
        mut covers: impl FnMut(&Task) -> bool,
    ) -> Vec<TaskId> {
        let named: Vec<(TaskId, Progress)> = self
            .tasks
            .iter()
            .filter(|task| covers(task))
            .map(|task| (task.id, task.progress))
            .collect();
        let mut awaited = Vec::new();
        for (id, progress) in named {
            match progress {
                Progress::Collecting => self.forget(link, id),
                Progress::Running | Progress::Aborted => {
                    if let Some(task) = self.tasks.by_tag(id.initiator_task_tag) {
                        task.progress = Progress::Aborted;
                    }
                    awaited.push(id);
                }
            }
        }
        awaited
    }

    pub(super) fn abort_for_others(
        &mut self,
        link: &mut Link,
        scope: AbortScope,
        token: u64,
        events: &mut std::collections::VecDeque<Event>,
    ) {
        let awaited = self.abort(link, |task| scope.covers(task));
        self.start_waiting(link, events);
        if awaited.is_empty() {
            events.push_back(Event::TasksEnded(token));
        } else {
            self.barriers.push(Barrier { awaited, afterwards: Afterwards::Tell { token } });
        }
    }

    /// A logout ends all tasks of the session (RFC 7143 §11.14).
    pub(super) fn logout_barrier(
        &mut self,
        link: &mut Link,
        initiator_task_tag: u32,
    ) -> (Barrier, bool) {
        let awaited = self.abort(link, |_| true);
        let passed = awaited.is_empty();
        (Barrier { awaited, afterwards: Afterwards::Logout { initiator_task_tag } }, passed)
    }
}
