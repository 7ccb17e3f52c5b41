//! Syscall user dispatch: a thread's system calls arrive as SIGSYS before the kernel acts on them.
//!
//! See `Documentation/admin-guide/syscall-user-dispatch.rst` and `prctl(2)`. The setting belongs to
//! one thread; neither a forked child nor a new program inherits it.

use crate::sys::{number, syscall6};
use core::arch::naked_asm;
use core::ops::Range;
use rustix::io::Errno;

/// `si_code` of a SIGSYS that this mechanism raised.
pub const SYS_USER_DISPATCH: i32 = 2;

/// prctl(2)'s option for this mechanism.
pub const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
/// Its first argument that turns the dispatch off.
pub const OFF: usize = 0;
const ON: usize = 1;

/// The signal is not blocked while its handler runs.
pub const SA_NODEFER: u64 = 0x4000_0000;
/// Interrupted system calls restart after the handler.
pub const SA_RESTART: u64 = 0x1000_0000;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
/// Size of the kernel's signal set, bytes.
const MASK_BYTES: usize = 8;

/// A signal's disposition, in the kernel's form (`struct kernel_sigaction`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Disposition {
    /// Address of the handler; 0 is the default action, 1 ignores the signal.
    pub handler: usize,
    /// `SA_` flags.
    pub flags: u64,
    /// The address to which a handler returns.
    pub restorer: usize,
    /// Signals that are blocked while the handler runs.
    pub mask: u64,
}

impl Disposition {
    /// The default action.
    pub const DEFAULT: Self = Self { handler: 0, flags: 0, restorer: 0, mask: 0 };

    /// A handler that gets siginfo and context, and runs with the signals of `mask` blocked. It returns
    /// by a system call in this crate's code, whose address [`turn_on`] can allow.
    #[must_use]
    pub fn of(handler: extern "C" fn(i32, usize, usize), flags: u64, mask: u64) -> Self {
        let restorer = return_from_signal as *const () as usize;
        Self { handler: handler as usize, flags: flags | SA_SIGINFO | SA_RESTORER, restorer, mask }
    }
}

/// `rt_sigreturn(2)`, with the stack as the handler found it.
#[unsafe(naked)]
extern "C" fn return_from_signal() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// Sets a signal's disposition in the whole process. Returns the former one.
///
/// # Errors
/// As rt_sigaction(2).
///
/// # Safety
/// The handler must be sound wherever a thread of this process gets the signal.
pub unsafe fn set_disposition(signal: i32, new: &Disposition) -> Result<Disposition, Errno> {
    let mut before = Disposition::DEFAULT;
    let (new, old) = (core::ptr::from_ref(new) as usize, &raw mut before as usize);
    // SAFETY: both structures are the kernel's and live through the call.
    unsafe { syscall6(number::SIGACTION, [signal as usize, new, old, MASK_BYTES, 0, 0])? };
    Ok(before)
}

/// Makes each system call of this thread raise SIGSYS instead, except those made by instructions at the `allowed`
/// addresses. The thread must not block SIGSYS, or the kernel kills the process at the next system call.
///
/// # Errors
/// The error of a seccomp filter of the program.
pub fn turn_on(allowed: &Range<usize>) -> Result<(), Errno> {
    // No selector: the kernel reads no memory.
    set([ON, allowed.start, allowed.len(), 0])
}

/// Turns the dispatch off: the thread's system calls reach the kernel again.
pub fn turn_off() {
    // Fails only if a seccomp filter refuses it, and then `turn_on` has failed too.
    let _ = set([OFF, 0, 0, 0]);
}

/// Restores the program's own setting for this thread, from the arguments of its prctl.
pub fn set_again(own: [usize; 4]) {
    let _ = set(own);
}

fn set([mode, start, bytes, selector]: [usize; 4]) -> Result<(), Errno> {
    let args = [PR_SET_SYSCALL_USER_DISPATCH as usize, mode, start, bytes, selector, 0];
    // SAFETY: the kernel reads a byte at the selector, which is null or the program's, and checks the address.
    unsafe { syscall6(number::PRCTL, args).map(|_| ()) }
}
