//! The control plane of a daemon that runs: its HTTP interface and its log.

mod daemon;
mod http;
mod log;
mod renew;
