//! Joins the run: finds the tree page, starts the pager, and makes it available to the interposed functions.

use crate::pager::{end_early, pager, set_pager};
use crate::unpaged;
use rustix::io::Errno;
use spillway_pager::tree::{BladeAddress, ENV, Faults, MAGIC, Notice, TREE_BYTES, Tree, VERSION};
use spillway_pager::{Error, Pager, Ways, unserved};
use spillway_platform::sys;
use spillway_tiers::blade::Carrier;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A function that glibc calls when it loads a library. Its arguments are argument count, arguments and environment.
pub type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// The constructor. It runs before that of any other library, and before libc has set `environ`, so it uses the
/// environment that glibc passes to constructors.
pub extern "C" fn begin(
    _: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    let Some(tree) = open_tree(environment) else {
        end_with_supervisor(environment);
        end_early();
        return;
    };
    let pid = spillway_platform::process::own_number();
    if let Some(kind) = unpaged::find() {
        if tree.counters.told_unpaged.fetch_or(1 << kind, Ordering::Relaxed) & 1 << kind == 0 {
            tree.notify(Notice::Unpaged, pid, kind as u64);
        }
        // SAFETY: glibc hands both to constructors.
        unsafe { unpaged::start_again(arguments, environment) };
    }
    spillway_pager::keep_device();
    crate::calls::prepare();
    let faults = faults(tree, pid);
    match ways(tree).and_then(|ways| Pager::new(tree, pid, ways, faults)) {
        Ok(pager) => {
            let pager: &'static Pager = Box::leak(Box::new(pager));
            let prepared = crate::fork::prepare().map_err(Error::Resources);
            match prepared.and_then(|()| pager.start()) {
                Ok(()) => publish(pager),
                Err(error) => refuse(tree, pid, error),
            }
        }
        Err(error) => refuse(tree, pid, error),
    }
    end_early();
}

/// The mode in which this program's faults are answered. Handlers answer them if the program imports functions that do
/// not work in in-thread mode.
fn faults(tree: &Tree, pid: u32) -> Faults {
    if tree.settings.faults != Faults::Signal as u32 {
        return Faults::Thread;
    }
    let Some(function) = crate::imports::find(unserved::find) else { return Faults::Signal };
    if tree.counters.told_by_threads.swap(1, Ordering::Relaxed) == 0 {
        tree.notify(Notice::ByThreads, pid, function as u64);
    }
    Faults::Thread
}

/// The destructor. It is the last code of a program that ends by exit(3).
pub extern "C" fn end() {
    if let Some(pager) = pager() {
        pager.count_up();
    }
}

/// The transports to the run's blade and mirror, if it has a blade. They are not connected yet.
fn ways(tree: &Tree) -> Result<Option<Ways>, Error> {
    let settings = &tree.settings.blade;
    let timeout = Duration::from_nanos(settings.timeout_ns);
    let carrier = |to: &BladeAddress| -> Result<Option<&'static dyn Carrier>, Error> {
        let Some(address) = to.address.get() else { return Ok(None) };
        let identity = u128::from_ne_bytes(to.pool_identity);
        let carrier = spillway_blade::carrier(address, to.secret.get(), identity, timeout);
        carrier.map(|carrier| Some(&*Box::leak(carrier))).map_err(|_| Error::Store(Errno::INVAL))
    };
    let Some(blade) = carrier(&settings.blade)? else { return Ok(None) };
    Ok(Some(Ways { blade, mirror: carrier(&settings.mirror)? }))
}

fn publish(pager: &'static Pager) {
    if pager.is_in_thread() {
        crate::signals::take_over();
    }
    set_pager(pager);
}

fn refuse(tree: &Tree, pid: u32, error: Error) {
    let notice = match error {
        Error::Userfaultfd(_) => Notice::NoUserfaultfd,
        Error::Resources(_) | Error::Store(_) => Notice::NoPager,
    };
    tree.notify(notice, pid, error.errno().raw_os_error() as u64);
}

/// Makes an unpaged program end with the supervisor. A program that has changed its user can't open the tree page, so
/// it runs unpaged, and the kernel has reset its parent death signal.
fn end_with_supervisor(environment: *const *const c_char) {
    let number = |path: &CStr| path.to_str().ok()?.split('/').nth(2)?.parse().ok();
    let supervisor: Option<i32> = variable(environment, ENV).and_then(number);
    let is_child = || {
        let parent = rustix::process::getppid();
        parent.is_some() && parent.map(|pid| pid.as_raw_pid()) == supervisor
    };
    if is_child() {
        let kill = Some(rustix::process::Signal::KILL);
        let _ = rustix::process::set_parent_process_death_signal(kill);
        // The supervisor may have ended meanwhile.
        if !is_child() {
            sys::exit_process(128 + libc::SIGKILL);
        }
    }
}

/// The tree page of the run to which this process belongs, if any.
fn open_tree(environment: *const *const c_char) -> Option<&'static Tree> {
    use rustix::fs::{Mode, OFlags, fstat, open};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let path = variable(environment, ENV)?;
    let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if fstat(&file).ok()?.st_size < TREE_BYTES as i64 {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file that is long enough and whose size is sealed.
    let base =
        unsafe { mmap(std::ptr::null_mut(), TREE_BYTES, access, MapFlags::SHARED, &file, 0).ok()? };
    // SAFETY: the supervisor wrote a `Tree` there; all its fields that change are atomic.
    let tree = unsafe { &*(base as *const Tree) };
    (tree.magic == MAGIC && tree.version == VERSION).then_some(tree)
}

/// The value of an environment variable, read without library functions that lock or allocate.
fn variable(environment: *const *const c_char, name: &str) -> Option<&'static CStr> {
    // SAFETY: null or a null-terminated array of strings. The constructor runs before any code can change it.
    unsafe {
        let mut entry = environment;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry);
            let bytes = text.to_bytes_with_nul();
            if bytes.starts_with(name.as_bytes()) && bytes.get(name.len()) == Some(&b'=') {
                return CStr::from_bytes_with_nul(&bytes[name.len() + 1..]).ok();
            }
            entry = entry.add(1);
        }
    }
    None
}
