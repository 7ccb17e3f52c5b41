//! Forks. The pager is quiescent only around the system call that creates the child.
//!
//! Before that call, the C library's fork takes locks, walks lists in its heap and waits for other
//! threads. All of that may touch far memory, so the pager must answer faults meanwhile. Therefore the
//! hook before the fork opens a *window*: until the thread's next clone, its system calls raise SIGSYS
//! ([`dispatch`]). The SIGSYS handler makes other system calls itself. At the clone it closes the window,
//! switches to a native stack, quiesces the pager, creates the child, and starts the child's own pager
//! before it returns to the C library. The parent waits for that. From the opening of the window until the
//! C library sets its own mask, all signals except SIGSYS and SIGBUS are blocked, except while the thread
//! waits for a lock.

use crate::child_start::ChildStart;
use crate::pager::pager;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use rustix::io::Errno;
use rustix::process::Signal;
use spillway_pager::{NEEDED_MAX, Pager};
use spillway_platform::dispatch::{self, Disposition, SYS_USER_DISPATCH};
use spillway_platform::lock::{Guard, Lock};
use spillway_platform::memory::map_native;
use spillway_platform::sys::{exit_process, syscall6};
use spillway_platform::task::{SignalsBlocked, call_on, set_signal_mask};
use spillway_platform::{PAGE_SIZE, process};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// More words than `struct clone_args` has (linux/sched.h).
const CLONE_WORDS: usize = 16;
/// Indexes of its words.
const PIDFD: usize = 1;
const CHILD_TID: usize = 2;
const PARENT_TID: usize = 3;
const STACK: usize = 5;
const STACK_BYTES: usize = 6;
/// Upper bound of the size of glibc's `struct pthread`, bytes.
const THREAD_BYTES: usize = PAGE_SIZE;
/// Bytes of the native stack on which forks run.
const NATIVE_STACK_BYTES: usize = 256 << 10;
const SYS_BIT: u64 = 1 << (libc::SIGSYS - 1);
const BUS_BIT: u64 = 1 << (libc::SIGBUS - 1);

thread_local! {
    /// While the thread's window is open, the signal mask that the thread believes it has.
    static WINDOW: Cell<Option<u64>> = const { Cell::new(None) };
}

thread_local! {
    /// The dispatch that the program has set for this thread, as arguments of prctl(2).
    static PROGRAM_DISPATCH: Cell<Option<[usize; 4]>> = const { Cell::new(None) };
}

/// The state that all windows share.
struct Windows {
    open: usize,
    /// The program's disposition for SIGSYS, which is in force while no window is open.
    program: Disposition,
}

static WINDOWS: Lock<Windows> = Lock::new(Windows { open: 0, program: Disposition::DEFAULT });
/// The end of the native stack. The lock admits one fork at a time.
static NATIVE_STACK: Lock<usize> = Lock::new(0);
/// Addresses of this library's code, whose system calls raise no signal.
static CODE_START: AtomicUsize = AtomicUsize::new(0);
static CODE_END: AtomicUsize = AtomicUsize::new(0);
/// Whether a fork without room for the child's pager was reported: a shell tries many times.
static NO_ROOM_SAID: AtomicBool = AtomicBool::new(false);
/// glibc's `_Fork`, if it has one.
static FORK_ALONE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

/// Registers the hooks. The first registered hook runs last before the fork, so no handler of the program runs in the
/// window.
pub fn prepare() -> Result<(), Errno> {
    *NATIVE_STACK.lock() = map_native(NATIVE_STACK_BYTES)? + NATIVE_STACK_BYTES;
    find_code();
    // SAFETY: a lookup by a terminated name, and functions that live as long as this library, which is
    // never unloaded.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"_Fork".as_ptr());
        FORK_ALONE.store(found as usize, Ordering::Relaxed);
        pthread_atfork(open_window, close_window, close_window);
    }
    Ok(())
}

