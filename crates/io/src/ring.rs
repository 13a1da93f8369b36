//! One io_uring per core, for files.
//!
//! An operation stays in a slot of the ring from its start until its completion is taken, with the buffer and the file
//! that the kernel uses. Dropping the future that waits for it changes neither. Operations that start in one turn of
//! the event loop go to the kernel in one call. Completions signal an eventfd, whose edge wakes the core's [`drive`]
//! task. The ring's own descriptor would not, because the kernel posts deferred completions only when their thread asks
//! for them.
//!
//! If the kernel rejects a call temporarily, the ring tries again. If the kernel rejects it permanently, the ring is
//! broken: the pool carries out the operations that the kernel has not taken. Operations that it has taken end with an
//! error and keep their buffers. The core then works without a ring.
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
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::EventfdFlags;
use sarsen_block::{Buffer, Payload};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::file::{Opened, RingRead};

/// Entries of the submission queue: the maximum of one call.
const SUBMISSIONS: u32 = 256;
/// The size of the completion queue. The kernel keeps completions beyond it (IORING_FEAT_NODROP, in all kernels that
/// have the operations used here), so operations of a disk that does not respond do not block others.
const COMPLETIONS: u32 = 1024;
/// After this number of temporary rejections in a row, the ring waits for [`RETRY_PAUSE`] before each further call.
const RETRIES_AT_ONCE: u32 = 16;
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The maximum transfer of one entry; longer transfers continue in another entry.
const TRANSFER_MAX: usize = 1 << 30;
const IORING_ENTER_GETEVENTS: u32 = 1;

/// An operation for the kernel, with all objects that it uses.
pub(crate) struct Operation {
    pub(crate) file: Arc<Opened>,
    pub(crate) kind: OperationKind,
    /// Set while a buffered read is in the ring.
    pub(crate) ring_read: Option<RingRead>,
}

/// The kinds of operation. `done` is the number of bytes of the buffer that were moved earlier.
pub(crate) enum OperationKind {
    Read { buffer: Buffer, done: usize, offset: u64 },
    Write { data: Payload, done: usize, offset: u64, durable: bool },
    SyncData,
    Allocate { mode: i32, offset: u64, length: u64 },
    Nothing,
}

impl Operation {
    fn entry(&mut self) -> squeue::Entry {
        let file = types::Fd(self.file.fd.as_raw_fd());
        let no_wait = if self.avoids_waiting() { libc::RWF_NOWAIT } else { 0 };
        match &mut self.kind {
            OperationKind::Read { buffer, done, offset } => {
                let rest = &mut buffer[*done..];
                let length = rest.len().min(TRANSFER_MAX) as u32;
                opcode::Read::new(file, rest.as_mut_ptr(), length)
                    .offset(*offset + *done as u64)
                    .rw_flags(no_wait)
                    .build()
            }
            OperationKind::Write { data, done, offset, durable } => {
                let rest = &data[*done..];
                let length = rest.len().min(TRANSFER_MAX) as u32;
                opcode::Write::new(file, rest.as_ptr(), length)
                    .offset(*offset + *done as u64)
                    .rw_flags(no_wait | if *durable { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            OperationKind::SyncData => {
                opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build()
            }
            OperationKind::Allocate { mode, offset, length } => {
                opcode::Fallocate::new(file, *length).offset(*offset).mode(*mode).build()
            }
            OperationKind::Nothing => opcode::Nop::new().build(),
        }
    }
}

enum Slot {
    Free,
    Busy {
        operation: Operation,
        waker: Option<Waker>,
        abandoned: bool,
    },
    Finished {
        operation: Operation,
        result: i32,
    },
    /// The ring is broken, and the kernel may still use the operation's buffers.
    Lost {
        operation: Operation,
        is_reported: bool,
    },
}

struct OperationState {
    ring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose entry is not in the submission queue yet.
    waiting: VecDeque<usize>,
    /// Slots whose entries are in the submission queue and which the kernel has not taken yet, in order.
    queued: VecDeque<usize>,
    /// Entries in the submission queue or the kernel.
    in_kernel: u32,
    /// Number of temporary rejections in a row.
    refusals: u32,
    is_broken: bool,
    /// Wakers of the operations that a turn finished; kept to reuse its memory.
    finished: Vec<Waker>,
    /// The error codes that the kernel returns in a test instead of taking entries.
    #[cfg(test)]
    refuse_with: VecDeque<i32>,
}

/// The result of an exchange with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchanged {
    /// All entries have been handed over.
    All,
    /// The kernel temporarily takes no more entries.
    Refused,
    /// The ring is broken.
    Broken,
}

/// The ring of one core; only its thread uses it.
pub(crate) struct Ring {
    state: RefCell<OperationState>,
    signal: OwnedFd,
    /// The driver task, which is woken when there are entries to submit.
    driver: RefCell<Option<Waker>>,
    unsubmitted: Cell<bool>,
}

impl Ring {
    /// Creates a ring for the calling thread.
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
        let state = OperationState {
            ring,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            queued: VecDeque::new(),
            in_kernel: 0,
            refusals: 0,
            is_broken: false,
            finished: Vec::new(),
            #[cfg(test)]
            refuse_with: VecDeque::new(),
        };
        Ok(Self {
            state: RefCell::new(state),
            signal,
            driver: RefCell::new(None),
            unsubmitted: Cell::new(false),
        })
    }

    /// Checks that a ring can be created and works.
    pub(crate) fn probe() -> io::Result<()> {
        let ring = Rc::new(Self::new()?);
        let file = Arc::new(Opened::new(rustix::io::dup(&ring.signal)?, false));
        let mut nothing = ring.start(Operation::new(file, OperationKind::Nothing));
        ring.turn();
        match Pin::new(&mut nothing).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((_, result)) => result.map(drop),
            Poll::Pending => Err(io::Error::other("io_uring did not complete an empty operation")),
        }
    }

