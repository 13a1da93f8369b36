//! The possible contents of each block, derived from the requests and their acknowledgements.
//!
//! A change of a block takes effect at one moment between its request and its latest moment. The latest moment is the
//! answer. If the outcome is unknown, it is the moment after which the change can no longer take effect. A change is
//! certain after its acknowledgement, or after a read has found it. A read can no longer return a value once a certain
//! event lies wholly after its write and wholly before the read. A successful read is itself a certain event, because
//! the block held the value at that time. At a crash, changes that are not durable become uncertain again. `fencing`
//! knows which initiators may change anything.

use std::collections::BTreeMap;
use std::fmt;

use crate::fencing::{Action, Fencing, Nexus};
use crate::reservation::Custom;
use crate::stamp;

/// A point in the order of events.
pub(crate) type Moment = u64;

/// The order of a command relative to the other commands of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandPosition {
    pub(crate) nexus: Nexus,
    /// Number of the session.
    pub(crate) session: u64,
    /// Number of the command within the session, in the order of sending.
    pub(crate) number: u64,
    /// The command runs after all earlier commands and before all later commands except those with HEAD OF QUEUE.
    pub(crate) is_ordered: bool,
    /// The command runs before all commands that have not started.
    pub(crate) is_head: bool,
}

/// The position of changes that belong to no command.
const NO_COMMAND: CommandPosition =
    CommandPosition { nexus: 0, session: 0, number: 0, is_ordered: false, is_head: false };

/// An event that changed a block, or may have changed it.
#[derive(Clone, Debug)]
struct Change {
    /// The number of the command.
    operation: u64,
    stamp: u64,
    /// A read found the value; it is not the effect of a write.
    is_sighting: bool,
    position: CommandPosition,
    invoked: Moment,
    /// `None` while the change may still take effect.
    latest: Option<Moment>,
    is_certain: bool,
    /// The change survives crashes.
    is_durable: bool,
    was_seen: bool,
}

impl Change {
    fn is_open_at(&self, moment: Moment) -> bool {
        self.latest.is_none_or(|latest| latest >= moment)
    }
}

/// A command that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) disk: usize,
    pub(crate) position: CommandPosition,
    pub(crate) invoked: Moment,
    /// The blocks, and the stamps that the command writes there.
    pub(crate) writes: Vec<(u64, u64)>,
    pub(crate) action: Option<Action>,
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The command made its changes; they are durable if the command requested it.
    Done { durable: bool },
    /// The command had no effect.
    Nothing,
    /// The command had no effect because of a reservation.
    Conflict,
    /// The outcome is unknown; the command can no longer take effect.
    Unknown,
}

/// A violation of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct Disk {
    is_volatile: bool,
    blocks: Vec<Vec<Change>>,
    last_crash: Moment,
    fencing: Fencing,
    /// Block and stamp of each successful compare-and-write, and its time.
    swapped: BTreeMap<(u64, u64), Moment>,
}

/// The expected state of all disks (see the module).
pub(crate) struct Model {
    now: Moment,
    last_operation: u64,
    disks: Vec<Disk>,
    operations: BTreeMap<u64, Operation>,
    /// The use of reservations.
    custom: Custom,
}

impl Model {
    pub(crate) const fn new(custom: Custom) -> Self {
        let operations = BTreeMap::new();
        Self { now: 0, last_operation: 0, disks: Vec::new(), operations, custom }
    }

    /// Adds a disk full of zeroes. The disks have consecutive numbers from 0.
    pub(crate) fn add_disk(&mut self, block_count: u64, is_volatile: bool) {
        let position = NO_COMMAND;
        let blank = Change {
            operation: 0,
            stamp: stamp::ZERO,
            is_sighting: false,
            position,
            invoked: 0,
            latest: Some(0),
            is_certain: true,
            is_durable: true,
            was_seen: false,
        };
        let blocks = vec![vec![blank]; block_count as usize];
        let (fencing, swapped) = (Fencing::default(), BTreeMap::new());
        self.disks.push(Disk { is_volatile, blocks, last_crash: 0, fencing, swapped });
    }

