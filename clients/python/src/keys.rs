//! Keys: bytes, or text, which is encoded as UTF-8.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// The bytes of a key, borrowed from the object.
pub fn bytes_of<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(bytes) = key.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    match key.cast::<PyString>() {
        Ok(text) => Ok(text.to_str()?.as_bytes()),
        Err(_) => {
            let kind = key.get_type().name()?;
            Err(PyTypeError::new_err(format!("a key is bytes or str, not {kind}")))
        }
    }
}

/// The bytes of keys.
pub fn all_bytes_of<'a>(keys: &'a [Bound<'_, PyAny>]) -> PyResult<Vec<&'a [u8]>> {
    keys.iter().map(bytes_of).collect()
}

/// Checks that there is a buffer for each key.
pub fn same_length(keys: usize, buffers: usize) -> PyResult<()> {
    if keys == buffers {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{keys} keys and {buffers} buffers")))
}
