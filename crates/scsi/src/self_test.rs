//! Self-tests of a logical unit (SPC-4 5.15): the running test and the results of the latest ones.

use crate::{LogicalUnit, Sense};
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// The expected maximum duration of an extended self-test in seconds.
pub(crate) const EXTENDED_SELF_TEST_S: u16 = 120;
/// The maximum number of entries in the log (SPC-4 7.3.20).
pub(crate) const LOGGED_SELF_TESTS: usize = 20;

/// SELF-TEST RESULTS (SPC-4 7.3.20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// Aborted by SEND DIAGNOSTIC.
    Aborted,
    /// Interrupted by a reset, or by the end of its command.
    Interrupted,
    Failed(Sense),
    Running,
}

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// SELF-TEST CODE of SEND DIAGNOSTIC.
    pub(crate) code: u8,
    pub(crate) power_on_hours: u16,
    pub(crate) outcome: Outcome,
}

/// The self-tests of a unit. Only one can run; it is the latest entry of the log.
#[derive(Default)]
pub(crate) struct SelfTests {
    state: Mutex<SelfTestState>,
}

#[derive(Default)]
struct SelfTestState {
    begun: u64,
    log: VecDeque<Entry>,
}

impl SelfTestState {
    fn running(&mut self) -> Option<&mut Entry> {
        self.log.front_mut().filter(|entry| entry.outcome == Outcome::Running)
    }
}

impl SelfTests {
    fn state(&self) -> MutexGuard<'_, SelfTestState> {
        self.state.lock()
    }

    /// Returns the log, the latest entry first.
    pub(crate) fn log(&self) -> Vec<Entry> {
        self.state().log.iter().copied().collect()
    }

    /// Ends the running test. Returns whether there was one.
    pub(crate) fn end(&self, outcome: Outcome) -> bool {
        let mut state = self.state();
        let running = state.running();
        running.map(|entry| entry.outcome = outcome).is_some()
    }

    /// Deletes the results of ended tests. Returns whether there were any.
    pub(crate) fn forget(&self) -> bool {
        let mut state = self.state();
        let before = state.log.len();
        state.log.retain(|entry| entry.outcome == Outcome::Running);
        state.log.len() < before
    }
}

/// A running test. If it is dropped before its end, it was interrupted.
pub(crate) struct Running {
    unit: Arc<LogicalUnit>,
    number: u64,
}

impl Running {
    /// Begins a test; `None` if another one runs.
    pub(crate) fn begin(unit: &Arc<LogicalUnit>, code: u8, power_on_hours: u16) -> Option<Self> {
        let mut state = unit.self_tests().state();
        if state.running().is_some() {
            return None;
        }
        state.begun += 1;
        state.log.push_front(Entry { code, power_on_hours, outcome: Outcome::Running });
        state.log.truncate(LOGGED_SELF_TESTS);
        Some(Self { unit: unit.clone(), number: state.begun })
    }

    /// Returns whether the test has not been ended.
    pub(crate) fn goes_on(&self) -> bool {
        let mut state = self.unit.self_tests().state();
        state.begun == self.number && state.running().is_some()
    }

    /// Ends the test, unless it has ended.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let mut state = self.unit.self_tests().state();
        if state.begun == self.number
            && let Some(entry) = state.running()
        {
            entry.outcome = outcome;
        }
    }

    /// Returns the tested unit.
    pub(crate) fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.finish(Outcome::Interrupted);
    }
}
