//! Compares accounts with plain sums, over random requests.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const CAPACITY: u64 = 20;
const FILES: [GuestFile; 4] =
    [GuestFile::Boot, GuestFile::Device(1), GuestFile::Device(2), GuestFile::Counted(1)];

fn account(set_aside: u64, ready_from: u64, ready: u64, full_below: u64) -> Account {
    Account { bound: 100, set_aside, full_below, ready_from, ready }
}

#[test]
fn what_lies_ready_is_taken_first_and_from_its_start() {
    let before = account(3, 5, 4, 9);
    assert_eq!(before.with(0), before);
    assert_eq!(before.with(1), account(4, 6, 3, 9));
    assert_eq!(before.with(4), account(7, 9, 0, 9));
    assert_eq!(before.with(6), account(9, 9, 0, 9));
    assert_eq!(account(3, 5, 0, 9).with(2), account(5, 5, 0, 9));
}

#[test]
fn what_is_given_back_is_the_end_of_it_and_a_hole_from_there_on() {
    let before = account(3, 5, 4, 9);
    assert_eq!(before.with_ready(4), before);
    assert_eq!(before.with_ready(3), account(3, 5, 3, 8));
    assert_eq!(before.with_ready(0), account(3, 5, 0, 5));
    // Everything below the released memory stays known to be full, and no more.
    assert_eq!(account(3, 5, 4, 2).with_ready(0), account(3, 5, 0, 2));
}

#[test]
fn a_claim_may_take_all_that_is_idle_and_no_byte_more() {
    let mut accounts = Accounts::new(CAPACITY);
    accounts.set("a", GuestFile::Device(1), account(5, 5, 4, 9));
    accounts.set("b", GuestFile::Device(1), account(3, 3, 2, 5));
    assert_eq!((accounts.used(), accounts.free(), accounts.idle()), (8, 12, 6));
    // Its own 4 ready sections, and the 6 idle ones.
    let before = accounts.get("a", GuestFile::Device(1)).unwrap();
    assert_eq!(accounts.claim("a", GuestFile::Device(1), before.with(11)), Err(6));
    assert_eq!(accounts.get("a", GuestFile::Device(1)), Some(before), "nothing has changed");
    assert_eq!(accounts.claim("a", GuestFile::Device(1), before.with(10)), Ok(()));
    assert_eq!((accounts.used(), accounts.free(), accounts.idle()), (18, 2, 0));
    // Memory that is ready for b is free but not idle: only b can use it.
    assert_eq!(accounts.claim("c", GuestFile::Boot, account(1, 0, 0, 0)), Err(0));
    let after = accounts.get("b", GuestFile::Device(1)).unwrap().with(2);
    assert_eq!(accounts.claim("b", GuestFile::Device(1), after), Ok(()));
    assert_eq!((accounts.used(), accounts.free(), accounts.idle()), (20, 0, 0));
    // A pool whose capacity was reduced may hold more than its capacity: then nothing is free.
    let mut smaller = Accounts::new(4);
    smaller.set("a", GuestFile::Boot, account(9, 0, 0, 0));
    assert_eq!((smaller.used(), smaller.free(), smaller.idle()), (9, 0, 0));
    assert_eq!(smaller.claim("a", GuestFile::Boot, account(9, 0, 0, 0)), Ok(()));
    assert_eq!(smaller.claim("a", GuestFile::Boot, account(10, 0, 0, 0)), Err(0));
}

#[test]
fn what_lies_ready_is_found_with_others_only() {
    let mut accounts = Accounts::new(CAPACITY);
    accounts.set("a", GuestFile::Device(1), account(1, 1, 2, 3));
    accounts.set("b", GuestFile::Device(1), account(1, 1, 0, 3));
    accounts.set("b", GuestFile::Device(2), account(1, 1, 1, 3));
    assert_eq!(accounts.ready_of_others("a"), Some(("b".into(), GuestFile::Device(2))));
    assert_eq!(accounts.ready_of_others("b"), Some(("a".into(), GuestFile::Device(1))));
    accounts.remove("b", GuestFile::Device(2));
    assert_eq!(accounts.ready_of_others("a"), None);
}

