//! A simulated link: a TAP device on each side, and a thread that transfers frames between them as [`Direction`]
//! decides.

use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sarsen_io::tap::Tap;
use sarsen_io::{threads, time};

use super::Direction;
use crate::network::LinkProfile;

/// Frames of one side before the other side has its turn.
const FRAMES_A_TURN: usize = 64;

/// Maximum number of bytes of a frame beyond its header and the MTU.
const VLAN_TAG: usize = 4;

/// The link's thread. The thread and both devices end when this is dropped.
#[derive(Debug)]
pub(in crate::network) struct Wire {
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Connects the devices of the targets' side and of the initiator's side.
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
        // An eventfd accepts eight bytes whenever its counter has room.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread has reported its panic.
            let _ = thread.join();
        }
    }
}

struct Relay {
    devices: [Tap; 2],
    /// The direction of each sending device.
    directions: [Direction; 2],
    frame: Vec<u8>,
}

impl Relay {
    /// Transfers frames until `ended` is written.
    fn run(&mut self, ended: &OwnedFd) {
        // Delays are short: by default the kernel can be 50 µs late to save power.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            let wait = self.wait(time::now());
            let mut descriptors = [
                PollFd::new(&self.devices[0], PollFlags::IN),
                PollFd::new(&self.devices[1], PollFlags::IN),
                PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            ];
            // After a signal or a temporary shortage of memory nothing is ready, and the loop waits again.
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

    /// Returns the time until the next arrival.
    fn wait(&self, now: Instant) -> Option<Timespec> {
        let next = self.directions.iter().filter_map(Direction::next_arrival).min()?;
        let wait = next.saturating_duration_since(now);
        Some(Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    /// Reads the frames that a device sends.
    fn take(&mut self, from: usize) {
        for _ in 0..FRAMES_A_TURN {
            // There is no frame, or the device is down: the next wait reports it.
            let Ok(length) = rustix::io::read(&self.devices[from], &mut self.frame[..]) else {
                return;
            };
            self.directions[from].handle_frame(time::now(), &self.frame[..length]);
        }
    }

    /// Delivers the arrived frames to the other device. If that device is down, the frame is lost, as on a line without
    /// a receiver.
    fn give(&mut self, from: usize) {
        let now = time::now();
        while let Some(frame) = self.directions[from].poll_frame(now) {
            let _ = rustix::io::write(&self.devices[1 - from], &frame);
        }
    }
}
