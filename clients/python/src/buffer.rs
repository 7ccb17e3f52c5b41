//! Memory of Python objects, through the buffer protocol: `bytes`, `bytearray`, `memoryview`, NumPy arrays, ...

use std::ptr;
use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The contiguous memory of an object, borrowed until this is dropped. Until then the object lives and keeps its size.
pub struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: the memory belongs to no thread, and it is released with the interpreter attached.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Borrows the memory of `object` for reading.
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::lend(object, ffi::PyBUF_SIMPLE)
    }

    /// Borrows the memory of `object` for writing.
    pub fn write(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::lend(object, ffi::PyBUF_WRITABLE)
    }

    fn lend(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive; the view is boxed, so it does not move.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0;
        if failed { Err(PyErr::fetch(object.py())) } else { Ok(Self(view)) }
    }

    /// The bytes. As elsewhere in Python, a program that changes them meanwhile gets a mix of old and new bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len <= 0 {
            return &[];
        }
        // SAFETY: the view is contiguous, has this length, and is valid until it is released.
        unsafe { slice::from_raw_parts(self.0.buf.cast::<u8>(), self.0.len as usize) }
    }

    /// The bytes of a buffer that was borrowed for writing.
    ///
    /// # Panics
    /// If it was borrowed for reading.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.0.readonly == 0, "lent to be read");
        if self.0.len <= 0 {
            return &mut [];
        }
        // SAFETY: as above, and writable. Callers ensure that buffers for writing do not overlap.
        unsafe { slice::from_raw_parts_mut(self.0.buf.cast::<u8>(), self.0.len as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view was borrowed, and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// Borrows buffers for writing. They must not overlap.
pub fn writable(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Buffer>> {
    let buffers = objects.iter().map(Buffer::write).collect::<PyResult<Vec<_>>>()?;
    let mut ranges: Vec<_> = buffers.iter().map(|buffer| buffer.bytes().as_ptr_range()).collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    if ranges.windows(2).any(|two| two[0].end > two[1].start) {
        return Err(PyValueError::new_err("two of the buffers overlap"));
    }
    Ok(buffers)
}

/// A new `bytes` object of that length, and its memory, to fill before any other code can access it.
pub fn fresh<'py>(py: Python<'py>, length: usize) -> PyResult<(Bound<'py, PyAny>, &'py mut [u8])> {
    let bytes = isize::try_from(length)
        .map_err(|_| PyValueError::new_err("longer than an object can be"))?;
    // SAFETY: without a source, the object's memory is uninitialised.
    let object = unsafe {
        let made = ffi::PyBytes_FromStringAndSize(ptr::null(), bytes);
        Bound::from_owned_ptr_or_err(py, made)?
    };
    // SAFETY: it is a `bytes` object without another reference.
    let memory = unsafe {
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        // Uninitialised memory must not become a slice, even of bytes.
        ptr::write_bytes(start, 0, 0);
        slice::from_raw_parts_mut(start, length)
    };
    Ok((object, memory))
}
