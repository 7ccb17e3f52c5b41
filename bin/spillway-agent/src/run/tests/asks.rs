//! Requests of programs and of the watch, and the host's answers.

use std::io::{BufRead, BufReader};

use spillway_guest::{Call, Reply};
use spillway_test_support::wait::until;

use super::*;

/// A program that has sent a call to the agent's socket.
fn program(guest: &Guest, call: &Call) -> UnixStream {
    let mut stream = UnixStream::connect(guest.folder.path().join("socket")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&call.encode()).unwrap();
    stream
}

fn reply(stream: UnixStream) -> Reply {
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).unwrap();
    Reply::decode(line.strip_suffix(b"\n").unwrap()).unwrap()
}

fn answer(granted_bytes: u64, why: Option<&str>) -> Reply {
    Reply::Answer { granted_bytes, why: why.map(Into::into) }
}

#[test]
fn a_program_gets_no_more_than_there_can_be_and_hears_what_was_granted() {
    let mut guest = Guest::new();
    let early = program(&guest, &Call::Need { bytes: MIB });
    guest.turn(ms(900));
    assert_eq!(reply(early), answer(0, Some("the host is not there")));
    guest.greeted(ms(1000));
    // The guest may have 7 GiB more. Of a larger answer, the part beyond the request and one block does not count as
    // granted.
    for (asked, passed, said, granted) in [
        (3 * MIB, 3 * MIB, 2 * MIB, 2 * MIB),
        (3 * MIB, 3 * MIB, BLOCK + 3 * MIB, BLOCK + 3 * MIB),
        (3 * MIB, 3 * MIB, BLOCK + 3 * MIB + 1, BLOCK + 3 * MIB),
    ] {
        let waiting = program(&guest, &Call::Need { bytes: asked });
        let heard = guest.turn(ms(1001));
        let [FromGuest::Need { id, bytes, urgent: false, wait_ms: 15_000 }] = heard[..] else {
            panic!("{heard:?}")
        };
        assert_eq!(bytes, passed);
        guest.say(&FromHost::Answer { id, granted_bytes: said, why: Some("so".into()) });
        guest.turn(ms(1002));
        assert_eq!(reply(waiting), answer(granted, Some("so")));
    }
    let _large = program(&guest, &Call::Need { bytes: 1 << 40 });
    let heard = guest.turn(ms(1003));
    let [FromGuest::Need { bytes, .. }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!(bytes, 7168 * MIB);
    let giving = program(&guest, &Call::Give { bytes: 3 * MIB });
    let heard = guest.turn(ms(1004));
    let [FromGuest::Give { id, bytes }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!(bytes, 3 * MIB);
    guest.say(&FromHost::Answer { id, granted_bytes: MIB, why: None });
    guest.turn(ms(1005));
    assert_eq!(reply(giving), answer(MIB, None));
}

#[test]
fn a_guest_that_has_all_it_may_have_asks_no_host() {
    let mut guest = Guest::new();
    guest.memory(8192, 512);
    guest.greeted(ms(1000));
    let full = program(&guest, &Call::Need { bytes: MIB });
    assert_eq!(guest.turn(ms(1001)), []);
    let why = "the guest holds as much as the host allows, or as its kernel can describe";
    assert_eq!(reply(full), answer(0, Some(why)));
}

#[test]
fn answers_go_to_who_asked_once_and_no_answer_to_nobody() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    let (first, second) =
        (program(&guest, &Call::Need { bytes: MIB }), program(&guest, &Call::Give { bytes: MIB }));
    let heard = guest.turn(ms(1001));
    let [FromGuest::Need { id: need, .. }, FromGuest::Give { id: give, .. }] = heard[..] else {
        panic!("{heard:?}")
    };
    assert_ne!(need, give);
    for id in [give, give, 999] {
        guest.say(&FromHost::Answer { id, granted_bytes: 5, why: None });
    }
    guest.say(&FromHost::Answer { id: need, granted_bytes: 7, why: None });
    guest.turn(ms(1002));
    assert_eq!(reply(second), answer(5, None));
    assert_eq!(reply(first), answer(7, None));
    assert!(guest.agent.asked.is_empty());
}

#[test]
fn what_the_host_never_answers_is_forgotten_after_a_minute() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    let waiting = program(&guest, &Call::Give { bytes: MIB });
    guest.turn(ms(2000));
    guest.turn(ms(31_999));
    assert_eq!(guest.agent.asked.len(), 1);
    guest.turn(ms(32_000));
    assert_eq!(reply(waiting), answer(0, Some("the host does not answer")));
    guest.turn(ms(61_999));
    assert_eq!(guest.agent.asked.len(), 1);
    guest.turn(ms(62_000));
    assert!(guest.agent.asked.is_empty());
}

