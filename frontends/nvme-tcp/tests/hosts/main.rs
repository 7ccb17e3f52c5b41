//! What hosts can rely on.

mod authentication;
mod commands;
mod digests;
mod events;
mod in_flight;
mod logs;
mod server;
mod support;
