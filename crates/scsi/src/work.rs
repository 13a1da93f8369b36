//! Work that goes on when the command that began it is gone, and the command that waits for it; and
//! commands that take long, which whoever aborts them does not wait for to their end.

use crate::commands::Task;
use crate::logical_unit::NexusId;
use crate::{AdditionalSense, Completion, Host, LogicalUnit, Sense, SenseKey, Status};
use async_lock::OnceCell;
use sarsen_block::Io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type Outcome = Result<Status, Sense>;

/// The answer that a command waits for. One that is dropped without an answer was not kept.
pub(crate) struct Promise(Arc<OnceCell<Outcome>>);

impl Promise {
    /// Answers. Later answers are ignored.
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

/// Begins work that the command's end does not end. The command is answered as `work` promises,
/// aborted or not.
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

/// The same of work that takes long: an abort of the command ends the command, the work goes on.
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
    let answer = unit.pending(async move {
        let status = (*waited_for.wait().await)?;
        Ok(Completion::with_status(status))
    });
    (outcome, answer)
}

/// A command under way that can end before its time.
pub(crate) trait EndEarly: Send + Sync {
    /// It is to end soon, with TASK ABORTED.
    fn end_early(&self);
}

impl EndEarly for OnceCell<Outcome> {
    fn end_early(&self) {
        let _ = self.set_blocking(Ok(Status::TaskAborted));
    }
}

/// A command that waits for something outside of the unit.
#[derive(Default)]
pub(crate) struct CancelToken(OnceCell<()>);

impl CancelToken {
    /// Waits until the command is not to wait any more.
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

/// The commands of a unit that take long. A session that is gone, or a reset, would wait for each
/// of them for minutes or hours otherwise.
#[derive(Default)]
pub(crate) struct LongCommands(Mutex<Known>);

#[derive(Default)]
struct Known {
    commands: Vec<LongCommand>,
    /// With so many, those that have ended are looked for: each is looked at twice or so in its life.
    most: usize,
}

impl LongCommands {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command of that name is carried out by `command`, until that is dropped.
    pub(crate) fn add(&self, nexus: NexusId, name: u64, command: Arc<dyn EndEarly>) {
        let Known { commands, most } = &mut *self.known();
        if commands.len() >= *most {
            commands.retain(|known| known.command.strong_count() > 0);
            *most = 2 * commands.len() + 16;
        }
        commands.push(LongCommand { nexus, name, command: Arc::downgrade(&command) });
    }

    /// Ends those of a nexus for which `is_meant` says so, by their names.
    pub(crate) fn end(&self, nexus: NexusId, is_meant: impl Fn(u64) -> bool) {
        let known = self.known();
        let meant = |one: &&LongCommand| one.nexus == nexus && is_meant(one.name);
        let meant = known.commands.iter().filter(meant);
        let meant: Vec<_> = meant.filter_map(|one| one.command.upgrade()).collect();
        drop(known);
        meant.iter().for_each(|command| command.end_early());
    }
}
