//! Commands as clients see them, without sockets.

mod commands;
mod concurrency;
mod full;
mod garbage;
mod model;
mod sockets;
mod support;