/// Finds the addresses of this library's code among the loaded objects.
fn find_code() {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader hands out a valid description of a loaded object.
        let info = unsafe { &*info };
        // SAFETY: as above, of its program headers.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        for header in headers.iter().filter(|header| header.p_flags & libc::PF_X != 0) {
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            let end = start + header.p_memsz as usize;
            if (start..end).contains(&(find_code as *const () as usize)) {
                CODE_START.store(start, Ordering::Relaxed);
                CODE_END.store(end, Ordering::Relaxed);
                return 1;
            }
        }
        0
    }
    // SAFETY: the callback has the expected signature, and keeps no pointer.
    unsafe { libc::dl_iterate_phdr(Some(look), std::ptr::null_mut()) };
}

fn code() -> Range<usize> {
    CODE_START.load(Ordering::Relaxed)..CODE_END.load(Ordering::Relaxed)
}

/// The hook before a fork.
extern "C" fn open_window() {
    let Some(pager) = pager() else { return };
    let mask = set_signal_mask(blocked_in_window());
    if let Err(errno) = open(mask) {
        // The child gets no managed memory, so its first access to it ends it.
        pager.refuse_fork(errno);
        set_signal_mask(mask);
    }
}

/// The hook after a fork, in both processes. The window is closed already, unless no fork took place.
extern "C" fn close_window() {
    if let Some(mask) = WINDOW.take() {
        leave();
        set_signal_mask(mask);
    }
}

/// All signals except SIGSYS, which system calls raise in a window, and SIGBUS, which faults raise in in-thread mode.
const fn blocked_in_window() -> u64 {
    !(SYS_BIT | BUS_BIT)
}

/// Opens this thread's window. The caller has blocked the signals of [`blocked_in_window`]. `mask` is the mask that
/// the thread believes it has.
fn open(mask: u64) -> Result<(), Errno> {
    let mut windows = WINDOWS.lock();
    if windows.open == 0 {
        let ours = Disposition::of(on_system_call, 0, blocked_in_window());
        // SAFETY: the handler passes signals that no window raised to the program's handler.
        windows.program = unsafe { dispatch::set_disposition(libc::SIGSYS, &ours)? };
    }
    windows.open += 1;
    drop(windows);
    WINDOW.set(Some(mask));
    dispatch::turn_on(&code()).inspect_err(|_| {
        WINDOW.set(None);
        leave();
    })
}

/// Closes this thread's window, without restoring its signal mask.
fn leave() {
    match PROGRAM_DISPATCH.get() {
        None => dispatch::turn_off(),
        Some(own) => dispatch::set_again(own),
    }
    let mut windows = WINDOWS.lock();
    windows.open -= 1;
    if windows.open == 0 {
        restore(&windows);
    }
}

fn restore(windows: &Windows) {
    // SAFETY: the disposition from before the first window.
    let _ = unsafe { dispatch::set_disposition(libc::SIGSYS, &windows.program) };
}

/// Runs `change`, which sets the program's disposition for SIGSYS, while no window is open.
pub fn with_own_disposition<T>(change: impl FnOnce() -> T) -> T {
    loop {
        let blocked = SignalsBlocked::new();
        let windows = WINDOWS.lock();
        if windows.open == 0 {
            return change();
        }
        drop(windows);
        drop(blocked);
        rustix::thread::sched_yield();
    }
}

