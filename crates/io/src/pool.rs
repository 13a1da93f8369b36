//! A bounded pool of threads for file operations that the ring does not take, or all of them
//! where io_uring is forbidden. Threads start when there is work for them and stay.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

/// At most so many threads wait in system calls at once; further work queues. The queue itself
/// is bounded by the command windows of the sessions above.
const THREADS_MAX: usize = 32;

type Job = Box<dyn FnOnce() + Send>;

/// The threads and their queue, shared by all cores.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.state();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl Pool {
    /// A pool without threads yet.
    pub(crate) fn new() -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), work: Condvar::new() }) }
    }

    /// Runs `job` on a thread of the pool. It runs even when the future is dropped, and owns what
    /// it works on.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> + 'static {
        let (sender, receiver) = oneshot::channel();
        // The receiver is gone when nobody waits any more.
        let queued = self.push(Box::new(move || drop(sender.send(job()))));
        async move {
            queued?;
            receiver
                .await
                .unwrap_or_else(|_| Err(io::Error::other("a file operation ended in a panic")))
        }
    }

    fn push(&self, job: Job) -> io::Result<()> {
        let mut state = self.shared.state();
        assert!(!state.closed, "a file operation after the pool was closed");
        if state.idle <= state.queue.len() && state.threads.len() < THREADS_MAX {
            let shared = self.shared.clone();
            let name = format!("file-{}", state.threads.len());
            match std::thread::Builder::new().name(name).spawn(move || shared.work()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => return Err(error),
                Err(error) => tracing::debug!(%error, "no further thread for file operations"),
            }
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    /// Finishes what is queued, then ends the threads.
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.work.notify_all();
        for thread in threads {
            // A job that panicked has said so already.
            let _ = thread.join();
        }
    }
}
