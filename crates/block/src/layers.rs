//! Layers: stores that wrap another store. A layer forwards every request that it does not change, so that it needs
//! code only for the requests that it changes.

mod encrypted;
mod fault;
mod protected;
mod read_only;

pub use encrypted::{EncryptedStore, ForgetKey, KEY_BYTES, Key, KeyStore};
pub use fault::{Fault, Faults, FaultyStore, Times};
pub use protected::{HEADER_BYTES, ProtectedStore};
pub use read_only::ReadOnly;
