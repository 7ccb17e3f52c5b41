//! The HTTP connections of a listener: how many there may be, and how long each may keep the daemon waiting.
//!
//! [`accept`] takes connections in as long as [`Connections`] has places for them, each on a task of its own. [`serve`] speaks
//! HTTP/1.1 on one of them, within [`Deadlines`]: for a request's head, and for the next bytes of a body or of an answer. There
//! is no deadline for a whole answer or a whole import: slow is the normal case, and only a peer that does nothing at all is cut
//! off.
//!
//! Each listener has its own [`Connections`], so that a flood on one of them keeps nobody out of another.

#![forbid(unsafe_code)]

mod accept;
mod places;
mod serve;
mod stall;

pub use accept::{Listener, accept};
pub use places::{ConnectionLimits, ConnectionPermit, Connections};
pub use serve::{Deadlines, HEAD_BYTES_MAX, serve};
pub use stall::BodyStopped;
