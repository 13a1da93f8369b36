//! The suite that every store and layer passes.
