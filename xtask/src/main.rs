//! The developer's commands: ci, layering check, bench.
fn main() {}
