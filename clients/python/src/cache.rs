//! `spillway.Cache`.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList};
use spillway_cache::{Cache as Store, Error, Get, Options, Put};

use crate::buffer::{self, Buffer};
use crate::errors::{closed, raise};
use crate::keys::{all_bytes_of, bytes_of, same_length};

type Objects<'py> = Vec<Bound<'py, PyAny>>;

/// An open cache.
#[pyclass(module = "spillway", frozen)]
pub struct Cache {
    store: Mutex<Option<Arc<Store>>>,
    url: String,
    /// The process that opened it.
    process: u32,
}

/// The first error of a batch, as an exception.
fn all<T>(py: Python<'_>, outcomes: Vec<Result<T, Error>>) -> PyResult<Vec<T>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(|error| raise(py, &error))).collect()
}

impl Cache {
    fn store(&self, py: Python<'_>) -> PyResult<Arc<Store>> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let store = store.ok_or_else(|| closed(py))?;
        if process::id() != self.process && !self.url.starts_with("embed:") {
            return Err(raise(py, &spillway_client::Error::Forked.into()));
        }
        Ok(store)
    }
}

/// The options from the arguments.
pub fn options(name: &str, shared: Option<&str>, timeout_s: f64) -> PyResult<Options> {
    let shared = shared.map(uuid_of).transpose()?;
    let timeout = Duration::try_from_secs_f64(timeout_s).ok().filter(|timeout| !timeout.is_zero());
    let timeout =
        timeout.ok_or_else(|| PyValueError::new_err("timeout_s is a number of seconds above 0"))?;
    Ok(Options { name: name.to_owned(), shared, timeout })
}

