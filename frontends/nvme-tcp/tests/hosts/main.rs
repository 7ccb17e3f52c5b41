//! What hosts may rely on.

mod authentication;
mod commands;
mod in_flight;
mod server;
mod support;
