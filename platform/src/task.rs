//! Tasks in this address space that the C library does not know.
//!
//! A *guest process* shares the program's memory, but not its descriptors, signals, file system context
//! or thread group. So nothing that the program does to those affects it. A *guest thread* belongs to the
//! program's thread group and shares its signal handlers as well: no wait sees it, and it ends with the
//! program. Both can start further threads, which share their descriptors. All these tasks run with signals
//! blocked. Each has a thread control block of its own, with room for errno and the stack protector only.

use crate::memory::map_native;
use crate::sys::{exit_process, number, syscall6};
use core::arch::asm;
use rustix::io::Errno;

const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;
const CLONE_SETTLS: usize = 0x8_0000;
/// Makes `wait4` wait also for children that raise no SIGCHLD.
const WAIT_ALL: usize = 0x4000_0000;

const STACK_BYTES: usize = 256 << 10;
/// Room below the thread pointer for the static thread-local data of the C library.
const TLS_BELOW: usize = 64 << 10;
const TLS_ABOVE: usize = 4 << 10;

/// The function that a task runs.
pub type Entry = extern "C" fn(usize);

/// Starts a process that shares this one's memory and nothing else. It is not the caller's child: the
/// nearest subreaper or init reaps it. Returns when the process exists; it may not have run yet.
///
/// # Errors
/// If there is no memory for its stack or the kernel creates no more tasks.
pub fn spawn_guest_process(entry: Entry, argument: usize) -> Result<(), Errno> {
    let between = Between { entry, argument };
    let flags = CLONE_VM | CLONE_SETTLS;
    let stack = Stack::new()?;
    let pid = stack.clone_onto(flags, orphan, &raw const between as usize)?;
    let mut status = 0i32;
    // SAFETY: waits for the task made above; `status` outlives the call.
    unsafe {
        let args = [pid, &raw mut status as usize, WAIT_ALL, 0, 0, 0];
        while syscall6(number::WAIT4, args) == Err(Errno::INTR) {}
    }
    stack.free();
    if status == 0 { Ok(()) } else { Err(Errno::AGAIN) }
}

struct Between {
    entry: Entry,
    argument: usize,
}

/// Starts the guest process and ends, so that the guest process is an orphan.
extern "C" fn orphan(between: usize) {
    // SAFETY: `spawn_guest_process` waits for this task, so its `Between` is alive.
    let between = unsafe { &*(between as *const Between) };
    let made = Stack::new()
        .and_then(|s| s.clone_onto(CLONE_VM | CLONE_SETTLS, between.entry, between.argument));
    exit_process(i32::from(made.is_err()));
}

/// Starts a thread in this process's thread group. It shares the memory and signal handlers, but not the descriptors
/// and the file system context.
///
/// # Errors
/// If there is no memory for its stack or the kernel creates no more tasks.
pub fn spawn_guest_thread(entry: Entry, argument: usize) -> Result<(), Errno> {
    let share = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    Stack::new()?.clone_onto(share | CLONE_SETTLS, entry, argument).map(|_| ())
}

/// Starts another thread of the calling guest process or thread.
///
/// # Errors
/// If there is no memory for its stack or the kernel creates no more tasks.
pub fn spawn_thread(entry: Entry, argument: usize) -> Result<(), Errno> {
    let share = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    Stack::new()?.clone_onto(share | CLONE_SETTLS, entry, argument).map(|_| ())
}

/// A task's stack, with its thread control block above it.
struct Stack {
    base: usize,
}

impl Stack {
    const BYTES: usize = STACK_BYTES + TLS_BELOW + TLS_ABOVE;

    fn new() -> Result<Self, Errno> {
        Ok(Self { base: map_native(Self::BYTES)? })
    }

    fn free(self) {
        // SAFETY: the task that ran on this mapping has ended and was waited for.
        let _ = unsafe { rustix::mm::munmap(self.base as *mut _, Self::BYTES) };
    }

