//! The server. [`config`] is its configuration, [`stores`] are the disks that do I/O, `fronts` communicate with
//! clients, and [`server`] starts everything and shuts it down.

mod access;
pub mod attach;
pub mod config;
pub mod control;
pub mod database;
pub mod desired;
mod drain;
mod engine;
mod error_class;
mod events;
mod fronts;
mod host;
pub mod initiator_lines;
#[cfg_attr(not(feature = "isns"), path = "isns/missing.rs")]
mod isns;
mod machine;
mod mailbox;
mod metadata;
mod metrics;
mod missing_feature;
pub mod model;
mod portal;
mod private;
mod problem;
mod protocol;
mod qos;
pub mod reference;
mod refusal;
pub mod schema;
pub mod server;
mod sessions;
#[cfg(feature = "simulation")]
mod simulation;
pub mod stores;
mod targets;
mod tls;
mod trace;

pub use access::Object;
pub use config::{Config, ConfigError};
pub use engine::{
    AffectedSession, ChangeError, ChangeOutcome, Export, Interruption, Prepared, ResourceError,
};
pub use error_class::ErrorClass;
#[cfg(feature = "simulation")]
pub use fronts::iscsi::SimulatedPortal;
pub use missing_feature::MissingFeature;
pub use server::{Server, SetAccessError, StartError};
#[cfg(feature = "simulation")]
pub use simulation::SimulatedServer;
pub use tls::TlsError;
