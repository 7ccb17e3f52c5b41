//! The times of statuses, samples and sleeps.

use super::*;

#[test]
fn the_first_hello_is_answered_with_who_the_guest_is_and_how_it_is() {
    let mut guest = Guest::new();
    guest.plug("mo");
    assert_eq!(guest.turn(ms(10)), []);
    guest.hello(500);
    let (kernel, boot) = ("6.12".into(), "boot".into());
    let hello = FromGuest::Hello { version: VERSION, kernel, boot, block_bytes: BLOCK };
    let status = guest.status(512, 1);
    assert_eq!(guest.turn(ms(20)), [hello, status]);
}

#[test]
fn a_status_comes_with_each_interval_and_no_earlier() {
    // The requested interval, and the resulting one.
    for (asked, interval) in [(500, 500), (1, 50), (50, 50), (1 << 30, 60_000), (60_000, 60_000)] {
        let mut guest = Guest::new();
        guest.hello(asked);
        guest.turn(ms(1000));
        assert_eq!(guest.turn(ms(1000 + interval - 1)), [], "{asked}");
        let status = guest.status(512, 0);
        assert_eq!(guest.turn(ms(1000 + interval)), std::slice::from_ref(&status), "{asked}");
        assert_eq!(guest.turn(ms(1000 + 2 * interval - 1)), [], "{asked}");
        assert_eq!(guest.turn(ms(1000 + 2 * interval)), [status], "{asked}");
    }
}

#[test]
fn a_report_comes_at_once_and_puts_the_next_status_off() {
    let mut guest = Guest::new();
    guest.hello(500);
    guest.turn(ms(1000));
    guest.available(510);
    guest.say(&FromHost::Report { id: 9 });
    let status = guest.status(510, 0);
    assert_eq!(guest.turn(ms(1400)), [status.clone(), FromGuest::Reported { id: 9 }]);
    assert_eq!(guest.turn(ms(1899)), []);
    assert_eq!(guest.turn(ms(1900)), [status]);
}

#[test]
fn a_host_that_does_not_read_gets_no_further_status() {
    let mut guest = Guest::new();
    guest.hello(50);
    guest.turn(ms(1000));
    let filler = vec![b'\n'; 16 << 10];
    while guest.agent.port.is_flushed() {
        guest.agent.port.send(&filler);
    }
    guest.agent.turn(ms(1050));
    assert_eq!(guest.heard(), []);
    // It was due nevertheless.
    assert_eq!(guest.agent.status_at, ms(1100));
}

#[test]
fn the_agent_sleeps_until_what_is_due_first() {
    let mut guest = Guest::new();
    assert_eq!(guest.agent.turn(ms(1000)), ms(2000), "nothing is due: the longest sleep");
    guest.hello(70);
    // With plenty of memory, a sample is due every 100 ms.
    assert_eq!(guest.agent.turn(ms(3000)), ms(3070));
    assert_eq!(guest.agent.turn(ms(3070)), ms(3100));
    assert_eq!(guest.agent.turn(ms(3100)), ms(3140));
    guest.plug("m");
    guest.say(&FromHost::Offline { id: 1, bytes: BLOCK, timeout_ms: 20 });
    assert_eq!(guest.agent.turn(ms(3101)), ms(3121));
    guest.turn(ms(3121));
    // The kernel setting for the change is restored a second later.
    assert_eq!(guest.agent.hurry.deadline(), Some(ms(4121)));
    guest.agent.turn(ms(3140));
    guest.say(&FromHost::Arrive { id: 2, bytes: 2 * BLOCK, timeout_ms: 3 });
    assert_eq!(guest.agent.turn(ms(3141)), ms(3144));
    guest.turn(ms(3144));
    // New memory is checked repeatedly, not only at the deadline.
    guest.say(&FromHost::Arrive { id: 3, bytes: 2 * BLOCK, timeout_ms: 60_000 });
    (guest.agent.sample_at, guest.agent.status_at) = (ms(9000), ms(9000));
    guest.agent.hurry.end();
    let due = guest.agent.turn(ms(3145));
    assert_eq!(due, guest.agent.arrival.unwrap().next);
    assert!(due >= ms(3149));
}

