//! The sampler of one client.

use crate::curve::{BUCKETS, Curve, bucket};

/// Most sampled keys of a client.
pub const SAMPLES: usize = 1024;
/// Places in the order of use. Each use takes the next place; when all are taken, the entries are renumbered.
const PLACES: usize = 2 * SAMPLES;
/// Slots of the hash table.
const TABLE: usize = 2 * SAMPLES;
/// With fewer sampled keys than this, the threshold rises again.
const SAMPLES_FEW: u32 = SAMPLES as u32 / 8;
/// Factor by which counts decay in each interval.
const KEPT: f32 = 0.8;
/// Counts below this become 0.
const NEGLIGIBLE: f32 = 1e-3;

/// State of a sampled key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum KeyState {
    /// Put, and not read since.
    Unread = 0,
    /// Read back since it was put.
    Read = 1,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    place: u16,
    state: KeyState,
}

/// Samples the keys of a client whose hashes lie below a threshold. A sampler of zero bytes is off.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Sampler {
    /// The threshold: hashes below it are sampled. 0 when the sampler is off.
    below: u64,
    /// One key in `1 << shift` is sampled.
    shift: u32,
    count: u32,
    next_place: u32,
    /// Gets of keys in state `Read`, and keys in that state that were put again or flushed.
    wanted_again: f32,
    dead: f32,
    cold: f32,
    gets: [f32; BUCKETS],
    /// Hash table with open addressing: the number of an entry plus one.
    table: [u16; TABLE],
    entries: [Entry; SAMPLES],
    /// Number of the entry plus one at each place in the order of use.
    order: [u16; PLACES],
    /// All entries, by state.
    total: Counts,
    /// Fenwick tree: entries by state at the places up to an index (P. M. Fenwick, "A new data structure for cumulative
    /// frequency tables", 1994).
    counts: [Counts; PLACES + 1],
}

/// Numbers of entries by state, sixteen bits each, so that one addition sums both.
type Counts = u32;

/// One entry in a state.
const fn one(state: KeyState) -> Counts {
    1 << (16 * state as u32)
}

/// The numbers of unread and read entries.
const fn by_state(counts: Counts) -> [u32; 2] {
    [counts & 0xffff, counts >> 16]
}

impl Default for Sampler {
    /// A new sampler that is on.
    fn default() -> Self {
        let mut sampler = Self {
            below: 0,
            shift: 0,
            count: 0,
            next_place: 0,
            wanted_again: 0.0,
            dead: 0.0,
            cold: 0.0,
            gets: [0.0; BUCKETS],
            table: [0; TABLE],
            entries: [Entry { hash: 0, place: 0, state: KeyState::Unread }; SAMPLES],
            order: [0; PLACES],
            total: 0,
            counts: [0; PLACES + 1],
        };
        sampler.start();
        sampler
    }
}

impl Sampler {
    /// Restarts, and samples all keys until there are too many.
    pub fn start(&mut self) {
        (self.below, self.shift) = (u64::MAX, 0);
        (self.wanted_again, self.dead, self.cold) = (0.0, 0.0, 0.0);
        self.gets = [0.0; BUCKETS];
        self.forget();
    }

    /// Stops sampling.
    pub const fn stop(&mut self) {
        self.below = 0;
    }

    /// The threshold. The caller needs to report only hashes below it. Each call may change it.
    pub const fn below(&self) -> u64 {
        self.below
    }

    /// Forgets the keys, as after a flush of everything. The curve stays.
    pub fn forget(&mut self) {
        self.table = [0; TABLE];
        self.order = [0; PLACES];
        (self.total, self.counts) = (0, [0; PLACES + 1]);
        (self.count, self.next_place) = (0, 0);
    }

    /// Records a put, stored or refused.
    pub fn put(&mut self, hash: u64) {
        if hash >= self.below {
            return;
        }
        match self.find(hash) {
            Some(at) => {
                self.dead += f32::from(u8::from(self.entries[at].state == KeyState::Read));
                self.touch(at, KeyState::Unread);
            }
            None => self.insert(hash),
        }
    }

    /// Records a get, whichever tier serves it.
    pub fn get(&mut self, hash: u64) {
        if hash >= self.below {
            return;
        }
        let weight = (1_u64 << self.shift) as f32;
        let Some(at) = self.find(hash) else {
            self.cold += weight;
            return;
        };
        let Entry { place, state, .. } = self.entries[at];
        let [unread, read] = by_state(self.total - self.up_to(place));
        let distance = 1.0 + unread as f32 + read as f32 * self.read_share();
        let distance_pages = f64::from(distance * weight) as u64;
        self.gets[bucket(distance_pages)] += weight;
        self.wanted_again += f32::from(u8::from(state == KeyState::Read));
        self.touch(at, KeyState::Read);
    }

    /// Records a get that also flushes the key.
    pub fn take(&mut self, hash: u64) {
        self.get(hash);
        if hash < self.below
            && let Some(at) = self.find(hash)
        {
            self.remove(at);
        }
    }

    /// Records a flush.
    pub fn flush(&mut self, hash: u64) {
        if hash >= self.below {
            return;
        }
        if let Some(at) = self.find(hash) {
            self.dead += f32::from(u8::from(self.entries[at].state == KeyState::Read));
            self.remove(at);
        }
    }

