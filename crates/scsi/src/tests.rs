//! Tests of the device server through its public interface: commands in, completions out.

mod aborts;
mod atomic;
mod block;
mod condition;
mod copy;
mod copy_model;
mod format;
mod hung_commands;
mod lun_view;
mod maintenance;
mod mode;
mod offload;
mod persistent_reservation;
mod power;
mod primary;
mod properties;
mod protection;
mod provisioning;
mod removable;
mod sanitize;
mod sanitize_key;
mod target_port_groups;
mod tasks;
mod write_gate;
mod write_protect;
