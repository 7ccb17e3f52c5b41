//! Which commands are renamed as they arrive.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::hand;
use super::pressure;
use super::table::{NATIVES, Native, find};
use super::users::{self, Way};
use crate::server::{Arrival, Context, Name, memory_used, now_ms};
use crate::value;

/// Milliseconds between two checks of the clients for open transactions.
const LOOK_MS: u64 = 1000;

/// The module's two names of each command, in the order of [`NATIVES`]: the one that the server itself checks, and the
/// one that is open to every user.
static NAMES: LazyLock<Vec<[Name; 2]>> = LazyLock::new(|| {
    let names = |native: &Native| {
        [native.checked, native.letting_in].map(|name| Name::new(name.to_bytes()))
    };
    NATIVES.iter().map(names).collect()
});
/// Whether a client may have a transaction open, perhaps since before the module was loaded.
static TRANSACTIONS: AtomicBool = AtomicBool::new(true);
/// When the clients were checked last.
static LOOKED_MS: AtomicU64 = AtomicU64::new(0);

/// The name to run a command under; `None` for its own.
pub fn rename(arrival: &Arrival) -> Option<&'static Name> {
    let name = arrival.argument(0);
    let transactions = TRANSACTIONS.load(Ordering::Relaxed);
    users::note(arrival, transactions);
    if pressure::is_near_limit(memory_used()) {
        // Make room before anything is known about the command's keys: even the values that it needs may leave.
        users::with_context(hand::before_eviction);
    }
    if name.eq_ignore_ascii_case(b"multi") {
        TRANSACTIONS.store(true, Ordering::Relaxed);
        return None;
    }
    if !transactions && !value::any_ever() {
        return None;
    }
    let at = find(name)?;
    if !NATIVES[at].arity.allows(arrival.count()) {
        // The server reports the error under the command's own name.
        return None;
    }
    let has = |from: usize, word: &[u8]| {
        (from..arrival.count()).any(|at| arrival.argument(at).eq_ignore_ascii_case(word))
    };
    let concerned = match NATIVES[at].name.to_bytes() {
        // It replaces the value, of whatever type.
        b"set" => has(3, b"get"),
        b"object" => arrival.argument(1).eq_ignore_ascii_case(b"encoding"),
        b"scan" => has(2, b"type"),
        b"debug" => [&b"digest"[..], b"digest-value"]
            .iter()
            .any(|digest| arrival.argument(1).eq_ignore_ascii_case(digest)),
        // Without a pattern it reads only its own key, which is not a string.
        b"sort" | b"sort_ro" => (2..arrival.count()).any(|at| arrival.argument(at).contains(&b'*')),
        _ => true,
    };
    let way = if concerned { users::way(arrival) } else { Way::Refused };
    match way {
        Way::Refused => None,
        Way::Checked => Some(&NAMES[at][0]),
        Way::LettingIn => Some(&NAMES[at][1]),
    }
}

/// Checks whether a client still has a transaction open, if one had and the check is due.
pub fn look_at_transactions(context: &Context<'_>) {
    if !TRANSACTIONS.load(Ordering::Relaxed) {
        return;
    }
    let now = now_ms() as u64;
    if now.abs_diff(LOOKED_MS.load(Ordering::Relaxed)) < LOOK_MS {
        return;
    }
    LOOKED_MS.store(now, Ordering::Relaxed);
    let reply = context.call(c"CLIENT", &[b"LIST"]);
    let Some(list) = reply.as_ref().and_then(|reply| reply.whole().bytes()) else { return };
    // The field `multi` is -1 for a client without a transaction.
    let open = list
        .split(|&byte| byte == b' ')
        .any(|word| word.starts_with(b"multi=") && word != b"multi=-1");
    TRANSACTIONS.store(open, Ordering::Relaxed);
    if !open {
        users::none_queued();
    }
}