    /// Advances the time.
    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Records that an initiator is about to send a command.
    pub(crate) fn begin(
        &mut self,
        disk: usize,
        position: CommandPosition,
        writes: Vec<(u64, u64)>,
        action: Option<Action>,
    ) -> u64 {
        let invoked = self.tick();
        self.last_operation += 1;
        let operation = self.last_operation;
        if let Some(action) = action {
            self.disks[disk].fencing.begin(operation, position.nexus, action, invoked);
            if action.admits() {
                self.readmit(disk);
            }
        }
        for &(lba, stamp) in &writes {
            self.disks[disk].blocks[lba as usize].push(Change {
                operation,
                stamp,
                is_sighting: false,
                position,
                invoked,
                latest: None,
                is_certain: false,
                is_durable: false,
                was_seen: false,
            });
        }
        self.operations.insert(operation, Operation { disk, position, invoked, writes, action });
        operation
    }

    /// Records the end of a command.
    pub(crate) fn end(&mut self, operation: u64, outcome: Outcome) -> Result<(), Violation> {
        let now = self.tick();
        let Some(ended) = self.operations.remove(&operation) else {
            return Err(Violation(format!("command {operation} ended twice")));
        };
        self.check_reservation(&ended, outcome, now)?;
        let disk = &mut self.disks[ended.disk];
        if let Some(action) = ended.action {
            let is_done = match outcome {
                Outcome::Done { .. } => Some(true),
                Outcome::Nothing | Outcome::Conflict => Some(false),
                Outcome::Unknown => None,
            };
            disk.fencing.end(operation, is_done, now);
            if let (Action::Preempt { victim, aborts: true, .. }, Some(true)) = (action, is_done) {
                self.aborted(ended.disk, victim);
            }
            return Ok(());
        }
        for (lba, stamp) in ended.writes {
            let changes = &mut disk.blocks[lba as usize];
            let found =
                changes.iter().position(|one| one.operation == operation && !one.is_sighting);
            let Some(index) = found else { continue };
            let change = &mut changes[index];
            change.latest = Some(change.latest.map_or(now, |latest| latest.min(now)));
            match outcome {
                // The answer may have been in transit at the power failure.
                Outcome::Done { durable } => {
                    change.is_durable |= durable || !disk.is_volatile;
                    change.is_certain |= change.is_durable || ended.invoked > disk.last_crash;
                }
                Outcome::Nothing | Outcome::Conflict if change.was_seen => {
                    return Err(Violation(format!(
                        "block {lba} of disk {}: {stamp} was refused, and was seen",
                        ended.disk
                    )));
                }
                Outcome::Nothing | Outcome::Conflict => drop(changes.remove(index)),
                Outcome::Unknown => {}
            }
        }
        Ok(())
    }