#[test]
fn usage_says_what_each_file_counts_as() {
    let mut accounts = Accounts::new(CAPACITY);
    accounts.set("a", GuestFile::Boot, account(3, 0, 0, 0));
    accounts.set("a", GuestFile::Device(1), account(4, 4, 2, 6));
    accounts.set("a", GuestFile::Device(2), account(1, 1, 1, 2));
    accounts.set("b", GuestFile::Counted(0), account(5, 0, 0, 0));
    accounts.set("b", GuestFile::Counted(1), account(2, 0, 0, 0));
    let usage = accounts.usage();
    assert_eq!((usage.capacity_bytes, usage.used_bytes, usage.free_bytes), (20, 15, 5));
    let (a, b) = (&usage.guests["a"], &usage.guests["b"]);
    assert_eq!((a.boot_bytes, a.used_bytes(), a.ready_bytes()), (3, 8, 3));
    assert_eq!((b.boot_bytes, b.used_bytes(), b.ready_bytes()), (5, 7, 0));
    let device = DeviceUsage { bound_bytes: 100, set_aside_bytes: 4, ready_bytes: 2 };
    assert_eq!(a.devices[&1], device);
    assert_eq!(a.devices.keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(b.devices.keys().copied().collect::<Vec<_>>(), [1]);
}

proptest! {
    /// Whatever is claimed, lent, returned and removed: used, ready and lent memory together never exceed the capacity.
    /// A refusal reports the idle amount, and a claim that fits is never refused.
    #[test]
    fn claims_are_what_plain_sums_say(
        steps in vec((0..3usize, 0..FILES.len(), 0..5u8, 0..12u64), 1..60)
    ) {
        let mut accounts = Accounts::new(CAPACITY);
        let mut plain: BTreeMap<(&str, GuestFile), (u64, u64)> = BTreeMap::new();
        let mut lent = 0;
        for (guest, file, what, bytes) in steps {
            let (guest, file) = (["a", "b", "c"][guest], FILES[file]);
            let before = accounts.get(guest, file).unwrap_or_default();
            let all: u64 = plain.values().map(|(set_aside, ready)| set_aside + ready).sum();
            let (has, lies) = plain.get(&(guest, file)).copied().unwrap_or_default();
            prop_assert_eq!((before.set_aside, before.ready), (has, lies));
            let idle = CAPACITY - all - lent;
            match what {
                0 => {
                    let claimed = accounts.claim(guest, file, before.with(bytes));
                    let fits = bytes.saturating_sub(lies) <= idle;
                    prop_assert_eq!(claimed, if fits { Ok(()) } else { Err(idle) });
                    if fits {
                        plain.insert((guest, file), (has + bytes, lies.saturating_sub(bytes)));
                    }
                }
                1 => {
                    let more = Account { ready: before.ready + bytes, ..before };
                    let claimed = accounts.claim(guest, file, more);
                    prop_assert_eq!(claimed, if bytes <= idle { Ok(()) } else { Err(idle) });
                    if bytes <= idle {
                        plain.insert((guest, file), (has, lies + bytes));
                    }
                }
                2 => {
                    let kept = bytes.min(before.ready);
                    accounts.set(guest, file, before.with_ready(kept));
                    plain.insert((guest, file), (has, kept));
                }
                3 => {
                    lent = bytes.min(lent + idle);
                    prop_assert_eq!(accounts.lend(bytes), lent);
                }
                _ => {
                    accounts.remove(guest, file);
                    plain.remove(&(guest, file));
                }
            }
            let used: u64 = plain.values().map(|(set_aside, _)| set_aside).sum();
            let ready: u64 = plain.values().map(|(_, ready)| ready).sum();
            prop_assert_eq!(accounts.used(), used);
            prop_assert_eq!(accounts.free(), CAPACITY - used);
            prop_assert_eq!((accounts.lent(), accounts.usage().lent_bytes), (lent, lent));
            prop_assert_eq!(accounts.idle(), CAPACITY - used - ready - lent);
            let known: Vec<_> = plain.keys().filter(|(it, _)| *it == guest).map(|(_, file)| *file).collect();
            prop_assert_eq!(accounts.files(guest), known);
        }
    }
}
