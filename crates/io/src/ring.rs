//! One io_uring a core, for files.
//!
//! An operation lives in a slot of the ring from its start until its completion was taken, with
//! the buffer and the file that the kernel uses: dropping the future that waits for it leaves
//! both in place. Operations that start in one turn of the event loop go to the kernel in one
//! call. Completions signal an eventfd, whose edge wakes the core's [`drive`] task; the ring's own
//! descriptor would not, since deferred completions are only posted when their thread asks.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::EventfdFlags;
use sarsen_block::Buffer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::file::Opened;

/// Entries of the submission queue: the most that one call hands over.
const SUBMISSIONS: u32 = 256;
/// Operations that the kernel holds at once, and the size of the completion queue, which can
/// therefore not overflow. More wait in a queue of ours.
const IN_KERNEL_MAX: u32 = 1024;
/// The longest transfer in one entry; longer ones continue in another.
const TRANSFER_MAX: usize = 1 << 30;
const IORING_ENTER_GETEVENTS: u32 = 1;

/// What the kernel is to do, with everything it touches.
pub(crate) struct Operation {
    pub(crate) file: Arc<Opened>,
    pub(crate) kind: Kind,
}

/// The kinds of operation. `done` counts the bytes of the buffer that were moved earlier.
pub(crate) enum Kind {
    Read { buffer: Buffer, done: usize, offset: u64 },
    Write { buffer: Buffer, done: usize, offset: u64, durable: bool },
    SyncData,
    Allocate { mode: i32, offset: u64, length: u64 },
    Nothing,
}

impl Operation {
    fn entry(&mut self) -> squeue::Entry {
        let file = types::Fd(self.file.fd.as_raw_fd());
        match &mut self.kind {
            Kind::Read { buffer, done, offset } => {
                let rest = &mut buffer[*done..];
                let length = rest.len().min(TRANSFER_MAX) as u32;
                opcode::Read::new(file, rest.as_mut_ptr(), length)
                    .offset(*offset + *done as u64)
                    .build()
            }
            Kind::Write { buffer, done, offset, durable } => {
                let rest = &buffer[*done..];
                let length = rest.len().min(TRANSFER_MAX) as u32;
                opcode::Write::new(file, rest.as_ptr(), length)
                    .offset(*offset + *done as u64)
                    .rw_flags(if *durable { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            Kind::SyncData => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Kind::Allocate { mode, offset, length } => {
                opcode::Fallocate::new(file, *length).offset(*offset).mode(*mode).build()
            }
            Kind::Nothing => opcode::Nop::new().build(),
        }
    }
}

enum Slot {
    Free,
    Busy { operation: Operation, waker: Option<Waker>, abandoned: bool },
    Finished { operation: Operation, result: i32 },
}

struct State {
    ring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose entry is not in the submission queue yet.
    waiting: VecDeque<usize>,
    /// Entries in the submission queue or the kernel.
    in_kernel: u32,
    /// Wakers of what a turn finished; kept for its memory.
    finished: Vec<Waker>,
}

/// The ring of one core; only its thread uses it.
pub(crate) struct Ring {
    state: RefCell<State>,
    signal: OwnedFd,
    /// The driver task, to be woken when there is something to submit.
    driver: RefCell<Option<Waker>>,
    unsubmitted: Cell<bool>,
}

impl Ring {
    /// A ring for the calling thread.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = build()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            ("read", opcode::Read::CODE),
            ("write", opcode::Write::CODE),
            ("fsync", opcode::Fsync::CODE),
            ("fallocate", opcode::Fallocate::CODE),
        ];
        for (name, code) in needed {
            if !probe.is_supported(code) {
                return Err(io::Error::other(format!("this kernel's io_uring has no {name}")));
            }
        }
        let signal = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(signal.as_raw_fd())?;
        let state = State {
            ring,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            in_kernel: 0,
            finished: Vec::new(),
        };
        Ok(Self {
            state: RefCell::new(state),
            signal,
            driver: RefCell::new(None),
            unsubmitted: Cell::new(false),
        })
    }

    /// Whether a ring can be made and does something.
    pub(crate) fn probe() -> io::Result<()> {
        let ring = Rc::new(Self::new()?);
        let file = Arc::new(Opened::new(rustix::io::dup(&ring.signal)?, false));
        let mut nothing = ring.start(Operation { file, kind: Kind::Nothing });
        ring.turn();
        match Pin::new(&mut nothing).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((_, result)) => result.map(drop),
            Poll::Pending => Err(io::Error::other("io_uring did not complete an empty operation")),
        }
    }

