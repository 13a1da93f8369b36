//! Threads for file operations that may block in the kernel: operations that the ring cannot carry out without
//! waiting, or all operations where io_uring is forbidden.
//!
//! Each file has a [`FileQueue`], which limits how many threads work on that file at once; more of its operations wait in
//! the queue. The threads belong to no queue: they start when there is work and end after they have been idle. So a
//! disk that does not respond occupies only the threads of its own queues.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Maximum of threads that work on one file at once. Further operations wait in the file's queue. The command windows of
/// the sessions limit their number.
pub(crate) const QUEUE_THREADS_MAX: usize = 16;
/// Above this number of threads, a queue gets a thread only if it has none.
const THREADS_MANY: usize = 1024;
/// A thread without work ends after this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads, shared by all cores.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<PoolState>,
    /// Signalled when there is work, or when the pool is closed.
    work: Condvar,
    /// Signalled when the last thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct PoolState {
    /// The first jobs of queues that wait for a thread.
    ready: VecDeque<(Arc<FileQueue>, Job)>,
    idle: usize,
    threads: usize,
    /// Number of threads ever started, for their names.
    started: usize,
    closed: bool,
}

/// The operations of one file. See the module.
#[derive(Default)]
pub(crate) struct FileQueue {
    state: Mutex<LaneState>,
}

#[derive(Default)]
struct LaneState {
    waiting: VecDeque<Job>,
    /// Threads that work on this queue, or have been requested for it.
    threads: usize,
}

impl fmt::Debug for FileQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileQueue").finish_non_exhaustive()
    }
}

impl FileQueue {
    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock()
    }

    /// Returns the next job for a thread that works on this queue; without a job the thread leaves the queue.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        let job = state.waiting.pop_front();
        if job.is_none() {
            state.threads -= 1;
        }
        job
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some((queue, job)) = state.ready.pop_front() {
                drop(state);
                let mut next = Some(job);
                while let Some(job) = next {
                    // The panic hook has reported a panic, and the job's receiver sees it.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    next = queue.next();
                }
                drop(queue);
                state = self.state();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timeout = self.work.wait_for(&mut state, IDLE_MAX);
            state.idle -= 1;
            if timeout.timed_out() && state.ready.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        if state.threads == 0 {
            self.ended.notify_all();
        }
    }
}

impl Pool {
    /// Creates a pool without threads.
    pub(crate) fn new() -> Self {
        let (work, ended) = (Condvar::new(), Condvar::new());
        Self { shared: Arc::new(Shared { state: Mutex::default(), work, ended }) }
    }

    /// Runs `job` on a thread, as one of the queue's. The job runs even when the future is dropped, and owns the data
    /// that it uses.
    pub(crate) fn run<T, F>(
        &self,
        queue: &Arc<FileQueue>,
        job: F,
    ) -> impl Future<Output = io::Result<T>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> io::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        // The receiver was dropped if its caller no longer waits.
        let queued = self.push(queue, Box::new(move || drop(sender.send(job()))));
        async move {
            queued?;
            receiver
                .await
                .unwrap_or_else(|_| Err(io::Error::other("a file operation ended in a panic")))
        }
    }

    fn push(&self, queue: &Arc<FileQueue>, job: Job) -> io::Result<()> {
        let mut own = queue.state();
        if own.threads >= QUEUE_THREADS_MAX {
            own.waiting.push_back(job);
            return Ok(());
        }
        let mut state = self.shared.state();
        if state.closed {
            return Err(io::Error::other("the file operations have ended"));
        }
        let needs_thread = state.idle <= state.ready.len();
        if needs_thread {
            let is_allowed = own.threads == 0 || state.threads < THREADS_MANY;
            let started = is_allowed.then(|| self.start_thread(&mut state));
            match started {
                Some(Ok(())) => {}
                // The queue's own threads will take the job.
                None | Some(Err(_)) if own.threads > 0 => {
                    own.waiting.push_back(job);
                    return Ok(());
                }
                Some(Err(error)) if state.threads == 0 => return Err(error),
                // The first idle thread will take the job.
                None | Some(Err(_)) => {}
            }
        }
        own.threads += 1;
        state.ready.push_back((queue.clone(), job));
        drop(state);
        drop(own);
        self.shared.work.notify_one();
        Ok(())
    }

    fn start_thread(&self, state: &mut PoolState) -> io::Result<()> {
        let shared = self.shared.clone();
        let name = format!("file-{}", state.started);
        let started = std::thread::Builder::new().name(name).spawn(move || shared.work());
        match started {
            Ok(_) => {
                state.started += 1;
                state.threads += 1;
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, "no further thread for file operations");
                Err(error)
            }
        }
    }
}

impl Drop for Pool {
    /// Finishes all operations, then ends the threads.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        self.shared.work.notify_all();
        while state.threads > 0 {
            self.shared.ended.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::cores::{FileEngine, block_on};

    /// Jobs that occupy their threads until this guard is dropped.
    struct HangingJobs {
        _held: Vec<mpsc::Sender<()>>,
    }

    impl HangingJobs {
        fn of(pool: &Pool, queue: &Arc<FileQueue>, jobs: usize) -> Self {
            let stuck = (0..jobs).map(|_| {
                let (sender, receiver) = mpsc::channel::<()>();
                drop(pool.run(queue, move || Ok(receiver.recv().is_err())));
                sender
            });
            Self { _held: stuck.collect() }
        }
    }

    fn answer(pool: &Pool, queue: &Arc<FileQueue>) -> usize {
        let answer = pool.run(queue, || Ok(7));
        block_on(FileEngine::Pool, answer).unwrap().unwrap()
    }

    #[test]
    fn files_whose_operations_hang_hold_no_thread_of_another() {
        let pool = Pool::new();
        let queues: Vec<Arc<FileQueue>> = (0..5).map(|_| Arc::default()).collect();
        let hung: Vec<HangingJobs> = queues
            .iter()
            .map(|queue| HangingJobs::of(&pool, queue, 4 * QUEUE_THREADS_MAX))
            .collect();
        assert_eq!(pool.shared.state().threads, 5 * QUEUE_THREADS_MAX);
        assert_eq!(answer(&pool, &Arc::default()), 7);
        drop(hung);
        for queue in &queues {
            assert_eq!(answer(&pool, queue), 7, "what hung goes on");
        }
    }

    #[test]
    fn however_many_files_hang_another_gets_a_thread() {
        let pool = Pool::new();
        let queues: Vec<Arc<FileQueue>> = (0..100).map(|_| Arc::default()).collect();
        let hung: Vec<HangingJobs> =
            queues.iter().map(|queue| HangingJobs::of(&pool, queue, QUEUE_THREADS_MAX)).collect();
        let threads = pool.shared.state().threads;
        assert!(threads < THREADS_MANY + queues.len(), "{threads}");
        assert_eq!(answer(&pool, &Arc::default()), 7);
        drop(hung);
        // The pool carries out every job before it ends.
        drop(pool);
        assert!(queues.iter().all(|queue| queue.state().waiting.is_empty()));
    }

    #[test]
    fn a_job_that_panics_takes_no_thread_from_its_file() {
        let pool = Pool::new();
        let queue: Arc<FileQueue> = Arc::default();
        for _ in 0..2 * QUEUE_THREADS_MAX {
            let ended = pool.run(&queue, || -> io::Result<()> { panic!("a test's panic") });
            assert!(block_on(FileEngine::Pool, ended).unwrap().is_err());
        }
        assert_eq!(answer(&pool, &queue), 7);
        // A thread leaves the queue after its job has answered.
        drop(pool);
        assert_eq!(queue.state().threads, 0);
    }
}
