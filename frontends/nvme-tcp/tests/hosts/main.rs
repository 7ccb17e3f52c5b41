//! What hosts can rely on.

mod authentication;
mod commands;
mod in_flight;
mod server;
mod support;
