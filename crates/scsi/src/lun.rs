//! Logical unit numbers and their eight bytes on the wire (SAM-5 4.7).

use std::fmt;

/// A logical unit number, 0 to 16383.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(pub u16);

/// The largest number in flat space addressing.
const LARGEST: u16 = 0x3fff;
/// ADDRESS METHOD 01b: flat space addressing.
const FLAT_SPACE: u16 = 0x4000;

impl Lun {
    /// LUN 0, which responds even if it has no unit.
    pub const ZERO: Self = Self(0);

    /// Returns the eight bytes: peripheral device addressing below 256, flat space addressing above.
    pub fn to_wire(self) -> [u8; 8] {
        debug_assert!(self.0 <= LARGEST);
        let first = if self.0 < 256 { self.0 } else { FLAT_SPACE | (self.0 & LARGEST) };
        let [high, low] = first.to_be_bytes();
        [high, low, 0, 0, 0, 0, 0, 0]
    }

    /// Returns the number in these bytes; `None` for well-known logical units, buses and lower levels, which are not
    /// supported.
    pub fn from_wire(wire: &[u8; 8]) -> Option<Self> {
        let [high, low, rest @ ..] = *wire;
        if rest != [0; 6] {
            return None;
        }
        let first = u16::from_be_bytes([high, low]);
        match first & !LARGEST {
            0 if first < 256 => Some(Self(first)),
            FLAT_SPACE => Some(Self(first & LARGEST)),
            _ => None,
        }
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sam5_4_7_every_number_survives_the_wire() {
        for number in 0..=LARGEST {
            assert_eq!(Lun::from_wire(&Lun(number).to_wire()), Some(Lun(number)));
        }
        assert_eq!(Lun(255).to_wire()[..2], [0x00, 0xff]);
        assert_eq!(Lun(256).to_wire()[..2], [0x41, 0x00]);
    }

    #[test]
    fn sam5_4_7_other_addressing_methods_name_nothing() {
        for wire in [
            [0x01, 0, 0, 0, 0, 0, 0, 0],
            [0xc1, 0x01, 0, 0, 0, 0, 0, 0],
            [0x80, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 1, 0, 0, 0, 0],
        ] {
            assert_eq!(Lun::from_wire(&wire), None, "{wire:02x?}");
        }
    }
}
