//! dlopen and dlmopen without RTLD_DEEPBIND.
//!
//! A library that is opened with this flag looks up symbols in its own dependencies first and finds the C
//! library's malloc and free there. It then frees blocks of this library's malloc, or the other way round.
//! PHP opens its extensions with the flag. So these functions clear it, as address sanitizers and other
//! allocators ask their users to do.
//!
//! The loader searches by the RUNPATH, $ORIGIN and namespace of its caller, which it finds by the return
//! address. So these functions leave no stack frame: they jump to the C library's functions, which return
//! to the program.

use crate::raw;
use std::sync::atomic::AtomicUsize;

static DLOPEN: AtomicUsize = AtomicUsize::new(0);
static DLMOPEN: AtomicUsize = AtomicUsize::new(0);

/// Defines a function that clears RTLD_DEEPBIND in the register `$flags` and jumps to the function whose address
/// `$real` holds. The first call looks the address up. The three pushes align the stack to 16 bytes.
macro_rules! without_deep_bind {
    ($(#[$doc:meta])* $name:ident, $flags:literal, $real:ident, $look_up:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "endbr64",
                concat!("and ", $flags, ", {keep}"),
                "mov rax, [rip + {real}]",
                "test rax, rax",
                "jnz 2f",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {look_up}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "2:",
                "jmp rax",
                keep = const !libc::RTLD_DEEPBIND,
                real = sym $real,
                look_up = sym $look_up,
            )
        }
    };
}

without_deep_bind! {
    /// `dlopen(3)`.
    dlopen, "esi", DLOPEN, look_up_dlopen
}
without_deep_bind! {
    /// `dlmopen(3)`.
    dlmopen, "edx", DLMOPEN, look_up_dlmopen
}

extern "C" fn look_up_dlopen() -> usize {
    raw::next(&DLOPEN, c"dlopen")
}

extern "C" fn look_up_dlmopen() -> usize {
    raw::next(&DLMOPEN, c"dlmopen")
}