/// The handler of SIGSYS while a window is open.
extern "C" fn on_system_call(signal: c_int, info: usize, context: usize) {
    // SAFETY: the kernel hands valid pointers to a handler with SA_SIGINFO.
    let (info, context) =
        unsafe { (&mut *(info as *mut siginfo_t), &mut *(context as *mut ucontext_t)) };
    if info.si_code != SYS_USER_DISPATCH {
        return pass_on(signal, info, context);
    }
    let register = |name: c_int| context.uc_mcontext.gregs[name as usize] as usize;
    let args =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(register);
    let number = register(libc::REG_RAX);
    let answer = match number as libc::c_long {
        libc::SYS_rt_sigprocmask => mask_in_window(args),
        libc::SYS_futex => outside_window(number, args),
        // SAFETY: the arguments are those of a system call that the C library or the program made.
        _ => match unsafe { Fork::of(number, args) } {
            Some(fork) => fork_in_window(fork, context),
            // SAFETY: passes the caller's arguments on.
            None => unsafe { syscall6(number, args) },
        },
    };
    let answer = answer.unwrap_or_else(|errno| -errno.raw_os_error() as usize);
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = answer as i64;
}

/// Passes on a SIGSYS from a seccomp filter of the program, or from kill(2).
fn pass_on(signal: c_int, info: &mut siginfo_t, context: &mut ucontext_t) {
    let program = WINDOWS.lock().program;
    match program.handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => process::die_by(Signal::SYS),
        handler => {
            type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t);
            // SAFETY: the handler that the program installed for this signal. A handler with one argument finds it
            // where this signature puts it.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
    }
}

/// `rt_sigprocmask(2)` in a window: changes the mask that the thread believes it has.
fn mask_in_window([how, new, old, ..]: [usize; 6]) -> Result<usize, Errno> {
    let before = WINDOW.get().unwrap_or(0);
    // SAFETY: the C library passes null or pointers to sets of the kernel's size.
    let (new, old) = unsafe { ((new as *const u64).as_ref(), (old as *mut u64).as_mut()) };
    if let Some(&new) = new {
        WINDOW.set(Some(match how as c_int {
            libc::SIG_BLOCK => before | new,
            libc::SIG_UNBLOCK => before & !new,
            libc::SIG_SETMASK => new,
            _ => return Err(Errno::INVAL),
        }));
    }
    if let Some(old) = old {
        *old = before;
    }
    Ok(0)
}

/// Makes a system call that may wait for other threads. The window is closed meanwhile, so the thread's signals arrive
/// and their handlers may make any call, also fork.
fn outside_window(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let mask = WINDOW.take().unwrap_or(0);
    leave();
    set_signal_mask(mask);
    // SAFETY: passes the caller's arguments on.
    let answer = unsafe { syscall6(number, args) };
    set_signal_mask(blocked_in_window());
    if let Err(errno) = open(mask)
        && let Some(pager) = pager()
    {
        pager.refuse_fork(errno);
    }
    answer
}

/// Forks in a window, and closes the window.
fn fork_in_window(fork: Fork, context: &mut ucontext_t) -> Result<usize, Errno> {
    let mask = WINDOW.take().unwrap_or(0);
    leave();
    let stack = fork.child_stack();
    let answer = fork.make();
    if answer == Ok(0) && stack != 0 {
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
    }
    let blocked: *mut u64 = (&raw mut context.uc_sigmask).cast();
    // SAFETY: the first eight bytes of a libc signal set are the kernel's.
    unsafe { blocked.write(mask) };
    answer
}

/// A system call that creates a process with an address space of its own.
#[derive(Clone, Copy)]
pub struct Fork {
    number: usize,
    args: [usize; 6],
    /// A copy of clone3's structure, because the caller's may lie in far memory.
    extended: [usize; CLONE_WORDS],
    answer: Result<usize, Errno>,
}

