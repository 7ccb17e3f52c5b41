//! Sizes and times of the driver.

use spillway_guests::View;
use spillway_sections::{DeviceUsage, GuestUsage, Usage};

use super::actions::still_set_aside;
use super::memory::to_lie_ready;
use super::*;

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
fn nothing_is_made_ready_while_a_device_has_not_what_it_was_asked_to_have() {
    let view = View { ceiling_bytes: 100, size_bytes: Some(60), ..View::default() };
    let shares = |aim_bytes, sizes: &[(u64, u64)]| {
        to_lie_ready(9, &View { aim_bytes, ..view.clone() }, sizes, |_| 50)
    };
    for (sizes, is_still) in [
        (&[][..], true),
        (&[(5, 5), (0, 0)], true),
        (&[(5, 5), (4, 5)], false),
        (&[(6, 5), (5, 5)], false),
        // What one lacks another's surplus does not make up for.
        (&[(4, 5), (6, 5)], false),
    ] {
        assert_eq!(shares(None, sizes).is_some(), is_still, "{sizes:?}");
        assert_eq!(shares(Some(60), sizes), None, "an order is under way");
    }
}

#[test]
fn what_lies_ready_is_what_may_still_come_in_the_first_device_that_is_not_full() {
    let max = |device: usize| [8, 4, 0][device];
    let sizes = |first, second| [(first, first), (second, second), (0, 0)];
    // Wanted, the guest's size and ceiling, what its devices have, and what is to lie ready.
    for (wanted, size, ceiling, sizes, shares) in [
        (3, Some(64), 76, sizes(0, 0), [3, 0, 0]),
        (3, Some(71), 76, sizes(7, 0), [3, 0, 0]),
        (3, Some(72), 76, sizes(8, 0), [0, 3, 0]),
        (3, Some(74), 76, sizes(8, 2), [0, 2, 0]),
        (3, Some(76), 76, sizes(8, 4), [0, 0, 0]),
        (3, Some(80), 76, sizes(8, 3), [0, 0, 0]),
        (0, Some(64), 76, sizes(0, 0), [0, 0, 0]),
        (3, Some(75), 80, sizes(9, 3), [0, 3, 0]),
    ] {
        let view = View { ceiling_bytes: ceiling, size_bytes: size, ..View::default() };
        let ready = to_lie_ready(wanted, &view, &sizes, max);
        assert_eq!(ready, Some(shares.to_vec()), "{wanted} {size:?} {ceiling}");
    }
}

#[test]
fn what_could_not_be_settled_stays_set_aside() {
    let device = DeviceUsage { bound_bytes: 16, set_aside_bytes: 7, ready_bytes: 2 };
    let guest = GuestUsage { boot_bytes: 4, devices: [(2, device)].into() };
    let guests = [("vm".to_owned(), guest)].into();
    let usage = Usage { capacity_bytes: 32, used_bytes: 11, free_bytes: 21, lent_bytes: 0, guests };
    for (name, file, bytes) in [("vm", 2, 7), ("vm", 1, 5), ("other", 2, 5)] {
        assert_eq!(still_set_aside(&usage, name, file, 5), bytes, "{name} {file}");
    }
}
