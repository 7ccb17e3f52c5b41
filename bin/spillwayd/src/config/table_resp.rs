//! The settings of `[resp]`.

use super::field::Field::{Count, Lifetime};
use super::field::{Setting, fixed};
use super::values::Resp;

/// `[resp]`
pub static RESP: [Setting<Resp>; 2] = [
    fixed(
        "lifetime",
        r#""persistent""#,
        Lifetime(|r| &mut r.lifetime),
        "\"persistent\": values stay until they are removed or expire, and a full store refuses more (`-OOM`). \"ephemeral\": a cache, which drops values that were not used lately when memory is needed.",
    ),
    fixed(
        "stall_timeout_s",
        "60",
        Count(|r| &mut r.stall_timeout_s, 1, 3600),
        "The daemon disconnects a RESP client that stops for this many seconds within a command, or while it receives a reply.",
    ),
];
