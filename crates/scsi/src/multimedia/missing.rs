//! CDs in a program without the feature `multimedia`: they have no commands of their own.

use crate::row::Row;

/// The commands that only CDs have.
pub(crate) const COMMANDS: &[Row] = &[];
