//! The number of an I_T nexus.

/// The number of an I_T nexus, which is a client of the volumes behind its units; 0 means none.
pub(crate) type NexusId = sarsen_volume::ClientId;
pub(crate) const NO_NEXUS: NexusId = sarsen_volume::NO_CLIENT;
