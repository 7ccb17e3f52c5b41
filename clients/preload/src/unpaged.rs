//! Programs that a paged program starts, and that fail beside this library: they start again without it.

use libc::c_char;
use rustix::fs::stat;
use spillway_pager::unpaged::{SANITIZERS, VALGRIND, sanitizer_started_by};
use spillway_platform::sys::{number, syscall6};
use std::ffi::{CStr, CString};

/// The variable by which the loader got this library, and how the name of its file ends.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libspillway_preload.so";
const OWN_FILE: &CStr = c"/proc/self/exe";

/// Which of them this program is: a place in [`SANITIZERS`], or its length for valgrind.
pub fn find() -> Option<usize> {
    let sanitizer = crate::imports::find_in_program(sanitizer_started_by);
    sanitizer.or_else(|| {
        let path = rustix::fs::readlink(OWN_FILE, Vec::new()).ok()?;
        let name = path.as_bytes().rsplit(|&byte| byte == b'/').next()?;
        VALGRIND.iter().any(|known| known.as_bytes() == name).then_some(SANITIZERS.len())
    })
}

/// Starts the program again, without this library in its environment. Returns if that fails.
///
/// # Safety
/// The arguments and the environment are lists of strings that end with null, as glibc hands them to constructors.
pub unsafe fn start_again(
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> Option<()> {
    // SAFETY: a list of strings, as the caller promises.
    let entries = unsafe { strings(environment) };
    let before = entries.iter().find_map(|entry| entry.to_bytes().strip_prefix(PRELOAD))?;
    let others = without_library(before)?;
    let preload = CString::new([PRELOAD, &others.join(&b':')].concat()).ok()?;
    let kept = entries.iter().copied().filter(|entry| !entry.to_bytes().starts_with(PRELOAD));
    let preload = Some(preload.as_c_str()).filter(|_| !others.is_empty());
    let list: Vec<*const c_char> =
        kept.chain(preload).map(CStr::as_ptr).chain([std::ptr::null()]).collect();
    let path = own_path()?;
    let args = [path.as_ptr() as usize, arguments as usize, list.as_ptr() as usize, 0, 0, 0];
    // SAFETY: a path and two lists of strings, all of which outlive the call.
    let _ = unsafe { syscall6(number::EXECVE, args) };
    None
}

/// The preloaded libraries but this one. `None` if this one is not among them under its own name: it would be loaded
/// again, and the program would start again for ever.
fn without_library(preloaded: &[u8]) -> Option<Vec<&[u8]>> {
    let paths = preloaded.split(|byte| b": ".contains(byte)).filter(|path| !path.is_empty());
    let (own, others): (Vec<_>, Vec<_>) = paths.partition(|path| path.ends_with(LIBRARY));
    (!own.is_empty()).then_some(others)
}

/// The program's file by the name with which it was started, if that still leads there: it is the name of the process
/// too.
fn own_path() -> Option<CString> {
    let own = stat(OWN_FILE).ok()?;
    // SAFETY: the kernel hands every program the name of its file, or none.
    let started = unsafe { (libc::getauxval(libc::AT_EXECFN) as *const c_char).as_ref() };
    // SAFETY: a terminated string at the start of the stack.
    let started = started.map(|start| unsafe { CStr::from_ptr(start) });
    let is_own = |path: &&CStr| {
        stat(*path).is_ok_and(|file| (file.st_dev, file.st_ino) == (own.st_dev, own.st_ino))
    };
    match started.filter(is_own) {
        Some(path) => Some(path.to_owned()),
        None => rustix::fs::readlink(OWN_FILE, Vec::new()).ok(),
    }
}

/// # Safety
/// The list ends with null, and all before that are strings that outlive the result.
unsafe fn strings(list: *const *const c_char) -> Vec<&'static CStr> {
    // SAFETY: as the caller promises.
    let all = (0..).map(|at| unsafe { *list.add(at) });
    // SAFETY: as above.
    all.take_while(|entry| !entry.is_null()).map(|entry| unsafe { CStr::from_ptr(entry) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_starts_again_only_without_this_library() {
        let others = |preloaded: &'static str| without_library(preloaded.as_bytes());
        let own = "/usr/lib/spillway/libspillway_preload.so";
        assert_eq!(without_library(own.as_bytes()), Some(vec![]));
        assert_eq!(
            others("/lib/first.so:/x/libspillway_preload.so /lib/last.so"),
            Some(vec![&b"/lib/first.so"[..], b"/lib/last.so"])
        );
        assert_eq!(others("/lib/first.so"), None);
        assert_eq!(others("/x/renamed.so:"), None);
        assert_eq!(others(""), None);
    }
}
