//! Thin wrappers over the Linux interfaces that Spillway uses.
//!
//! Nearly all unsafe code lives here. Nothing in this crate uses thread-local storage, libc's
//! errno or the heap: it runs on tasks that have neither a libc thread nor a C library to call.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("Spillway's pager is written for Linux on x86-64");

pub mod dispatch;
pub mod lease;
pub mod lock;
pub mod memory;
pub mod page_file;
pub mod pagemap;
pub mod priority;
pub mod process;
pub mod schedule;
pub mod swap;
pub mod sys;
pub mod task;
pub mod uffd;

/// Size of a page, bytes.
pub const PAGE_SIZE: usize = 4096;
