//! The protocols that clients speak: each is a machine in `sarsen-proto` and a driver here.

pub(crate) mod iscsi;
