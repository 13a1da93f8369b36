//! Tasks that outlive their connection (RFC 7143 §7.2, level 2). A lost connection keeps its tasks, and gives each one
//! to the connection that requests it by TASK REASSIGN.

use std::fmt;

use sarsen_block::Data;
use sarsen_wire::iscsi::{
    RawHeader, ScsiResponse, TaskManagementFunction, TaskManagementRequest, TaskManagementResponse,
};

use super::data_in::Segmentation;
use super::full_feature::{AfterRequest, FullFeature};
use super::link::Link;
use super::management::push_response;
use super::recovery::{Answer, SentData};
use super::tasks::{DataOutCollection, Progress, Task, TaskId};

/// A connection's request for a task of a lost connection. The layer above calls [`super::Connection::release`] on all
/// other connections of the session, then [`super::Connection::adopt`].
#[derive(Clone, Copy, Debug)]
pub struct Adoption {
    pub(super) request: RawHeader,
}

impl Adoption {
    fn request(&self) -> &TaskManagementRequest {
        TaskManagementRequest::view(&self.request)
    }

    /// Returns the initiator task tag of the requested task.
    pub fn referenced_task_tag(&self) -> u32 {
        self.request().referenced_task_tag.get()
    }
}

/// The reply of a connection to another connection's request for a task.
#[derive(Debug)]
pub enum ReassignReply {
    /// The connection does not have the task.
    Unknown,
    /// The connection has the task, and is not lost.
    Allegiant,
    /// The connection was lost and has released the task.
    Released(Released),
}

/// A task that moves from one connection to another.
pub struct Released(What);

enum What {
    Task(Box<Task>),
    /// The task was answered, but the initiator may not have received the answer.
    Answered {
        header: Box<ScsiResponse>,
        segment: Vec<u8>,
        data: Option<(Data, Box<SentMeta>)>,
    },
}

struct SentMeta {
    lun: [u8; 8],
    cut: Segmentation,
}

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            What::Task(task) => f.debug_tuple("Released").field(&task.id).finish(),
            What::Answered { .. } => f.write_str("Released(answered)"),
        }
    }
}

impl Released {
    /// Returns the task if the layer above executes it. The new connection receives its result.
    pub fn running(&self) -> Option<TaskId> {
        match &self.0 {
            What::Task(task) if task.progress != Progress::Collecting => Some(task.id),
            _ => None,
        }
    }
}

impl DataOutCollection {
    /// Prepares new requests for the missing data, because the connection that carried the data is lost.
    fn begin_again(&mut self) {
        if self.unsolicited {
            self.unsolicited = false;
            self.solicited = self.position.min(self.wanted);
        }
        for (index, r2t) in std::mem::take(&mut self.r2ts).into_iter().enumerate() {
            let begin = if index == 0 { self.position.max(r2t.start) } else { r2t.start };
            if r2t.is_recovery && begin < r2t.end {
                self.lost.push(begin..r2t.end);
            } else if !r2t.is_recovery {
                self.solicited = self.solicited.min(begin);
            }
        }
        self.position = self.solicited;
        self.data_sn = 0;
    }
}

impl FullFeature {
    /// Keeps the tasks of the lost connection for another connection. `landed` is the memory of a data segment that was
    /// partly received.
    pub(super) fn mark_lost(&mut self, link: &mut Link, landed: Option<sarsen_block::Buffer>) {
        link.is_lost = true;
        if let Some(id) = self.take_unproven() {
            self.end_task(link, id);
        }
        let member = link.session.member();
        // Requests above a gap were not acknowledged: the initiator sends them again.
        let exp_cmd_sn = link.session.with(|state| state.forget(member));
        self.forget_connection(link, exp_cmd_sn);
        if let (Some(id), Some(buffer)) = (self.take_incoming_task(), landed)
            && let Some(task) = self.tasks.by_tag(id.initiator_task_tag)
            && task.id == id
            && buffer.len() == task.collection.capacity
        {
            task.collection.buffer = Some(buffer);
        }
        for task in self.tasks.iter_mut().filter(|task| task.progress == Progress::Collecting) {
            task.collection.begin_again();
        }
    }

