//! Users, and which of the module's two names each user's commands run under.
//!
//! | name | the server itself checks | for |
//! |---|---|---|
//! | `spill.do.get` | that the client is authenticated, and may run this name or its category | all other users |
//! | `spill.as.get` | that the user may name the keys | users that are known to be authenticated |
//!
//! Under both names the module runs the server's own command as the user, so an ACL rule that denies GET denies these
//! too. `spill.as.get` works for a user who may run only a list of commands. But the server also accepts it from an
//! unauthenticated client, which has the default user. So the default user gets it only if it needs no password.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::server::{Arrival, Asker, Context};

/// An unauthenticated client has this user.
const DEFAULT: &[u8] = b"default";

/// The default user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum DefaultUser {
    /// On, without a password: every client is authenticated.
    Open,
    /// Off: a client with this user is unauthenticated, unless it authenticated before.
    Off,
    /// On, with a password: a client with this user may be authenticated or not.
    Password,
}

static DEFAULT_USER: AtomicU8 = AtomicU8::new(DefaultUser::Password as u8);
/// Whether the default user may have changed since the last check.
static CHANGING: AtomicBool = AtomicBool::new(true);
/// Whether a command that changes users may have been queued in a transaction.
static QUEUED: AtomicBool = AtomicBool::new(false);
/// The client that last ran a script or EXEC.
static CALLER: AtomicU64 = AtomicU64::new(0);
/// The context for looking up users in the filter, which gets none.
static CONTEXT: OnceLock<Detached> = OnceLock::new();

struct Detached(Context<'static>);
// SAFETY: only the server's main thread uses it.
unsafe impl Send for Detached {}
// SAFETY: as above.
unsafe impl Sync for Detached {}

/// Begins to watch for changes of users.
pub fn start(context: &Context<'_>) {
    CONTEXT.get_or_init(|| Detached(context.detached()));
}

/// Calls `work` with the module's own context.
pub fn with_context(work: impl FnOnce(&Context<'_>)) {
    if let Some(Detached(context)) = CONTEXT.get() {
        work(context);
    }
}

/// Notes an arriving command. It may change users: at once, or at EXEC if a transaction may be open. Or it may run a
/// script, whose commands do not name their user.
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

/// Records that no transaction is open.
pub fn none_queued() {
    QUEUED.store(false, Ordering::Relaxed);
}

/// Checks the users if they may have changed. Call it between commands, where nothing changes them. Returns a line if
/// renamed commands would be refused to a user.
pub fn look(context: &Context<'_>) -> Option<String> {
    if !CHANGING.load(Ordering::Relaxed) {
        return None;
    }
    look_at_default(context);
    CHANGING.store(false, Ordering::Relaxed);
    refused(context)
}

/// Which of a command's names it runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its own: the user may not run it, and the server reports that.
    Refused,
    /// The module's name that the server itself checks.
    Checked,
    /// The module's name that is open to every user.
    LettingIn,
}

/// Which name an arriving command runs under. Redis 7.0 does not report its client.
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

/// The user of a client, or of the client that runs the script. `None` for a master and another module, which may do
/// everything.
fn user_at(context: &Context<'_>, client: u64) -> Option<Asker> {
    let client = if context.is_within() { CALLER.load(Ordering::Relaxed) } else { client };
    context.user_of(client).map(Asker::User)
}

/// Whether the user is authenticated, for a command under the name that is open to every user.
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

/// A line that says which user would be refused renamed commands, and why: a user whose commands run under the name
/// that the server itself checks, and who lacks `+@all`.
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
                "transparent: user {name} lacks +@all while the default user has a password, so commands that the module renames would be refused: {way} or give the user +@all, less the commands to deny"
            )
        })
    })
}
