//! Core threads: each is a current-thread runtime with its own ring for files. All cores share one bounded pool.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc as channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_block::Buffer;
use tokio::runtime::{Builder, Handle, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use crate::pool::Pool;
use crate::ring::{self, Ring};
use crate::spin::{self, Spin};

/// How file operations reach the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileEngine {
    /// io_uring if the kernel permits it, otherwise the pool.
    #[default]
    Auto,
    /// io_uring; starting fails if it is forbidden.
    Uring,
    /// A bounded pool of threads.
    Pool,
}

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The core threads. Dropping them without [`Cores::shutdown`] does the same.
pub struct Cores {
    engine: FileEngine,
    cores: Vec<Core>,
}

struct Core {
    jobs: mpsc::UnboundedSender<Job>,
    /// `None` for a core that a simulation drives.
    runtime: Option<Handle>,
    /// `None` for a core that a simulation drives.
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended except for its last steps. In a lock because the cores are shared.
    ended: Mutex<channel::Receiver<()>>,
}

impl Cores {
    /// Starts `count` threads, or as many as the machine provides to this process.
    pub fn start(count: Option<NonZeroUsize>, engine: FileEngine, spin: Spin) -> io::Result<Self> {
        let count = match count {
            Some(count) => count,
            None => std::thread::available_parallelism()?,
        };
        let engine = choose(engine)?;
        let pool = Arc::new(Pool::new());
        Buffer::share_kept_bytes(count.get());
        // An early return drops the cores that started, which ends them.
        let mut cores = Self { engine, cores: Vec::with_capacity(count.get()) };
        for index in 0..count.get() {
            cores.cores.push(Core::start(index, engine, spin, pool.clone())?);
        }
        Ok(cores)
    }

    /// Creates one core without a thread: the future runs its jobs on the `LocalSet` that polls it, until the cores are
    /// dropped. Files cannot be used there.
    #[cfg(feature = "simulation")]
    pub fn simulated() -> (Self, impl Future<Output = ()> + 'static) {
        let (jobs, mut to_run) = mpsc::unbounded_channel::<Job>();
        let (_, ended) = channel::channel();
        let core = Core { jobs, runtime: None, thread: None, ended: Mutex::new(ended) };
        let run = async move {
            while let Some(job) = to_run.recv().await {
                tokio::task::spawn_local(job());
            }
        };
        (Self { engine: FileEngine::Pool, cores: vec![core] }, run)
    }

    /// Returns the number of cores: one or more.
    #[allow(clippy::len_without_is_empty)] // there is always a core
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Runs a future on core `index` until it ends or the cores shut down. The future is created there, so it need not
    /// be `Send`.
    pub fn spawn_on<F>(&self, index: usize, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        // A core ends before its `Cores` only by a panic, which has been reported.
        let _ = self.cores[index].jobs.send(Box::new(move || Box::pin(make())));
    }

    /// Registers a socket at core `index`, whatever thread calls this.
    pub(crate) fn register(
        &self,
        index: usize,
        socket: std::net::TcpStream,
    ) -> io::Result<tokio::net::TcpStream> {
        let runtime = self.cores[index].runtime.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let _entered = runtime.enter();
        tokio::net::TcpStream::from_std(socket)
    }

    /// Waits until every core has run a job that is queued now, so no core is stuck. Returns false if a core has ended.
    pub async fn pulse(&self) -> bool {
        let beat = |index| {
            let (sender, answer) = oneshot::channel();
            self.spawn_on(index, move || async move {
                let _ = sender.send(());
            });
            answer
        };
        let answers: Vec<_> = (0..self.len()).map(beat).collect();
        for answer in answers {
            if answer.await.is_err() {
                return false;
            }
        }
        true
    }

    /// Returns the engine in use: never `Auto`.
    pub fn file_engine(&self) -> FileEngine {
        self.engine
    }

    /// Drops the futures that still run, lets the file operations in flight finish, and waits for the threads to end.
    /// A caller that wants the futures to complete must ask them to end, and wait for them, before this. Must not be
    /// called on a core.
    pub fn shutdown(self) {}

    /// Does the same with a time limit. Returns false if operations are still in the kernel, as with a disk that does
    /// not respond. Their threads and buffers stay until the process ends.
    pub fn shutdown_within(mut self, limit: Duration) -> bool {
        let deadline = crate::time::now() + limit;
        let (threads, ends): (Vec<_>, Vec<_>) =
            self.cores.drain(..).map(|core| (core.thread, core.ended)).unzip();
        let has_ended = |end: &Mutex<channel::Receiver<()>>| {
            let end = end.lock();
            let left = deadline.saturating_duration_since(crate::time::now());
            end.recv_timeout(left) == Err(channel::RecvTimeoutError::Disconnected)
        };
        if !ends.iter().all(has_ended) {
            return false;
        }
        for thread in threads.into_iter().flatten() {
            // The core has already reported its panic.
            let _ = thread.join();
        }
        true
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        let threads: Vec<_> = self.cores.drain(..).filter_map(|core| core.thread).collect();
        for thread in threads {
            // The core has reported its panic.
            let _ = thread.join();
        }
    }
}

