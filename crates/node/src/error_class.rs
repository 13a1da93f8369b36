//! Classes of errors, for callers that return an error code: an object does not exist, or it is in use.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter::successors;

/// A class of errors that a caller can distinguish without the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A named file, folder or device does not exist.
    Missing,
    /// Another party uses the object.
    Taken,
}

impl ErrorClass {
    /// Returns the class of the system's error among the sources of `error`.
    pub fn below(error: &(dyn Error + 'static)) -> Option<Self> {
        let chain = successors(Some(error), |error| (*error).source());
        match chain.filter_map(|error| error.downcast_ref::<io::Error>()).last()?.kind() {
            ErrorKind::NotFound => Some(Self::Missing),
            ErrorKind::AddrInUse | ErrorKind::AlreadyExists => Some(Self::Taken),
            _ => None,
        }
    }
}
