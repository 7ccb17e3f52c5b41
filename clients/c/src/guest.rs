//! Requests of a guest's program for memory of the host, through the agent.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use spillway_guest::{Answer, Error, SOCKET, WAIT};

use crate::result::{argument, granted, guest_error};

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says; `agent` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_guest_need(
    agent: *const c_char,
    bytes: u64,
    timeout_ms: u32,
    granted: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        call(agent, timeout_ms, granted, |path, wait| spillway_guest::need(path, bytes, wait))
    }
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says; `agent` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_guest_give(
    agent: *const c_char,
    bytes: u64,
    timeout_ms: u32,
    taken: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call(agent, timeout_ms, taken, |path, wait| spillway_guest::give(path, bytes, wait)) }
}

/// # Safety
/// As for the functions that call it.
unsafe fn call(
    agent: *const c_char,
    timeout_ms: u32,
    bytes: *mut u64,
    ask: impl FnOnce(&Path, Duration) -> Result<Answer, Error>,
) -> c_int {
    if bytes.is_null() {
        return argument("a null pointer");
    }
    let path = if agent.is_null() {
        Path::new(SOCKET)
    } else {
        // SAFETY: not null, and the caller's promise.
        Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(agent) }.to_bytes()))
    };
    let wait = if timeout_ms == 0 { WAIT } else { Duration::from_millis(timeout_ms.into()) };
    let (answered, number) = match ask(path, wait) {
        Ok(answer) => (answer.granted_bytes, granted(&answer)),
        Err(error) => (0, guest_error(&error)),
    };
    // SAFETY: not null, and the caller's promise.
    unsafe { bytes.write(answered) };
    number
}