impl Fork {
    /// None if the call creates no such process, or if its structure for clone3 is longer than [`CLONE_WORDS`].
    ///
    /// # Safety
    /// The arguments are valid for the call.
    pub unsafe fn of(number: usize, args: [usize; 6]) -> Option<Self> {
        let mut extended = [0; CLONE_WORDS];
        let flags = match number as libc::c_long {
            libc::SYS_fork => 0,
            libc::SYS_clone => args[0],
            libc::SYS_clone3 => {
                let bytes = args[1];
                if !(size_of::<usize>()..=size_of_val(&extended)).contains(&bytes) {
                    return None;
                }
                // SAFETY: the caller's structure has that many bytes, and `extended` has room for them.
                unsafe {
                    let from = args[0] as *const u8;
                    std::ptr::copy_nonoverlapping(from, extended.as_mut_ptr().cast(), bytes);
                }
                extended[0]
            }
            _ => return None,
        };
        let fork = Self { number, args, extended, answer: Err(Errno::AGAIN) };
        (flags & libc::CLONE_VM as usize == 0).then_some(fork)
    }

    /// The child's initial stack pointer; 0 for the caller's.
    pub fn child_stack(&self) -> usize {
        match self.number as libc::c_long {
            libc::SYS_clone => self.args[1],
            libc::SYS_clone3 if self.extended[STACK] != 0 => {
                self.extended[STACK] + self.extended[STACK_BYTES]
            }
            _ => 0,
        }
    }

    /// Managed addresses that the kernel writes to during the call: the places for process and thread ids, and the
    /// thread's control block with its restartable sequences. 0 fills the unused entries.
    fn needed(&self) -> [usize; NEEDED_MAX] {
        let block = thread_pointer();
        let [first, second, third] = match self.number as libc::c_long {
            libc::SYS_clone => [self.args[2], self.args[3], 0],
            libc::SYS_clone3 => {
                [self.extended[PIDFD], self.extended[CHILD_TID], self.extended[PARENT_TID]]
            }
            _ => [0; 3],
        };
        // Native memory needs nothing. Not all flags use each pointer, so a pointer can be invalid.
        let managed =
            |at: usize| pager().is_some_and(|pager| pager.is_managed(at, at.saturating_add(1)));
        [block - PAGE_SIZE, block, block + THREAD_BYTES - 1, first, second, third]
            .map(|address| if managed(address) { address } else { 0 })
    }

    /// Creates the child. When this returns, in either process, the child's pager runs. If the kernel refuses the
    /// pager's tasks, there is no child, and this returns the kernel's error.
    pub fn make(mut self) -> Result<usize, Errno> {
        let Some(pager) = pager() else {
            // SAFETY: the program's own system call.
            return unsafe { syscall6(self.number, self.args) };
        };
        let needed = self.needed();
        // The kernel starts the child on this stack; the caller then switches it to its own.
        if self.number as libc::c_long == libc::SYS_clone {
            self.args[1] = 0;
        }
        (self.extended[STACK], self.extended[STACK_BYTES]) = (0, 0);
        let mask = set_signal_mask(blocked_in_window());
        let turn = NATIVE_STACK.lock();
        let top = *turn - size_of::<Work>().next_multiple_of(64);
        // Other threads may fault while they hold these locks, so they are taken while the pager still answers faults.
        // Holding them gives the child consistent copies.
        let windows = WINDOWS.lock();
        let files = crate::guest_ram::hold_files();
        let start = ChildStart::new();
        let work = Work { fork: self, pager, needed, start };
        // SAFETY: the native stack belongs to this thread while it holds `turn`. Its last bytes hold the `Work`, above
        // the part that the callee uses.
        let answer = unsafe {
            (top as *mut Work).write(work);
            call_on(top, make_on_native_stack, top);
            (*(top as *const Work)).fork.answer
        };
        drop(files);
        if answer == Ok(0) {
            forget_other_windows(windows);
        } else {
            drop(windows);
        }
        drop(turn);
        let answer = start.and_then(|start| {
            let answer = answer.and_then(|child| self.await_start(start, child));
            start.unmap();
            answer
        });
        set_signal_mask(mask);
        answer
    }

