//! Operations of stores that run on a core, and their callers, which are other threads.

use std::io;
use std::pin::pin;
use std::sync::{Weak, mpsc};
use std::task::{Context, Poll, Waker};

use sarsen_block::Io;
use sarsen_io::cores::Cores;
use tokio::sync::oneshot;

use super::StoreError;

/// The cores on which operations of stores run.
#[derive(Clone)]
pub(crate) struct StoreCores(pub(crate) Weak<Cores>);

impl StoreCores {
    /// Starts an operation on a core. The operation ends there, even if its caller does not wait.
    pub(super) fn begin<T, F>(
        &self,
        operation: impl FnOnce() -> F + Send + 'static,
    ) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (done, answer) = oneshot::channel();
        if let Some(cores) = self.0.upgrade() {
            cores.spawn_on(0, move || async move { drop(done.send(operation().await)) });
        }
        answer
    }

    /// Starts a task on one of the cores: which one follows from a number.
    pub(super) fn spawn_by<F>(&self, number: usize, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        if let Some(cores) = self.0.upgrade() {
            cores.spawn_on(number % cores.len(), make);
        }
    }

    /// Carries out an operation on a core. Blocks the thread, which must not be one.
    pub(super) fn run<T, F>(
        &self,
        operation: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        self.run_by(0, operation)
    }

    /// The same, on one of the cores: which one follows from a number.
    pub(super) fn run_by<T, F>(
        &self,
        number: usize,
        operation: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        let (done, answer) = mpsc::channel();
        let Some(cores) = self.0.upgrade() else { return Err(StoreError::ServerEnds) };
        let core = number % cores.len();
        cores.spawn_on(core, move || async move { drop(done.send(operation().await)) });
        drop(cores);
        answer.recv().unwrap_or(Err(StoreError::ServerEnds))
    }
}

/// Returns the answer of a store or metadata store on a thread that is not a core, where the answers of files are ready at once.
pub(super) fn ready<T>(answer: Io<T>) -> Option<T> {
    match pin!(answer.wait()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// The same for an answer that may be an error.
pub(crate) fn now<T>(answer: Io<io::Result<T>>) -> io::Result<T> {
    ready(answer).unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
}
