//! The open requests, by initiator task tag.

use sarsen_block::Buffer;
use sarsen_wire::iscsi::RawHeader;

use super::super::output::Payload;
use super::event::Residual;
use super::reception::Reception;
use super::request::{ReadLanding, TaskAttribute, Token};

/// The data transfer of a command.
pub(super) enum DataTransfer {
    None,
    Read {
        expected: u32,
        /// At level 0, the number of bytes that have arrived. At higher levels, the end offset of the received data,
        /// holes included.
        received: u32,
        landing: ReadLanding,
        /// `None` before the first data, if the data is discarded, and while the framer fills the buffer.
        buffer: Option<Buffer>,
    },
    Write {
        payload: Payload,
        length: u32,
        /// Number of bytes that were sent unsolicited or requested by R2T.
        solicited: u32,
    },
}

pub(super) struct Command {
    pub(super) lun: [u8; 8],
    pub(super) cmd_sn: u32,
    pub(super) movement: DataTransfer,
    /// Recovery state, if the session negotiated a level above 0.
    pub(super) recovery: Option<Box<CommandRecovery>>,
}

/// The state that is needed to recover a command, or to move it to another connection.
pub(super) struct CommandRecovery {
    pub(super) cdb: [u8; 16],
    pub(super) attribute: TaskAttribute,
    pub(super) reception: Reception,
    /// The header of a Data-In that the initiator must acknowledge when nothing before it is missing.
    pub(super) to_acknowledge: Option<RawHeader>,
    /// The end of the command, if it arrived before all of the data.
    pub(super) end: Option<CommandEnd>,
    /// The next expected R2TSN. After a reassignment it is a number that is never reached, so that no R2TSN counts as a
    /// gap.
    pub(super) r2t_sn: u32,
    /// R2Ts after a gap.
    pub(super) held_r2ts: Vec<RawHeader>,
    /// Number of connections that the command has lost.
    pub(super) moves: u32,
}

impl CommandRecovery {
    pub(super) fn new(cdb: [u8; 16], attribute: TaskAttribute) -> Self {
        Self {
            cdb,
            attribute,
            reception: Reception::default(),
            to_acknowledge: None,
            end: None,
            r2t_sn: 0,
            held_r2ts: Vec::new(),
            moves: 0,
        }
    }
}

impl Command {
    /// Returns ExpDataSN of the command's reassignment (RFC 7143 §11.5.6): the first Data-In that the new connection
    /// must send. For a write, the target requests the missing data.
    pub(super) fn resume_from(&mut self) -> u32 {
        let Some(recovery) = &mut self.recovery else { return 0 };
        recovery.end = None;
        recovery.to_acknowledge = None;
        // The target may number its R2Ts from 0 again, or continue.
        recovery.held_r2ts.clear();
        recovery.r2t_sn = R2T_SN_UNKNOWN;
        match &mut self.movement {
            DataTransfer::Read { received, .. } => recovery.reception.rewind(received),
            DataTransfer::None | DataTransfer::Write { .. } => 0,
        }
    }
}

/// The next R2T may have any number.
pub(super) const R2T_SN_UNKNOWN: u32 = u32::MAX;

/// How a command ended.
pub(super) struct CommandEnd {
    pub(super) response: u8,
    pub(super) status: u8,
    pub(super) residual: Residual,
    pub(super) sense: Vec<u8>,
    pub(super) stat_sn: u32,
}

pub(super) enum RequestKind {
    Command(Command),
    Text {
        received: Vec<u8>,
    },
    /// A task management function, with the commands that it aborts.
    TaskManagement {
        aborts: AbortScope,
    },
    /// TASK REASSIGN of the command with this tag.
    Reassign {
        task: u32,
    },
    /// A logout of the session.
    Logout,
    /// A logout of the connection that carries the request.
    Leave,
    /// A logout that removes another connection. Its tasks move to this connection.
    Removal {
        cid: u16,
    },
    Ping,
}

/// The commands that end when a management function was executed.
#[derive(Clone, Copy)]
pub(super) enum AbortScope {
    Task(u32),
    Unit([u8; 8]),
    All,
}

pub(super) struct Task {
    pub(super) token: Token,
    /// The task's connection allegiance (RFC 7143 §4.2.4).
    pub(super) allegiance: u16,
    pub(super) kind: RequestKind,
}

