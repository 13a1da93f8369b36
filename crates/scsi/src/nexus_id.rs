//! The number of an I_T nexus.

/// The number of an I_T nexus; 0 means none.
pub(crate) type NexusId = u64;
pub(crate) const NO_NEXUS: NexusId = 0;