#[test]
fn slow_files_are_read_each_second_or_with_each_sample_where_memory_is_short() {
    // More than four times the reserve is plenty.
    for (available_mib, every) in [(257, 1000), (256, 100)] {
        let mut guest = Guest::new();
        guest.available(available_mib);
        guest.greeted(ms(1000));
        assert_eq!(guest.agent.slow_at, ms(1000));
        guest.put("proc/vmstat", "workingset_refault_file 50\npswpin 60\noom_kill 7\n");
        guest.agent.sample_at = ms(1000 + every - 1);
        guest.turn(ms(1000 + every - 1));
        assert_eq!(guest.agent.slow_at, ms(1000), "{available_mib}");
        guest.agent.sample_at = ms(1000 + every);
        guest.turn(ms(1000 + every));
        assert_eq!(guest.agent.slow_at, ms(1000 + every), "{available_mib}");
        let sample = guest.agent.sample;
        assert_eq!((sample.refaults, sample.swap_ins), (50, 60));
    }
}

#[test]
fn a_sample_holds_what_the_files_say() {
    let mut guest = Guest::new();
    guest.plug("mkmo");
    guest.greeted(ms(1000));
    let sample = guest.agent.sample;
    assert_eq!((sample.total, sample.available), (1024 * MIB, 512 * MIB));
    assert_eq!(sample.kernel_free, 90_000 * 4096);
    assert_eq!(sample.returnable, 2 * BLOCK);
    assert_eq!((sample.stalled_us, sample.refaults, sample.swap_ins), (1234, 5, 6));
    // Of 96 MiB of page cache, 32 are shared memory. If none can be dropped, half of the rest counts as used.
    assert_eq!((sample.cached, sample.used_cache), (64 * MIB, 32 * MIB));
    guest.agent.reclaimer = {
        guest.put("sys/fs/cgroup/memory.reclaim", "");
        Reclaimer::open(&guest.path(""))
    };
    guest.turn(guest.agent.sample_at);
    assert_eq!(guest.agent.sample.used_cache, 64 * MIB);
}

#[test]
fn blocks_are_counted_each_five_seconds_and_when_the_total_has_changed() {
    let mut guest = Guest::new();
    guest.plug("mm");
    guest.greeted(ms(1000));
    let mut look = |now, total| {
        guest.memory(total, 512);
        guest.agent.sample_at = ms(now);
        guest.turn(ms(now));
        let counted = guest.agent.counted;
        (counted.at, counted.total / MIB, counted.movable / BLOCK)
    };
    assert_eq!(look(4000, 1024), (ms(1000), 1024, 2));
    assert_eq!(look(5999, 1024), (ms(1000), 1024, 2));
    assert_eq!(look(6999, 1024), (ms(6999), 1024, 2));
    // At once, although the slow files were just read.
    assert_eq!(look(7000, 1152), (ms(7000), 1152, 2));
}

#[test]
fn the_groups_limit_follows_while_there_is_a_host_and_an_alarm_is_a_sample() {
    let mut guest = Guest::with("users");
    let high = |guest: &Guest| guest.read("sys/fs/cgroup/users/memory.high");
    guest.turn(ms(500));
    assert_eq!(high(&guest), "max");
    guest.greeted(ms(1000));
    // 100 MiB in use, plus 512 available, less the reserve of 64.
    assert_eq!(high(&guest), (548 * MIB).to_string());
    let sampled_at = guest.agent.sample_at;
    guest.put("sys/fs/cgroup/users/memory.events", "high 1\n");
    guest.available(100);
    // Less than twice the reserve is left: that is requested at once, before the next sample is due.
    let said = guest.turn(sampled_at - ms(50));
    assert_eq!(high(&guest), "max");
    assert!(matches!(said[..], [FromGuest::Need { urgent: true, .. }]), "{said:?}");
    // A host that goes away leaves no limit behind.
    guest.available(512);
    guest.agent.sample_at = ms(9000);
    guest.turn(ms(9000));
    assert_eq!(high(&guest), (548 * MIB).to_string());
    guest.host.shutdown(std::net::Shutdown::Both).unwrap();
    guest.turn(ms(9001));
    assert_eq!(high(&guest), "max");
}