/// A row of the table of tasks.
struct TaskSlot {
    tag: u32,
    task: Option<Task>,
}

/// Open tasks. The low bits of a tag are an index into the table. A tag is reused late, so that a delayed answer to an
/// ended task, or a delayed abort of it, does not match another task.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
}

/// Maximum number of slots in the table.
const SLOT_LIMIT: u32 = 1 << 15;
/// The bits of a tag that are the index. There are more values than slots, so that no tag is the reserved one.
const SLOT_MASK: u32 = 2 * SLOT_LIMIT - 1;

impl Tasks {
    /// Returns how many more tasks there is room for.
    pub(super) fn room(&self) -> u32 {
        SLOT_LIMIT.saturating_sub(self.open_count() as u32)
    }

    pub(super) fn insert(&mut self, task: Task) -> u32 {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.tag = slot.tag.wrapping_add(SLOT_MASK + 1);
            slot.task = Some(task);
            return slot.tag;
        }
        let tag = self.slots.len() as u32;
        self.slots.push(TaskSlot { tag, task: Some(task) });
        tag
    }

    fn slot(&mut self, tag: u32) -> Option<&mut TaskSlot> {
        self.slots.get_mut((tag & SLOT_MASK) as usize).filter(|slot| slot.tag == tag)
    }

    /// Returns the task of a tag from the network.
    pub(super) fn find(&mut self, tag: u32) -> Option<&mut Task> {
        self.slot(tag)?.task.as_mut()
    }

    /// Returns the command of a tag that arrived over connection `cid`.
    pub(super) fn command(&mut self, tag: u32, cid: u16) -> Option<&mut Command> {
        match self.find(tag)? {
            Task { allegiance, kind: RequestKind::Command(command), .. } if *allegiance == cid => {
                Some(command)
            }
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, tag: u32) -> Option<Task> {
        let task = self.slot(tag)?.task.take();
        if task.is_some() {
            self.free.push(tag & SLOT_MASK);
        }
        task
    }

    pub(super) fn remove_if(
        &mut self,
        tag: u32,
        wanted: impl FnOnce(&RequestKind) -> bool,
    ) -> Option<Task> {
        if !wanted(&self.find(tag)?.kind) {
            return None;
        }
        self.remove(tag)
    }

    /// Returns the command with this token, and its connection.
    pub(super) fn command_of(&self, token: Token) -> Option<(u32, u16, &Command)> {
        self.slots.iter().find_map(|slot| match &slot.task {
            Some(Task { token: of, allegiance, kind: RequestKind::Command(command) })
                if *of == token =>
            {
                Some((slot.tag, *allegiance, command))
            }
            _ => None,
        })
    }

    /// Returns the tags of a connection's requests: its commands in the order in which they were sent, then all other
    /// requests.
    pub(super) fn of_connection(&self, cid: u16) -> (Vec<u32>, Vec<u32>) {
        let (mut commands, mut others) = (Vec::new(), Vec::new());
        for slot in &self.slots {
            match &slot.task {
                Some(Task { allegiance, kind, .. }) if *allegiance == cid => match kind {
                    RequestKind::Command(command) => commands.push((command.cmd_sn, slot.tag)),
                    _ => others.push(slot.tag),
                },
                _ => {}
            }
        }
        let newest = commands.iter().map(|(cmd_sn, _)| *cmd_sn).next().unwrap_or_default();
        // Serial number arithmetic: all numbers lie within half of their range of each other.
        commands.sort_by_key(|(cmd_sn, _)| cmd_sn.wrapping_sub(newest) as i32);
        (commands.into_iter().map(|(_, tag)| tag).collect(), others)
    }

    /// Removes the commands that a management function aborted, and returns their tokens.
    pub(super) fn abort(&mut self, aborts: AbortScope) -> Vec<Token> {
        let mut aborted = Vec::new();
        for slot in &mut self.slots {
            let Some(Task { token, kind: RequestKind::Command(command), .. }) = &slot.task else {
                continue;
            };
            let meant = match aborts {
                AbortScope::Task(task) => task == slot.tag,
                AbortScope::Unit(lun) => lun == command.lun,
                AbortScope::All => true,
            };
            if meant {
                aborted.push(*token);
                slot.task = None;
                self.free.push(slot.tag & SLOT_MASK);
            }
        }
        aborted
    }

    pub(super) fn open_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
