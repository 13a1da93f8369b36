//! Tests of the target end.
