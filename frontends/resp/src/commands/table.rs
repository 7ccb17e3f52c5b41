//! The table of all commands, and COMMAND, which shows it.

use std::sync::LazyLock;

use spillway_serving::CommandKind;

use super::{
    Call, Outcome, connection, expiry, info, keys, listing, numbers, parts, server, strings,
};
use crate::arguments::Arguments;
use crate::output::Output;
use crate::trouble::Refused;

/// Longest name of a command.
const NAME_BYTES_MAX: usize = 16;

/// A command.
pub struct Command {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Number of arguments, the name included; a negative number is a minimum.
    pub arity: i32,
    /// Its flags, in Redis's terms.
    pub flags: &'static [&'static str],
    /// The first key, the last (counted from the end, when negative), and the step between keys.
    pub keys: (i32, i32, i32),
    /// Its category, in Redis's terms.
    pub group: &'static str,
    /// Its description, in one line.
    pub summary: &'static str,
    /// Executes it.
    pub run: fn(&mut Call<'_>) -> Outcome,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Command {
    /// Whether this number of arguments, the name included, is valid.
    pub const fn takes(&self, count: usize) -> bool {
        let count = count as i64;
        if self.arity < 0 { count >= -self.arity as i64 } else { count == self.arity as i64 }
    }

    /// What it does, for the metrics.
    pub fn kind(&self) -> CommandKind {
        match self.group {
            "string" if self.flags.contains(&"denyoom") => CommandKind::Put,
            "string" => CommandKind::Get,
            _ if ["del", "unlink"].contains(&self.name) => CommandKind::Remove,
            _ => CommandKind::Other,
        }
    }

    /// Whether unauthenticated connections may use the command.
    pub fn is_for_strangers(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// The positions of the keys among `count` arguments.
    pub fn keys(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { count as i32 + last } else { last };
        let end = if first == 0 { 0 } else { last + 1 };
        (first.max(0)..end).step_by(step.max(1) as usize).map(|at| at as usize)
    }
}

/// Whether argument `at` of a command may be longer than 64 KiB. Only values may.
pub fn takes_long(name: &[u8], at: usize) -> bool {
    let is = |names: &[&str]| names.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()));
    match at {
        2 if is(&["set", "setnx", "getset", "append"]) => true,
        3 if is(&["setex", "psetex", "setrange"]) => true,
        _ => at >= 2 && at.is_multiple_of(2) && is(&["mset", "msetnx"]),
    }
}

/// The command of a name.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut small = [0; NAME_BYTES_MAX];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    let at = SORTED.binary_search_by(|command| command.name.as_bytes().cmp(small)).ok()?;
    Some(SORTED[at])
}

static SORTED: LazyLock<Vec<&'static Command>> = LazyLock::new(|| {
    let mut commands: Vec<_> = COMMANDS.iter().collect();
    commands.sort_unstable_by_key(|command| command.name);
    commands
});

const READ: &[&str] = &["readonly", "fast"];
const SCAN: &[&str] = &["readonly"];
const WRITE: &[&str] = &["write", "denyoom"];
const WRITE_FAST: &[&str] = &["write", "denyoom", "fast"];
const REMOVE: &[&str] = &["write", "fast"];
const FLUSH: &[&str] = &["write"];
const STATE: &[&str] = &["loading", "stale", "fast"];
const STRANGER: &[&str] = &["no_auth", "loading", "stale", "fast"];
const ADMIN: &[&str] = &["admin", "loading", "stale"];

const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
    keys: (i32, i32, i32),
    (group, summary): (&'static str, &'static str),
    run: fn(&mut Call<'_>) -> Outcome,
) -> Command {
    Command { name, arity, flags, keys, group, summary, run }
}

const NONE: (i32, i32, i32) = (0, 0, 0);
const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

const fn string(summary: &'static str) -> (&'static str, &'static str) {
    ("string", summary)
}

const fn generic(summary: &'static str) -> (&'static str, &'static str) {
    ("generic", summary)
}

const fn of_connection(summary: &'static str) -> (&'static str, &'static str) {
    ("connection", summary)
}

const fn of_server(summary: &'static str) -> (&'static str, &'static str) {
    ("server", summary)
}

