//! The kinds of objects that a server can have: their documents, keys and references. [`document`] is their file format.

pub mod document;
mod object;
mod orphan;
mod references;
mod revision;
mod typed_json;

pub use self::document::Document;
pub(crate) use self::object::{Difference, differences, serial};
pub use self::object::{Key, Object, ObjectKind, Objects};
pub use self::orphan::Orphan;
pub(crate) use self::references::referred;
pub use self::revision::Revision;
pub use self::typed_json::{JsonMismatch, from_json};
