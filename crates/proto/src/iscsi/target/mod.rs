//! The target end.
