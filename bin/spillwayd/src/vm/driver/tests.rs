//! Sizes, times and counters of the driver.

use super::memory::{first_with_room, is_still};
use super::*;

#[test]
fn differences_are_from_the_size_of_now_and_go_neither_below_nothing_nor_beyond_all() {
    for (wanted, size, to) in [
        (Wanted::To(7), 100, 7),
        (Wanted::Grow(7), 100, 107),
        (Wanted::Shrink(7), 100, 93),
        (Wanted::Shrink(101), 100, 0),
        (Wanted::Grow(u64::MAX), 100, u64::MAX),
    ] {
        assert_eq!(wanted.from(size), to, "{wanted:?}");
    }
}

#[test]
fn each_end_of_an_order_counts_once_as_what_it_is() {
    let ends = [
        (End::Reached, (1, 0, 0)),
        (End::Refused("why".into()), (0, 1, 0)),
        (End::Superseded, (0, 0, 1)),
        (End::Partial, (0, 0, 1)),
        (End::RolledBack, (0, 0, 1)),
        (End::Lost("why".into()), (0, 0, 1)),
    ];
    for (end, counts) in ends {
        let mut notes = Notes::default();
        notes.count(&end);
        assert_eq!((notes.reached, notes.refused, notes.failed), counts, "{end:?}");
        notes.count(&end);
        assert_eq!(notes.reached + notes.refused + notes.failed, 2);
    }
}

#[test]
fn the_driver_waits_for_what_is_due_and_never_longer_than_half_a_second() {
    let ms = Duration::from_millis;
    for (until_try, until_read, wait) in [
        (None, ms(20), ms(20)),
        (None, ms(499), ms(499)),
        (None, ms(501), ms(500)),
        (None, Duration::ZERO, Duration::ZERO),
        // What is to be read of a VM that is out of reach does not count.
        (Some(ms(300)), ms(20), ms(300)),
        (Some(ms(900)), ms(20), ms(500)),
        (Some(Duration::ZERO), ms(20), Duration::ZERO),
    ] {
        assert_eq!(longest_wait(until_try, until_read), wait, "{until_try:?} {until_read:?}");
    }
}

#[test]
fn sizes_are_read_soon_after_a_change_and_what_is_said_never_puts_that_off() {
    let never = u64::MAX;
    for (read_at, has_ended, wake_at, next) in [
        (never, false, 1_500_000, 1_500_000),
        (never, true, 1_500_000, 1_020_000),
        (never, true, 1_001_000, 1_020_000),
        (1_010_000, true, never, 1_010_000),
        (1_010_000, false, 1_500_000, 1_010_000),
        (0, false, 1_500_000, 0),
    ] {
        assert_eq!(next_reading(read_at, 1_000_000, has_ended, wake_at), next);
    }
}

#[test]
fn a_guest_is_still_when_each_device_has_what_it_was_asked_to_have() {
    for (sizes, still) in [
        (&[][..], true),
        (&[(5, 5), (0, 0)], true),
        (&[(5, 5), (4, 5)], false),
        (&[(6, 5), (5, 5)], false),
        // What one lacks another's surplus does not make up for.
        (&[(4, 5), (6, 5)], false),
    ] {
        assert_eq!(is_still(sizes), still, "{sizes:?}");
    }
}

#[test]
fn the_device_that_grows_next_is_the_first_that_is_not_full() {
    let max = |device: usize| [8, 4, 0][device];
    for (sizes, device) in [
        ([(0, 0), (0, 0), (0, 0)], Some(0)),
        ([(7, 7), (0, 0), (0, 0)], Some(0)),
        ([(8, 8), (0, 0), (0, 0)], Some(1)),
        ([(8, 8), (4, 4), (0, 0)], None),
        ([(9, 9), (3, 3), (0, 0)], Some(1)),
    ] {
        assert_eq!(first_with_room(&sizes, max), device, "{sizes:?}");
    }
}
