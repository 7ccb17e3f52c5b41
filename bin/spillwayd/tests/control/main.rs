//! The control plane of a daemon that runs: its HTTP interface, its log, and the settings that last.

mod daemon;
mod http;
mod lasting;
mod log;
mod renew;
