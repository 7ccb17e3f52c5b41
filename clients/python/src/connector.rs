//! `spillway.lmcache.Connector`: LMCache's interface of a native connector.

use std::os::fd::AsRawFd;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use spillway_cache::{Batches, Completion, Kind, Memory, Settings};

use crate::buffer::{self, Buffer};
use crate::cache::options;
use crate::errors::{closed, raise};
use crate::keys::{bytes_of, same_length};

/// Most batches that wait.
const WAITING_MAX: usize = 1024;

type Objects<'py> = Vec<Bound<'py, PyAny>>;
/// Number of the batch, whether it succeeded, the error text, and an answer for each key.
type Answer = (u64, bool, String, Option<Vec<bool>>);

impl Memory for Buffer {
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Self::bytes_mut(self)
    }
}

/// See clients/python/python/spillway/_spillway.pyi.
#[pyclass(module = "spillway.lmcache", frozen)]
pub struct Connector {
    batches: Mutex<Option<Batches<Buffer>>>,
    /// The process that the threads belong to.
    process: u32,
}

impl Connector {
    fn batches(&self) -> MutexGuard<'_, Option<Batches<Buffer>>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the threads, if they belong to this process and are not closed. `work` must be short: the
    /// interpreter stays attached.
    fn with<T>(&self, py: Python<'_>, work: impl FnOnce(&Batches<Buffer>) -> T) -> PyResult<T> {
        if process::id() != self.process {
            return Err(raise(py, &spillway_client::Error::Forked.into()));
        }
        self.batches().as_ref().map(work).ok_or_else(|| closed(py))
    }

    fn submit(
        &self,
        py: Python<'_>,
        kind: Kind,
        keys: &[Bound<'_, PyAny>],
        memory: Vec<Buffer>,
    ) -> PyResult<u64> {
        let keys = keys.iter().map(|key| Ok(bytes_of(key)?.to_vec())).collect::<PyResult<_>>()?;
        self.with(py, |batches| batches.submit(kind, keys, memory))
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        if process::id() != self.process {
            // The threads belong to the parent: joining them here would never return.
            std::mem::forget(self.batches().take());
        }
    }
}

#[pymethods]
impl Connector {
    #[new]
    #[pyo3(signature = (url, *, name = "lmcache", shared = None, workers = 2, timeout_s = 5.0))]
    fn new(
        py: Python<'_>,
        url: &str,
        name: &str,
        shared: Option<&str>,
        workers: usize,
        timeout_s: f64,
    ) -> PyResult<Self> {
        if !(1..=64).contains(&workers) {
            return Err(PyValueError::new_err("workers is a number from 1 to 64"));
        }
        let options = options(name, shared, timeout_s)?;
        let deadline = Duration::from_secs_f64(timeout_s);
        let settings = Settings { options, threads: workers, waiting_max: WAITING_MAX, deadline };
        let opened = py.detach(|| Batches::open(url, settings));
        let batches = Mutex::new(Some(opened.map_err(|error| raise(py, &error))?));
        Ok(Self { batches, process: process::id() })
    }

    fn event_fd(&self, py: Python<'_>) -> PyResult<i32> {
        self.with(py, |batches| batches.event_fd().as_raw_fd())
    }

    fn submit_batch_set(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        buffers: Objects<'_>,
    ) -> PyResult<u64> {
        same_length(keys.len(), buffers.len())?;
        let memory = buffers.iter().map(Buffer::read).collect::<PyResult<_>>()?;
        self.submit(py, Kind::Set, &keys, memory)
    }

    fn submit_batch_get(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        buffers: Objects<'_>,
    ) -> PyResult<u64> {
        same_length(keys.len(), buffers.len())?;
        self.submit(py, Kind::Get, &keys, buffer::writable(&buffers)?)
    }

    fn submit_batch_exists(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<u64> {
        self.submit(py, Kind::Exists, &keys, Vec::new())
    }

    fn submit_batch_delete(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<u64> {
        self.submit(py, Kind::Delete, &keys, Vec::new())
    }

    fn drain_completions(&self, py: Python<'_>) -> PyResult<Vec<Answer>> {
        let done = self.with(py, Batches::drain)?;
        // The buffers are released here, with the interpreter attached.
        let answer = |done: Completion<Buffer>| {
            (done.id, done.error.is_none(), done.error.unwrap_or_default(), done.found)
        };
        Ok(done.into_iter().map(answer).collect())
    }

    fn close(&self, py: Python<'_>) {
        if process::id() != self.process {
            return;
        }
        let batches = self.batches().take();
        // A running call may last until its timeout.
        py.detach(|| {
            if let Some(mut batches) = batches {
                batches.close();
            }
        });
    }
}