impl Core {
    fn start(index: usize, engine: FileEngine, spin: Spin, pool: Arc<Pool>) -> io::Result<Self> {
        let (jobs, mut received) = mpsc::unbounded_channel::<Job>();
        let (started, start) = channel::channel();
        let (ending, ended) = channel::channel::<()>();
        let serve = async move {
            match spin {
                Spin::Auto => drop(tokio::task::spawn_local(spin::drive())),
                Spin::Never => {}
            }
            while let Some(job) = received.recv().await {
                tokio::task::spawn_local(job());
            }
        };
        let thread =
            std::thread::Builder::new().name(format!("core-{index}")).spawn(move || {
                // Dropped last.
                let _ending = ending;
                match Environment::enter(engine, pool) {
                    Ok(environment) => {
                        let _ = started.send(Ok(environment.runtime.handle().clone()));
                        environment.run(serve);
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            })?;
        match start.recv() {
            Ok(Ok(runtime)) => Ok(Self {
                jobs,
                runtime: Some(runtime),
                thread: Some(thread),
                ended: Mutex::new(ended),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("a core thread ended while it started")),
        }
    }
}

/// Runs a future on the calling thread as if it were a core: for tests and tools. At the end it waits for file
/// operations in flight.
///
/// # Panics If the thread is a core already.
pub fn block_on<F: Future>(engine: FileEngine, future: F) -> io::Result<F::Output> {
    let engine = choose(engine)?;
    Ok(Environment::enter(engine, Arc::new(Pool::new()))?.run(future))
}

/// Selects an engine and logs it.
fn choose(engine: FileEngine) -> io::Result<FileEngine> {
    match engine {
        FileEngine::Pool => {
            tracing::info!("files: a pool of threads, as configured");
            Ok(FileEngine::Pool)
        }
        FileEngine::Uring => match Ring::probe() {
            Ok(()) => {
                tracing::info!("files: io_uring, as configured");
                Ok(FileEngine::Uring)
            }
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!(
                    "io_uring was asked for but does not work here ({error}): allow it \
                     (seccomp profile, kernel.io_uring_disabled), or leave the choice to auto"
                ),
            )),
        },
        FileEngine::Auto => match Ring::probe() {
            Ok(()) => {
                tracing::info!("files: io_uring");
                Ok(FileEngine::Uring)
            }
            Err(error) => {
                tracing::info!(reason = %error, "files: a pool of threads, since io_uring does not work here");
                Ok(FileEngine::Pool)
            }
        },
    }
}

thread_local! {
    static HERE: RefCell<Option<CoreContext>> = const { RefCell::new(None) };
}

/// The ring and the pool for file operations on this thread.
pub(crate) struct CoreContext {
    pub(crate) ring: Option<Rc<Ring>>,
    pub(crate) pool: Arc<Pool>,
}

impl CoreContext {
    /// Passes the environment of the calling thread to `with`, if it is a core.
    pub(crate) fn with<T>(with: impl FnOnce(Option<&Self>) -> T) -> T {
        HERE.with_borrow(|here| with(here.as_ref()))
    }
}

/// Makes the thread a core until this is dropped.
struct Environment {
    runtime: tokio::runtime::LocalRuntime,
    _left: ContextGuard,
}

/// Removes the thread's ring after the runtime was dropped, and waits for the ring's operations.
struct ContextGuard;

impl Drop for ContextGuard {
    fn drop(&mut self) {
        drop(HERE.take());
    }
}

impl Environment {
    fn enter(engine: FileEngine, pool: Arc<Pool>) -> io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        builder.enable_all().on_thread_park(|| {
            spin::note_sleep();
            #[cfg(feature = "slow-wake-ups")]
            crate::wake_ups::before_sleep();
        });
        #[cfg(feature = "slow-wake-ups")]
        builder.on_thread_unpark(crate::wake_ups::charge);
        let runtime = builder.build_local(LocalOptions::default())?;
        let ring = match engine {
            FileEngine::Uring => Some(Rc::new(Ring::new()?)),
            FileEngine::Pool => None,
            FileEngine::Auto => unreachable!("the engine was chosen before"),
        };
        if let Some(ring) = &ring {
            runtime.spawn_local(ring::drive(ring.clone()));
        }
        let before = HERE.replace(Some(CoreContext { ring, pool }));
        assert!(before.is_none(), "this thread is a core already");
        Ok(Self { runtime, _left: ContextGuard })
    }

