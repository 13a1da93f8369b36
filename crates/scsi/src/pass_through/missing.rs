//! Real devices in a program without the feature `pass-through`: no unit has one.

use crate::target::{AttachedUnit, Nexus};
use crate::{Command, Completion};
use sarsen_block::Io;

/// The real device of a unit, of which there is none.
pub enum Device {}

impl Device {
    pub(crate) fn execute(
        &self,
        _attachment: &AttachedUnit,
        _nexus: &Nexus,
        _command: Command,
    ) -> Io<Completion> {
        match *self {}
    }
}
