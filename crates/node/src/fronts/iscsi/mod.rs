//! The iSCSI front. [`connection`] drives one machine for each connection.

mod connection;
mod environment;
#[cfg(feature = "simulation")]
mod simulation;
#[cfg(test)]
mod tests;

pub(super) use self::connection::serve;
#[cfg(feature = "simulation")]
pub use self::simulation::Portal as SimulatedPortal;
#[cfg(feature = "simulation")]
pub(crate) use self::simulation::serve as serve_simulated;
