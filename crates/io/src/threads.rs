//! Threads in addition to the cores: for tools that wait in their own system calls, and for work that must never occupy
//! a core.

use std::io;
use std::panic::resume_unwind;
use std::thread::{Builder, JoinHandle, scope};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinError;

/// Starts a thread. System tools show `name`, of which the kernel keeps 15 bytes.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work)
}

/// Starts a thread with its own runtime for sockets and timers, and runs the future of `make` there. Tasks that the
/// future has spawned are dropped when it ends.
pub fn spawn_runtime<F: Future<Output = ()>>(
    name: &str,
    make: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    spawn(name, move || runtime.block_on(async move { make().await }))
}

/// Like [`spawn_runtime`], for a thread whose end is not awaited. In a simulation the future is a task of the caller's `LocalSet`: what
/// a thread does at which time would not follow from the seed.
pub fn spawn_detached<F: Future<Output = ()> + 'static>(
    name: &str,
    make: impl FnOnce() -> F + Send + 'static,
) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_seeded() {
        tokio::task::spawn_local(make());
        return Ok(());
    }
    spawn_runtime(name, make).map(drop)
}

/// Runs `work`, which may block for any time, on a thread of its own. The work continues if the caller is dropped. In a
/// simulation it runs at once. An error is that no thread started, or a panic of the work.
pub async fn run_detached<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_seeded() {
        return Ok(work());
    }
    let (done, answer) = oneshot::channel();
    spawn(name, move || drop(done.send(work())))?;
    answer.await.map_err(|_| io::Error::other("its thread panicked"))
}

/// Runs `work`, which may block, on a separate thread, so that the runtime's other tasks do not wait for it. The work
/// continues if the caller is dropped. An error is its panic, or the end of the runtime.
pub async fn aside<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, JoinError> {
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work)).await
}

/// Runs `aside` on a separate thread while the caller runs `here`, and returns both results. A panic of either panics
/// the caller.
pub fn beside<A: Send, H>(
    name: &str,
    aside: impl FnOnce() -> A + Send,
    here: impl FnOnce() -> H,
) -> io::Result<(A, H)> {
    scope(|scope| {
        let aside = Builder::new().name(name.into()).spawn_scoped(scope, aside)?;
        let here = here();
        match aside.join() {
            Ok(aside) => Ok((aside, here)),
            Err(panic) => resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn both_sides_run_at_once_and_borrow() {
        let meeting = Barrier::new(2);
        let words = String::from("borrowed");
        let both = beside(
            "aside",
            || {
                meeting.wait();
                words.len()
            },
            || {
                meeting.wait();
                words.as_str()
            },
        );
        assert_eq!(both.unwrap(), (words.len(), "borrowed"));
    }

    #[test]
    fn runtime_drops_its_tasks_when_it_ends() {
        let (running, run) = std::sync::mpsc::channel::<()>();
        let thread = spawn_runtime("aside", move || async move {
            let (started, start) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let _ = started.send(());
                let _running = running;
                std::future::pending::<()>().await;
            });
            start.await.unwrap();
        });
        thread.unwrap().join().unwrap();
        assert!(run.recv().is_err(), "the task is gone, and its sender with it");
    }

    #[test]
    #[should_panic(expected = "of the other thread")]
    fn a_panic_is_passed_on() {
        let _ = beside("aside", || panic!("a panic of the other thread"), || ());
    }
}
