//! Stores that wrap a store.
