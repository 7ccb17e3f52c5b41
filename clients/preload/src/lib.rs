//! The library that `spillway run` preloads into an unmodified program.
//!
//! It interposes the C library's functions that map, change and unmap memory, and its allocator, so that
//! the pager manages large private memory from its first byte. It also prepares forks, and in in-thread
//! mode interposes signal functions, reads and writes. The rest of the program is unchanged.

mod address_space;
mod calls;
mod child_start;
mod fork;
mod guest_ram;
mod heap;
mod imports;
mod io;
mod loader;
mod locks;
mod mappings;
mod mutexes;
mod native;
mod pager;
mod raw;
mod run;
mod signals;
mod unpaged;

#[global_allocator]
static NATIVE: native::NativeHeap = native::NativeHeap::new();

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: run::Constructor = run::begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = run::end;
