//! Workloads, measurements, reports.
//!
//! Where a workload comes from: [`access`] names the access specifications that studies use,
//! [`icf`] reads and writes Iometer's, [`fio`] reads job files, [`trace`] reads what was recorded.
//! What it is made of: [`mix`] (sizes, reads, random places), [`distribution`] (where random I/Os go),
//! [`dice`] (the same again for the same seed). [`load`] puts it on a target and measures.
//!
//! A [`study`] measures [`target_under_test`]s over a [`network`], as others did before: what comes out is
//! a [`record`], and a [`report`] is made of it, with what others [`published`] beside.

pub mod access;
pub mod archive;
pub mod bonnie;
pub mod compare;
pub mod dice;
pub mod distribution;
pub mod fio;
pub mod folder;
pub mod icf;
pub mod limits;
pub mod load;
pub mod machine;
pub mod mix;
pub mod network;
pub mod process;
pub mod published;
pub mod record;
pub mod report;
pub mod statistics;
pub mod study;
pub mod target_under_test;
pub mod trace;