    /// Checks the outcome of a command against the reservations.
    fn check_reservation(
        &self,
        ended: &Operation,
        outcome: Outcome,
        now: Moment,
    ) -> Result<(), Violation> {
        let Operation { disk, position: CommandPosition { nexus, .. }, invoked, .. } = *ended;
        let Disk { fencing, last_crash, .. } = &self.disks[disk];
        if invoked < *last_crash {
            // The crash may have deleted the reservation that the command met.
            return Ok(());
        }
        let registrants = self.custom.admits_registrants();
        match outcome {
            Outcome::Done { .. }
                if !ended.writes.is_empty() && fencing.is_fenced(nexus, invoked, now) =>
            {
                Err(Violation(format!(
                    "disk {disk}: initiator {nexus} wrote though it was fenced off, {ended:?}"
                )))
            }
            Outcome::Conflict
                if ended.action.is_none()
                    && !fencing.may_refuse(nexus, registrants, invoked, now) =>
            {
                Err(Violation(format!(
                    "disk {disk}: initiator {nexus} met a reservation that is none of its, {ended:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Handles the acknowledgement of PREEMPT AND ABORT: the victim's open commands can no longer take effect while the
    /// victim is fenced off.
    fn aborted(&mut self, disk: usize, victim: u64) {
        let now = self.tick();
        let disk = &mut self.disks[disk];
        let Some(nexus) = disk.fencing.owner(victim) else { return };
        if !disk.fencing.is_fenced(nexus, now, now) {
            return;
        }
        for change in disk.blocks.iter_mut().flatten() {
            if change.position.nexus == nexus && !change.is_sighting {
                change.latest = change.latest.or(Some(now));
            }
        }
    }

    /// Handles an action that may permit a nexus again: its open commands may still take effect.
    fn readmit(&mut self, disk: usize) {
        let disk = &mut self.disks[disk];
        for change in disk.blocks.iter_mut().flatten() {
            let is_open = self.operations.contains_key(&change.operation) && !change.is_sighting;
            if is_open && !change.was_seen && change.invoked > disk.last_crash {
                change.latest = None;
            }
        }
    }

    /// Records a successful flush of `block_count` blocks from `lba`; a count of 0 includes all following blocks.
    pub(crate) fn flushed(&mut self, operation: u64, lba: u64, block_count: u64) {
        let Some(&Operation { disk, invoked, .. }) = self.operations.get(&operation) else {
            return;
        };
        let disk = &mut self.disks[disk];
        if invoked < disk.last_crash {
            return;
        }
        let count = if block_count == 0 { usize::MAX } else { block_count as usize };
        for change in disk.blocks.iter_mut().skip(lba as usize).take(count).flatten() {
            if change.is_certain && !change.is_open_at(invoked) {
                change.is_durable = true;
            }
        }
    }

    /// Records an orderly end of the server: all acknowledged changes are durable.
    pub(crate) fn ended_in_order(&mut self) {
        for change in self.disks.iter_mut().flat_map(|disk| &mut disk.blocks).flatten() {
            change.is_durable |= change.is_certain;
        }
    }

    /// Records a power failure of the server and its disks, which ends all commands in progress.
    pub(crate) fn crash(&mut self) {
        let now = self.tick();
        for disk in &mut self.disks {
            disk.last_crash = now;
            disk.fencing.crash(self.custom.persists, now);
            for changes in &mut disk.blocks {
                changes.retain(|change| !change.is_sighting || change.is_durable);
                for change in changes {
                    change.latest = Some(change.latest.unwrap_or(now));
                    change.is_certain &= change.is_durable;
                }
            }
        }
    }

    /// Records that a command found `content` at `lba`; the initiator sent the command at `invoked`.
    pub(crate) fn found(
        &mut self,
        operation: u64,
        lba: u64,
        content: &[u8],
    ) -> Result<(), Violation> {
        let now = self.tick();
        let Some(Operation { disk: number, position, invoked, .. }) =
            self.operations.get(&operation).cloned()
        else {
            return Err(Violation(format!("command {operation} ended twice")));
        };
        let disk = &mut self.disks[number];
        let changes = &mut disk.blocks[lba as usize];
        let here = format!("block {lba} of disk {number}");
        let Some(stamp) = stamp::of(lba, content) else {
            return Err(Violation(format!(
                "{here} holds what was never written as a whole: {:02x?}…",
                &content[..32]
            )));
        };
        let possible = possible(changes, invoked, position);
        let mut candidates = possible.iter().filter(|&&index| changes[index].stamp == stamp);
        let (Some(&first), next) = (candidates.next(), candidates.next()) else {
            let known: Vec<_> = changes.iter().map(ToString::to_string).collect();
            return Err(Violation(format!(
                "{here} was read between {invoked} and {now} as {stamp}, which it cannot hold:\n  {}",
                known.join("\n  ")
            )));
        };
        let seen = &changes[first];
        let writer = seen.position.nexus;
        if next.is_none() && disk.fencing.is_fenced(writer, seen.invoked, now) {
            return Err(Violation(format!(
                "{here} was read as {stamp}, which initiator {writer} wrote though it was fenced off"
            )));
        }
        if invoked < disk.last_crash {
            // The value may be lost again.
            return Ok(());
        }
        let is_durable = match next {
            // The model does not know which of several writes the read found.
            Some(_) => false,
            None => {
                let change = &mut changes[first];
                let survived = !change.is_open_at(disk.last_crash + 1);
                change.latest = Some(change.latest.map_or(now, |latest| latest.min(now)));
                change.is_certain = true;
                change.is_durable |= survived || !disk.is_volatile;
                change.was_seen = true;
                change.is_durable
            }
        };
        changes.push(Change {
            operation,
            stamp,
            is_sighting: true,
            position,
            invoked,
            latest: Some(now),
            is_certain: true,
            is_durable,
            was_seen: true,
        });
        Ok(())
    }

    /// Records a successful compare-and-write at `lba`: no other command may find `stamp` there again.
    pub(crate) fn swapped(
        &mut self,
        operation: u64,
        lba: u64,
        stamp: u64,
    ) -> Result<(), Violation> {
        let Some(known) = self.operations.get(&operation) else {
            return Err(Violation(format!("command {operation} ended twice")));
        };
        let (number, invoked) = (known.disk, known.invoked);
        let disk = &mut self.disks[number];
        if stamp == stamp::ZERO || invoked < disk.last_crash {
            return Ok(());
        }
        match disk.swapped.insert((lba, stamp), invoked) {
            Some(before) if before > disk.last_crash => Err(Violation(format!(
                "block {lba} of disk {number}: two found {stamp} there and replaced it"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the possible stamps of a block for a command that is sent now.
    pub(crate) fn stamps(&self, disk: usize, lba: u64) -> Vec<u64> {
        let changes = &self.disks[disk].blocks[lba as usize];
        let mut stamps: Vec<u64> = possible(changes, self.now + 1, NO_COMMAND)
            .into_iter()
            .map(|index| changes[index].stamp)
            .collect();
        stamps.dedup();
        stamps
    }

    /// Records that the compare of `operation` at `lba` did not find `stamp`.
    pub(crate) fn missed(&mut self, operation: u64, lba: u64, stamp: u64) -> Result<(), Violation> {
        let now = self.tick();
        let Some(known) = self.operations.get(&operation) else {
            return Err(Violation(format!("command {operation} ended twice")));
        };
        let changes = &self.disks[known.disk].blocks[lba as usize];
        let own = |index: &usize| changes[*index].operation != operation;
        let possible = possible(changes, known.invoked, known.position);
        if possible.iter().filter(|index| own(index)).all(|&index| changes[index].stamp == stamp) {
            Err(Violation(format!(
                "block {lba} of disk {} was not found to be {stamp} between {} and {now}, and must be",
                known.disk, known.invoked
            )))
        } else {
            Ok(())
        }
    }

    /// Returns the newest key of each nexus that may be registered.
    pub(crate) fn keys(&self, disk: usize) -> Vec<(Nexus, u64)> {
        self.disks[disk].fencing.keys()
    }

    /// Returns the number of commands that have not ended.
    pub(crate) fn open_count(&self) -> usize {
        self.operations.len()
    }
}

/// Returns whether the effect of the first change lies wholly before the second.
fn precedes(first: &Change, second_invoked: Moment, second: CommandPosition) -> bool {
    if first.latest.is_some_and(|latest| latest < second_invoked) {
        return true;
    }
    // SAM-5 8.6: an ORDERED command runs between the commands that were sent before and after it.
    let one = first.position;
    one.session == second.session
        && one.session != 0
        && one.number < second.number
        && ((second.is_ordered) || (one.is_ordered && !second.is_head))
}

/// Returns the writes whose value a read that is sent at `invoked` may find.
fn possible(changes: &[Change], invoked: Moment, position: CommandPosition) -> Vec<usize> {
    let certain: Vec<&Change> = changes
        .iter()
        .filter(|change| change.is_certain && precedes(change, invoked, position))
        .collect();
    let is_overwritten = |change: &Change| {
        certain.iter().any(|later| {
            !(later.operation == change.operation && later.is_sighting == change.is_sighting)
                && later.stamp != change.stamp
                && precedes(change, later.invoked, later.position)
        })
    };
    (0..changes.len())
        .filter(|&index| !changes[index].is_sighting && !is_overwritten(&changes[index]))
        .collect()
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, stamp, invoked, position, .. } = self;
        let what = if self.is_sighting { "seen" } else { "written" };
        write!(
            f,
            "{stamp} {what} by command {operation} (session {}) {invoked}..",
            position.session
        )?;
        match self.latest {
            Some(latest) => write!(f, "{latest}")?,
            None => write!(f, "?")?,
        }
        write!(f, "{}", if self.is_certain { ", certain" } else { "" })?;
        write!(f, "{}", if self.is_durable { ", durable" } else { "" })
    }
}
