//! The device server from outside: commands in, completions out.

mod block;
mod maintenance;
mod mode;
mod primary;
mod properties;
mod provisioning;
mod target_port_groups;
mod tasks;
