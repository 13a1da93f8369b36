//! A link of our own: a TAP device on each side and a thread that takes frames from one to the
//! other, when [`Direction`] says so.

use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sarsen_io::tap::Tap;
use sarsen_io::{threads, time};

use super::Direction;
use crate::network::LinkProfile;

/// Frames that are taken from one side before the other has its turn.
const FRAMES_A_TURN: usize = 64;

/// What a frame may have beyond its header and the MTU.
const VLAN_TAG: usize = 4;

/// The link's thread. It ends, with both devices, when this is dropped.
#[derive(Debug)]
pub(in crate::network) struct Wire {
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Joins the devices of the targets' side and of the initiator's side.
    pub(in crate::network) fn start(
        devices: [Tap; 2],
        profile: &LinkProfile,
        seed: u64,
    ) -> std::io::Result<Self> {
        let now = time::now();
        let [from_targets, from_initiator] =
            [2, 3].map(|direction| Direction::new(profile, seed ^ direction, now));
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ended = end.try_clone()?;
        let mut relay = Relay {
            devices,
            directions: [from_targets, from_initiator],
            frame: vec![0; profile.frame_bytes() + VLAN_TAG],
        };
        let thread = threads::spawn("relay", move || relay.run(&ended))?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // An eventfd takes eight bytes whenever its count has room.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported there.
            let _ = thread.join();
        }
    }
}

struct Relay {
    devices: [Tap; 2],
    /// By the device that sends.
    directions: [Direction; 2],
    frame: Vec<u8>,
}

impl Relay {
    /// Carries frames until `ended` is written to.
    fn run(&mut self, ended: &OwnedFd) {
        // Short delays are meant: the kernel may otherwise be 50 µs late to save power.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            let wait = self.wait(time::now());
            let mut descriptors = [
                PollFd::new(&self.devices[0], PollFlags::IN),
                PollFd::new(&self.devices[1], PollFlags::IN),
                PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            ];
            // A signal, or a want of memory that passes: nothing is ready then, and it waits again.
            let _ = poll(&mut descriptors, wait.as_ref());
            if !descriptors[2].revents().is_empty() {
                return;
            }
            for from in 0..2 {
                self.take(from);
                self.give(from);
            }
        }
    }

    /// How long nothing arrives.
    fn wait(&self, now: Instant) -> Option<Timespec> {
        let next = self.directions.iter().filter_map(Direction::next_arrival).min()?;
        let wait = next.saturating_duration_since(now);
        Some(Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    /// Takes what a device sends.
    fn take(&mut self, from: usize) {
        for _ in 0..FRAMES_A_TURN {
            // Nothing to read, or the device is down: the next wait tells.
            let Ok(length) = rustix::io::read(&self.devices[from], &mut self.frame[..]) else {
                return;
            };
            self.directions[from].handle_frame(time::now(), &self.frame[..length]);
        }
    }

    /// Hands over what has arrived at the other device. A frame that it does not take, being down,
    /// is lost like any on a line without anyone at its end.
    fn give(&mut self, from: usize) {
        let now = time::now();
        while let Some(frame) = self.directions[from].poll_frame(now) {
            let _ = rustix::io::write(&self.devices[1 - from], &frame);
        }
    }
}
