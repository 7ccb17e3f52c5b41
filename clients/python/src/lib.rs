//! The native half of the Python package `spillway`; clients/python/python/spillway/_spillway.pyi documents it.

mod buffer;
mod cache;
mod connector;
mod errors;
mod keys;

use pyo3::prelude::*;

/// The module that the package's Python half imports.
#[pymodule]
fn _spillway(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<cache::Cache>()?;
    module.add_class::<connector::Connector>()?;
    Ok(())
}