    /// Ends an interval, and returns the curve of the client's recent gets. From now on these weigh less.
    pub fn interval(&mut self) -> Curve {
        let [unread, read] = by_state(self.total).map(f64::from);
        let live = unread + read * f64::from(self.read_share());
        let curve = Curve {
            gets: self.gets,
            cold: self.cold,
            live_pages: (live * (1_u64 << self.shift) as f64) as u64,
        };
        for weight in self.gets.iter_mut().chain([&mut self.cold]) {
            // Repeated halving of floats would end at equal denormal values.
            *weight = if *weight < NEGLIGIBLE { 0.0 } else { *weight * KEPT };
        }
        self.wanted_again *= KEPT;
        self.dead *= KEPT;
        if self.count < SAMPLES_FEW && self.shift > 0 {
            self.set_shift(self.shift - 1);
        }
        curve
    }

    /// The share of read pages that are read again; one half while unknown.
    fn read_share(&self) -> f32 {
        (self.wanted_again + 1.0) / (self.wanted_again + self.dead + 2.0)
    }

    fn set_shift(&mut self, shift: u32) {
        self.shift = shift;
        self.below = u64::MAX >> shift;
    }

    fn insert(&mut self, hash: u64) {
        while self.count as usize == SAMPLES {
            self.halve();
            if hash >= self.below {
                return;
            }
        }
        let at = self.count as usize;
        self.count += 1;
        self.entries[at] = Entry { hash, place: 0, state: KeyState::Unread };
        self.enter(hash, at);
        self.place(at, KeyState::Unread);
    }

    /// Samples half of the keys from now on.
    #[cold]
    fn halve(&mut self) {
        self.set_shift(self.shift + 1);
        for at in (0..self.count as usize).rev() {
            if self.entries[at].hash >= self.below {
                self.remove(at);
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.unplace(at);
        self.leave(self.entries[at].hash);
        // The last entry gets the free number.
        let last = self.count as usize - 1;
        self.count -= 1;
        if at != last {
            let entry = self.entries[last];
            self.leave(entry.hash);
            self.entries[at] = entry;
            self.enter(entry.hash, at);
            self.order[usize::from(entry.place)] = at as u16 + 1;
        }
    }

    fn touch(&mut self, at: usize, state: KeyState) {
        self.unplace(at);
        self.place(at, state);
    }

    /// Makes an entry the most recent.
    fn place(&mut self, at: usize, state: KeyState) {
        if self.next_place as usize == PLACES {
            self.renumber();
        }
        let place = self.next_place as usize;
        self.next_place += 1;
        self.order[place] = at as u16 + 1;
        self.entries[at].place = place as u16;
        self.entries[at].state = state;
        self.total += one(state);
        self.add(place, one(state));
    }

    fn unplace(&mut self, at: usize) {
        let Entry { place, state, .. } = self.entries[at];
        self.order[usize::from(place)] = 0;
        self.total -= one(state);
        self.add(usize::from(place), one(state).wrapping_neg());
    }

    /// Moves the entries to the first places, without gaps. This frees at least half of the places.
    #[cold]
    fn renumber(&mut self) {
        self.counts = [0; PLACES + 1];
        let mut next = 0;
        for place in 0..PLACES {
            let number = core::mem::take(&mut self.order[place]);
            if number != 0 {
                let entry = &mut self.entries[usize::from(number) - 1];
                entry.place = next;
                self.order[usize::from(next)] = number;
                next += 1;
                self.counts[usize::from(next)] = one(entry.state);
            }
        }
        // Each node adds its count to the next one that includes it.
        for at in 1..=PLACES {
            let next = at + (at & at.wrapping_neg());
            if next <= PLACES {
                self.counts[next] += self.counts[at];
            }
        }
        self.next_place = u32::from(next);
    }

    fn add(&mut self, place: usize, counts: Counts) {
        let mut at = place + 1;
        while at <= PLACES {
            self.counts[at] = self.counts[at].wrapping_add(counts);
            at += at & at.wrapping_neg();
        }
    }

    /// Entries by state at places up to this one, inclusive.
    fn up_to(&self, place: u16) -> Counts {
        let (mut at, mut sum) = (usize::from(place) + 1, 0);
        while at > 0 {
            sum += self.counts[at];
            at &= at - 1;
        }
        sum
    }

    /// The first slot of a hash. Hashes below the threshold share their high bits, so this uses the low ones.
    fn home(hash: u64) -> usize {
        (hash as u32).wrapping_mul(0x9e37_79b1) as usize >> (u32::BITS - TABLE.ilog2())
    }

    fn find(&self, hash: u64) -> Option<usize> {
        let mut slot = Self::home(hash);
        loop {
            match self.table[slot] {
                0 => return None,
                number if self.entries[usize::from(number) - 1].hash == hash => {
                    return Some(usize::from(number) - 1);
                }
                _ => slot = (slot + 1) % TABLE,
            }
        }
    }

    fn enter(&mut self, hash: u64, at: usize) {
        let mut slot = Self::home(hash);
        while self.table[slot] != 0 {
            slot = (slot + 1) % TABLE;
        }
        self.table[slot] = at as u16 + 1;
    }

    /// Removes a hash from the table, and moves back entries that it displaced (Knuth, The Art of Computer
    /// Programming, 6.4, algorithm R).
    fn leave(&mut self, hash: u64) {
        let mut slot = Self::home(hash);
        while self.entries[usize::from(self.table[slot]) - 1].hash != hash {
            slot = (slot + 1) % TABLE;
        }
        let mut next = slot;
        loop {
            self.table[slot] = 0;
            loop {
                next = (next + 1) % TABLE;
                let number = self.table[next];
                if number == 0 {
                    return;
                }
                let home = Self::home(self.entries[usize::from(number) - 1].hash);
                // An entry whose home lies behind the gap stays.
                if next.wrapping_sub(home) % TABLE >= next.wrapping_sub(slot) % TABLE {
                    self.table[slot] = number;
                    slot = next;
                    break;
                }
            }
        }
    }
}
