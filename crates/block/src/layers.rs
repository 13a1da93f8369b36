//! The stores over one other store that need neither the kernel nor a clock.

mod encrypted;
mod fault;
mod overlay;
mod protected;
mod read_only;

pub use encrypted::{EncryptedStore, ForgetKey, KEY_BYTES, Key, KeyStore};
pub use fault::{Fault, Faults, FaultyStore, Times};
pub use overlay::OverlayStore;
pub use protected::{HEADER_BYTES, ProtectedStore};
pub use read_only::ReadOnly;
