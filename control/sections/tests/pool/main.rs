//! The section pool on real file systems.

mod bad_input;
mod common;
mod counted;
mod hugetlbfs;
mod life;
mod loan;
mod model;
mod ready;
mod unplugged;
