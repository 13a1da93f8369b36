//! The server: [`config`] says what it is to be, [`stores`] are the disks that do I/O, `fronts`
//! speak to clients, [`server`] starts all of it and ends it in good order.

mod access;
pub mod config;
pub mod control;
pub mod database;
pub mod desired;
mod drain;
mod engine;
mod events;
mod fairness;
mod fronts;
mod health;
mod host;
pub mod import;
mod isns;
mod keeper;
mod metrics;
mod obstacle;
mod private;
pub mod server;
#[cfg(feature = "simulation")]
mod simulation;
mod statistics;
pub mod stores;
mod targets;
mod tls;
mod trace;
pub mod ways;

pub use access::Object;
pub use config::{Config, ConfigError};
pub use engine::{ChangeError, InterruptedSession, Interruption, Made, Prepared, Ready};
#[cfg(feature = "simulation")]
pub use fronts::iscsi::SimulatedPortal;
pub use obstacle::Obstacle;
pub use server::{Export, Server, SetAccessError, StartError};
#[cfg(feature = "simulation")]
pub use simulation::SimulatedServer;
pub use tls::TlsError;
