//! The control plane of a daemon that runs: its HTTP interface, its log, its metrics, and the settings that last.

mod crowds;
mod daemon;
mod disks;
mod http;
mod https;
mod lasting;
mod lending;
mod log;
mod metrics;
mod reload;
mod renew;
mod rights;
mod ring;
