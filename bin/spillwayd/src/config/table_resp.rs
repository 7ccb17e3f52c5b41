//! The settings of `[resp]`.

use super::field::Field::{Count, Lifetime};
use super::field::Setting;
use super::table::fixed;
use super::values::Resp;

/// `[resp]`
pub static RESP: [Setting<Resp>; 2] = [
    fixed(
        "lifetime",
        r#""persistent""#,
        Lifetime(|r| &mut r.lifetime),
        "What databases of RESP promise: \"persistent\", values stay until they are removed or expire, and a full store refuses more (`-OOM`); \"ephemeral\", a cache, of which values that were not used lately go when memory is wanted.",
    ),
    fixed(
        "stall_timeout_s",
        "60",
        Count(|r| &mut r.stall_timeout_s, 1, 3600),
        "A client of RESP is cut off when it stops for so many seconds in the middle of a command, or of taking a reply.",
    ),
];
