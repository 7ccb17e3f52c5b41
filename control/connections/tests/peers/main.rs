//! Peers that are slow, silent or too many, against a real listener.

mod deadlines;
mod places;
mod server;
