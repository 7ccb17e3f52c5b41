//! INFO: information about the daemon and the client's own databases.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::connection::REDIS_VERSION;
use super::{Call, Outcome};
use crate::session::keyspace;
use crate::trouble::Refused;
use crate::walk::count_keys;

/// Writes a section of INFO.
type Section = fn(&Call<'_>, &mut String) -> Result<(), Refused>;

const SECTIONS: [(&str, Section); 5] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Stats", stats),
    ("Keyspace", keys),
];
/// Words that stand for all sections.
const ALL: [&str; 3] = ["all", "default", "everything"];

pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let wanted = |section: &str| {
        let mut named = call.arguments.from(1).peekable();
        let all = named.peek().is_none();
        let is = |name: &[u8], word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        all || named.any(|name| is(name, section) || ALL.iter().any(|word| is(name, word)))
    };
    let mut text = String::new();
    for (name, section) in SECTIONS.iter().filter(|(name, _)| wanted(name)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        line(&mut text, format_args!("# {name}"));
        section(call, &mut text)?;
    }
    call.output.reply().text(&text);
    Ok(())
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = write!(text, "{line}\r\n");
}

fn server(call: &Call<'_>, text: &mut String) -> Result<(), Refused> {
    let uptime_s = call.shared.began.elapsed().as_secs();
    line(text, format_args!("redis_version:{REDIS_VERSION}"));
    line(text, format_args!("spillway_version:{}", env!("CARGO_PKG_VERSION")));
    line(text, format_args!("redis_mode:standalone"));
    line(text, format_args!("os:Linux {}", std::env::consts::ARCH));
    line(text, format_args!("process_id:{}", std::process::id()));
    line(text, format_args!("uptime_in_seconds:{uptime_s}"));
    line(text, format_args!("uptime_in_days:{}", uptime_s / 86_400));
    Ok(())
}

fn clients(call: &Call<'_>, text: &mut String) -> Result<(), Refused> {
    let own = call.session.described.client;
    let sessions = call.shared.sessions.lock();
    let count = sessions.values().filter(|session| session.client == own).count();
    line(text, format_args!("connected_clients:{count}"));
    line(text, format_args!("maxclients:{}", call.shared.config.connections_max));
    line(text, format_args!("blocked_clients:0"));
    Ok(())
}

fn memory(call: &Call<'_>, text: &mut String) -> Result<(), Refused> {
    let Some(client) = call.session.described.client else { return Ok(()) };
    let statistics = call.shared.keyspaces.store().statistics(client);
    let statistics = statistics.map_err(crate::trouble::Trouble::from)?;
    let most = match statistics.target_pages {
        u64::MAX => 0,
        pages => pages.saturating_mul(4096),
    };
    line(text, format_args!("used_memory:{}", statistics.used_pages * 4096));
    line(text, format_args!("used_memory_human:{:.2}M", statistics.used_pages as f64 / 256.0));
    line(text, format_args!("maxmemory:{most}"));
    let ephemeral = call.shared.config.lifetime == spillway_store::Lifetime::Ephemeral;
    let policy = if ephemeral { "allkeys-lru" } else { "noeviction" };
    line(text, format_args!("maxmemory_policy:{policy}"));
    line(text, format_args!("evicted_pages:{}", statistics.evicted_pages));
    Ok(())
}

fn stats(call: &Call<'_>, text: &mut String) -> Result<(), Refused> {
    let (mut hits, mut misses, mut expired) = (0, 0, 0);
    for database in keyspace(call.session)?.open() {
        hits += database.counters.hits.load(Ordering::Relaxed);
        misses += database.counters.misses.load(Ordering::Relaxed);
        expired += database.counters.expired.load(Ordering::Relaxed);
    }
    let counters = &call.shared.counters;
    let connections = counters.connections.load(Ordering::Relaxed);
    let commands = counters.commands.load(Ordering::Relaxed);
    line(text, format_args!("total_connections_received:{connections}"));
    line(text, format_args!("total_commands_processed:{commands}"));
    line(text, format_args!("keyspace_hits:{hits}"));
    line(text, format_args!("keyspace_misses:{misses}"));
    line(text, format_args!("expired_keys:{expired}"));
    Ok(())
}

fn keys(call: &Call<'_>, text: &mut String) -> Result<(), Refused> {
    for database in keyspace(call.session)?.open() {
        let keys = count_keys(&database)?;
        if keys > 0 {
            let expires = database.expiring.load(Ordering::Relaxed).min(keys);
            let number = database.number;
            line(text, format_args!("db{number}:keys={keys},expires={expires},avg_ttl=0"));
        }
    }
    Ok(())
}
