//! An executor for tests: one thread, and an order of events that a seed repeats.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sarsen_block::LocalFuture;

use super::device::SimulatedDevice;
use crate::Tasks;

thread_local! {
    /// Requests that lost their callers.
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
    static FINISHING: RefCell<Vec<LocalFuture<()>>> = const { RefCell::new(Vec::new()) };
}

/// Continues dropped requests on the executor of this thread.
pub(super) struct LocalTasks;

impl LocalTasks {
    pub(super) fn shared() -> Arc<dyn Tasks> {
        Arc::new(Self)
    }
}

impl Tasks for LocalTasks {
    fn finish(&self, future: LocalFuture<()>) {
        if !IS_ENDING.get() {
            FINISHING.with(|finishing| finishing.borrow_mut().push(future));
        }
    }
}

/// Ends what is left of a pool without waiting, as a power failure does.
pub(super) fn end_all<T>(remains: T) {
    IS_ENDING.set(true);
    drop(remains);
    FINISHING.with(|finishing| std::mem::take(&mut *finishing.borrow_mut()));
    IS_ENDING.set(false);
}

/// Runs a future until it ends. Whenever it waits, one of the devices carries out one request.
pub(super) fn run<T>(devices: &[Arc<SimulatedDevice>], future: impl Future<Output = T>) -> T {
    run_until(devices, u64::MAX, future).expect("it ends")
}

/// Runs a future until it ends, or until the devices have carried out this number of requests.
pub(super) fn run_until<T>(
    devices: &[Arc<SimulatedDevice>],
    mut requests: u64,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut idle = 0;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        let mut finishing =
            FINISHING.with(|finishing| std::mem::take(&mut *finishing.borrow_mut()));
        finishing.retain_mut(|future| future.as_mut().poll(&mut context).is_pending());
        FINISHING.with(|all| all.borrow_mut().append(&mut finishing));
        let stepped = devices.iter().filter(|device| device.step()).count() as u64;
        requests = requests.saturating_sub(stepped);
        if requests == 0 {
            end_all(future);
            return None;
        }
        // What a failed request ended does not wait for the devices any more.
        if stepped == 0 && devices.iter().any(|device| device.has_failed()) && idle > 100 {
            end_all(future);
            return None;
        }
        idle = if stepped > 0 { 0 } else { idle + 1 };
        assert!(idle < 10_000, "everything waits, and no device has a request");
    }
}

/// Polls a future once.
pub(super) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future so often, and drops it.
pub(super) async fn abandon(polls: u64, future: impl Future) {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if poll_once(&mut future).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}
