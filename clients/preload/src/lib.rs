//! What `spillway run` loads into an unmodified program.
//!
//! It takes the place of the C library's calls that make, change and give back memory, and of its
//! allocator, so that large private memory is managed by the pager from its first byte; and it
//! prepares forks. Everything else of the program is left alone.

mod address_space;
mod calls;
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

#[global_allocator]
static NATIVE: native::NativeHeap = native::NativeHeap::new();

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: run::Constructor = run::begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = run::end;
