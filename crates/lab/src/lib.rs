//! Workloads, measurements and reports.
//!
//! Sources of workloads: [`access`] has the access specifications that studies use, [`icf`] reads and writes those of
//! Iometer, [`fio`] reads job files, and [`trace`] reads recorded traces. Parts of workloads: [`mix`] (sizes, reads,
//! random positions) and [`distribution`] (positions of random I/Os). [`load`] runs a workload on a target and measures
//! it.
//!
//! A [`study`] measures [`target_under_test`]s over a [`network`], as a published study did. The result is a
//! [`record`]; a [`report`] shows it next to the [`published`] figures.

pub mod access;
pub mod archive;
pub mod bonnie;
pub mod compare;
pub mod distribution;
mod disturbances;
mod faulty_line;
pub mod files;
pub mod fio;
pub mod folder;
pub mod guest;
pub mod icf;
pub mod limits;
pub mod load;
pub mod machine;
pub mod mix;
pub mod multipath;
pub mod network;
pub mod process;
pub mod published;
pub mod record;
pub mod report;
pub mod statistics;
pub mod study;
pub mod target_under_test;
pub mod trace;
mod validity;