    /// Returns whether the ring accepts operations.
    pub(crate) fn is_usable(&self) -> bool {
        !self.state.borrow().is_broken
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

    /// Submits waiting operations and takes completions.
    fn turn(&self) -> Exchanged {
        self.unsubmitted.set(false);
        let exchanged = self.state.borrow_mut().exchange(0);
        if exchanged == Exchanged::Refused {
            self.request_turn();
        }
        self.wake_finished();
        exchanged
    }

    /// Returns the time to wait before the next call of the kernel.
    fn pause(&self) -> Option<Duration> {
        (self.state.borrow().refusals > RETRIES_AT_ONCE).then_some(RETRY_PAUSE)
    }

    /// Marks the ring as broken, for a reason outside it.
    fn give_up(&self, error: &io::Error) {
        self.state.borrow_mut().break_down(error);
        self.wake_finished();
    }

    /// Returns whether completions may still arrive after the ring broke.
    fn has_lost(&self) -> bool {
        self.state.borrow().in_kernel > 0
    }

    fn wake_finished(&self) {
        let mut finished = std::mem::take(&mut self.state.borrow_mut().finished);
        // The wakers run outside the borrow: a waker may drop a future that waits on this ring.
        finished.drain(..).for_each(Waker::wake);
        self.state.borrow_mut().finished = finished;
    }
}

/// Creates a ring with the best flags that this kernel supports: completions run when the core asks for them, without
/// an interrupt (6.1), or at least without an interrupt to other cores (5.19).
fn build() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(COMPLETIONS).setup_clamp();
    let mut best = builder.clone();
    let mut good = builder.clone();
    best.setup_single_issuer().setup_defer_taskrun();
    good.setup_coop_taskrun();
    best.build(SUBMISSIONS)
        .or_else(|_| good.build(SUBMISSIONS))
        .or_else(|_| builder.build(SUBMISSIONS))
}