#[test]
fn programs_hear_that_the_host_has_gone() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    let waiting = program(&guest, &Call::Need { bytes: MIB });
    guest.turn(ms(1001));
    guest.host.shutdown(std::net::Shutdown::Both).unwrap();
    guest.turn(ms(1002));
    assert_eq!(reply(waiting), answer(0, Some("the host is gone")));
    assert!(guest.agent.asked.is_empty());
}

#[test]
fn a_program_hears_how_the_guest_is() {
    let mut guest = Guest::new();
    guest.plug("oom");
    let asks = |guest: &mut Guest, now| {
        let stream = program(guest, &Call::Status);
        guest.agent.turn(now);
        reply(stream)
    };
    let Reply::Status { host, reserve_bytes, .. } = asks(&mut guest, ms(500)) else { panic!() };
    assert_eq!((host, reserve_bytes), (false, 0));
    guest.greeted(ms(1000));
    let Reply::Status { host, reserve_bytes, status } = asks(&mut guest, ms(1001)) else {
        panic!()
    };
    assert_eq!((host, reserve_bytes), (true, RESERVE));
    assert_eq!(FromGuest::Status(status), guest.status(512, 2));
}

/// Requests for the guest itself are urgent below its reserve, and the watch gets the answer.
#[test]
fn a_guest_whose_reserve_is_used_up_asks_by_itself_and_takes_the_answer() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.available(63);
    let heard = guest.turn(ms(1100));
    let [FromGuest::Need { id, bytes, urgent: true, wait_ms: 0 }] = heard[..] else {
        panic!("{heard:?}")
    };
    assert!(bytes > 0 && bytes.is_multiple_of(BLOCK));
    guest.say(&FromHost::Answer { id, granted_bytes: 0, why: None });
    guest.turn(ms(1110));
    assert!(guest.agent.asked.is_empty());
    // A refusal is followed by a pause of half a second.
    let mut again = 1110;
    while guest.turn(ms(again)).is_empty() {
        again += 10;
    }
    assert_eq!(again, 1610);
}

/// Without a host, no one takes offline blocks.
#[test]
fn a_guest_without_a_host_takes_what_is_offline_itself() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("moo");
    guest.go_all();
    guest.host.shutdown(std::net::Shutdown::Both).unwrap();
    guest.available(63);
    guest.turn(ms(1100));
    guest.until(ms(1100), |guest| guest.agent.mover.is_idle());
    assert_eq!(guest.moved(), ["33 online_movable", "34 online_movable"]);
}

#[test]
fn a_hello_that_changes_nothing_keeps_what_the_watch_knows() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.available(63);
    assert_eq!(guest.turn(ms(1100)).len(), 1);
    guest.hello(60_000);
    let said = guest.turn(ms(1200));
    assert!(!said.iter().any(|it| matches!(it, FromGuest::Need { .. })), "{said:?}");
    // Other terms reset the watch.
    let (version, profile, interval_ms) = (VERSION, Profile::ReturnsAll, 60_000);
    let (reserve_bytes, most_bytes) = (2 * RESERVE, MOST);
    guest.say(&FromHost::Hello { version, interval_ms, reserve_bytes, most_bytes, profile });
    let said = guest.turn(ms(1300));
    assert!(said.iter().any(|it| matches!(it, FromGuest::Need { .. })), "{said:?}");
}

/// But it does not start again with each sample.
#[test]
fn blocks_that_come_online_without_a_host_are_not_begun_again() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("moo");
    guest.host.shutdown(std::net::Shutdown::Both).unwrap();
    guest.available(63);
    guest.turn(ms(1100));
    let deadline = guest.agent.mover.deadline();
    assert_eq!(deadline, Some(ms(11_100)));
    // The watch asks again when there is no answer for some seconds.
    for now in (1200..9000).step_by(100) {
        guest.turn(ms(now));
    }
    assert_eq!(guest.agent.mover.deadline(), deadline);
}

