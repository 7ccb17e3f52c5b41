//! The HTTP connections of a listener: limits their number, and how long each may keep the daemon waiting.
//!
//! [`accept`] accepts connections while [`Connections`] has slots for them, each on a task of its own. [`serve`] serves
//! HTTP/1.1 on one connection within [`Deadlines`]: for a request's head, and for the next bytes of a body or of an
//! answer. A whole answer or import has no deadline: slow peers are normal, and only a peer that makes no progress is
//! disconnected.
//!
//! Each listener has its own [`Connections`], so that a flood on one of them does not block another.

#![forbid(unsafe_code)]

mod accept;
mod invalid;
mod places;
mod serve;
mod stall;

pub use accept::{Listener, accept};
pub use invalid::{InvalidAnswer, detail as invalid_detail, plain_answer};
pub use places::{ConnectionLimits, ConnectionPermit, Connections};
pub use serve::{Deadlines, HEAD_BYTES_MAX, serve};
pub use stall::BodyStopped;
