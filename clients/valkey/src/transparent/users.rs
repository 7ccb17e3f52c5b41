//! Users, and under which of the module's two names for a command each has it carried out.
//!
//! | name | the server itself checks | for |
//! |---|---|---|
//! | `spill.do.get` | that the client is authenticated, and has the right to this name or its category | whom the other is not safe for |
//! | `spill.as.get` | that the user may name the keys | everybody who is known to be authenticated |
//!
//! Under both, the server's own command is carried out as the user, so denying GET denies it. `spill.as.get` lets a user
//! in who may run commands by name only; but it is also let in for a client that is not authenticated, which is the
//! default user then. So it is for other users than that one, and for all where the default user needs no password.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::server::{Arrival, Asker, Context};

/// Who is not authenticated is this one.
const DEFAULT: &[u8] = b"default";

/// The default user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum DefaultUser {
    /// It needs no password: every client is authenticated.
    Open,
    /// It is off: a client that is it is not authenticated, but for one that was before.
    Off,
    /// It has a password, and a client that is it may be authenticated or not.
    Password,
}

static DEFAULT_USER: AtomicU8 = AtomicU8::new(DefaultUser::Password as u8);
/// Whether the default user may have changed since it was looked at.
static CHANGING: AtomicBool = AtomicBool::new(true);
/// Whether a command that changes users may have been queued in a transaction.
static QUEUED: AtomicBool = AtomicBool::new(false);
/// The client that asked last for a script or for EXEC.
static CALLER: AtomicU64 = AtomicU64::new(0);
/// What the filter, which is handed no context, looks at users with.
static CONTEXT: OnceLock<Detached> = OnceLock::new();

struct Detached(Context<'static>);
// SAFETY: the server's main thread alone uses it.
unsafe impl Send for Detached {}
// SAFETY: as above.
unsafe impl Sync for Detached {}

/// Begins to watch the users.
pub fn start(context: &Context<'_>) {
    CONTEXT.get_or_init(|| Detached(context.detached()));
}

/// Does `work` with the filter's own context.
pub fn with_context(work: impl FnOnce(&Context<'_>)) {
    if let Some(Detached(context)) = CONTEXT.get() {
        work(context);
    }
}

/// Takes note of a command that arrives. It may change users: at once, or at EXEC if a transaction may be open. Or it may
/// run a script, whose commands do not say for whom they run.
pub fn note(arrival: &Arrival, transactions: bool) {
    let name = arrival.argument(0);
    let begins =
        |with: &[u8]| name.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    let executes = name.eq_ignore_ascii_case(b"exec");
    if name.eq_ignore_ascii_case(b"acl") || name.eq_ignore_ascii_case(b"config") {
        CHANGING.store(true, Ordering::Relaxed);
        if transactions {
            QUEUED.store(true, Ordering::Relaxed);
        }
    } else if executes && QUEUED.load(Ordering::Relaxed) {
        CHANGING.store(true, Ordering::Relaxed);
    }
    if executes || begins(b"eval") || begins(b"fcall") {
        CALLER.store(arrival.client().unwrap_or_default(), Ordering::Relaxed);
    }
}

/// No transaction is open.
pub fn none_queued() {
    QUEUED.store(false, Ordering::Relaxed);
}

/// Between commands, where nothing changes users: they are looked at if they may have changed. Why some are refused
/// renamed commands, if there are such users.
pub fn look(context: &Context<'_>) -> Option<String> {
    if !CHANGING.load(Ordering::Relaxed) {
        return None;
    }
    look_at_default(context);
    CHANGING.store(false, Ordering::Relaxed);
    refused(context)
}

/// Under which of a command's two names it is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its own: the user may not, and the server says so.
    Refused,
    /// The one that the server itself checks.
    Checked,
    /// The one that lets in every user.
    LettingIn,
}

/// How a command that arrives is to be carried out. Redis 7.0 does not tell from whom it comes.
pub fn way(arrival: &Arrival) -> Way {
    let Some(Detached(context)) = CONTEXT.get() else { return Way::Checked };
    let found = default_user(context);
    let Some(client) = arrival.client() else {
        return if found == DefaultUser::Password { Way::Checked } else { Way::LettingIn };
    };
    let Some(user) = user_at(context, client) else { return Way::LettingIn };
    if !arrival.is_permitted(&user) {
        Way::Refused
    } else if found == DefaultUser::Open || user != Asker::User(DEFAULT.to_vec()) {
        Way::LettingIn
    } else {
        Way::Checked
    }
}

/// The user of a client, or of the one that runs the script. None of a master and of another module, which may do
/// everything.
fn user_at(context: &Context<'_>, client: u64) -> Option<Asker> {
    let client = if context.is_within() { CALLER.load(Ordering::Relaxed) } else { client };
    context.user_of(client).map(Asker::User)
}

/// Whether who asks under the name that lets in every user is authenticated.
pub fn is_authenticated(context: &Context<'_>, asker: &Asker) -> bool {
    match asker {
        Asker::User(name) if name == DEFAULT => {
            context.is_within() || default_user(context) == DefaultUser::Open
        }
        _ => true,
    }
}

fn default_user(context: &Context<'_>) -> DefaultUser {
    if CHANGING.load(Ordering::Relaxed) {
        return look_at_default(context);
    }
    match DEFAULT_USER.load(Ordering::Relaxed) {
        0 => DefaultUser::Open,
        1 => DefaultUser::Off,
        _ => DefaultUser::Password,
    }
}

fn look_at_default(context: &Context<'_>) -> DefaultUser {
    let reply = context.call(c"ACL", &[b"GETUSER", DEFAULT]);
    let flags = reply.as_ref().and_then(|reply| reply.part(1));
    let has = |flag: &[u8]| {
        flags.is_some_and(|flags| {
            (0..flags.parts()).any(|at| flags.part(at).and_then(|part| part.bytes()) == Some(flag))
        })
    };
    let found = match (has(b"on"), has(b"nopass")) {
        (true, true) => DefaultUser::Open,
        (false, _) if has(b"off") => DefaultUser::Off,
        _ => DefaultUser::Password,
    };
    DEFAULT_USER.store(found as u8, Ordering::Relaxed);
    found
}

/// Why a user would be refused renamed commands, in one line: one who is carried out under the name that the server
/// itself checks, and has not all commands.
pub fn refused(context: &Context<'_>) -> Option<String> {
    if default_user(context) != DefaultUser::Password {
        return None;
    }
    let all = !context.tells_clients_to_filters();
    let reply = context.call(c"ACL", &[b"LIST"])?;
    let rules = (0..).map_while(|at| reply.part(at).and_then(|part| part.bytes()));
    rules.map(String::from_utf8_lossy).find_map(|rule| {
        let words: Vec<&str> = rule.split_whitespace().skip(1).collect();
        let name = words.first()?;
        let concerned = all || name.as_bytes() == DEFAULT;
        let narrow = words.contains(&"on") && !words.contains(&"+@all");
        (concerned && narrow).then(|| {
            let way = if all {
                "give the default user no password or turn it off, use Redis 7.2 or Valkey,"
            } else {
                "turn the default user off,"
            };
            format!(
                "transparent: user {name} has not +@all while the default user has a password, and would be refused commands that the module renames: {way} or give it +@all with what it may not"
            )
        })
    })
}
