//! Compatibility with other targets. [`import`] converts their configurations into documents. [`tgtadm`] executes the
//! commands of tgt's tool.

pub mod import;
pub mod tgtadm;