#[test]
fn a_group_that_comes_later_is_found() {
    let mut guest = Guest::with("later");
    assert!(guest.agent.high.is_none());
    guest.greeted(ms(1000));
    fs::rename(guest.path("sys/fs/cgroup/users"), guest.path("sys/fs/cgroup/later")).unwrap();
    guest.agent.sample_at = ms(2000);
    guest.turn(ms(2000));
    assert!(guest.agent.high.is_some());
    assert_eq!(guest.read("sys/fs/cgroup/later/memory.high"), (548 * MIB).to_string());
}

#[test]
fn the_groups_limit_stays_away_while_there_is_no_host() {
    let mut guest = Guest::with("users");
    let high = |guest: &Guest| guest.read("sys/fs/cgroup/users/memory.high");
    guest.greeted(ms(1000));
    assert_eq!(high(&guest), (548 * MIB).to_string());
    guest.change_host(ms(1001));
    // Memory is still sampled, including the slow files.
    for now in (1100..6000).step_by(100) {
        guest.turn(ms(now));
        assert_eq!(high(&guest), "max", "{now}");
    }
    assert!(guest.agent.slow_at >= ms(5000));
    guest.greeted(ms(6000));
    guest.turn(ms(7000));
    assert_eq!(high(&guest), (548 * MIB).to_string());
}

#[test]
fn a_report_counts_blocks_that_went_since_the_last_sample() {
    let mut guest = Guest::new();
    guest.plug("mo");
    guest.greeted(ms(1000));
    guest.agent.sample_at = ms(9000);
    guest.plug("oo");
    guest.memory(896, 512);
    guest.say(&FromHost::Report { id: 9 });
    let said = guest.turn(ms(1001));
    let [FromGuest::Status(status), FromGuest::Reported { id: 9 }] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!((status.total_bytes, status.offline_bytes), (896 * MIB, 2 * BLOCK));
}

#[test]
fn what_was_left_half_said_is_a_line_of_its_own() {
    let mut guest = Guest::new();
    guest.agent.port.send(b"{\"status\"");
    guest.hello(60_000);
    guest.agent.turn(ms(1000));
    let mut bytes = [0; 8192];
    let count = guest.host.read(&mut bytes).unwrap();
    let lines: Vec<_> = bytes[..count].split(|&byte| byte == b'\n').collect();
    assert_eq!(lines[0], b"{\"status\"");
    assert!(matches!(FromGuest::decode(lines[1]), Ok(FromGuest::Hello { .. })));
}

#[test]
fn other_terms_have_all_files_read_at_once() {
    let mut guest = Guest::with("users");
    guest.greeted(ms(1000));
    let (version, profile, interval_ms) = (VERSION, Profile::ReturnsAll, 60_000);
    for (now, reserve_bytes, slow_at) in
        [(1100, RESERVE, 1000), (1200, 96 * MIB, 1200), (1300, 96 * MIB, 1200)]
    {
        let most_bytes = MOST;
        guest.say(&FromHost::Hello { version, interval_ms, reserve_bytes, most_bytes, profile });
        guest.turn(ms(now));
        assert_eq!(guest.agent.slow_at, ms(slow_at), "{now}");
    }
    // 100 MiB in use, plus 512 available, less the new reserve.
    assert_eq!(guest.read("sys/fs/cgroup/users/memory.high"), (516 * MIB).to_string());
}
