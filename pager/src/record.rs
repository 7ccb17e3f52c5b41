//! Records the requests of a run's pagers to their stores, for the supervisor, which writes them to
//! a file.
//!
//! A ring of records in the shared page. Each writer takes a place and fills it. Writers never wait: if the ring is
//! full, a request is only counted. The supervisor takes records out in order.

use std::sync::atomic::{AtomicU64, Ordering};

/// Records that wait for the supervisor at most; a power of two.
pub const RECORDS: usize = 1 << 16;
/// Bits of a handle in a record's page; above is the slot of the process.
const HANDLE_BITS: u32 = 48;
/// Bits of a page in a record's word; above is what was asked.
const PAGE_BITS: u32 = 60;
/// A writer that took a place and has not filled it, because its process was killed there, is waited for so long, ns.
/// One that only had no core writes into a place that is of no use by then, at worst over a record of a later round.
const LOST_NS: u64 = 100_000_000;

/// A pager's request to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Asked {
    /// A page leaves: a put.
    Out = 0,
    /// A page comes back, and is gone from the store.
    Take = 1,
    /// A page comes back, and its copy stays.
    Get = 2,
    /// A page in the store is no longer needed.
    Free = 3,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, by the monotonic clock, ns.
    pub at_ns: u64,
    /// What.
    pub asked: Asked,
    /// A number of the page, new each time that it leaves with other bytes.
    pub page: u64,
}

#[derive(Debug)]
#[repr(C)]
struct RecordSlot {
    /// Number of the record here, from 1; any other number than the one that is looked for is none.
    number: AtomicU64,
    at_ns: AtomicU64,
    word: AtomicU64,
}

/// The ring. All zeros is an empty one.
#[derive(Debug)]
#[repr(C)]
pub struct Records {
    taken: AtomicU64,
    read: AtomicU64,
    lost: AtomicU64,
    places: [RecordSlot; RECORDS],
}

/// Where the supervisor is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    next: u64,
    /// Since when the next record has been missing, ns.
    missing_since_ns: Option<u64>,
}

/// The number of a page: the slot of its process and its handle there.
#[must_use]
pub fn page(slot: usize, handle: u64) -> u64 {
    ((slot as u64) << HANDLE_BITS | handle & ((1 << HANDLE_BITS) - 1)) & ((1 << PAGE_BITS) - 1)
}

impl Records {
    /// Records a request, unless the ring is full.
    pub fn note(&self, Record { at_ns, asked, page }: Record) {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            if taken.wrapping_sub(self.read.load(Ordering::Acquire)) >= RECORDS as u64 {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            let next = taken.wrapping_add(1);
            match self.taken.compare_exchange_weak(
                taken,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => taken = seen,
            }
        }
        let place = &self.places[taken as usize % RECORDS];
        place.at_ns.store(at_ns, Ordering::Relaxed);
        place.word.store((asked as u64) << PAGE_BITS | page, Ordering::Relaxed);
        place.number.store(taken.wrapping_add(1), Ordering::Release);
    }

    /// Takes out the records, at most one ring. `now_ns` is the monotonic clock. With `all` a record whose writer has
    /// not filled it is not waited for.
    pub fn take(&self, reader: &mut Reader, now_ns: u64, all: bool, mut sink: impl FnMut(Record)) {
        for _ in 0..RECORDS {
            let waiting = self.taken.load(Ordering::Relaxed).wrapping_sub(reader.next);
            if waiting == 0 || waiting > RECORDS as u64 {
                return;
            }
            let place = &self.places[reader.next as usize % RECORDS];
            let number = reader.next.wrapping_add(1);
            if place.number.load(Ordering::Acquire) == number {
                let word = place.word.load(Ordering::Relaxed);
                let asked = match word >> PAGE_BITS & 3 {
                    0 => Asked::Out,
                    1 => Asked::Take,
                    2 => Asked::Get,
                    _ => Asked::Free,
                };
                let page = word & ((1 << PAGE_BITS) - 1);
                sink(Record { at_ns: place.at_ns.load(Ordering::Relaxed), asked, page });
            } else {
                let since_ns = *reader.missing_since_ns.get_or_insert(now_ns);
                if !all && now_ns.saturating_sub(since_ns) < LOST_NS {
                    return;
                }
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            reader.missing_since_ns = None;
            reader.next = number;
            self.read.store(number, Ordering::Release);
        }
    }

    /// Requests that were not recorded, because the supervisor was too slow.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn records() -> Box<Records> {
        // SAFETY: all zeros is a value: integers alone.
        unsafe { Box::<Records>::new_zeroed().assume_init() }
    }

    fn record(page: u64) -> Record {
        Record { at_ns: page + 1, asked: Asked::Take, page }
    }

    #[test]
    fn what_is_noted_comes_out_in_order_and_what_finds_no_room_is_counted() {
        let (records, mut reader) = (records(), Reader::default());
        let mut expected = 0;
        for round in 0..3 {
            let begin = round * (RECORDS as u64 + 10);
            (begin..begin + RECORDS as u64 + 10).for_each(|page| records.note(record(page)));
            let mut seen = Vec::new();
            records.take(&mut reader, 0, false, |record| seen.push(record));
            let kept: Vec<_> = (begin..begin + RECORDS as u64).map(record).collect();
            assert_eq!(seen, kept);
            expected += 10;
            assert_eq!(records.lost(), expected);
        }
        records.take(&mut reader, 0, true, |record| panic!("{record:?}"));
    }

    #[test]
    fn a_writer_that_was_killed_holds_the_others_up_for_a_while() {
        let (records, mut reader) = (records(), Reader::default());
        records.taken.store(1, Ordering::Relaxed);
        records.note(record(7));
        records.take(&mut reader, 5, false, |record| panic!("{record:?}"));
        records.take(&mut reader, LOST_NS, false, |record| panic!("{record:?}"));
        let mut seen = Vec::new();
        records.take(&mut reader, 5 + LOST_NS, false, |record| seen.push(record));
        assert_eq!((seen, records.lost()), (vec![record(7)], 1));
    }

    #[test]
    fn writers_do_not_disturb_each_other() {
        let (records, done) = (records(), AtomicBool::new(false));
        let mut seen = [0_u64; 4];
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4_u64)
                .map(|writer| {
                    let records = &records;
                    scope.spawn(move || {
                        for count in 0..200_000 {
                            records.note(record(page(writer as usize, count)));
                        }
                    })
                })
                .collect();
            let ended = &done;
            scope.spawn(move || {
                writers.into_iter().for_each(|writer| writer.join().unwrap());
                ended.store(true, Ordering::Release);
            });
            let mut reader = Reader::default();
            let mut next = [0; 4];
            loop {
                let all = done.load(Ordering::Acquire);
                records.take(&mut reader, 0, all, |record| {
                    let (writer, count) = ((record.page >> 48) as usize, record.page & 0xffff_ffff);
                    assert_eq!(record.at_ns, record.page + 1);
                    assert!(count >= next[writer], "{count} after {}", next[writer]);
                    next[writer] = count + 1;
                    seen[writer] += 1;
                });
                if all {
                    break;
                }
            }
        });
        assert_eq!(seen.iter().sum::<u64>() + records.lost(), 800_000);
    }
}
