//! Commands about the connection itself.

use spillway_wire::resp::Version;

use super::{Call, Outcome};
use crate::arguments::SYNTAX;
use crate::keyspace::DATABASES_MAX;
use crate::session::Replies;
use crate::shared::Described;
use crate::trouble::Refused;

/// The version of Redis that the commands follow. Clients choose their commands by it.
pub const REDIS_VERSION: &str = "7.0.0";
/// Longest name of a connection or library, bytes.
const NAME_BYTES_MAX: usize = 256;

pub(super) fn ping(call: &mut Call<'_>) -> Outcome {
    match call.arguments.count() {
        1 => call.output.reply().simple("PONG"),
        2 => call.output.reply().bulk(call.arguments.get(1)),
        _ => {
            return Err(Refused::line("ERR wrong number of arguments for 'ping' command"));
        }
    }
    Ok(())
}

pub(super) fn echo(call: &mut Call<'_>) -> Outcome {
    call.output.reply().bulk(call.arguments.get(1));
    Ok(())
}

pub(super) fn select(call: &mut Call<'_>) -> Outcome {
    let number = call.arguments.integer(1)?;
    if i32::try_from(number).is_err() {
        let line = "ERR value is out of range, value must between -2147483648 and 2147483647";
        return Err(Refused::line(line));
    }
    let in_range = u32::try_from(number).ok().filter(|&number| number < DATABASES_MAX);
    call.session.select(in_range.ok_or(Refused::line("ERR DB index is out of range"))?)?;
    call.session.tell(call.shared);
    call.ok()
}

