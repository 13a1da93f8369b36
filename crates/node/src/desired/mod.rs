//! What a server is to be: [`document`] is how it is written.

pub mod document;

pub use self::document::Document;
