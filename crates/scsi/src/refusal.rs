//! The refusal of a command.

use crate::Sense;

/// The reason why a command does not begin.
#[derive(Debug)]
pub(crate) enum Refusal {
    Sense(Sense),
    ReservationConflict,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}
