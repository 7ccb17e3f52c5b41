//! Refusals, as JSON.

use serde::{Deserialize, Serialize};

/// The media type of a [`Problem`] (RFC 9457).
pub const PROBLEM_TYPE: &str = "application/problem+json";
/// The kind of a [`Problem`]: there is no such client.
pub const NO_CLIENT: &str = "no-client";
/// The kind of a [`Problem`]: another export or import of the client has not ended.
pub const MOVING: &str = "moving";
/// The kind of problem that a client has moved to another daemon.
pub const HAS_MOVED: &str = "has-moved";
/// The kind of problem that a daemon no longer knows all flushes since an export.
pub const TOO_MANY_FLUSHES: &str = "too-many-flushes";
/// The kind of problem that an imported stream is invalid.
pub const STREAM: &str = "stream";

/// Why a request failed (RFC 9457).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The kind of problem, such as `urn:spillway:no-client`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// One line that says what is wrong and what to do.
    pub detail: String,
}
