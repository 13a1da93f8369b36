//! Serial-number arithmetic (RFC 1982 with 32 bits) for CmdSN, StatSN, DataSN and R2TSN.

use core::fmt;

/// A serial number; comparisons are modulo 2³².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SerialNumber(pub u32);

impl SerialNumber {
    /// Returns the number `count` later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Returns the next number.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns the number and advances to the next.
    pub fn post_increment(&mut self) -> Self {
        let now = *self;
        *self = self.next();
        now
    }

    /// Returns the distance from `earlier` to `self`, where `self` is not before `earlier`.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns whether `self` is before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns whether `self` is after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        other.is_before(self)
    }
}

impl fmt::Display for SerialNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc1982_order_survives_the_wrap() {
        let last = SerialNumber(u32::MAX);
        assert!(last.is_before(last.next()));
        assert!(last.plus(7).is_after(last));
        assert_eq!(last.plus(7).since(last), 7);
        assert!(!last.is_before(last) && !last.is_after(last));
    }
}