    /// Puts an operation into the ring; the driver submits it in this turn of the event loop.
    pub(crate) fn start(self: &Rc<Self>, operation: Operation) -> Completion {
        let mut state = self.state.borrow_mut();
        let slot = Slot::Busy { operation, waker: None, abandoned: false };
        let index = match state.free.pop() {
            Some(index) => {
                state.slots[index] = slot;
                index
            }
            None => {
                state.slots.push(slot);
                state.slots.len() - 1
            }
        };
        state.waiting.push_back(index);
        self.request_turn();
        Completion { ring: self.clone(), slot: Some(index) }
    }

    fn request_turn(&self) {
        if !self.unsubmitted.replace(true)
            && let Some(driver) = self.driver.borrow().as_ref()
        {
            driver.wake_by_ref();
        }
    }

    /// Submits what waits and takes what has completed.
    fn turn(&self) {
        self.unsubmitted.set(false);
        let mut finished = {
            let mut state = self.state.borrow_mut();
            if !state.exchange(0) {
                self.request_turn();
            }
            std::mem::take(&mut state.finished)
        };
        // Woken outside the borrow: a waker may drop a future that waits in here.
        finished.drain(..).for_each(Waker::wake);
        self.state.borrow_mut().finished = finished;
    }
}

/// A ring with the best flags that this kernel takes: completions run when the core asks for
/// them rather than by interrupting it (6.1), else without an interrupt to other cores (5.19).
fn build() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(IN_KERNEL_MAX).setup_clamp();
    let mut best = builder.clone();
    let mut good = builder.clone();
    best.setup_single_issuer().setup_defer_taskrun();
    good.setup_coop_taskrun();
    best.build(SUBMISSIONS)
        .or_else(|_| good.build(SUBMISSIONS))
        .or_else(|_| builder.build(SUBMISSIONS))
}

impl State {
    /// Hands over and takes back until nothing moves, waiting for `wanted` completions. False
    /// when the kernel could not take everything and is to be asked again.
    fn exchange(&mut self, wanted: u32) -> bool {
        loop {
            let entries_left = self.fill_submission_queue();
            // SAFETY: no argument is passed; the entries in the queue point into slots, which
            // keep their buffers until the completion was taken.
            let entered = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(
                    entries_left,
                    wanted,
                    IORING_ENTER_GETEVENTS,
                    None,
                )
            };
            self.take_completions();
            match entered {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // Out of memory or of room for the moment, or a signal.
                    Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => return false,
                    _ => panic!("io_uring_enter: {error}"),
                },
            }
            let unsubmitted = !self.ring.submission().is_empty();
            let more = !self.waiting.is_empty() && self.in_kernel < IN_KERNEL_MAX;
            if !unsubmitted && !more {
                return true;
            }
        }
    }

    /// The number of entries that the kernel is to take.
    fn fill_submission_queue(&mut self) -> u32 {
        let mut queue = self.ring.submission();
        while self.in_kernel < IN_KERNEL_MAX
            && !queue.is_full()
            && let Some(index) = self.waiting.pop_front()
        {
            let Slot::Busy { operation, .. } = &mut self.slots[index] else {
                unreachable!("slot {index} waits but is not busy");
            };
            let entry = operation.entry().user_data(index as u64);
            // SAFETY: the entry's file and buffer belong to the slot, which neither drops nor
            // touches them before the completion with this index was taken.
            let pushed = unsafe { queue.push(&entry) };
            assert!(pushed.is_ok(), "the submission queue was not full");
            self.in_kernel += 1;
        }
        queue.sync();
        queue.len() as u32
    }

    fn take_completions(&mut self) {
        for completion in self.ring.completion() {
            let index = completion.user_data() as usize;
            self.in_kernel -= 1;
            let slot = std::mem::replace(&mut self.slots[index], Slot::Free);
            let Slot::Busy { operation, waker, abandoned } = slot else {
                unreachable!("slot {index} completed but was not busy");
            };
            if abandoned {
                self.free.push(index);
                continue;
            }
            self.slots[index] = Slot::Finished { operation, result: completion.result() };
            self.finished.extend(waker);
        }
    }
}

