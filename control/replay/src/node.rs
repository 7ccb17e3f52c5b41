//! A model of the store with page accuracy: which client holds which keys, and which puts are
//! refused.
//!
//! It answers like `core/store` for pages of persistent pools (tests/store.rs compares the two). It does not use the
//! store itself. The store's frames come in chunks and its index takes memory, so it is not full at a whole number of
//! pages. And its hash has a secret, so a run could not be repeated.
//!
//! Pages that a client holds beyond its target are written to its disk in the background, at a bounded rate: first keys
//! that were read back, then the oldest puts.

use spillway_types::Statistics;

const NONE: u32 = u32::MAX;

/// Where a key's page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residency {
    /// Not in memory: on the client's disk, or not stored.
    No,
    /// Put and not read since.
    Unread,
    /// Read since the put.
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    newer: u32,
    older: u32,
    held: Residency,
}

/// Keys in the order of their last put or get.
#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
}

const EMPTY: List = List { newest: NONE, oldest: NONE };

/// The node's state of a client.
#[derive(Debug)]
struct NodeClient {
    entries: Vec<Entry>,
    unread: List,
    read: List,
    statistics: Statistics,
}

impl NodeClient {
    fn list(&mut self, held: Residency) -> &mut List {
        if held == Residency::Read { &mut self.read } else { &mut self.unread }
    }

    fn link(&mut self, key: u32, held: Residency) {
        let list = self.list(held);
        let older = core::mem::replace(&mut list.newest, key);
        if older == NONE {
            list.oldest = key;
        } else {
            self.entries[older as usize].newer = key;
        }
        self.entries[key as usize] = Entry { newer: NONE, older, held };
    }

    fn unlink(&mut self, key: u32) {
        let Entry { newer, older, held } = self.entries[key as usize];
        match newer {
            NONE => self.list(held).newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.list(held).oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        self.entries[key as usize].held = Residency::No;
    }
}

/// A store of some pages.
#[derive(Debug)]
pub struct Node {
    total_pages: u64,
    used_pages: u64,
    clients: Vec<NodeClient>,
}

impl Node {
    /// An empty node of `total_pages`. `keys` has each client's number of keys.
    pub fn new(total_pages: u64, keys: &[u32]) -> Self {
        let entry = Entry { newer: NONE, older: NONE, held: Residency::No };
        let client = |&keys: &u32| NodeClient {
            entries: vec![entry; keys as usize],
            unread: EMPTY,
            read: EMPTY,
            statistics: Statistics::default(),
        };
        Self { total_pages, used_pages: 0, clients: keys.iter().map(client).collect() }
    }

    /// A client's counters.
    pub fn statistics(&self, client: usize) -> Statistics {
        self.clients[client].statistics
    }

    /// Sets the most pages that a client may hold.
    pub fn set_target(&mut self, client: usize, target_pages: u64) {
        self.clients[client].statistics.target_pages = target_pages;
    }

    /// Puts a page. Returns whether it was stored.
    pub fn put(&mut self, client: usize, key: u32) -> bool {
        let its = &mut self.clients[client];
        its.statistics.puts += 1;
        if its.entries[key as usize].held != Residency::No {
            its.unlink(key);
        } else if its.statistics.used_pages >= its.statistics.target_pages {
            its.statistics.puts_refused_at_target += 1;
            return false;
        } else if self.used_pages >= self.total_pages {
            its.statistics.puts_refused_node_full += 1;
            return false;
        } else {
            its.statistics.used_pages += 1;
            self.used_pages += 1;
        }
        its.link(key, Residency::Unread);
        its.statistics.puts_stored += 1;
        true
    }

    /// Gets a page. Returns whether the node had it.
    pub fn get(&mut self, client: usize, key: u32) -> bool {
        let its = &mut self.clients[client];
        its.statistics.gets += 1;
        let hit = its.entries[key as usize].held != Residency::No;
        if hit {
            its.unlink(key);
            its.link(key, Residency::Read);
            its.statistics.hits += 1;
        } else {
            its.statistics.misses += 1;
        }
        hit
    }

    /// Flushes a key. Returns whether the node had its page.
    pub fn flush(&mut self, client: usize, key: u32) -> bool {
        let had = self.drop_page(client, key);
        self.clients[client].statistics.flushed_pages += u64::from(had);
        had
    }

    /// Flushes all keys of a client.
    pub fn flush_all(&mut self, client: usize) {
        for key in 0..self.clients[client].entries.len() as u32 {
            self.flush(client, key);
        }
    }

    /// Writes up to `pages_max` of the pages beyond a client's target to its disk.
    pub fn reclaim(&mut self, client: usize, pages_max: u64) {
        let debt_pages = self.clients[client].statistics.debt_pages();
        for _ in 0..debt_pages.min(pages_max) {
            let its = &self.clients[client];
            let key = if its.read.oldest == NONE { its.unread.oldest } else { its.read.oldest };
            self.drop_page(client, key);
        }
    }

    fn drop_page(&mut self, client: usize, key: u32) -> bool {
        let its = &mut self.clients[client];
        if its.entries[key as usize].held == Residency::No {
            return false;
        }
        its.unlink(key);
        its.statistics.used_pages -= 1;
        self.used_pages -= 1;
        true
    }
}
