//! The device server from outside: commands in, completions out.

mod block;
mod copy;
mod copy_model;
mod maintenance;
mod mode;
mod multimedia;
mod offload;
mod persistent_reservation;
mod primary;
mod properties;
mod protection;
mod provisioning;
mod removable;
mod target_port_groups;
mod tasks;
mod write_protect;
