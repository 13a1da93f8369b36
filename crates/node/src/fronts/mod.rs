//! The protocols that clients use. Each one has a machine in `sarsen-proto` and a driver here. Portals accept connections
//! for all of them ([`acceptor`]), and [`sources`] counts connections by their source. [`front`] has the state that all
//! connections share. [`qos_gate`] limits the requests of a connection, and [`observer`] counts them.

pub(crate) mod acceptor;
mod front;
mod handshake;
pub(crate) mod iscsi;
pub(crate) mod nbd;
mod observer;
mod placement;
mod qos_gate;
pub(crate) mod sources;

pub(crate) use self::front::Front;
