//! Memory of Python's objects, as they lend it: `bytes`, `bytearray`, `memoryview`, arrays of NumPy, ...

use std::ptr;
use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The memory of an object, in one piece, lent until this is dropped. The object lives, and does not resize, so long.
pub struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: what it points to belongs to no thread, and it is given back with the interpreter attached.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The memory of `object`, to read.
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::lend(object, ffi::PyBUF_SIMPLE)
    }

    /// The memory of `object`, to write.
    pub fn write(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::lend(object, ffi::PyBUF_WRITABLE)
    }

    fn lend(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, the view is there to be filled and stays where it is.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0;
        if failed { Err(PyErr::fetch(object.py())) } else { Ok(Self(view)) }
    }

    /// The bytes. Python's own rule holds: whoever changes them meanwhile gets some mix.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len <= 0 {
            return &[];
        }
        // SAFETY: the view is of one piece of so many bytes, and they stay until it is given back.
        unsafe { slice::from_raw_parts(self.0.buf.cast::<u8>(), self.0.len as usize) }
    }

    /// The bytes of a buffer that was lent to be written.
    ///
    /// # Panics
    /// For one that was lent to be read.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.0.readonly == 0, "lent to be read");
        if self.0.len <= 0 {
            return &mut [];
        }
        // SAFETY: as above, and writable. Callers see to it that buffers which are written do not overlap.
        unsafe { slice::from_raw_parts_mut(self.0.buf.cast::<u8>(), self.0.len as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view was lent, and is given back once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// Buffers to write that do not overlap.
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

/// A new `bytes` object of that length, and its memory, to be filled before anybody else sees it.
pub fn fresh<'py>(py: Python<'py>, length: usize) -> PyResult<(Bound<'py, PyAny>, &'py mut [u8])> {
    let bytes = isize::try_from(length)
        .map_err(|_| PyValueError::new_err("longer than an object can be"))?;
    // SAFETY: without a source the object is made with memory that is not initialised.
    let object = unsafe {
        let made = ffi::PyBytes_FromStringAndSize(ptr::null(), bytes);
        Bound::from_owned_ptr_or_err(py, made)?
    };
    // SAFETY: it is an object of bytes, and nobody else has it.
    let memory = unsafe {
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        // What is not initialised must not be read, even as a slice of bytes.
        ptr::write_bytes(start, 0, 0);
        slice::from_raw_parts_mut(start, length)
    };
    Ok((object, memory))
}
