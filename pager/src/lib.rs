//! Page faults turned into store requests.

pub mod tree;
