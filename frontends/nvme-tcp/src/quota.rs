//! How much a client may have outstanding, over all its connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use spillway_types::{ClientId, Limits};

/// The quotas of clients that are connected.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<HashMap<ClientId, Weak<Quota>>>);

impl Quotas {
    /// A client's quota. The client's first connection makes it, with these limits, and its last one drops it.
    pub(crate) fn of(&self, client: ClientId, limits: Limits) -> Arc<Quota> {
        let mut quotas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = quotas.get(&client).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            quotas.retain(|_, quota| quota.strong_count() != 0);
            let quota = Arc::new(Quota::new(limits));
            quotas.insert(client, Arc::downgrade(&quota));
            quota
        })
    }
}

/// Counts one client's commands that wait for data, for room or for their answers to be sent, and the bytes of their
/// data.
#[derive(Debug)]
pub(crate) struct Quota {
    limits: Limits,
    operations: AtomicU32,
    bytes: AtomicU64,
}

/// A part of a quota that one command holds until this is dropped.
#[derive(Debug)]
pub(crate) struct QuotaGuard {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Quota {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, operations: AtomicU32::new(0), bytes: AtomicU64::new(0) }
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.limits.bytes_max
    }

    /// Takes a part for one command with `bytes` of data. `None` if too little is free.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Option<QuotaGuard> {
        add_within(&self.operations, 1, self.limits.operations_max)?;
        let room = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= self.limits.bytes_max)
        });
        if room.is_err() {
            self.operations.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(QuotaGuard { quota: Arc::clone(self), bytes })
    }
}

fn add_within(counter: &AtomicU32, add: u32, max: u32) -> Option<()> {
    let sum = |used: u32| used.checked_add(add).filter(|&sum| sum <= max);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok().map(|_| ())
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        self.quota.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.quota.operations.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_operations_nor_bytes_go_beyond_their_limits() {
        let limits = Limits { connections_max: 1, operations_max: 2, bytes_max: 100 };
        let quota = Arc::new(Quota::new(limits));
        let first = quota.hold(60).unwrap();
        assert!(quota.hold(41).is_none(), "too many bytes");
        let second = quota.hold(40).unwrap();
        assert!(quota.hold(0).is_none(), "too many operations");
        drop(first);
        assert!(quota.hold(60).is_some());
        drop(second);
        assert!(quota.hold(100).is_some());
    }
}
