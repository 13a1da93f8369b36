//! The server: [`config`] says what it is to be, [`stores`] are the disks that do I/O, `fronts`
//! speak to clients, [`server`] starts all of it and ends it in good order.

pub mod config;
pub mod control;
mod drain;
mod fronts;
mod host;
mod keeper;
pub mod server;
pub mod stores;
mod targets;
mod tls;

pub use config::{Config, ConfigError};
pub use server::{Export, Server, SetAccessError, StartError};
pub use tls::TlsError;