impl OperationState {
    /// Submits entries and takes completions until neither is possible, and waits for `wanted` completions.
    fn exchange(&mut self, wanted: u32) -> Exchanged {
        if self.is_broken {
            self.take_completions();
            return Exchanged::Broken;
        }
        loop {
            let entries_left = self.fill_submission_queue();
            let entered = self.enter(entries_left, wanted);
            self.note_taken();
            self.take_completions();
            match entered {
                Ok(()) => self.refusals = 0,
                Err(error) => match error.raw_os_error() {
                    // The kernel temporarily lacks memory or space, or a signal arrived.
                    Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM) => {
                        self.refusals = self.refusals.saturating_add(1);
                        return Exchanged::Refused;
                    }
                    _ => {
                        self.break_down(&error);
                        return Exchanged::Broken;
                    }
                },
            }
            let queue = self.ring.submission();
            let (unsubmitted, more_completed) = (!queue.is_empty(), queue.cq_overflow());
            drop(queue);
            if !unsubmitted && !more_completed && self.waiting.is_empty() {
                return Exchanged::All;
            }
        }
    }

    fn enter(&mut self, entries: u32, wanted: u32) -> io::Result<()> {
        #[cfg(test)]
        if let Some(number) = self.refuse_with.pop_front() {
            return Err(io::Error::from_raw_os_error(number));
        }
        let submitter = self.ring.submitter();
        // SAFETY: no argument is passed. The entries in the queue point into slots, which keep their buffers until the
        // completion is taken.
        unsafe { submitter.enter::<libc::sigset_t>(entries, wanted, IORING_ENTER_GETEVENTS, None) }
            .map(drop)
    }

    /// Fills the submission queue. Returns the number of entries that the kernel must take.
    fn fill_submission_queue(&mut self) -> u32 {
        let mut queue = self.ring.submission();
        while !queue.is_full()
            && let Some(index) = self.waiting.pop_front()
        {
            let Slot::Busy { operation, .. } = &mut self.slots[index] else {
                unreachable!("slot {index} waits but is not busy");
            };
            let entry = operation.entry().user_data(index as u64);
            // SAFETY: the entry's file and buffer belong to the slot. The slot neither drops nor touches them before
            // the completion with this index is taken.
            let pushed = unsafe { queue.push(&entry) };
            assert!(pushed.is_ok(), "the submission queue was not full");
            self.queued.push_back(index);
            self.in_kernel += 1;
        }
        queue.sync();
        queue.len() as u32
    }

    /// Notes that the kernel has taken entries from the front of the submission queue.
    fn note_taken(&mut self) {
        let left = self.ring.submission().len();
        let taken = self.queued.len().saturating_sub(left);
        self.queued.drain(..taken);
    }

    fn take_completions(&mut self) {
        for completion in self.ring.completion() {
            let index = completion.user_data() as usize;
            // The kernel returns the numbers of the entries.
            let Some(slot) = self.slots.get_mut(index) else { continue };
            self.in_kernel = self.in_kernel.saturating_sub(1);
            match std::mem::replace(slot, Slot::Free) {
                Slot::Busy { operation, waker, abandoned: false } => {
                    *slot = Slot::Finished { operation, result: completion.result() };
                    self.finished.extend(waker);
                }
                Slot::Busy { abandoned: true, .. } | Slot::Lost { is_reported: true, .. } => {
                    self.free.push(index);
                }
                Slot::Lost { operation, is_reported: false } => {
                    *slot = Slot::Finished { operation, result: completion.result() };
                }
                Slot::Free | Slot::Finished { .. } => {
                    unreachable!("slot {index} completed but was not busy")
                }
            }
        }
    }

    /// Marks the ring as broken: the kernel takes no more entries. The pool can carry out the entries that the kernel
    /// has not taken. The others are lost, with the buffers that the kernel may still use.
    #[cold]
    fn break_down(&mut self, error: &io::Error) {
        if self.is_broken {
            return;
        }
        self.is_broken = true;
        tracing::error!(
            %error,
            in_kernel = self.in_kernel,
            "io_uring failed: the files of this core go through the pool of threads"
        );
        self.in_kernel -= self.queued.len() as u32;
        let untaken: Vec<usize> = self.queued.drain(..).chain(self.waiting.drain(..)).collect();
        for index in 0..self.slots.len() {
            let slot = std::mem::replace(&mut self.slots[index], Slot::Free);
            self.slots[index] = match slot {
                // The future passes it to the pool.
                Slot::Busy { operation, waker, abandoned: false } if untaken.contains(&index) => {
                    self.finished.extend(waker);
                    Slot::Finished { operation, result: -libc::EAGAIN }
                }
                Slot::Busy { abandoned: true, .. } if untaken.contains(&index) => {
                    self.free.push(index);
                    Slot::Free
                }
                Slot::Busy { operation, waker, abandoned } => {
                    self.finished.extend(waker);
                    Slot::Lost { operation, is_reported: abandoned }
                }
                slot @ (Slot::Free | Slot::Finished { .. } | Slot::Lost { .. }) => slot,
            };
        }
    }
}