impl Drop for Ring {
    /// Waits for what the kernel still has: it writes into our buffers until then.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        while !state.waiting.is_empty() || state.in_kernel > 0 {
            state.exchange(u32::from(state.in_kernel > 0));
        }
    }
}

/// Waits for one operation and gives it back, with the kernel's answer.
pub(crate) struct Completion {
    ring: Rc<Ring>,
    /// None once the answer was given.
    slot: Option<usize>,
}

impl Future for Completion {
    type Output = (Operation, io::Result<u32>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(index) = self.slot else { panic!("polled after the answer") };
        let mut state = self.ring.state.borrow_mut();
        match std::mem::replace(&mut state.slots[index], Slot::Free) {
            Slot::Finished { operation, result } => {
                state.free.push(index);
                drop(state);
                self.slot = None;
                let result =
                    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                Poll::Ready((operation, result))
            }
            Slot::Busy { operation, abandoned, .. } => {
                let waker = Some(context.waker().clone());
                state.slots[index] = Slot::Busy { operation, waker, abandoned };
                Poll::Pending
            }
            Slot::Free => unreachable!("slot {index} was freed under its future"),
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(index) = self.slot else { return };
        let mut state = self.ring.state.borrow_mut();
        match &mut state.slots[index] {
            Slot::Busy { abandoned, .. } => *abandoned = true,
            Slot::Finished { .. } => {
                state.slots[index] = Slot::Free;
                state.free.push(index);
            }
            Slot::Free => unreachable!("slot {index} was freed under its future"),
        }
    }
}

/// The eventfd as the runtime registers it; the ring owns it.
struct Signal(Rc<Ring>);

impl AsRawFd for Signal {
    fn as_raw_fd(&self) -> RawFd {
        self.0.signal.as_raw_fd()
    }
}

/// Submits and completes for as long as the core runs.
pub(crate) async fn drive(ring: Rc<Ring>) {
    // SAFETY: the descriptor belongs to the ring, which the watcher keeps alive: it is closed only
    // after the registration.
    let registered =
        unsafe { AsyncFd::register_with_interest(Signal(ring.clone()), Interest::READABLE) };
    let signal = match registered {
        Ok(signal) => signal,
        Err(error) => panic!("cannot watch the ring's eventfd: {}", io::Error::from(error)),
    };
    poll_fn(|context| {
        ring.driver.replace(Some(context.waker().clone()));
        loop {
            // The runtime watches edges, so the eventfd's counter need not be read: each
            // completion is an edge of its own.
            let signalled = match signal.poll_read_ready(context) {
                Poll::Ready(Ok(mut guard)) => {
                    guard.clear_ready();
                    true
                }
                Poll::Ready(Err(error)) => panic!("waiting for the ring's eventfd: {error}"),
                Poll::Pending => false,
            };
            if !signalled && !ring.unsubmitted.get() {
                return Poll::Pending;
            }
            ring.turn();
            if ring.unsubmitted.get() && !signalled {
                // The kernel is short of something: let the others run first.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    })
    .await
}
