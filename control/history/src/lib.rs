//! The recent history of the store and its clients: a sample at the end of each interval, in a ring buffer.
//!
//! It reads no clock and does no I/O. Samples are numbered from 1, so that a reader can request those
//! [after](History::after) the last one that it has. [`Bounds`] limits the memory, also when clients come and go:
//! a client's entry is removed with its last sample.

#![forbid(unsafe_code)]

mod seen;

use std::collections::VecDeque;
use std::sync::Arc;

use seen::Seen;
use spillway_types::{ClientId, Statistics};

/// Limits of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most samples.
    pub samples: usize,
    /// Most samples times the clients in each.
    pub client_samples: usize,
}

impl Default for Bounds {
    /// An hour of 100 clients at an interval of a second, in some 17 MiB. With more clients the time is shorter. Each
    /// client that appears in only one sample takes some 200 bytes more.
    fn default() -> Self {
        Self { samples: 3600, client_samples: 3600 * 100 }
    }
}

/// The store at the end of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreLevels {
    /// Pages available to clients, including those that they hold.
    pub total_pages: u64,
    /// Bytes that the store takes.
    pub memory_bytes: u64,
    /// Of these, bytes that are free or only reserved.
    pub free_frame_bytes: u64,
    /// Bytes of pages in the disk tier.
    pub disk_bytes: u64,
    /// Pages whose words are all equal.
    pub same_filled_pages: u64,
    /// Pages that are packed.
    pub compressed_pages: u64,
}

/// A client's state at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub struct ObservedClient<'a> {
    /// Its id in the store.
    pub id: ClientId,
    /// Its name.
    pub name: &'a str,
    /// Its counters.
    pub statistics: Statistics,
}

/// A client's state at the end of an interval, and its activity in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSample {
    /// Its id in the store.
    pub id: ClientId,
    /// Pages that it held.
    pub used_pages: u64,
    /// Its target, pages; `u64::MAX` means no limit.
    pub target_pages: u64,
    /// Puts requested.
    pub puts: u32,
    /// Puts refused at the target.
    pub refused_at_target: u32,
    /// Puts refused because the store was full.
    pub refused_node_full: u32,
    /// Gets that found a value.
    pub hits: u32,
    /// Gets that found none.
    pub misses: u32,
}

/// One sample.
#[derive(Debug)]
struct Entry {
    at_ms: u64,
    elapsed_ms: u64,
    store: StoreLevels,
    clients: Box<[ClientSample]>,
}

/// A sample in a reader's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its number.
    pub number: u64,
    /// When it was taken, milliseconds since 1970.
    pub at_ms: u64,
    /// Milliseconds since the previous sample; 0 for the first of all.
    pub elapsed_ms: u64,
    /// The store.
    pub store: StoreLevels,
    /// The number of entries in the list of clients that belong to this sample.
    pub clients: usize,
}

/// The recent samples.
#[derive(Debug)]
pub struct History {
    bounds: Bounds,
    newest: u64,
    entries: VecDeque<Entry>,
    /// The clients in all entries. Each entry has its own list, which is freed with it: one ring buffer for all of them
    /// would in time use all of the memory that the bounds permit, however few clients there are.
    client_samples: usize,
    seen: Seen,
}

impl History {
    /// An empty history. It uses memory as it fills, and none for clients that no sample has.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            newest: 0,
            entries: VecDeque::with_capacity(bounds.samples),
            client_samples: 0,
            seen: Seen::default(),
        }
    }

    /// The number of the newest sample; 0 when there is none.
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The number of the oldest sample; one above the newest if there is none.
    pub fn oldest(&self) -> u64 {
        self.newest + 1 - self.entries.len() as u64
    }

    /// The name of a client of a sample.
    pub fn name(&self, id: ClientId) -> Option<&Arc<str>> {
        self.seen.name(id)
    }

    /// Adds a sample at `at_ms`, milliseconds since 1970, and drops as many of the oldest as needed. Omits clients
    /// beyond the limit.
    pub fn record<'a>(
        &mut self,
        at_ms: u64,
        store: StoreLevels,
        clients: impl ExactSizeIterator<Item = ObservedClient<'a>>,
    ) {
        let count = clients.len().min(self.bounds.client_samples);
        let elapsed_ms = self.entries.back().map_or(0, |last| at_ms.saturating_sub(last.at_ms));
        while self.entries.len() >= self.bounds.samples.max(1)
            || self.client_samples + count > self.bounds.client_samples
        {
            self.forget_oldest();
        }
        let first = self.newest == 0;
        self.newest += 1;
        let clients =
            clients.take(count).map(|client| self.seen.sample(&client, self.newest, first));
        let clients: Box<[_]> = clients.collect();
        self.client_samples += clients.len();
        self.entries.push_back(Entry { at_ms, elapsed_ms, store, clients });
    }

    fn forget_oldest(&mut self) {
        let number = self.oldest();
        let Some(entry) = self.entries.pop_front() else { return };
        self.client_samples -= entry.clients.len();
        for sample in &entry.clients {
            self.seen.forget(sample.id, number);
        }
    }

    /// The samples after number `since`, oldest first, and the clients of all of these one after the other. At
    /// least one sample if there is one, and no further one once there are `client_samples_max` of clients.
    pub fn after(
        &self,
        since: u64,
        client_samples_max: usize,
    ) -> (Vec<Sample>, impl Iterator<Item = &ClientSample>) {
        let oldest = self.oldest();
        let skipped = since.saturating_add(1).saturating_sub(oldest);
        let skipped = skipped.min(self.entries.len() as u64) as usize;
        let mut client_samples = 0;
        let mut samples = Vec::new();
        for (number, entry) in (oldest + skipped as u64..).zip(self.entries.range(skipped..)) {
            let clients = entry.clients.len();
            if !samples.is_empty() && client_samples + clients > client_samples_max {
                break;
            }
            client_samples += clients;
            let Entry { at_ms, elapsed_ms, store, .. } = *entry;
            samples.push(Sample { number, at_ms, elapsed_ms, store, clients });
        }
        let read = self.entries.range(skipped..skipped + samples.len());
        (samples, read.flat_map(|entry| &entry.clients))
    }
}
