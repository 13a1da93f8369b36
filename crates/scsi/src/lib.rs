//! A SCSI device server without I/O of its own. Its input is commands; its output is statuses, data and sense data.
//!
//! A transport opens an I_T nexus on a [`TargetDevice`] and passes each command to its [`NexusHandle`]. The lower layer
//! is `sarsen-volume`: a [`LogicalUnit`] is a volume with an identity, mode parameters, a task set and unit attentions.
//! [`command_table`] has one row for each command. The handlers are in `commands`. This crate has no clock, no sockets
//! and no threads.

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
mod designators;
mod device_type;
mod execution;
mod flags;
mod hung_commands;
mod identifying_information;
mod identity;
mod logical_unit;
mod lun;
mod medium;
mod modes;
#[cfg_attr(not(feature = "multimedia"), path = "multimedia/missing.rs")]
mod multimedia;
mod nexus_handle;
mod nexus_id;
mod operation;
#[cfg_attr(not(feature = "pass-through"), path = "pass_through/missing.rs")]
pub mod pass_through;
mod phase;
mod protection;
mod refusal;
mod reservations;
mod row;
mod self_test;
mod sense;
mod target;
mod target_port_groups;
mod task;
mod task_set;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod thresholds;
mod timestamp;
mod work;

pub use array::{Array, Host, Work};
pub use attention::{Listener, UnitAttention};
pub use cdb::{Cdb, Command, TaskAttribute};
pub use completion::{AbortedTasks, AbortedUnitTasks, Completion, Status};
pub use device_type::DeviceType;
pub use execution::{Execution, UnderWay};
pub use hung_commands::{Abandoned, Stall};
pub use identity::{Designator, Identity, Naa};
pub use logical_unit::{Limits, LogicalUnit, Parts};
pub use lun::Lun;
pub use nexus_handle::NexusHandle;
pub use protection::{Protected, ProtectionType};
pub use sarsen_volume::{MetadataKind, MetadataStore};
pub use sense::{AdditionalSense, FieldPointer, Sense, SenseKey};
pub use target::{InitiatorPort, LunView, TargetDevice};
pub use target_port_groups::{
    AccessError, AccessState, AllowedStates, Alua, MAXIMUM_TARGET_PORTS, TargetPort, Transition,
};