    pub(super) fn release(&mut self, link: &mut Link, tag: u32) -> ReassignReply {
        if !link.is_lost {
            let known = self.tasks.contains(tag) || link.kept.has(tag);
            return if known { ReassignReply::Allegiant } else { ReassignReply::Unknown };
        }
        if let Some(id) =
            self.tasks.by_tag(tag).filter(|task| !task.is_aborted()).map(|task| task.id)
        {
            return match self.give_away(link, id) {
                Some(task) => ReassignReply::Released(Released(What::Task(Box::new(task)))),
                None => ReassignReply::Unknown,
            };
        }
        let Some(Answer { header, segment, data, .. }) = link.kept.take(tag) else {
            return ReassignReply::Unknown;
        };
        let data = data.map(|SentData { lun, payload, cut, .. }| {
            (payload.into_data(), Box::new(SentMeta { lun, cut }))
        });
        let header = Box::new(*ScsiResponse::view(&header));
        ReassignReply::Released(Released(What::Answered { header, segment, data }))
    }

    /// Answers the request of an adoption, and takes over the released task.
    pub(super) fn adopt(
        &mut self,
        link: &mut Link,
        adoption: Adoption,
        claim: ReassignReply,
    ) -> AfterRequest {
        self.handed_over = self.handed_over.saturating_sub(1);
        let request = adoption.request();
        let tag = request.initiator_task_tag.get();
        let aborts = request.function() == TaskManagementFunction::AbortTask;
        let released = match claim {
            ReassignReply::Released(released) => released,
            ReassignReply::Allegiant if !aborts => {
                push_response(link, tag, TaskManagementResponse::TaskStillAllegiant);
                return AfterRequest::StayOpen;
            }
            ReassignReply::Allegiant | ReassignReply::Unknown if aborts => {
                // The command may have waited above a gap here, and its turn may have come since the request.
                return self.abort_task(link, request);
            }
            ReassignReply::Allegiant | ReassignReply::Unknown => {
                // An earlier request may have moved the task to this connection already.
                let referenced = request.referenced_task_tag.get();
                let response = if self.tasks.contains(referenced) || link.kept.has(referenced) {
                    TaskManagementResponse::TaskStillAllegiant
                } else {
                    TaskManagementResponse::TaskDoesNotExist
                };
                push_response(link, tag, response);
                return AfterRequest::StayOpen;
            }
        };
        if !aborts {
            push_response(link, tag, TaskManagementResponse::FunctionComplete);
        }
        let next = request.exp_data_sn.get();
        match released.0 {
            What::Task(mut task) => {
                let id = task.id;
                // The task's memory has moved with it.
                let memory = task.memory();
                task.grant = (memory > 0).then(|| link.room.charge(memory));
                let member = link.session.member();
                link.session.with(|state| state.hand_over(id, member));
                let collects = task.progress == Progress::Collecting;
                self.tasks.insert(*task);
                if aborts {
                    return self.abort_task(link, request);
                }
                if collects && let Some(task) = self.tasks.by_tag(id.initiator_task_tag) {
                    task.collection.r2t_sn = next;
                    self.advance_task(link, id);
                    self.start_waiting(link);
                }
            }
            What::Answered { header, segment, data } => {
                answer_again(link, *header, &segment, data, next);
                if aborts {
                    push_response(link, tag, TaskManagementResponse::FunctionComplete);
                }
            }
        }
        AfterRequest::StayOpen
    }
}

/// Sends the data and the answer of the lost connection again. The data begins at the DataSN `next`.
fn answer_again(
    link: &mut Link,
    mut header: ScsiResponse,
    segment: &[u8],
    data: Option<(Data, Box<SentMeta>)>,
    next: u32,
) {
    let tag = header.initiator_task_tag.get();
    let sent = data.map(|(mut data, meta)| {
        // The new connection may accept segments of another length. ABORT TASK has no ExpDataSN.
        let cut = meta.cut.cut_anew(link, next);
        let r2t_count = header.exp_data_sn.get().wrapping_sub(meta.cut.count());
        header.exp_data_sn = cut.count().wrapping_add(r2t_count).into();
        // RFC 7143 §7.2.2: a SNACK Tag is valid only on its connection.
        header.snack_tag = 0.into();
        let acknowledge_tag = link.next_data_ack_tag();
        link.output.unshare_for_digest(&mut data);
        let charge = link.room.keep(None, data.memory());
        let payload = link.output.charged_payload(data, charge);
        SentData { lun: meta.lun, payload, cut, acknowledge_tag, acknowledged: 0 }
    });
    if let Some(sent) = &sent {
        link.push_again(tag, sent, 0..u32::MAX);
    }
    let stamp = link.stamp();
    header.stat_sn = stamp.stat_sn.into();
    header.exp_cmd_sn = stamp.exp_cmd_sn.into();
    header.max_cmd_sn = stamp.max_cmd_sn.into();
    link.answer(header, segment);
    if let Some(sent) = sent {
        link.keep_data(sent);
    }
}
