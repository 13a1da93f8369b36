//! Commands that a store does not end. A task management function, a session that replaces this one, and the shutdown
//! wait for the end of aborted commands. They wait for a command until it is [`COMMAND_LIMIT`] old. Then it is
//! abandoned, and its unit is not ready until the command has ended (see `sarsen_scsi::Abandoned`).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use sarsen_io::time;
use sarsen_proto::iscsi::target::TaskId;
use sarsen_scsi::{self as scsi, Completion, Status};
use tracing::warn;

use super::Driver;
use crate::fronts::observer::BegunRequest;
use sarsen_volume::OperationKind;

/// A command that is older and has not ended stalls: its volume is reported as not responding. An aborted command of
/// this age is abandoned.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);
/// Commands that arrived within this time of each other are abandoned together.
const TOGETHER: Duration = Duration::from_millis(200);
/// Interval at which a connection looks for stalled commands.
const LOOK_INTERVAL: Duration = COMMAND_LIMIT;

/// A command that has not been answered.
pub(super) struct UnderWay {
    pub(super) task: TaskId,
    pub(super) begun: BegunRequest,
    pub(super) answer: Answer,
}

impl Future for UnderWay {
    type Output = (TaskId, BegunRequest, scsi::Completion);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, begun) = (self.task, self.begun);
        Pin::new(&mut self.answer).poll(context).map(|completion| (task, begun, completion))
    }
}

/// The future that ends with the command.
pub(super) enum Answer {
    /// The unit.
    Unit(scsi::UnderWay),
    /// The unit owns the command; the command is answered when this ends.
    Deferred(Pin<Box<dyn Future<Output = Completion>>>),
}

impl Future for Answer {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        match &mut *self {
            Self::Unit(under_way) => Pin::new(under_way).poll(context),
            Self::Deferred(deferred) => deferred.as_mut().poll(context),
        }
    }
}

impl Driver {
    /// Looks for commands that take too long. Returns the time of the next check.
    pub(super) fn look(&mut self) -> Instant {
        let now = time::now();
        let stalls =
            self.pending.iter().filter(|one| self.observer.age(one.begun, now) >= COMMAND_LIMIT);
        // The old stalls are dropped after the new ones exist, so that the unit keeps reporting commands that still
        // stall.
        self.stalls = stalls.filter_map(UnderWay::stall).collect();
        let due = self.abandon(now, UnderWay::is_aborted);
        let next = now + LOOK_INTERVAL;
        due.map_or(next, |due| due.min(next))
    }

    /// The same time, but not later than the next time at which the machine needs the clock.
    pub(super) fn next_wakeup(&mut self) -> Instant {
        self.look().min(self.machine.poll_timeout())
    }

    /// Writes off the `awaited` commands that have become too old. Returns when the next one will be too old.
    fn abandon(&mut self, now: Instant, awaited: impl Fn(&UnderWay) -> bool) -> Option<Instant> {
        let left = |one: &UnderWay, driver: &Self| {
            COMMAND_LIMIT.saturating_sub(driver.observer.age(one.begun, now))
        };
        let is_awaited = |one: &UnderWay| awaited(one) && matches!(one.answer, Answer::Unit(_));
        let awaited_now =
            |one: &UnderWay, driver: &Self| is_awaited(one) && left(one, driver) <= TOGETHER;
        if self.pending.iter().any(|one| is_awaited(one) && left(one, self).is_zero()) {
            let (old, young) = std::mem::take(&mut self.pending)
                .into_iter()
                .partition::<Vec<_>, _>(|one| awaited_now(one, self));
            self.pending.extend(young);
            // Some only wait for their turn or their limit: they end now, without a fence.
            if let Some(nexus) = &mut self.view.nexus {
                nexus.abort(&old.iter().map(|one| one.task.number()).collect::<Vec<_>>());
            }
            let mut volumes: BTreeMap<String, usize> = BTreeMap::new();
            for one in old {
                let volume = self.observer.volume(one.begun).unwrap_or_default().to_owned();
                *volumes.entry(volume).or_default() += 1;
                self.abandon_one(one);
            }
            for (volume, commands) in volumes {
                warn!(
                    volume,
                    commands,
                    seconds = COMMAND_LIMIT.as_secs(),
                    "the disk does not end aborted commands, and nothing waits for them any more; the volume is \
                     not ready until the disk has ended them"
                );
            }
        }
        let next = self.pending.iter().filter(|one| awaited(one)).map(|one| left(one, self)).min();
        // A command that cannot be abandoned is checked again later.
        next.map(|left| now + left.max(Duration::from_millis(10)))
    }

    fn abandon_one(&mut self, one: UnderWay) {
        let UnderWay { task, begun, answer } = one;
        if let Answer::Unit(under_way) = answer {
            match begun.operation.kind {
                // The command changes nothing, so no task has to wait for it.
                OperationKind::Read | OperationKind::Flush => {
                    let stall = under_way.report_stall();
                    tokio::task::spawn_local(async move {
                        under_way.await;
                        drop(stall);
                    });
                }
                OperationKind::Write | OperationKind::Unmap | OperationKind::Other => {
                    if let Some(abandoned) = under_way.abandon() {
                        tokio::task::spawn_local(abandoned);
                    }
                }
            }
        }
        self.end(task, begun, Completion::with_status(Status::TaskAborted));
    }

    /// Waits until all commands of the connection have ended or are not waited for any more.
    pub(super) async fn end_pending(&mut self) {
        while let Some(due) = self.abandon(time::now(), |_| true) {
            tokio::select! {
                Some((task, begun, completion)) = self.pending.next() => {
                    self.end(task, begun, completion);
                    self.complete_ready();
                }
                () = time::sleep_until(due) => {}
            }
        }
    }
}

impl UnderWay {
    fn is_aborted(&self) -> bool {
        self.begun.is_aborted()
    }

    fn stall(&self) -> Option<scsi::Stall> {
        match &self.answer {
            Answer::Unit(under_way) => under_way.report_stall(),
            Answer::Deferred(_) => None,
        }
    }
}
