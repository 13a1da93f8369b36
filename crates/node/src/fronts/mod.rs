//! The protocols that clients use. Each one has a machine in `sarsen-proto` and a driver here.

pub(crate) mod iscsi;
