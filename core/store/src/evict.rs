//! Drops ephemeral values under pressure.

use spillway_tiers::sync::Ordering;
use spillway_types::PAGE_BYTES;

use crate::index::LEAF_SHIFT;
use crate::list::List;
use crate::position::SHARDS;
use crate::store::Store;

impl Store {
    /// Drops the coldest ephemeral value: of the putting client if it holds more than its share,
    /// else of all clients. False if there is none.
    #[cold]
    pub(crate) fn evict(&self, putter: u16) -> bool {
        if self.is_over_share(putter) && self.evict_of(putter..putter + 1).is_some() {
            return true;
        }
        self.evict_of(self.client_numbers()).is_some()
    }

    /// A client's share: its target, or an equal part of memory if that is less.
    fn is_over_share(&self, number: u16) -> bool {
        let in_use = |&n: &u16| self.clients[usize::from(n)].id.load(Ordering::Relaxed) != 0;
        let clients = self.client_numbers().filter(in_use).count().max(1) as u64;
        let equal = self.budget().cap() / PAGE_BYTES as u64 / clients;
        let client = &self.clients[usize::from(number)];
        client.used_pages() > equal.min(client.target_pages())
    }

    /// Drops the coldest ephemeral value of some clients. Returns its number of pages.
    pub(crate) fn evict_of(&self, numbers: core::ops::Range<u16>) -> Option<u64> {
        // The ends of lists are read without their locks. If the coldest value is gone under the
        // lock, another task has just made room, or the next round will find one.
        while let Some((owner, shard, list)) = self.coldest(numbers.clone()) {
            let mut index = self.shards[shard].lock();
            let lists = self.client_shard(owner, shard);
            let Some(at) = self.chains().oldest(lists, list) else { continue };
            let back = self.chains().meta(list, at).back.load(Ordering::Relaxed);
            let (leaf, place) = (back >> LEAF_SHIFT, back & ((1 << LEAF_SHIFT) - 1));
            let removed = self.remove(&mut index, shard, leaf, place, true);
            let pages = self.pages_of(removed.slot);
            lists.evicted_pages.add_guarded(pages);
            drop(index);
            self.finish(removed);
            return Some(pages);
        }
        None
    }

    fn coldest(&self, numbers: core::ops::Range<u16>) -> Option<(u16, usize, List)> {
        let now = self.now();
        let mut coldest: Option<(u16, u16, usize, List)> = None;
        for owner in numbers {
            if self.clients[usize::from(owner)].used_pages() == 0 {
                continue;
            }
            for shard in 0..SHARDS {
                for list in [List::EphemeralFrames, List::EphemeralCells] {
                    let lists = self.client_shard(owner, shard);
                    let Some(at) = self.chains().oldest(lists, list) else { continue };
                    let age = self.chains().age(list, at, now);
                    if coldest.is_none_or(|(oldest, ..)| age > oldest) {
                        coldest = Some((age, owner, shard, list));
                    }
                }
            }
        }
        coldest.map(|(_, owner, shard, list)| (owner, shard, list))
    }
}
