//! A SCSI device server without I/O: commands in, statuses, data and sense out.
//!
//! A transport opens an I_T nexus on a [`TargetDevice`] and gives each command to its
//! [`NexusHandle`]. Below lies `sarsen-block`: a [`LogicalUnit`] is a store with an identity, mode
//! parameters, reservations and unit attentions. [`command_table`] has one row for each command;
//! the handlers are in `commands`. Nothing here has a clock, a socket or a thread.

mod array;
mod atomic;
mod attention;
mod buffers;
mod cdb;
pub mod command_table;
mod commands;
mod completion;
mod condition;
mod copy;
mod execution;
mod identifying_information;
mod identity;
mod keeper;
mod logical_unit;
mod lun;
mod medium;
mod modes;
mod nexus;
mod operation;
mod pass_through;
mod phase;
mod protection;
mod reservations;
mod self_test;
mod sense;
mod target;
mod target_port_groups;
mod task_set;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod thresholds;
mod timestamp;
mod unended;
mod work;

pub use array::{Array, Host, Work};
pub use attention::{Listener, UnitAttention};
pub use cdb::{Cdb, Command, TaskAttribute};
pub use completion::{Abort, Completion, Status, TaskAbort};
pub use condition::Condition;
pub use execution::{Execution, UnderWay};
pub use identity::{Designator, Identity, Naa};
pub use keeper::{Keeper, Record};
pub use logical_unit::{DeviceType, Limits, LogicalUnit, Parts};
pub use lun::Lun;
pub use nexus::{InitiatorPort, NexusHandle};
pub use pass_through::{PassThrough, Passed, Transfer};
pub use protection::ProtectionType;
pub use sense::{AdditionalSense, FieldPointer, Sense, SenseKey};
pub use target::{LunView, TargetDevice};
pub use target_port_groups::{
    Access, AccessError, AccessState, Alua, MAXIMUM_TARGET_PORTS, TargetPort, Transition,
};
pub use unended::{Stall, WrittenOff};