impl Drop for Ring {
    /// Waits for the operations that the kernel still has: until then it writes into their buffers.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        while !state.is_broken && (!state.waiting.is_empty() || state.in_kernel > 0) {
            let exchanged = state.exchange(u32::from(state.in_kernel > 0));
            if exchanged == Exchanged::Refused && state.refusals > RETRIES_AT_ONCE {
                crate::time::pause(RETRY_PAUSE);
            }
        }
        if state.is_broken {
            // Nothing reports when the kernel has stopped using these buffers.
            std::mem::forget(std::mem::take(&mut state.slots));
        }
    }
}

/// Waits for one operation and returns it with the kernel's result. If the kernel may still carry the operation out
/// when the ring breaks, the operation is not returned.
pub(crate) struct Completion {
    ring: Rc<Ring>,
    /// `None` after the answer was returned.
    slot: Option<usize>,
}

impl Future for Completion {
    type Output = (Option<Operation>, io::Result<u32>);

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
                Poll::Ready((Some(operation), result))
            }
            Slot::Busy { operation, abandoned, .. } => {
                let waker = Some(context.waker().clone());
                state.slots[index] = Slot::Busy { operation, waker, abandoned };
                Poll::Pending
            }
            Slot::Lost { operation, .. } => {
                state.slots[index] = Slot::Lost { operation, is_reported: true };
                drop(state);
                self.slot = None;
                Poll::Ready((None, Err(io::Error::other("io_uring failed during this operation"))))
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
            Slot::Lost { is_reported, .. } => *is_reported = true,
            Slot::Finished { .. } => {
                state.slots[index] = Slot::Free;
                state.free.push(index);
            }
            Slot::Free => unreachable!("slot {index} was freed under its future"),
        }
    }
}

/// The eventfd for the runtime's registration; the ring owns it.
struct Signal(Rc<Ring>);

impl AsRawFd for Signal {
    fn as_raw_fd(&self) -> RawFd {
        self.0.signal.as_raw_fd()
    }
}