    /// After the fork, in both processes: the parent waits until the child has its pager, and reports once if it
    /// gets none.
    fn await_start(&self, start: ChildStart, child: usize) -> Result<usize, Errno> {
        if child == 0 {
            return Ok(0);
        }
        start.wait(child).map(|()| child).inspect_err(|&errno| {
            self.close_pidfd();
            if let Some(pager) = pager()
                && !NO_ROOM_SAID.swap(true, Ordering::Relaxed)
            {
                pager.say_no_room_for_child(errno);
            }
        })
    }

    /// Closes the descriptor that the kernel has opened for a child that the program never hears of.
    fn close_pidfd(&self) {
        let (flags, place) = match self.number as libc::c_long {
            libc::SYS_clone => (self.args[0], self.args[2]),
            libc::SYS_clone3 => (self.extended[0], self.extended[PIDFD]),
            _ => return,
        };
        if flags & libc::CLONE_PIDFD as usize != 0 {
            // SAFETY: the kernel has written the descriptor to this place, and the program does not know it.
            unsafe { rustix::io::close(*(place as *const c_int)) };
        }
    }
}

/// Resets the state of windows in a child, which has no other threads of its parent and no dispatch.
fn forget_other_windows(mut windows: Guard<'_, Windows>) {
    PROGRAM_DISPATCH.set(None);
    if std::mem::take(&mut windows.open) > 0 {
        restore(&windows);
    }
}

/// The fork to make on the native stack.
struct Work {
    fork: Fork,
    pager: &'static Pager,
    needed: [usize; NEEDED_MAX],
    start: Result<ChildStart, Errno>,
}

extern "C" fn make_on_native_stack(work: usize) {
    // SAFETY: `Fork::make` wrote it there for this call.
    let work = unsafe { &mut *(work as *mut Work) };
    let _blocked = SignalsBlocked::new();
    // In in-thread mode, SIGBUS brings the needed pages in.
    let faults = set_signal_mask(!BUS_BIT);
    let ready = work.start.and_then(|start| work.pager.before_fork(&work.needed).map(|()| start));
    set_signal_mask(faults);
    work.fork.answer = ready.and_then(|start| {
        let mut args = work.fork.args;
        if work.fork.number as libc::c_long == libc::SYS_clone3 {
            args[0] = work.fork.extended.as_ptr() as usize;
        }
        // SAFETY: the program's own system call; clone3's structure is alive and has the stated length.
        let answer = unsafe { syscall6(work.fork.number, args) };
        if answer == Ok(0) {
            begin_child(work.pager, start);
        } else {
            work.pager.after_fork_in_parent();
        }
        answer
    });
}

/// Starts the child's own pager, before any other code runs in the child.
fn begin_child(pager: &'static Pager, start: ChildStart) {
    match pager.after_fork_in_child(process::own_number()) {
        Ok(()) => start.succeed(),
        // The child can't reach its far pages. It must end, or it would read zeros.
        Err(error) if start.fail(error) => exit_process(1),
        Err(error) => {
            pager.refuse_fork(error.errno());
            process::die_by(Signal::BUS);
        }
    }
}

/// The address of the thread's control block, read from the block's first word.
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: every libc thread has this word at this offset from fs.
    unsafe {
        std::arch::asm!("mov {0}, fs:[0]", out(reg) pointer, options(nostack, readonly));
    }
    pointer
}

/// Records the dispatch that the program has set for this thread by prctl(2), or that it has turned it off.
pub fn remember_dispatch(own: Option<[usize; 4]>) {
    PROGRAM_DISPATCH.set(own);
}

/// `_Fork(3)`, with the same hooks as fork(3).
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> libc::pid_t {
    let real = FORK_ALONE.load(Ordering::Relaxed);
    if real == 0 {
        return crate::raw::answer(Err(Errno::NOSYS)) as libc::pid_t;
    }
    open_window();
    // SAFETY: glibc's function of this name, which has this signature.
    let real = unsafe { std::mem::transmute::<usize, extern "C" fn() -> libc::pid_t>(real) };
    let pid = real();
    close_window();
    pid
}
