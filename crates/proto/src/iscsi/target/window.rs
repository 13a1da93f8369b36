//! The command window: ExpCmdSN, MaxCmdSN, and the position of a CmdSN relative to them (RFC 7143 §4.2.2.1).

use sarsen_wire::iscsi::SerialNumber;

/// The position of a request's CmdSN in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmdSnPosition {
    /// It is the next one.
    Next,
    /// It is within the window, but earlier ones have not arrived.
    AboveGap,
    /// It is a duplicate or above MaxCmdSN. The target drops the request silently.
    Outside,
}

/// The window of one session.
#[derive(Debug)]
pub(super) struct CommandWindow {
    exp_cmd_sn: SerialNumber,
    max_cmd_sn: SerialNumber,
    limit: u32,
    active: u32,
}

impl CommandWindow {
    /// Creates a window in which `first` is expected and `limit` commands may be outstanding.
    pub(super) fn new(first: SerialNumber, limit: u32) -> Self {
        Self { exp_cmd_sn: first, max_cmd_sn: first.plus(limit - 1), limit, active: 0 }
    }

    pub(super) fn exp_cmd_sn(&self) -> SerialNumber {
        self.exp_cmd_sn
    }

    /// Returns MaxCmdSN for the next PDU. It permits as many commands as may still be outstanding, and never falls.
    pub(super) fn max_cmd_sn(&mut self) -> SerialNumber {
        let room = self.limit.saturating_sub(self.active);
        let max = self.exp_cmd_sn.plus(room).plus(u32::MAX);
        if max.is_after(self.max_cmd_sn) {
            self.max_cmd_sn = max;
        }
        self.max_cmd_sn
    }

    pub(super) fn standing(&self, cmd_sn: SerialNumber) -> CmdSnPosition {
        if cmd_sn == self.exp_cmd_sn && !cmd_sn.is_after(self.max_cmd_sn) {
            CmdSnPosition::Next
        } else if cmd_sn.is_before(self.exp_cmd_sn) || cmd_sn.is_after(self.max_cmd_sn) {
            CmdSnPosition::Outside
        } else {
            CmdSnPosition::AboveGap
        }
    }

    /// Notes that the expected request has arrived.
    pub(super) fn advance(&mut self) {
        self.exp_cmd_sn = self.exp_cmd_sn.next();
    }

    /// Notes that a command has become a task.
    pub(super) fn begin(&mut self) {
        self.active += 1;
    }

    /// Notes that a task has ended.
    pub(super) fn end(&mut self) {
        debug_assert!(self.active > 0);
        self.active = self.active.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_4_2_2_1_standing_across_the_wrap() {
        let first = SerialNumber(u32::MAX - 1);
        let window = CommandWindow::new(first, 4);
        assert_eq!(window.standing(first), CmdSnPosition::Next);
        assert_eq!(window.standing(first.plus(3)), CmdSnPosition::AboveGap);
        assert_eq!(window.standing(first.plus(4)), CmdSnPosition::Outside);
        assert_eq!(window.standing(SerialNumber(u32::MAX - 2)), CmdSnPosition::Outside);
    }

    #[test]
    fn rfc7143_4_2_2_1_max_cmd_sn_follows_the_tasks_and_never_falls() {
        let mut window = CommandWindow::new(SerialNumber(10), 2);
        assert_eq!(window.max_cmd_sn(), SerialNumber(11));
        for _ in 0..2 {
            window.advance();
            window.begin();
        }
        assert_eq!(window.max_cmd_sn(), SerialNumber(11), "full: nothing beyond what was told");
        assert_eq!(window.standing(SerialNumber(12)), CmdSnPosition::Outside);
        window.end();
        assert_eq!(window.max_cmd_sn(), SerialNumber(12));
    }
}
