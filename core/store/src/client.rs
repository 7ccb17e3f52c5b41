//! The store's state of each client, shard by shard.

use spillway_tiers::sync::{AtomicU32, AtomicU64, Ordering};
use spillway_tiers::{NONE, Zeroed};
use spillway_types::{ClientId, Statistics};

use crate::config::ClientConfig;
use crate::list::LISTS;
use crate::slot::CLIENTS_MAX;

const NUMBER_BITS: u32 = CLIENTS_MAX.ilog2();

/// A client in its owner's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its id.
    pub id: ClientId,
    /// Its settings.
    pub config: ClientConfig,
}

/// A client, shared by all shards.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ClientSlot {
    /// The [`ClientId`], 0 if the number is free.
    pub(crate) id: AtomicU64,
    used_pages: AtomicU64,
    target_pages: AtomicU64,
    /// 1 while puts are refused and flushes logged.
    pub(crate) frozen: AtomicU32,
    /// The sharing domain: equal for clients that share frames.
    domain: AtomicU32,
    /// Pages of its reserved pools. Changed under the lock of [`crate::pools::Control`].
    pub(crate) reserved_pages: AtomicU64,
    /// [`ClientConfig::label`], low half first.
    label: [AtomicU64; 2],
    /// [`ClientConfig::domain`], plus [`NAMED`] if there is one.
    named_domain: AtomicU64,
    /// Of values that arrive in parts. Changed, as the next one, under the lock of [`crate::pools::Control`].
    pub(crate) arriving_pages: AtomicU64,
    /// Of values that leave in parts.
    pub(crate) leaving_pages: AtomicU64,
}

const NAMED: u64 = 1 << 32;

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for ClientSlot {}

/// Combines a serial number and a table index.
pub(crate) const fn client_id(serial: u64, number: usize) -> ClientId {
    ClientId(serial << NUMBER_BITS | number as u64)
}

impl ClientSlot {
    pub(crate) fn open(&self, id: ClientId, config: ClientConfig, domain: u16) {
        self.target_pages.store(config.target_pages, Ordering::Relaxed);
        let label = [config.label as u64, (config.label >> 64) as u64];
        self.label.iter().zip(label).for_each(|(at, half)| at.store(half, Ordering::Relaxed));
        let named = config.domain.map_or(0, |domain| NAMED | u64::from(domain));
        self.named_domain.store(named, Ordering::Relaxed);
        self.start(domain);
        self.id.store(id.0, Ordering::Release);
    }

    /// Resets the counters. The other fields are a new client's, or were kept.
    pub(crate) fn start(&self, domain: u16) {
        self.used_pages.store(0, Ordering::Relaxed);
        self.reserved_pages.store(0, Ordering::Relaxed);
        self.arriving_pages.store(0, Ordering::Relaxed);
        self.leaving_pages.store(0, Ordering::Relaxed);
        self.frozen.store(0, Ordering::Relaxed);
        self.domain.store(u32::from(domain), Ordering::Relaxed);
    }

    /// Its present settings.
    pub(crate) fn config(&self) -> ClientConfig {
        let [low, high] = [0, 1].map(|half: usize| self.label[half].load(Ordering::Relaxed));
        let named = self.named_domain.load(Ordering::Relaxed);
        ClientConfig {
            target_pages: self.target_pages(),
            domain: (named & NAMED != 0).then_some(named as u32),
            label: u128::from(low) | u128::from(high) << 64,
        }
    }

    /// The number of the sharing domain.
    pub(crate) fn domain(&self) -> u16 {
        self.domain.load(Ordering::Relaxed) as u16
    }

    /// Whether `pages` more stay within the target, at this moment.
    #[inline]
    pub(crate) fn has_room(&self, pages: u64) -> bool {
        self.used_pages().saturating_add(pages) <= self.target_pages()
    }

    /// Charges `pages` if they stay within the target. Test and charge are one atomic step, so that
    /// no race takes `used` beyond the target.
    #[inline]
    #[must_use]
    pub(crate) fn charge(&self, pages: u64) -> bool {
        let target = self.target_pages.load(Ordering::Relaxed);
        self.used_pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(pages).filter(|&sum| sum <= target)
            })
            .is_ok()
    }

    /// Charges `pages` regardless of the target, for pages that change owners.
    pub(crate) fn charge_always(&self, pages: u64) {
        self.used_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Refunds a charge.
    #[inline]
    pub(crate) fn refund(&self, pages: u64) {
        if pages != 0 {
            self.used_pages.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    pub(crate) fn used_pages(&self) -> u64 {
        self.used_pages.load(Ordering::Relaxed)
    }

    /// Bytes of values in flight, in both directions.
    pub(crate) fn in_flight_pages(&self) -> u64 {
        self.arriving_pages.load(Ordering::Relaxed) + self.leaving_pages.load(Ordering::Relaxed)
    }

    pub(crate) fn target_pages(&self) -> u64 {
        self.target_pages.load(Ordering::Relaxed)
    }

    pub(crate) fn set_target(&self, target_pages: u64) {
        self.target_pages.store(target_pages, Ordering::Relaxed);
    }
}

/// The serial number in an id.
pub(crate) const fn client_serial(id: ClientId) -> u64 {
    id.0 >> NUMBER_BITS
}

/// The table index of a client.
pub(crate) const fn client_number(id: ClientId) -> usize {
    id.0 as usize & (CLIENTS_MAX - 1)
}

/// A list of frames or cells, oldest first.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) oldest: AtomicU32,
    pub(crate) youngest: AtomicU32,
}

/// A shard's state of a client. Written under the shard's lock, read without it.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ClientShard {
    pub(crate) puts: AtomicU64,
    pub(crate) puts_stored: AtomicU64,
    pub(crate) puts_at_target: AtomicU64,
    pub(crate) puts_node_full: AtomicU64,
    pub(crate) puts_other: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) flushed_pages: AtomicU64,
    pub(crate) evicted_pages: AtomicU64,
    /// By lifetime and kind; see [`crate::list::List`].
    pub(crate) lists: [Ends; LISTS],
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for ClientShard {}

impl ClientShard {
    /// Resets it for another client.
    pub(crate) fn clear(&self) {
        for counter in [
            &self.puts,
            &self.puts_stored,
            &self.puts_at_target,
            &self.puts_node_full,
            &self.puts_other,
            &self.gets,
            &self.hits,
            &self.flushed_pages,
            &self.evicted_pages,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        for ends in &self.lists {
            ends.oldest.store(NONE, Ordering::Relaxed);
            ends.youngest.store(NONE, Ordering::Relaxed);
        }
    }

    /// Adds this shard's counters to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Statistics) {
        sum.puts += self.puts.load(Ordering::Relaxed);
        sum.puts_stored += self.puts_stored.load(Ordering::Relaxed);
        sum.puts_refused_at_target += self.puts_at_target.load(Ordering::Relaxed);
        sum.puts_refused_node_full += self.puts_node_full.load(Ordering::Relaxed);
        sum.puts_refused_other += self.puts_other.load(Ordering::Relaxed);
        sum.gets += self.gets.load(Ordering::Relaxed);
        sum.hits += self.hits.load(Ordering::Relaxed);
        sum.misses = sum.gets - sum.hits;
        sum.flushed_pages += self.flushed_pages.load(Ordering::Relaxed);
        sum.evicted_pages += self.evicted_pages.load(Ordering::Relaxed);
    }
}
