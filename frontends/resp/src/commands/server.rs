//! Commands about the server.

use std::sync::atomic::Ordering;

use spillway_store::Lifetime;

use super::{Call, Outcome};
use crate::glob;
use crate::keyspace::DATABASES_MAX;
use crate::record::{FOOTER_BYTES, VALUE_BYTES_MAX};
use crate::session::keyspace;
use crate::trouble::Refused;

/// The settings of Redis that clients ask for, with their values here.
fn settings(call: &Call<'_>) -> Vec<(&'static str, String)> {
    let config = &call.shared.config;
    let policy = match config.lifetime {
        Lifetime::Persistent => "noeviction",
        Lifetime::Ephemeral => "allkeys-lru",
    };
    let client = call.session.described.client;
    let target = client.and_then(|client| call.shared.keyspaces.store().statistics(client).ok());
    let target = target.map_or(u64::MAX, |it| it.target_pages);
    let maxmemory = if target == u64::MAX { 0 } else { target.saturating_mul(4096) };
    vec![
        ("appendonly", "no".into()),
        ("bind", String::new()),
        ("databases", DATABASES_MAX.to_string()),
        ("maxclients", config.connections_max.to_string()),
        ("maxmemory", maxmemory.to_string()),
        ("maxmemory-policy", policy.into()),
        ("notify-keyspace-events", String::new()),
        ("proto-max-bulk-len", VALUE_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".into()),
    ]
}

pub(super) fn config(call: &mut Call<'_>) -> Outcome {
    let settings = settings(call);
    let count = call.arguments.count();
    if call.arguments.is(1, "get") && count >= 3 {
        let patterns: Vec<_> = call.arguments.from(2).map(<[u8]>::to_ascii_lowercase).collect();
        let wanted = |name: &str| patterns.iter().any(|it| glob::matches(it, name.as_bytes()));
        let found: Vec<_> = settings.iter().filter(|(name, _)| wanted(name)).collect();
        let mut reply = call.output.reply();
        reply.map(found.len());
        for (name, value) in found {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        return Ok(());
    }
    if call.arguments.is(1, "set") && count >= 4 && count.is_multiple_of(2) {
        for at in (2..count).step_by(2) {
            let name = String::from_utf8_lossy(call.arguments.get(at)).to_ascii_lowercase();
            let Some((_, value)) = settings.iter().find(|(known, _)| *known == name) else {
                let line =
                    format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'");
                return Err(Refused::told(line));
            };
            if value.as_bytes() != call.arguments.get(at + 1) {
                return Err(Refused::told(format!(
                    "ERR CONFIG SET failed (possibly related to argument '{name}') - it is set in the daemon's \
                     configuration file"
                )));
            }
        }
        return call.ok();
    }
    if call.arguments.is(1, "resetstat") && count == 2 {
        for database in keyspace(call.session)?.open() {
            let counters = &database.counters;
            [&counters.hits, &counters.misses, &counters.expired]
                .iter()
                .for_each(|counter| counter.store(0, Ordering::Relaxed));
        }
        return call.ok();
    }
    Err(call.no_subcommand(&["get", "set", "resetstat"]))
}

pub(super) fn time(call: &mut Call<'_>) -> Outcome {
    let now_ms = call.now_ms;
    let mut reply = call.output.reply();
    reply.array(2);
    reply.bulk((now_ms / 1000).to_string().as_bytes());
    reply.bulk((now_ms % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub(super) fn memory(call: &mut Call<'_>) -> Outcome {
    if !call.arguments.is(1, "usage") || call.arguments.count() < 3 {
        return Err(call.no_subcommand(&["usage"]));
    }
    let key_bytes = call.arguments.get(2).len();
    call.at(2, |place, output| {
        match place.footer() {
            None => output.reply().null(),
            Some(footer) => {
                let bytes = footer.value_bytes as usize + key_bytes + FOOTER_BYTES;
                output.reply().integer(bytes as i64);
            }
        }
        Ok(())
    })
}

pub(super) fn debug(call: &mut Call<'_>) -> Outcome {
    let is = |word, count| call.arguments.is(1, word) && call.arguments.count() == count;
    if is("reload", 2) || is("loadaof", 2) {
        for database in keyspace(call.session)?.open() {
            database.recount()?;
        }
        return call.ok();
    }
    if !is("set-active-expire", 3) {
        let line = "ERR unknown subcommand. Try DEBUG SET-ACTIVE-EXPIRE, RELOAD or LOADAOF.";
        return Err(Refused::line(line));
    }
    let sweeps = call.arguments.integer(2)? != 0;
    for database in keyspace(call.session)?.open() {
        database.sweeps.store(sweeps, Ordering::Relaxed);
    }
    call.ok()
}

pub(super) fn function(call: &mut Call<'_>) -> Outcome {
    let is = |word| call.arguments.is(1, word);
    if is("list") {
        call.output.reply().array(0);
        return Ok(());
    }
    if is("flush") {
        return call.ok();
    }
    Err(call.no_subcommand(&[]))
}