    fn run<F: Future>(self, future: F) -> F::Output {
        let output = self.runtime.block_on(future);
        // The fields drop in order: the runtime with its tasks, then the ring.
        drop(self);
        output
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn futures_run_on_the_core_that_was_named() {
        let cores = Cores::start(NonZeroUsize::new(3), FileEngine::Auto, Spin::Auto).unwrap();
        assert_eq!(cores.len(), 3);
        assert_ne!(cores.file_engine(), FileEngine::Auto);
        for index in 0..3 {
            let (sender, receiver) = channel::channel();
            cores.spawn_on(index, move || async move {
                let not_send = Rc::new(sender);
                tokio::task::yield_now().await;
                not_send.send(std::thread::current().name().map(str::to_owned)).unwrap();
            });
            assert_eq!(receiver.recv().unwrap(), Some(format!("core-{index}")));
        }
        cores.shutdown();
    }

    #[test]
    fn a_pulse_goes_through_every_core_and_stops_at_one_that_is_stuck() {
        let cores = Cores::start(NonZeroUsize::new(2), FileEngine::Pool, Spin::Never).unwrap();
        assert!(block_on(FileEngine::Pool, cores.pulse()).unwrap());
        let (go_on, stuck) = channel::channel::<()>();
        cores.spawn_on(1, move || async move {
            let _ = stuck.recv();
        });
        let mut pulse = Box::pin(cores.pulse());
        let mut context = Context::from_waker(Waker::noop());
        assert!(pulse.as_mut().poll(&mut context).is_pending());
        go_on.send(()).unwrap();
        assert!(block_on(FileEngine::Pool, pulse).unwrap());
        cores.shutdown();
    }

    #[test]
    fn shutdown_drops_running_tasks() {
        struct EndedNotice(channel::Sender<()>);
        impl Drop for EndedNotice {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let cores = Cores::start(NonZeroUsize::new(1), FileEngine::Pool, Spin::Never).unwrap();
        let (sender, dropped) = channel::channel();
        let (running, runs) = channel::channel();
        cores.spawn_on(0, move || async move {
            let _reported = EndedNotice(sender);
            running.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        runs.recv().unwrap();
        cores.shutdown();
        dropped.try_recv().unwrap();
    }

    #[test]
    fn cores_whose_operations_hang_are_given_up_and_others_are_waited_for() {
        let limit = Duration::from_millis(50);
        for hangs in [false, true] {
            let cores = Cores::start(NonZeroUsize::new(2), FileEngine::Pool, Spin::Never).unwrap();
            let (go_on, stuck) = channel::channel::<()>();
            let (started, start) = channel::channel();
            cores.spawn_on(1, move || async move {
                let queue = Arc::default();
                let wait = move || {
                    started.send(()).unwrap();
                    Ok(stuck.recv().is_err())
                };
                let waiting = CoreContext::with(|here| here.unwrap().pool.run(&queue, wait));
                waiting.await.unwrap();
            });
            start.recv().unwrap();
            let kept = hangs.then_some(go_on);
            let limit = if hangs { limit } else { Duration::from_secs(60) };
            assert_eq!(cores.shutdown_within(limit), !hangs);
            drop(kept);
        }
    }

    #[test]
    fn block_on_forces_the_pool() {
        let ring = || CoreContext::with(|here| here.map(|here| here.ring.is_some()));
        assert_eq!(block_on(FileEngine::Pool, async { ring() }).unwrap(), Some(false));
        assert_eq!(ring(), None, "the thread is ordinary again");
    }

    /// Makes io_uring_setup fail with EPERM on the calling thread and on threads that it starts, as the default seccomp
    /// profile of container engines does.
    #[allow(unsafe_code)]
    fn forbid_io_uring() {
        let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let mut filter = [
            // The first word of seccomp_data is the number of the system call.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                libc::SYS_io_uring_setup as u32,
            ),
            statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
            statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: both calls only restrict this thread; the program outlives the second.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &program), 0);
        }
    }

    #[test]
    fn where_io_uring_is_forbidden_auto_takes_the_pool_and_uring_says_why_not() {
        let restricted = std::thread::Builder::new().spawn(|| {
            forbid_io_uring();
            let cores = Cores::start(NonZeroUsize::new(2), FileEngine::Auto, Spin::Never).unwrap();
            assert_eq!(cores.file_engine(), FileEngine::Pool);
            cores.shutdown();
            let error =
                Cores::start(NonZeroUsize::new(1), FileEngine::Uring, Spin::Never).err().unwrap();
            assert!(error.to_string().contains("seccomp"), "{error}");
        });
        restricted.unwrap().join().unwrap();
    }
}