/// All commands.
#[rustfmt::skip]
pub static COMMANDS: &[Command] = &[
    command("get", 2, READ, ONE, string("Returns the value of a key."), strings::get),
    command("set", -3, WRITE, ONE, string("Sets the value of a key."), strings::set),
    command("setnx", 3, WRITE_FAST, ONE, string("Sets the value of a key that does not exist."), strings::setnx),
    command("setex", 4, WRITE, ONE, string("Sets the value of a key and its time to live in seconds."), strings::setex),
    command("psetex", 4, WRITE, ONE, string("Sets the value of a key and its time to live in milliseconds."), strings::psetex),
    command("getset", 3, WRITE_FAST, ONE, string("Sets the value of a key and returns the old one."), strings::getset),
    command("getdel", 2, REMOVE, ONE, string("Returns the value of a key and removes the key."), strings::getdel),
    command("getex", -2, REMOVE, ONE, string("Returns the value of a key and changes its expiry."), strings::getex),
    command("mget", -2, READ, ALL, string("Returns the values of keys."), strings::mget),
    command("mset", -3, WRITE, PAIRS, string("Sets the values of keys."), strings::mset),
    command("msetnx", -3, WRITE, PAIRS, string("Sets the values of keys if none of them exists."), strings::msetnx),
    command("append", 3, WRITE_FAST, ONE, string("Appends to a value."), parts::append),
    command("setrange", 4, WRITE, ONE, string("Overwrites a part of a value."), parts::setrange),
    command("getrange", 4, SCAN, ONE, string("Returns a part of a value."), parts::getrange),
    command("substr", 4, SCAN, ONE, string("Returns a part of a value."), parts::getrange),
    command("setbit", 4, WRITE, ONE, string("Sets a bit of a value, and returns the old one."), parts::setbit),
    command("getbit", 3, READ, ONE, string("Returns a bit of a value."), parts::getbit),
    command("strlen", 2, READ, ONE, string("Returns the length of a value."), parts::strlen),
    command("incr", 2, WRITE_FAST, ONE, string("Adds one to a number."), numbers::incr),
    command("decr", 2, WRITE_FAST, ONE, string("Subtracts one from a number."), numbers::decr),
    command("incrby", 3, WRITE_FAST, ONE, string("Adds to a number."), numbers::incrby),
    command("decrby", 3, WRITE_FAST, ONE, string("Subtracts from a number."), numbers::decrby),
    command("incrbyfloat", 3, WRITE_FAST, ONE, string("Adds to a number with a fraction."), numbers::incrbyfloat),
    command("del", -2, FLUSH, ALL, generic("Removes keys."), keys::del),
    command("unlink", -2, REMOVE, ALL, generic("Removes keys."), keys::del),
    command("exists", -2, READ, ALL, generic("Counts the existing keys among those given."), keys::exists),
    command("touch", -2, READ, ALL, generic("Counts the existing keys among those given, and marks them as used."), keys::exists),
    command("type", 2, READ, ONE, generic("Returns the type of a key's value."), keys::kind),
    command("object", -2, SCAN, (2, 2, 1), generic("Describes how a value is stored."), keys::object),
    command("expire", -3, REMOVE, ONE, generic("Sets a key's time to live in seconds."), expiry::expire),
    command("pexpire", -3, REMOVE, ONE, generic("Sets a key's time to live in milliseconds."), expiry::pexpire),
    command("expireat", -3, REMOVE, ONE, generic("Sets the second at which a key expires."), expiry::expireat),
    command("pexpireat", -3, REMOVE, ONE, generic("Sets the millisecond at which a key expires."), expiry::pexpireat),
    command("ttl", 2, READ, ONE, generic("Returns a key's time to live in seconds."), expiry::ttl),
    command("pttl", 2, READ, ONE, generic("Returns a key's time to live in milliseconds."), expiry::pttl),
    command("expiretime", 2, READ, ONE, generic("Returns the second at which a key expires."), expiry::expiretime),
    command("pexpiretime", 2, READ, ONE, generic("Returns the millisecond at which a key expires."), expiry::pexpiretime),
    command("persist", 2, REMOVE, ONE, generic("Removes a key's expiry."), expiry::persist),
    command("randomkey", 1, SCAN, NONE, generic("Returns a random key."), listing::randomkey),
    command("keys", 2, SCAN, NONE, generic("Lists the keys that match a pattern."), listing::keys),
    command("scan", -2, SCAN, NONE, generic("Lists keys, a few at a time."), listing::scan),
    command("dbsize", 1, READ, NONE, of_server("Counts the keys of the database."), listing::dbsize),
    command("flushdb", -1, FLUSH, NONE, of_server("Removes all keys of the database."), listing::flushdb),
    command("flushall", -1, FLUSH, NONE, of_server("Removes all keys of all databases."), listing::flushall),
    command("select", 2, STATE, NONE, of_connection("Changes the database."), connection::select),
    command("ping", -1, STATE, NONE, of_connection("Answers."), connection::ping),
    command("echo", 2, STATE, NONE, of_connection("Returns its argument."), connection::echo),
    command("hello", -1, STRANGER, NONE, of_connection("Sets the version of the protocol."), connection::hello),
    command("auth", -2, STRANGER, NONE, of_connection("Authenticates the client."), connection::auth),
    command("quit", -1, STRANGER, NONE, of_connection("Ends the connection."), connection::quit),
    command("reset", 1, STRANGER, NONE, of_connection("Resets the connection."), connection::reset),
    command("client", -2, STATE, NONE, of_connection("Describes connections, and changes this one."), connection::client),
    command("command", -1, STATE, NONE, of_server("Describes the commands."), describe_commands),
    command("config", -2, ADMIN, NONE, of_server("Shows the settings."), server::config),
    command("info", -1, STATE, NONE, of_server("Shows statistics."), info::info),
    command("time", 1, STATE, NONE, of_server("Returns the daemon's time."), server::time),
    command("memory", -2, SCAN, NONE, of_server("Reports the memory that a key takes."), server::memory),
    command("debug", -2, ADMIN, NONE, of_server("For tests: expires keys only on access; recounts keys as after a restart."), server::debug),
    command("function", -2, ADMIN, NONE, of_server("Lists and removes functions, of which there are none."), server::function),
];

