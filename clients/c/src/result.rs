//! Result codes of the functions, and the text of the last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use spillway_client::{Error, Get, Put, Refusal};
use spillway_guest::Answer;

/// `SPILLWAY_OK`.
pub const OK: c_int = 0;
const MISS: c_int = 1;
const SHORT: c_int = 2;
const REFUSED_AT_TARGET: c_int = 3;
const REFUSED_FULL: c_int = 4;
const REFUSED_FROZEN: c_int = 5;
const REFUSED_BY_HOST: c_int = 6;
/// `SPILLWAY_ERROR_ARGUMENT`.
pub const ARGUMENT: c_int = -1;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of the thread's last error.
pub fn last() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

fn remember(text: String) {
    let text = CString::new(text).unwrap_or_default();
    // It may be gone if the thread is ending; then nothing reads it either.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// An invalid argument.
#[cold]
pub fn argument(what: &str) -> c_int {
    remember(format!("wrong argument: {what}"));
    ARGUMENT
}

/// The code of an error; stores its text.
#[cold]
pub fn error(error: &Error) -> c_int {
    remember(error.to_string());
    match error {
        Error::Url { .. } | Error::Secret { .. } | Error::Tls(_) | Error::TlsFiles => -2,
        Error::Connect { .. } | Error::Unreachable(_) => -3,
        Error::Refused { .. } => -4,
        Error::Lost => -5,
        Error::Timeout => -6,
        Error::Forked => -7,
        Error::NoPool | Error::PoolLost => -8,
        Error::Unauthorised | Error::NoSharedPool => -9,
        Error::Lifetime => -10,
        Error::Full => -11,
        Error::Length { .. } => -12,
        Error::Corrupt => -13,
        Error::Protocol(_) => -14,
        Error::Io(_) => -15,
        Error::Failed(_) => -16,
    }
}

/// The code of a host's answer to a guest. 0 bytes mean a refusal; its reason is stored.
pub fn granted(answer: &Answer) -> c_int {
    if answer.granted_bytes > 0 {
        return OK;
    }
    let why = answer.why.as_deref().unwrap_or("the host gave no reason");
    remember(format!("refused: {why}"));
    REFUSED_BY_HOST
}

/// The code of an error between program and agent; stores its text.
#[cold]
pub fn guest_error(error: &spillway_guest::Error) -> c_int {
    use spillway_guest::Error;
    remember(error.to_string());
    match error {
        Error::Amount(_) => ARGUMENT,
        Error::Connect { .. } => -3,
        Error::Lost => -5,
        Error::Timeout => -6,
        Error::Reply(_) | Error::Other => -14,
        Error::Io(_) => -15,
    }
}

/// The result of `good` for a success, or the code of the error.
pub fn answer<T>(outcome: Result<T, Error>, good: impl FnOnce(T) -> c_int) -> c_int {
    match outcome {
        Ok(value) => good(value),
        Err(problem) => error(&problem),
    }
}

/// The code of a put's outcome.
pub fn put(put: Put) -> c_int {
    match put {
        Put::Stored => OK,
        Put::Refused(Refusal::AtTarget) => REFUSED_AT_TARGET,
        Put::Refused(Refusal::Frozen) => REFUSED_FROZEN,
        Put::Refused(Refusal::NodeFull) => REFUSED_FULL,
        Put::Refused(Refusal::NoPool) => error(&Error::NoPool),
        Put::Refused(Refusal::Length) => argument("the length of a value"),
    }
}

/// The code of a get's outcome; `length` receives the value's length.
pub fn get(got: Get, length: impl FnOnce(usize)) -> c_int {
    match got {
        Get::Hit(bytes) => {
            length(bytes);
            OK
        }
        Get::Short(bytes) => {
            length(bytes);
            SHORT
        }
        Get::Miss => MISS,
    }
}

/// The code for whether a value exists.
pub const fn there(there: bool) -> c_int {
    if there { OK } else { MISS }
}