/// Submits operations and takes completions as long as the core runs.
pub(crate) async fn drive(ring: Rc<Ring>) {
    // SAFETY: the descriptor belongs to the ring, which the watcher keeps alive: the descriptor is closed only after
    // the registration ends.
    let registered =
        unsafe { AsyncFd::register_with_interest(Signal(ring.clone()), Interest::READABLE) };
    let signal = match registered {
        Ok(signal) => signal,
        Err(error) => return ring.give_up(&error.into()),
    };
    let mut pause: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    poll_fn(|context| {
        ring.driver.replace(Some(context.waker().clone()));
        loop {
            // The runtime watches edges, so the eventfd's counter need not be read: each completion is a separate edge.
            let signalled = match signal.poll_read_ready(context) {
                Poll::Ready(Ok(mut guard)) => {
                    guard.clear_ready();
                    true
                }
                Poll::Ready(Err(error)) => {
                    // The runtime ends, or the kernel no longer signals completions.
                    ring.give_up(&error);
                    return Poll::Ready(());
                }
                Poll::Pending => false,
            };
            if let Some(waiting) = &mut pause {
                match waiting.as_mut().poll(context) {
                    Poll::Pending if !signalled => return Poll::Pending,
                    Poll::Pending | Poll::Ready(()) => pause = None,
                }
            }
            if !signalled && !ring.unsubmitted.get() {
                return Poll::Pending;
            }
            if ring.turn() == Exchanged::Broken && !ring.has_lost() {
                return Poll::Ready(());
            }
            if ring.unsubmitted.get() {
                // The kernel lacks a resource: let the other tasks run first.
                match ring.pause() {
                    Some(length) => {
                        let until = crate::time::now() + length;
                        pause = Some(Box::pin(crate::time::sleep_until(until)));
                    }
                    None if signalled => {}
                    None => {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cores::{CoreContext, FileEngine, block_on};
    use crate::file::{File, OpenOptions};

    /// Makes the kernel reject the next calls of this core's ring.
    fn refuse_with(numbers: &[i32]) {
        CoreContext::with(|here| {
            let Some(ring) = here.and_then(|here| here.ring.as_ref()) else { return };
            ring.state.borrow_mut().refuse_with.extend(numbers);
        });
    }

    fn is_usable() -> bool {
        CoreContext::with(|here| here.unwrap().ring.as_ref().unwrap().is_usable())
    }

    /// Returns a file whose blocks are not in the page cache.
    fn file(folder: &tempfile::TempDir, marks: &[u8]) -> File {
        let path = folder.path().join("file");
        let content: Vec<u8> = marks.iter().flat_map(|&mark| [mark; 4096]).collect();
        fs::write(&path, content).unwrap();
        let file = File::open(&path, OpenOptions { direct: true, ..OpenOptions::default() });
        file.unwrap()
    }

    async fn marks(file: &File, count: u64) -> Vec<u8> {
        let mut marks = Vec::new();
        for block in 0..count {
            let read = file.read_at(block * 4096, 4096).wait().await.unwrap();
            assert!(read.iter().all(|&byte| byte == read[0]));
            marks.push(read[0]);
        }
        marks
    }

    #[test]
    fn io_uring_enter2_temporary_lack_of_resources_is_retried() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = file(&folder, &[1, 2, 3]);
        block_on(FileEngine::Uring, async {
            for number in [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
                refuse_with(&[number; RETRIES_AT_ONCE as usize + 3]);
                assert_eq!(marks(&file, 3).await, [1, 2, 3]);
                assert!(is_usable());
            }
        })
        .unwrap();
    }

    #[test]
    fn io_uring_enter2_an_error_for_good_ends_the_ring_and_not_the_program() {
        let numbers = [
            libc::EBADF,
            libc::EBADFD,
            libc::EEXIST,
            libc::EFAULT,
            libc::EINVAL,
            libc::ENXIO,
            libc::EOPNOTSUPP,
            libc::EOWNERDEAD,
            libc::EPERM,
            libc::ENOSYS,
            libc::EIO,
        ];
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = file(&folder, &[1, 2, 3]);
        for number in numbers {
            block_on(FileEngine::Uring, async {
                refuse_with(&[number]);
                assert_eq!(marks(&file, 3).await, [1, 2, 3], "what was not taken is not lost");
                assert!(!is_usable());
            })
            .unwrap();
        }
    }

    /// An empty pipe: the kernel has taken the read and does not complete it.
    #[test]
    fn broken_ring_fails_its_requests_and_keeps_their_buffers() {
        let (reading, writing) = io::pipe().unwrap();
        block_on(FileEngine::Uring, async {
            let ring = CoreContext::with(|here| here.unwrap().ring.clone().unwrap());
            let pipe = Arc::new(Opened::new(reading.into(), true));
            let kind =
                OperationKind::Read { buffer: Buffer::zeroed(16), done: 0, offset: u64::MAX };
            let mut lost = ring.start(Operation::new(pipe.clone(), kind));
            ring.turn();
            let mut context = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut lost).poll(&mut context).is_pending());
            refuse_with(&[libc::EBADF]);
            let another = ring.start(Operation::new(pipe, OperationKind::Nothing));
            assert_eq!(ring.turn(), Exchanged::Broken);
            let (operation, result) = lost.await;
            assert!(operation.is_none() && result.is_err());
            let (operation, result) = another.await;
            assert!(operation.is_some(), "it can be done elsewhere");
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
            assert!(matches!(ring.state.borrow().slots[0], Slot::Lost { .. }));
        })
        .unwrap();
        drop(writing);
    }
}
