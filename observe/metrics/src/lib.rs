//! The one catalogue of every metric, with unit and help.
//!
//! A metric is a row of a table: its name, kind, meaning, and how to compute its value from a sample. [`render`] writes
//! a sample in Prometheus' text format (version 0.0.4), [`document`] writes the catalogue as a page. Names end in their
//! base unit, and in `_total` if the value only grows.

#![forbid(unsafe_code)]

mod catalogue;
mod command;
mod connections;
mod guests;
mod info;
mod metric;
mod policy;
mod process;
mod render;
mod resp;
mod sample;

pub use command::CommandSample;
pub use connections::ConnectionSample;
pub use guests::{SectionsSample, VmSample};
pub use info::BuildSample;
pub use metric::{Kind, Metric};
pub use policy::{PolicySample, RefusedSample};
pub use process::ProcessSample;
pub use render::{CONTENT_TYPE, document, render};
pub use resp::RespSample;
pub use sample::{
    ClientSample, DiskSample, LendDeviceSample, LendPeerSample, LendSample, ProgramSample, Sample,
    SharingSample, StoreDiskSample, StoreSample,
};