fn uuid_of(text: &str) -> PyResult<u128> {
    let digits: String = text.chars().filter(|&digit| digit != '-').collect();
    let right = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let wrong = || {
        PyValueError::new_err(format!("shared is a UUID of 32 hexadecimal digits, not {text:?}"))
    };
    if right { u128::from_str_radix(&digits, 16).map_err(|_| wrong()) } else { Err(wrong()) }
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (url, *, name = "default", shared = None, timeout_s = 30.0))]
    fn new(
        py: Python<'_>,
        url: String,
        name: &str,
        shared: Option<&str>,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let options = options(name, shared, timeout_s)?;
        let store = py.detach(|| Store::open(&url, &options)).map_err(|error| raise(py, &error))?;
        let store = Mutex::new(Some(Arc::new(store)));
        Ok(Self { store, url, process: process::id() })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    #[getter]
    fn closed(&self) -> bool {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let store = self.store(py)?;
        let (key, value) = (bytes_of(key)?, Buffer::read(value)?);
        let outcome = py.detach(|| store.put(&[Put { key, value: value.bytes() }]));
        all(py, outcome).map(|stored| stored[0])
    }

    fn put_many(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        values: Objects<'_>,
    ) -> PyResult<Vec<bool>> {
        let store = self.store(py)?;
        same_length(keys.len(), values.len())?;
        let values = values.iter().map(Buffer::read).collect::<PyResult<Vec<_>>>()?;
        let keys = all_bytes_of(&keys)?;
        let outcomes = py.detach(|| {
            let puts = keys.iter().zip(&values);
            let puts: Vec<_> = puts.map(|(key, value)| Put { key, value: value.bytes() }).collect();
            store.put(&puts)
        });
        all(py, outcomes)
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.get_many(py, vec![key])?.pop().flatten())
    }

    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Objects<'py>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let store = self.store(py)?;
        let keys = all_bytes_of(&keys)?;
        let mut values: Vec<Option<Bound<'py, PyAny>>> = vec![None; keys.len()];
        let mut left: Vec<usize> = (0..keys.len()).collect();
        // A value may change between the two calls, and have another length then: look it up once more.
        for _ in 0..2 {
            let wanted: Vec<&[u8]> = left.iter().map(|&number| keys[number]).collect();
            let found = all(py, py.detach(|| store.look_up(&wanted)))?;
            let found: Vec<_> = left
                .iter()
                .zip(&found)
                .filter_map(|(&number, found)| Some((number, found.as_ref()?)))
                .collect();
            let mut rooms = Vec::with_capacity(found.len());
            for &(number, found) in &found {
                let (object, room) = buffer::fresh(py, found.length() as usize)?;
                values[number] = Some(object);
                rooms.push((found, room));
            }
            let whole = all(py, py.detach(|| store.fetch(&mut rooms)))?;
            left.clear();
            for (&(number, _), whole) in found.iter().zip(whole) {
                if !whole {
                    values[number] = None;
                    left.push(number);
                }
            }
            if left.is_empty() {
                break;
            }
        }
        Ok(values)
    }

    fn get_into(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let store = self.store(py)?;
        let (key, mut buffer) = (bytes_of(key)?, Buffer::write(buffer)?);
        let outcome = py.detach(|| store.get(&mut [Get { key, room: buffer.bytes_mut() }]));
        all(py, outcome).map(|got| got[0])
    }

    fn get_many_into(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        buffers: Objects<'_>,
    ) -> PyResult<Vec<Option<usize>>> {
        let store = self.store(py)?;
        same_length(keys.len(), buffers.len())?;
        let mut buffers = buffer::writable(&buffers)?;
        let keys = all_bytes_of(&keys)?;
        let outcomes = py.detach(|| {
            let gets = keys.iter().zip(&mut buffers);
            let mut gets: Vec<_> =
                gets.map(|(key, buffer)| Get { key, room: buffer.bytes_mut() }).collect();
            store.get(&mut gets)
        });
        all(py, outcomes)
    }

    fn exists(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let store = self.store(py)?;
        let key = bytes_of(key)?;
        all(py, py.detach(|| store.exists(&[key]))).map(|found| found[0])
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.exists(py, key)
    }

    fn exists_many<'py>(
        &self,
        py: Python<'py>,
        keys: Objects<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let store = self.store(py)?;
        let keys = all_bytes_of(&keys)?;
        let found = all(py, py.detach(|| store.exists(&keys)))?;
        PyList::new(py, found.into_iter().map(|found| PyBool::new(py, found)))
    }

    fn prefix(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<usize> {
        let store = self.store(py)?;
        let keys = all_bytes_of(&keys)?;
        py.detach(|| store.prefix(&keys)).map_err(|error| raise(py, &error))
    }

    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let store = self.store(py)?;
        let key = bytes_of(key)?;
        all(py, py.detach(|| store.delete(&[key]))).map(|removed| removed[0])
    }

    fn delete_many(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<Vec<bool>> {
        let store = self.store(py)?;
        let keys = all_bytes_of(&keys)?;
        all(py, py.detach(|| store.delete(&keys)))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store(py)?;
        py.detach(|| store.clear()).map_err(|error| raise(py, &error))
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store(py)?;
        let counters = py.detach(|| store.statistics()).map_err(|error| raise(py, &error))?;
        let named = PyDict::new(py);
        for (name, count) in [
            ("puts", counters.puts),
            ("puts_stored", counters.puts_stored),
            ("puts_refused_at_target", counters.puts_refused_at_target),
            ("puts_refused_full", counters.puts_refused_node_full),
            ("puts_refused_other", counters.puts_refused_other),
            ("gets", counters.gets),
            ("hits", counters.hits),
            ("misses", counters.misses),
            ("used_pages", counters.used_pages),
            ("target_pages", counters.target_pages),
        ] {
            named.set_item(name, count)?;
        }
        Ok(named)
    }

    fn close(&self, py: Python<'_>) {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Running calls of other threads end first; the last of them closes the store.
        py.detach(|| drop(store));
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<spillway.Cache {:?}{}>", self.url, if self.closed() { ", closed" } else { "" })
    }
}