fn log_in(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Outcome {
    // No user has a name that is not UTF-8.
    let user = str::from_utf8(user).unwrap_or_default();
    call.session.authenticate(call.shared, user, password)
}

pub(super) fn auth(call: &mut Call<'_>) -> Outcome {
    let arguments = &call.arguments;
    let (user, password) = match arguments.count() {
        2 => (&b"default"[..], arguments.get(1)),
        3 => (arguments.get(1), arguments.get(2)),
        _ => return Err(SYNTAX),
    };
    log_in(call, user, password)?;
    call.ok()
}

pub(super) fn hello(call: &mut Call<'_>) -> Outcome {
    let (mut version, count) = (call.output.version, call.arguments.count());
    if count > 1 {
        let no_number = "ERR Protocol version is not an integer or out of range";
        let number = call.arguments.integer(1).map_err(|_| Refused::line(no_number))?;
        version = match number {
            2 => Version::Two,
            3 => Version::Three,
            _ => return Err(Refused::line("NOPROTO unsupported protocol version")),
        };
    }
    let (mut at, mut name) = (2, None);
    while at < count {
        if call.arguments.is(at, "auth") && at + 2 < count {
            let (user, password) = (call.arguments.get(at + 1), call.arguments.get(at + 2));
            log_in(call, user, password)?;
            at += 3;
        } else if call.arguments.is(at, "setname") && at + 1 < count {
            name = Some(clean_name(call.arguments.get(at + 1))?);
            at += 2;
        } else {
            let option = call.arguments.get(at);
            return Err(Refused::quoting("ERR Syntax error in HELLO option '", option, "'"));
        }
    }
    if call.session.database.is_none() {
        return Err(Refused::line(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.session.described.name = name;
    }
    call.output.version = version;
    let number = if version == Version::Three { 3 } else { 2 };
    call.session.described.version = number;
    call.session.tell(call.shared);
    let id = call.session.id;
    let mut reply = call.output.reply();
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(number.into());
    reply.bulk(b"id");
    reply.integer(id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

pub(super) fn quit(call: &mut Call<'_>) -> Outcome {
    call.session.ends = true;
    call.ok()
}

pub(super) fn reset(call: &mut Call<'_>) -> Outcome {
    call.output.version = Version::Two;
    call.session.described.version = 2;
    let reset = call.session.reset(call.shared);
    // Also if the connection is unauthenticated now.
    call.session.tell(call.shared);
    reset?;
    call.output.reply().simple("RESET");
    Ok(())
}

fn clean_name(name: &[u8]) -> Result<Vec<u8>, Refused> {
    let is_good =
        name.len() <= NAME_BYTES_MAX && name.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if is_good { Ok(name.to_vec()) } else { Err(BAD_NAME) }
}

const BAD_NAME: Refused =
    Refused::line("ERR Client names cannot contain spaces, newlines or special characters.");

/// One line of CLIENT LIST.
fn line(id: u64, described: &Described, now_ms: u64) -> String {
    let text = String::from_utf8_lossy;
    format!(
        "id={id} addr={} laddr={} fd=0 name={} age={} idle=0 flags=N db={} sub=0 psub=0 multi=-1 cmd=NULL user={} \
         lib-name={} lib-ver={} resp={}\n",
        described.addresses.0,
        described.addresses.1,
        text(&described.name),
        now_ms.saturating_sub(described.began_ms) / 1000,
        described.number,
        described.user,
        text(&described.library.0),
        text(&described.library.1),
        described.version,
    )
}

pub(super) fn client(call: &mut Call<'_>) -> Outcome {
    let count = call.arguments.count();
    let is = |word, arguments| call.arguments.is(1, word) && count == arguments;
    if is("id", 2) {
        return call.integer(call.session.id as i64);
    }
    if is("setname", 3) {
        call.session.described.name = clean_name(call.arguments.get(2))?;
        call.session.tell(call.shared);
        return call.ok();
    }
    if is("getname", 2) {
        match &call.session.described.name[..] {
            [] => call.output.reply().null(),
            name => call.output.reply().bulk(name),
        }
        return Ok(());
    }
    if is("setinfo", 4) {
        let value = clean_name(call.arguments.get(3))?;
        let library = &mut call.session.described.library;
        match () {
            () if call.arguments.is(2, "lib-name") => library.0 = value,
            () if call.arguments.is(2, "lib-ver") => library.1 = value,
            () => return Err(Refused::line("ERR Unrecognized option for CLIENT SETINFO")),
        }
        call.session.tell(call.shared);
        return call.ok();
    }
    if is("info", 2) {
        let line = line(call.session.id, &call.session.described, call.now_ms);
        call.output.reply().text(&line);
        return Ok(());
    }
    if call.arguments.is(1, "list") {
        return list(call);
    }
    if is("no-evict", 3) || is("no-touch", 3) {
        let known = call.arguments.is(2, "on") || call.arguments.is(2, "off");
        return if known { call.ok() } else { Err(SYNTAX) };
    }
    if is("reply", 3) {
        return replies(call);
    }
    Err(call.no_subcommand(&[
        "id", "setname", "getname", "setinfo", "info", "no-evict", "no-touch", "reply",
    ]))
}

/// Lists the connections of this client. Those of other clients are not shown.
fn list(call: &mut Call<'_>) -> Outcome {
    let arguments = &call.arguments;
    let wanted: Option<Vec<u64>> = match arguments.count() {
        2 => None,
        4 if arguments.is(2, "type") => match arguments.is(3, "normal") {
            true => None,
            false => Some(Vec::new()),
        },
        4.. if arguments.is(2, "id") => {
            let number = |text| str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            let numbers: Option<Vec<u64>> = arguments.from(3).map(number).collect();
            Some(numbers.ok_or(Refused::line("ERR Invalid client ID"))?)
        }
        _ => return Err(SYNTAX),
    };
    let own = call.session.described.client;
    call.session.tell(call.shared);
    let sessions = call.shared.sessions.lock();
    let text: String = sessions
        .iter()
        .filter(|(id, it)| it.client == own && wanted.as_ref().is_none_or(|ids| ids.contains(id)))
        .map(|(&id, described)| line(id, described, call.now_ms))
        .collect();
    drop(sessions);
    call.output.reply().text(&text);
    Ok(())
}

fn replies(call: &mut Call<'_>) -> Outcome {
    if call.arguments.is(2, "on") {
        call.session.replies = Replies::On;
        return call.ok();
    }
    // OFF and SKIP have no reply themselves.
    if call.arguments.is(2, "off") {
        call.session.replies = Replies::Off;
    } else if call.arguments.is(2, "skip") {
        if call.session.replies != Replies::Off {
            call.session.replies = Replies::Skip;
        }
    } else {
        return Err(SYNTAX);
    }
    Ok(())
}
