//! What a volume is, whatever protocol serves it.
//!
//! A [`Volume`] is a store with the state that concerns all of its clients: its health, the gate that separates exclusive
//! writes from others, reservations, the phase of the medium, and the records that outlive the program. A protocol offers
//! a view of it: a SCSI logical unit, an NBD export. Each client has an [`Attachment`]. [`qos`] limits the requests of
//! all clients, and [`statistics`] counts them. This crate has no clock, no sockets and no threads.

mod attachment;
mod clock;
mod gate;
mod guarded;
mod health;
mod history;
mod operation;
mod phase;
pub mod qos;
mod records;
pub mod reservations;
pub mod statistics;
#[cfg(test)]
mod testing;
mod volume;

pub use attachment::{Attachment, ClientId, NO_CLIENT, new_client};
pub use clock::Clock;
pub use gate::{ExclusiveGuard, Regions, SharedGuard, WriteGate};
pub use guarded::ChangeListener;
pub use health::{Aspect, Health, VolumeHealth};
pub use history::{ChangeHistory, ChangeRun};
pub use operation::{Operation, OperationKind};
pub use phase::{MediumPhase, Phase};
pub use records::{MetadataKind, MetadataStore};
pub use volume::{NotUsable, Parts, Volume};
