//! Work that continues after the end of its command, and the command that waits for its result. Also long commands that
//! end early when they are aborted.

use crate::nexus_id::NexusId;
use crate::task::Task;
use crate::{AdditionalSense, Completion, Host, LogicalUnit, Sense, SenseKey, Status};
use async_lock::OnceCell;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Io;
use std::sync::{Arc, Weak};

type Outcome = Result<Status, Sense>;

/// The result that a command waits for. If it is dropped without a result, the command fails.
pub(crate) struct Promise(Arc<OnceCell<Outcome>>);

impl Promise {
    /// Sets the result. Later results are ignored.
    pub(crate) fn answer(&self, outcome: Result<(), Sense>) {
        let _ = self.0.set_blocking(outcome.map(|()| Status::Good));
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // The host ended before the work did.
        let additional = AdditionalSense::INTERNAL_TARGET_FAILURE;
        self.answer(Err(Sense::new(SenseKey::HardwareError, additional)));
    }
}

/// Begins work that continues after the end of the command. The command waits for the result of `work`, even if it is
/// aborted.
pub(crate) fn outlive<F>(
    host: &dyn Host,
    unit: &Arc<LogicalUnit>,
    work: impl FnOnce(Promise) -> F + Send + 'static,
) -> Io<Completion>
where
    F: Future<Output = ()> + 'static,
{
    begin(host, unit, work).1
}

/// Begins long work. An abort ends the command, and the work continues.
pub(crate) fn outlive_abort<F>(
    task: &Task<'_>,
    work: impl FnOnce(Promise) -> F + Send + 'static,
) -> Io<Completion>
where
    F: Future<Output = ()> + 'static,
{
    let (outcome, answer) = begin(task.nexus.device.array().host(), task.unit, work);
    task.unit.long_commands().add(task.nexus.id, task.name, outcome);
    answer
}

fn begin<F>(
    host: &dyn Host,
    unit: &Arc<LogicalUnit>,
    work: impl FnOnce(Promise) -> F + Send + 'static,
) -> (Arc<OnceCell<Outcome>>, Io<Completion>)
where
    F: Future<Output = ()> + 'static,
{
    let outcome = Arc::new(OnceCell::new());
    let promise = Promise(outcome.clone());
    host.spawn(Box::new(move || Box::pin(work(promise))));
    let waited_for = outcome.clone();
    let answer = unit.complete_after(async move {
        let status = (*waited_for.wait().await)?;
        Ok(Completion::with_status(status))
    });
    (outcome, answer)
}

/// A command in progress that can end early.
pub(crate) trait EndEarly: Send + Sync {
    /// Requests an early end with TASK ABORTED.
    fn end_early(&self);
}

impl EndEarly for OnceCell<Outcome> {
    fn end_early(&self) {
        let _ = self.set_blocking(Ok(Status::TaskAborted));
    }
}

/// The cancellation of a command that waits for something outside of the unit.
#[derive(Default)]
pub(crate) struct CancelToken(OnceCell<()>);

impl CancelToken {
    /// Waits until the command is cancelled.
    pub(crate) async fn ended(&self) {
        self.0.wait().await;
    }
}

impl EndEarly for CancelToken {
    fn end_early(&self) {
        let _ = self.0.set_blocking(());
    }
}

struct LongCommand {
    nexus: NexusId,
    name: u64,
    command: Weak<dyn EndEarly>,
}

/// The long commands of a unit. They can end early. Otherwise the end of a session, or a reset, would wait for each of
/// them for minutes or hours.
#[derive(Default)]
pub(crate) struct LongCommands(Mutex<Known>);

#[derive(Default)]
struct Known {
    commands: Vec<LongCommand>,
    /// The number of entries at which ended commands are removed. The cost of an addition stays constant on average.
    most: usize,
}

impl LongCommands {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// Adds a command by its name, until `command` is dropped.
    pub(crate) fn add(&self, nexus: NexusId, name: u64, command: Arc<dyn EndEarly>) {
        let Known { commands, most } = &mut *self.known();
        if commands.len() >= *most {
            commands.retain(|known| known.command.strong_count() > 0);
            *most = 2 * commands.len() + 16;
        }
        commands.push(LongCommand { nexus, name, command: Arc::downgrade(&command) });
    }

    /// Ends the commands of a nexus for whose names `is_meant` returns true.
    pub(crate) fn end(&self, nexus: NexusId, is_meant: impl Fn(u64) -> bool) {
        let known = self.known();
        let meant = |one: &&LongCommand| one.nexus == nexus && is_meant(one.name);
        let meant = known.commands.iter().filter(meant);
        let meant: Vec<_> = meant.filter_map(|one| one.command.upgrade()).collect();
        drop(known);
        meant.iter().for_each(|command| command.end_early());
    }
}