    /// Writes a thread control block in the layout of the x86-64 ABI, and returns its address, the thread pointer.
    /// Offsets 0 and 16 hold the address itself, 40 the stack protector and 48 the pointer guard, both copied from the
    /// calling thread.
    fn thread_pointer(&self) -> usize {
        let pointer = self.base + STACK_BYTES + TLS_BELOW;
        let (canary, guard): (usize, usize);
        // SAFETY: every libc thread has these two words at these offsets from fs.
        unsafe {
            asm!("mov {0}, fs:[40]", "mov {1}, fs:[48]", out(reg) canary, out(reg) guard,
                options(nostack, readonly));
            let block = pointer as *mut usize;
            block.write(pointer);
            block.add(2).write(pointer);
            block.add(5).write(canary);
            block.add(6).write(guard);
        }
        pointer
    }

    fn clone_onto(&self, flags: usize, entry: Entry, argument: usize) -> Result<usize, Errno> {
        let thread_pointer = self.thread_pointer();
        let top = self.base + STACK_BYTES - 16;
        let answer: isize;
        // SAFETY: the new task starts on its own fresh stack, pops its argument and entry point
        // from there, and ends by exit when the entry point returns; the calling task only sees
        // the number that clone answers with.
        unsafe {
            (top as *mut usize).write(argument);
            ((top + 8) as *mut usize).write(entry as usize);
            asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "pop rdi",
                "pop rax",
                "call rax",
                "xor edi, edi",
                "mov eax, 60",
                "syscall",
                "ud2",
                "2:",
                inlateout("rax") 56isize => answer,
                in("rdi") flags, in("rsi") top, in("rdx") 0usize, in("r10") 0usize,
                in("r8") thread_pointer, lateout("rcx") _, lateout("r11") _);
        }
        if answer < 0 {
            return Err(Errno::from_raw_os_error(-answer as i32));
        }
        Ok(answer as usize)
    }
}

/// Runs `work` with `argument` on another stack, and returns when it has returned.
///
/// # Safety
/// `top` is the end of memory that nothing else uses meanwhile. It is aligned to 16 bytes, and the memory is large
/// enough for `work` and what it calls. If `work` forks, the child has a copy of that memory.
pub unsafe fn call_on(top: usize, work: Entry, argument: usize) {
    // SAFETY: the callee preserves r12, which holds this stack's pointer meanwhile; `clobber_abi` covers the ABI's
    // other rules.
    unsafe {
        asm!("xchg rsp, r12", "call {work}", "mov rsp, r12",
            work = in(reg) work, inlateout("r12") top => _, in("rdi") argument,
            clobber_abi("C"));
    }
}

/// All signals, blocked until this is dropped.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks every signal for the calling thread and the tasks that it starts.
    #[must_use]
    pub fn new() -> Self {
        Self { before: set_signal_mask(u64::MAX) }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signal_mask(self.before);
    }
}

/// Blocks the signals of `mask`, bit n - 1 for signal n, and no others. Returns the former mask.
pub fn set_signal_mask(mask: u64) -> u64 {
    const SIG_SETMASK: usize = 2;
    let mut before = 0u64;
    // SAFETY: both masks live on this stack and have the kernel's size of 8 bytes.
    let _ = unsafe {
        let args = [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0];
        syscall6(number::SIGPROCMASK, args)
    };
    before
}

/// Separates a guest process or thread from what it copied from the program. Closes all descriptors except `keep`
/// (sorted), changes the working directory to `/`, and sets the task's name. A guest process also gets a process group
/// of its own. It stays in its session: a new session is alone in a new scheduler group (autogroup), which on a busy
/// processor can wait for seconds before it first runs (Linux 6.18).
pub fn leave_program(keep: &[i32], name: &core::ffi::CStr) {
    let close = |from: u32, to: u32| {
        if from <= to {
            let args = [from as usize, to as usize, 0, 0, 0, 0];
            // SAFETY: this task has a descriptor table of its own, in which only the descriptors of `keep` are in use.
            let _ = unsafe { syscall6(number::CLOSE_RANGE, args) };
        }
    };
    let mut from = 0u32;
    for &descriptor in keep {
        if descriptor as u32 > from {
            close(from, descriptor as u32 - 1);
        }
        from = descriptor as u32 + 1;
    }
    close(from, u32::MAX);
    let _ = rustix::process::chdir("/");
    let is_process = rustix::thread::gettid() == rustix::process::getpid();
    if is_process {
        let _ = rustix::process::setpgid(None, None);
    }
    let _ = rustix::thread::set_name(name);
}
