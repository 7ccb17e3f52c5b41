//! What a new configuration changes, as lines for the log.

use spillway_types::{PAGE_BYTES, Size};

use crate::entry::Entry;

/// A client that is new.
pub(crate) fn added(client: &Entry) -> String {
    let target = pages(client.cap_pages);
    format!("client {} is added: {}, target {target}", client.name, client.who)
}

/// What differs between two states of a client; `None` if nothing does. Secrets are not shown.
pub(crate) fn changed(before: &Entry, after: &Entry) -> Option<String> {
    let mut parts = Vec::new();
    let mut differ = |name: &str, before: String, after: String| {
        if before != after {
            parts.push(format!("{name} {after} (was {before})"));
        }
    };
    differ("identity", before.who.to_string(), after.who.to_string());
    differ("target", pages(before.cap_pages), pages(after.cap_pages));
    differ("floor", pages(before.floor_pages), pages(after.floor_pages));
    differ("weight", before.weight.to_string(), after.weight.to_string());
    let (was, is) = (&before.limits, &after.limits);
    differ("connections_max", was.connections_max.to_string(), is.connections_max.to_string());
    differ("operations_max", was.operations_max.to_string(), is.operations_max.to_string());
    differ("bytes_max", was.bytes_max.to_string(), is.bytes_max.to_string());
    if before.secret != after.secret {
        parts.push("another secret".to_owned());
    }
    if before.shared != after.shared {
        parts.push("other shared pools".to_owned());
    }
    if before.origin != after.origin {
        parts.push("now of the configuration file".to_owned());
    }
    (!parts.is_empty()).then(|| format!("client {}: {}", after.name, parts.join(", ")))
}

fn pages(pages: u64) -> String {
    match pages.checked_mul(PAGE_BYTES as u64) {
        Some(bytes) => Size(bytes).to_string(),
        None => "none".to_owned(),
    }
}
