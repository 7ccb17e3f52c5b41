//! Translates the library's errors to the package's exceptions, defined in spillway/errors.py.

use pyo3::prelude::*;
use spillway_cache::Error;
use spillway_client::Error as Store;

/// An error as an exception.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let made = match error {
        Error::Short { value_bytes, room_bytes } => {
            let class = class(py, "ShortBufferError");
            class.and_then(|class| class.call1((error.to_string(), *value_bytes, *room_bytes)))
        }
        other => class(py, name(other)).and_then(|class| class.call1((error.to_string(),))),
    };
    made.map_or_else(|failed| failed, PyErr::from_value)
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("spillway.errors")?.getattr(name)
}

const fn name(error: &Error) -> &'static str {
    match error {
        Error::Key(_) | Error::Value(_) | Error::Name(_) | Error::Short { .. } => "LengthError",
        Error::Malformed(_) => "CorruptError",
        Error::Store(error) => match error {
            Store::Url { .. } | Store::TlsFiles => "UrlError",
            Store::Connect { .. }
            | Store::Refused { .. }
            | Store::Unreachable(_)
            | Store::Secret { .. }
            | Store::Tls(_) => "ConnectError",
            Store::Lost => "LostError",
            Store::Timeout => "TimeoutError",
            Store::Forked => "ForkedError",
            Store::NoPool | Store::PoolLost => "PoolLostError",
            Store::Unauthorised | Store::Lifetime | Store::NoSharedPool => "PermissionError",
            Store::Full => "FullError",
            Store::Length { .. } => "LengthError",
            Store::Corrupt => "CorruptError",
            Store::Failed(_) | Store::Protocol(_) | Store::Io(_) => "Error",
        },
    }
}

/// The cache was closed.
pub fn closed(py: Python<'_>) -> PyErr {
    let text = "the cache is closed; open another one";
    let made = class(py, "ClosedError").and_then(|class| class.call1((text,)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}
