//! sarsen.
fn main() {}
