//! The requests that are open, by initiator task tag.

use sarsen_block::Buffer;
use sarsen_wire::iscsi::RawHeader;

use super::super::output::Payload;
use super::event::Residual;
use super::reception::Reception;
use super::request::{ReadLanding, TaskAttribute, Token};

/// What a command still moves.
pub(super) enum Movement {
    None,
    Read {
        expected: u32,
        /// At level 0 what has arrived; above, the end of what has, holes included.
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
    /// Where the session negotiated a level above 0.
    pub(super) recovery: Option<Box<CommandRecovery>>,
}

/// What it takes to mend a command, or to move it to another connection.
pub(super) struct CommandRecovery {
    pub(super) cdb: [u8; 16],
    pub(super) attribute: TaskAttribute,
    pub(super) reception: Reception,
    /// The header of a Data-In that asked to be acknowledged when nothing before it is missing.
    pub(super) to_acknowledge: Option<RawHeader>,
    /// The end of the command, which came before all of its data had.
    pub(super) end: Option<CommandEnd>,
    /// The R2TSN that comes next; a number that is never reached after a reassignment, when none is
    /// a gap.
    pub(super) r2t_sn: u32,
    /// R2Ts above a gap.
    pub(super) held_r2ts: Vec<RawHeader>,
    /// Connections that it has lost.
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
    /// ExpDataSN of its reassignment (RFC 7143 §11.5.6): the first Data-In that the new connection
    /// is to bring. Of a write the target says what it lacks.
    pub(super) fn resume_from(&mut self) -> u32 {
        let Some(recovery) = &mut self.recovery else { return 0 };
        recovery.end = None;
        recovery.to_acknowledge = None;
        // The target numbers what it asks for anew, or not.
        recovery.held_r2ts.clear();
        recovery.r2t_sn = R2T_SN_UNKNOWN;
        match &mut self.movement {
            Movement::Read { received, .. } => recovery.reception.rewind(received),
            Movement::None | Movement::Write { .. } => 0,
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
    /// A management function, with the tag of the task that it aborts.
    TaskManagement {
        aborts: Aborts,
    },
    /// TASK REASSIGN of the command with this tag.
    Reassign {
        task: u32,
    },
    /// A logout of the session.
    Logout,
    /// A logout of the connection that it is sent over.
    Leave,
    /// A logout that removes another connection, whose tasks move here.
    Removal {
        cid: u16,
    },
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
    /// The connection that it belongs to (RFC 7143 §4.2.4).
    pub(super) allegiance: u16,
    pub(super) kind: RequestKind,
}

struct Place {
    tag: u32,
    task: Option<Task>,
}

/// Open tasks; the low bits of a tag are a place in the table. Tags come back late: what is still under
/// way for a task that is over, an answer or the abort of it, names no other one.
#[derive(Default)]
pub(super) struct Tasks {
    places: Vec<Place>,
    free: Vec<u32>,
}

/// Places of the table.
const PLACES_LIMIT: u32 = 1 << 15;
/// Bits of a tag that are the place: more than places need, so that no tag is the reserved one.
const PLACE_MASK: u32 = 2 * PLACES_LIMIT - 1;

impl Tasks {
    /// How many more there is room for.
    pub(super) fn room(&self) -> u32 {
        PLACES_LIMIT.saturating_sub(self.open_count() as u32)
    }

    pub(super) fn insert(&mut self, task: Task) -> u32 {
        if let Some(place) = self.free.pop() {
            let place = &mut self.places[place as usize];
            place.tag = place.tag.wrapping_add(PLACE_MASK + 1);
            place.task = Some(task);
            return place.tag;
        }
        let tag = self.places.len() as u32;
        self.places.push(Place { tag, task: Some(task) });
        tag
    }

    fn place(&mut self, tag: u32) -> Option<&mut Place> {
        self.places.get_mut((tag & PLACE_MASK) as usize).filter(|place| place.tag == tag)
    }

    /// The task of a tag from the network.
    pub(super) fn find(&mut self, tag: u32) -> Option<&mut Task> {
        self.place(tag)?.task.as_mut()
    }

    /// The command of a tag that came over connection `cid`.
    pub(super) fn command(&mut self, tag: u32, cid: u16) -> Option<&mut Command> {
        match self.find(tag)? {
            Task { allegiance, kind: RequestKind::Command(command), .. } if *allegiance == cid => {
                Some(command)
            }
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, tag: u32) -> Option<Task> {
        let task = self.place(tag)?.task.take();
        if task.is_some() {
            self.free.push(tag & PLACE_MASK);
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

    /// The command that has this token, and its connection.
    pub(super) fn command_of(&self, token: Token) -> Option<(u32, u16, &Command)> {
        self.places.iter().find_map(|place| match &place.task {
            Some(Task { token: of, allegiance, kind: RequestKind::Command(command) })
                if *of == token =>
            {
                Some((place.tag, *allegiance, command))
            }
            _ => None,
        })
    }

    /// The tags of what belongs to a connection: its commands in the order in which they were
    /// sent, then all else.
    pub(super) fn of_connection(&self, cid: u16) -> (Vec<u32>, Vec<u32>) {
        let (mut commands, mut others) = (Vec::new(), Vec::new());
        for place in &self.places {
            match &place.task {
                Some(Task { allegiance, kind, .. }) if *allegiance == cid => match kind {
                    RequestKind::Command(command) => commands.push((command.cmd_sn, place.tag)),
                    _ => others.push(place.tag),
                },
                _ => {}
            }
        }
        let newest = commands.iter().map(|(cmd_sn, _)| *cmd_sn).next().unwrap_or_default();
        // Serial numbers: all lie within half of their range of any one of them.
        commands.sort_by_key(|(cmd_sn, _)| cmd_sn.wrapping_sub(newest) as i32);
        (commands.into_iter().map(|(_, tag)| tag).collect(), others)
    }

    /// Ends the commands that a management function aborted.
    pub(super) fn abort(&mut self, aborts: Aborts) -> Vec<Token> {
        let mut aborted = Vec::new();
        for place in &mut self.places {
            let Some(Task { token, kind: RequestKind::Command(command), .. }) = &place.task else {
                continue;
            };
            let meant = match aborts {
                Aborts::Task(task) => task == place.tag,
                Aborts::Unit(lun) => lun == command.lun,
                Aborts::All => true,
            };
            if meant {
                aborted.push(*token);
                place.task = None;
                self.free.push(place.tag & PLACE_MASK);
            }
        }
        aborted
    }

    pub(super) fn open_count(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
