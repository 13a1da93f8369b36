//! chores.
fn main() {}
