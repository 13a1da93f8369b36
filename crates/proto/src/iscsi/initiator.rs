//! The initiator end.
