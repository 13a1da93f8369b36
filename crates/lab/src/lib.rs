//! Workloads, measurements, reports.
//!
//! [`access`] names the access specifications that studies use; [`load`] puts one of them on a
//! target and measures.

pub mod access;
pub mod load;
