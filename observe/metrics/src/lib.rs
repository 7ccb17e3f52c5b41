//! The one catalogue of every metric, with unit and help.
//!
//! A metric is a row of a table: its name, what kind it is, what it means, and how its value is
//! found in a sample. [`render`] writes a sample in the text format that Prometheus reads (version
//! 0.0.4), [`document`] the catalogue for people. Names end in their base unit, and in `_total` when
//! they only grow.

#![forbid(unsafe_code)]

mod catalogue;
mod guests;
mod info;
mod metric;
mod policy;
mod process;
mod render;
mod resp;

pub use catalogue::{
    ClientSample, DiskSample, LendDeviceSample, LendPeerSample, LendSample, Sample, SharingSample,
    StoreDiskSample, StoreSample,
};
pub use guests::{SectionsSample, VmSample};
pub use info::BuildSample;
pub use metric::{Kind, Metric};
pub use policy::{PolicySample, RefusedSample};
pub use process::ProcessSample;
pub use render::{CONTENT_TYPE, document, render};
pub use resp::RespSample;
