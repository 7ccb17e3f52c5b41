//! Stores on this host: embedded, and over the ring.

mod agent;
mod calls;
mod daemon;
mod endings;
mod hostile;
mod isolation;
mod window;
