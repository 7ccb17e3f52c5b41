//! What a new configuration or a request changes, as lines for the log.

use spillway_types::{Limits, PAGE_BYTES, Size};

use crate::entry::Entry;
use crate::settings::{Bounds, Policy, Users};

/// Settings that differ, each with its new and old value.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn of(&mut self, name: &str, before: String, after: String) {
        if before != after {
            self.0.push(format!("{name} {after} (was {before})"));
        }
    }

    /// `cap` is the cap's name.
    fn of_bounds(&mut self, cap: &str, before: &Bounds, after: &Bounds) {
        self.of(cap, pages(before.cap_pages), pages(after.cap_pages));
        self.of("floor", pages(before.floor_pages), pages(after.floor_pages));
        self.of("weight", before.weight.to_string(), after.weight.to_string());
    }

    fn of_limits(&mut self, before: &Limits, after: &Limits) {
        let count = |count: u32| count.to_string();
        self.of("connections_max", count(before.connections_max), count(after.connections_max));
        self.of("operations_max", count(before.operations_max), count(after.operations_max));
        self.of("bytes_max", before.bytes_max.to_string(), after.bytes_max.to_string());
    }

    /// `None` if there are none.
    fn line(self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join(", "))
    }
}

/// A client that is new.
pub(crate) fn added(client: &Entry) -> String {
    let target = pages(client.cap_pages);
    format!("client {} is added: {}, target {target}", client.name, client.who)
}

/// What differs between two states of a client; `None` if nothing does. Secrets are not shown.
pub(crate) fn changed(before: &Entry, after: &Entry) -> Option<String> {
    let mut differences = Differences::default();
    differences.of("identity", before.who.to_string(), after.who.to_string());
    differences.of_bounds("target", &before.bounds(), &after.bounds());
    differences.of_limits(&before.limits, &after.limits);
    if before.secret != after.secret {
        differences.0.push("another secret".to_owned());
    }
    if before.shared != after.shared {
        differences.0.push("other shared pools".to_owned());
    }
    if before.origin != after.origin {
        differences.0.push("now of the configuration file".to_owned());
    }
    differences.line().map(|line| format!("client {}: {line}", after.name))
}

/// What a request has changed of a client or program; `None` if nothing.
pub(crate) fn set(before: &Bounds, after: &Bounds) -> Option<String> {
    let mut differences = Differences::default();
    differences.of_bounds("cap", before, after);
    differences.line()
}

/// What differs for unnamed clients; `None` if nothing does.
pub(crate) fn unnamed(before: &Policy, after: &Policy) -> Option<String> {
    let mut differences = Differences::default();
    differences.of("users", users(before.users), users(after.users));
    differences.of("hosts", before.hosts.to_string(), after.hosts.to_string());
    differences.of("target", pages(before.target_pages), pages(after.target_pages));
    differences.of_limits(&before.limits, &after.limits);
    differences.of("grace_s", before.grace_s.to_string(), after.grace_s.to_string());
    differences.line().map(|line| format!("unnamed clients: {line}"))
}

fn users(users: Users) -> String {
    match users {
        Users::Same => "same",
        Users::All => "all",
        Users::None => "none",
    }
    .to_owned()
}

fn pages(pages: u64) -> String {
    match pages.checked_mul(PAGE_BYTES as u64) {
        Some(bytes) => Size(bytes).to_string(),
        None => "none".to_owned(),
    }
}
