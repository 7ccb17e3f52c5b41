//! What hosts may rely on.

mod authentication;
mod commands;
mod server;
mod support;
