//! The requests that are open, by initiator task tag.

use sarsen_block::Buffer;

use super::super::output::Payload;
use super::request::{ReadLanding, Token};

/// What a command still moves.
pub(super) enum Movement {
    None,
    Read {
        expected: u32,
        received: u32,
        landing: ReadLanding,
        /// Absent until the first data, when it is thrown away, and while the framer fills it.
        buffer: Option<Buffer>,
    },
    Write {
        payload: Payload,
        length: u32,
        /// Bytes that were sent without being asked for, or were asked for.
        solicited: u32,
    },
}

pub(super) struct Command {
    pub(super) lun: [u8; 8],
    pub(super) cmd_sn: u32,
    pub(super) movement: Movement,
}

pub(super) enum Kind {
    Command(Command),
    Text {
        received: Vec<u8>,
    },
    /// A management function, with the tag of the task that it aborts.
    TaskManagement {
        aborts: Aborts,
    },
    Logout,
    Ping,
}

/// Which commands are over when a management function was carried out.
#[derive(Clone, Copy)]
pub(super) enum Aborts {
    Task(u32),
    Unit([u8; 8]),
    All,
}

pub(super) struct Task {
    pub(super) token: Token,
    pub(super) kind: Kind,
}

/// Open tasks; a tag is a place in the table.
#[derive(Default)]
pub(super) struct Tasks {
    places: Vec<Option<Task>>,
    free: Vec<u32>,
}

impl Tasks {
    pub(super) fn insert(&mut self, task: Task) -> u32 {
        if let Some(tag) = self.free.pop() {
            self.places[tag as usize] = Some(task);
            return tag;
        }
        self.places.push(Some(task));
        (self.places.len() - 1) as u32
    }

    /// The task of a tag from the network.
    pub(super) fn find(&mut self, tag: u32) -> Option<&mut Task> {
        self.places.get_mut(tag as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, tag: u32) -> Option<Task> {
        let task = self.places.get_mut(tag as usize)?.take();
        if task.is_some() {
            self.free.push(tag);
        }
        task
    }

    /// The command that has this token.
    pub(super) fn command_of(&self, token: Token) -> Option<(u32, &Command)> {
        self.places.iter().zip(0..).find_map(|(place, tag)| match place {
            Some(Task { token: of, kind: Kind::Command(command) }) if *of == token => {
                Some((tag, command))
            }
            _ => None,
        })
    }

    /// Ends the commands that a management function aborted.
    pub(super) fn abort(&mut self, aborts: Aborts) -> Vec<Token> {
        let mut aborted = Vec::new();
        for (place, tag) in self.places.iter_mut().zip(0..) {
            let Some(Task { token, kind: Kind::Command(command) }) = place else { continue };
            let meant = match aborts {
                Aborts::Task(task) => task == tag,
                Aborts::Unit(lun) => lun == command.lun,
                Aborts::All => true,
            };
            if meant {
                aborted.push(*token);
                *place = None;
                self.free.push(tag);
            }
        }
        aborted
    }

    pub(super) fn open_count(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
