//! The protocols that clients use. Each one has a machine in `sarsen-proto` and a driver here. Portals accept connections
//! for all of them ([`acceptor`]), and [`sources`] counts connections by their source.

pub(crate) mod acceptor;
pub(crate) mod iscsi;
pub(crate) mod nbd;
pub(crate) mod sources;