/// `COMMAND`: describes the commands. It is in this file because it reads the table, and the table names it.
fn describe_commands(call: &mut Call<'_>) -> Outcome {
    let (arguments, output) = (&call.arguments, &mut *call.output);
    let is = |word| arguments.is(1, word);
    let named = || arguments.from(2).map(find);
    match arguments.count() {
        1 => {
            output.reply().array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(command, output));
        }
        2 if is("count") => output.reply().integer(COMMANDS.len() as i64),
        2 if is("info") => {
            output.reply().array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(command, output));
        }
        count if is("info") => {
            output.reply().array(count - 2);
            for command in named() {
                match command {
                    Some(command) => describe(command, output),
                    None => output.reply().null_array(),
                }
            }
        }
        2 if is("docs") => {
            output.reply().map(COMMANDS.len());
            COMMANDS.iter().for_each(|command| document(command, output));
        }
        _ if is("docs") => {
            output.reply().map(named().flatten().count());
            named().flatten().for_each(|command| document(command, output));
        }
        2 if is("list") => {
            output.reply().array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| output.reply().bulk(command.name.as_bytes()));
        }
        _ if is("getkeys") => return keys_of(arguments, output),
        _ => return Err(call.no_subcommand(&["count", "list"])),
    }
    Ok(())
}

fn describe(command: &Command, output: &mut Output) {
    let mut reply = output.reply();
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(command.arity.into());
    reply.set(command.flags.len());
    command.flags.iter().for_each(|flag| reply.simple(flag));
    let (first, last, step) = command.keys;
    [first, last, step].iter().for_each(|&number| reply.integer(number.into()));
    reply.set(1);
    reply.simple(&format!("@{}", command.group));
    // No tips, key specifications and subcommands.
    (0..3).for_each(|_| reply.array(0));
}

fn document(command: &Command, output: &mut Output) {
    let mut reply = output.reply();
    reply.bulk(command.name.as_bytes());
    reply.map(3);
    for (name, value) in
        [("summary", command.summary), ("since", "1.0.0"), ("group", command.group)]
    {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

fn keys_of(arguments: &Arguments<'_>, output: &mut Output) -> Outcome {
    let command = find(arguments.get(2)).ok_or(Refused::line("ERR Invalid command specified"))?;
    let count = arguments.count() - 2;
    let keys: Vec<_> = command.keys(count).map(|at| arguments.get(at + 2)).collect();
    if keys.is_empty() || !command.takes(count) {
        return Err(Refused::line("ERR The command has no key arguments"));
    }
    output.reply().array(keys.len());
    keys.iter().for_each(|key| output.reply().bulk(key));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_any_case() {
        assert_eq!(find(b"GeT").map(|command| command.name), Some("get"));
        assert!(find(b"gets").is_none() && find(b"").is_none() && find(&[b'a'; 99]).is_none());
        assert!(COMMANDS.iter().all(|command| find(command.name.as_bytes()).is_some()));
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let keys = |name: &str, count| -> Vec<usize> {
            find(name.as_bytes()).map(|it| it.keys(count).collect()).unwrap_or_default()
        };
        assert_eq!(keys("mset", 5), [1, 3]);
        assert_eq!(keys("del", 4), [1, 2, 3]);
        assert_eq!(keys("get", 2), [1]);
        assert!(keys("ping", 2).is_empty());
        assert!(takes_long(b"MSET", 4) && !takes_long(b"mset", 3) && !takes_long(b"get", 2));
    }
}
