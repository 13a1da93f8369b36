//! Threads beside the cores: for tools that wait in system calls of their own.

use std::io;
use std::panic::resume_unwind;
use std::thread::{Builder, JoinHandle, scope};

/// Starts a thread; `name` is what the system's tools show, of which the kernel keeps 15 bytes.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work)
}

/// Does `aside` on a thread of its own while the caller does `here`, and gives what both gave. A
/// panic of either is the caller's.
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
    #[should_panic(expected = "of the other thread")]
    fn a_panic_is_passed_on() {
        let _ = beside("aside", || panic!("a panic of the other thread"), || ());
    }
}
