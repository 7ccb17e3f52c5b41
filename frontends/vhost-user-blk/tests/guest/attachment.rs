//! One guest at a time, and a disk that is emptied when its guest has ended.

use std::time::Duration;

use rustix::fs::SealFlags;
use spillway_test_support::wait::until;
use spillway_vhost_user_blk::{Error, GuestState, Occupied};
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;

use crate::driver::*;

/// No guest has to be away for longer.
const AT_ONCE: Duration = Duration::ZERO;

fn state(host: &Host) -> GuestState {
    host.disk.guest().0
}

#[test]
fn a_second_guest_is_refused_and_the_first_goes_on() {
    let host = Host::new();
    let mut frontend = host.connect();
    let mut guest = Guest::new();
    guest.attach(&mut frontend);
    assert_eq!(guest.ask(OUT, 8, &[1; 512], 0), 0);
    for number in 1..=3 {
        let second = Frontend::connect(host.dir.path().join("socket"), 4).unwrap();
        assert!(second.get_features().is_err(), "its connection is closed");
        assert_eq!(host.disk.statistics().refused_guests, number);
    }
    until("a queue", || state(&host) == GuestState::Attached);
    assert_eq!(guest.read(8, 512), [1; 512]);
    drop(frontend);
    let mut guest = Guest::new();
    guest.attach(&mut host.connect());
    assert_eq!(host.disk.statistics().refused_guests, 3, "the next one takes the place");
}

#[test]
fn the_state_says_what_the_guest_does() {
    let host = Host::new();
    assert_eq!(state(&host), GuestState::Absent);
    let mut frontend = host.connect();
    assert_eq!(state(&host), GuestState::Connected);
    Guest::new().attach(&mut frontend);
    until("a queue", || state(&host) == GuestState::Attached);
    drop(frontend);
    until("the guest to be gone", || state(&host) == GuestState::Absent);
    // Memory that could vanish is refused, and the reason stays until a guest is served.
    let frontend = host.connect();
    assert!(frontend.set_mem_table(&[region(&memory(SealFlags::GROW), MEMORY_BYTES)]).is_err());
    let refused = |host: &Host| matches!(state(host), GuestState::Refused(why) if why.contains("no sealed memfd"));
    until("the refusal", || refused(&host));
    drop(frontend);
    let mut frontend = host.connect();
    assert!(refused(&host));
    Guest::new().attach(&mut frontend);
    until("a queue", || state(&host) == GuestState::Attached);
}

#[test]
fn a_disk_without_a_guest_can_be_emptied() {
    let host = Host::new();
    let mut frontend = host.connect();
    let mut guest = Guest::new();
    guest.attach(&mut frontend);
    for block in [0, 3, 149] {
        assert_eq!(guest.ask(OUT, block * 8, &[7; 4096], 0), 0);
    }
    // Block 0 lies in the file.
    assert_eq!(host.disk.held_pages().unwrap(), 2);
    let empty = |quiet| match host.disk.empty(quiet) {
        Err(Error::Occupied(why)) => Err(why),
        other => Ok(other.unwrap()),
    };
    assert_eq!(empty(AT_ONCE), Err(Occupied::Guest));
    drop(frontend);
    until("the guest to be gone", || state(&host) == GuestState::Absent);
    let lately = empty(Duration::from_secs(3600));
    assert!(matches!(lately, Err(Occupied::Lately { .. })), "it may come back: {lately:?}");
    assert_eq!(empty(AT_ONCE), Ok(2));
    assert_eq!(host.disk.held_pages().unwrap(), 0);
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    for block in [0, 3, 149] {
        assert_eq!(guest.read(block * 8, 4096), [0; 4096], "block {block}");
    }
    assert_eq!(guest.ask(OUT, 24, &[8; 4096], 0), 0);
    assert_eq!(guest.read(24, 4096), [8; 4096]);
}