/// After ten seconds of rest there is a step, unless something prevents it.
#[test]
fn idle_page_cache_is_dropped_while_nothing_else_is_under_way() {
    let starts = |prepare: &dyn Fn(&mut Guest)| {
        let mut guest = Guest::new();
        guest.plug("mmmm");
        guest.put("sys/fs/cgroup/memory.reclaim", "");
        guest.agent.reclaimer = Reclaimer::open(&guest.path(""));
        let text = "MemTotal: 1048576 kB\nMemAvailable: 786432 kB\nCached: 655360 kB\n\
                    SwapTotal: 2048 kB\nSwapFree: 2048 kB\n";
        guest.put("proc/meminfo", text);
        guest.greeted(ms(1000));
        let is_idle = |guest: &Guest| guest.agent.reclaimer.as_ref().unwrap().is_idle();
        for now in (2000..10_000).step_by(1000) {
            guest.turn(ms(now));
            assert!(is_idle(&guest), "{now}");
        }
        prepare(&mut guest);
        for now in (10_000..12_000).step_by(1000) {
            guest.turn(ms(now));
        }
        !is_idle(&guest)
    };
    assert!(starts(&|_| {}));
    assert!(!starts(&|guest| guest.host.shutdown(std::net::Shutdown::Both).unwrap()));
    assert!(!starts(&|guest| {
        guest.agent.asked.insert(9, (ms(9000), Origin::Watch, Ask::Give { bytes: MIB }));
    }));
    assert!(!starts(&|guest| guest.agent.mover.start(ms(9999), 1, [(35, Wish::Movable)])));
}

/// Even if no swap space is in use yet.
#[test]
fn a_kernel_that_would_swap_for_it_drops_no_page_cache() {
    for (swap_kib, is_left) in [(0, true), (2048, false)] {
        let mut guest = Guest::new();
        guest.plug("mmmm");
        guest.put("sys/fs/cgroup/memory.reclaim", "");
        let mut reclaimer = Reclaimer::open(&guest.path("")).unwrap();
        reclaimer.forget_swappiness();
        guest.agent.reclaimer = Some(reclaimer);
        let text = format!(
            "MemTotal: 1048576 kB\nMemAvailable: 786432 kB\nCached: 655360 kB\n\
             SwapTotal: {swap_kib} kB\nSwapFree: {swap_kib} kB\n"
        );
        guest.put("proc/meminfo", &text);
        guest.greeted(ms(1000));
        for now in (2000..12_000).step_by(1000) {
            guest.turn(ms(now));
        }
        assert_eq!(guest.agent.reclaimer.is_some(), is_left, "{swap_kib}");
    }
}

/// The next host does not know the request.
#[test]
fn what_a_host_that_went_was_asked_is_asked_of_the_next_at_once() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.available(63);
    assert_eq!(guest.turn(ms(1100)).len(), 1);
    guest.change_host(ms(1101));
    guest.hello(60_000);
    let said = guest.turn(ms(1200));
    assert!(said.iter().any(|it| matches!(it, FromGuest::Need { urgent: true, .. })), "{said:?}");
}

/// A guest whose page cache can be dropped from the tenth second on, if the kernel supports it.
fn dropping(takes: bool) -> Guest {
    let mut guest = Guest::new();
    guest.plug("mmmm");
    let file = "sys/fs/cgroup/memory.reclaim";
    // A folder can't be written to.
    if takes {
        guest.put(file, "")
    } else {
        fs::create_dir(guest.path(file)).unwrap()
    }
    guest.agent.reclaimer = Reclaimer::open(&guest.path(""));
    let text = "MemTotal: 1048576 kB\nMemAvailable: 786432 kB\nCached: 655360 kB\n";
    guest.put("proc/meminfo", text);
    guest.greeted(ms(1000));
    for now in (2000..10_000).step_by(1000) {
        guest.turn(ms(now));
    }
    guest
}

/// The number of drops in these seconds, with a turn each second.
fn drops(guest: &mut Guest, seconds: std::ops::Range<u64>) -> usize {
    let mut count = 0;
    for second in seconds {
        let reclaimer = guest.agent.reclaimer.as_ref().unwrap();
        until("the reclaimer", || reclaimer.is_done());
        guest.turn(ms(second * 1000));
        count += usize::from(!guest.agent.reclaimer.as_ref().unwrap().is_idle());
    }
    count
}

#[test]
fn cache_that_was_wanted_back_is_left_alone_for_a_minute() {
    let mut guest = dropping(true);
    assert_eq!(drops(&mut guest, 10..15), 5);
    guest.put("proc/vmstat", "workingset_refault_file 500\npswpin 6\noom_kill 7\n");
    assert_eq!(drops(&mut guest, 15..75), 0);
    assert_eq!(drops(&mut guest, 75..77), 2);
}

#[test]
fn a_kernel_that_finds_no_cache_to_drop_is_not_asked_again_at_once() {
    let mut guest = dropping(false);
    assert_eq!(drops(&mut guest, 10..11), 1);
    assert_eq!(drops(&mut guest, 11..21), 0);
    assert_eq!(drops(&mut guest, 21..23), 1);
}
