//! The daemon: arguments, configuration, parts, run.

fn main() {}
