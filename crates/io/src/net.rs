//! Sockets by readiness: wait, then move as much data as possible in one call.

pub use crate::vectored::PIECES_MAX;

/// The program's listeners.
#[cfg(not(feature = "simulation"))]
pub type Listener = crate::socket::SocketListener;
#[cfg(feature = "simulation")]
pub use crate::simulation::Listener;

pub use crate::socket::SocketStream;

/// The program's connections.
#[cfg(not(feature = "simulation"))]
pub type Stream = crate::socket::SocketStream;
#[cfg(feature = "simulation")]
pub use crate::simulation::Stream;
