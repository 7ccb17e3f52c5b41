//! Blocks that the host wants offline or online.

use super::*;

fn offline(guest: &mut Guest, id: u64, bytes: u64, timeout_ms: u32) {
    guest.say(&FromHost::Offline { id, bytes, timeout_ms });
}

fn offlined(id: u64, blocks: u64) -> Vec<FromGuest> {
    vec![FromGuest::Offlined { id, bytes: blocks * BLOCK }]
}

#[test]
fn the_highest_movable_blocks_go_offline_as_many_as_are_missing() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("mmkmomc");
    guest.go_all();
    // One block is offline. For more than 2 blocks, 2 more are missing.
    offline(&mut guest, 5, 2 * BLOCK + 1, 2000);
    assert_eq!(guest.until_said(ms(1001)), offlined(5, 3));
    assert_eq!(guest.moved(), ["37 offline", "35 offline"]);
    assert_eq!(guest.read("sys/kernel/rcu_expedited"), "1");
}

#[test]
fn what_is_offline_already_is_enough() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("mmoo");
    offline(&mut guest, 5, 2 * BLOCK, 2000);
    assert_eq!(guest.turn(ms(1001)), offlined(5, 2));
    assert!(guest.agent.job.is_none() && guest.agent.mover.is_idle());
}

#[test]
fn what_is_spare_is_rounded_down_to_blocks() {
    // Above the reserve: two blocks less a byte, two blocks, and nothing.
    for (available_mib, blocks) in [(64 + 255, 1), (64 + 256, 2), (64, 0), (10, 0)] {
        let mut guest = Guest::new();
        guest.greeted(ms(1000));
        guest.plug("mmmm");
        guest.go_all();
        guest.available(available_mib);
        guest.agent.sample_at = ms(60_000);
        offline(&mut guest, 5, 4 * BLOCK, 2000);
        assert_eq!(guest.until_said(ms(1001)), offlined(5, blocks), "{available_mib}");
        assert_eq!(guest.moved().len() as u64, blocks);
    }
}

/// Memory that a program takes meanwhile was not predicted.
#[test]
fn no_more_goes_offline_once_the_reserve_is_used_up() {
    for (available_mib, goes_on) in [(64, true), (63, false)] {
        let mut guest = Guest::new();
        guest.greeted(ms(1000));
        guest.plug("mmmm");
        offline(&mut guest, 5, 3 * BLOCK, 60_000);
        assert_eq!(guest.turn(ms(1001)), []);
        guest.go(35);
        guest.until(ms(1002), |guest| guest.read("moved") == "35 offline");
        guest.available(available_mib);
        // The sample that notices it, and the check after that.
        let said = [guest.turn(ms(1100)), guest.turn(ms(1101))].concat();
        let answer = said.iter().any(|it| matches!(it, FromGuest::Offlined { .. }));
        assert_eq!(answer, !goes_on, "{said:?}");
        assert_eq!(guest.agent.mover.is_idle(), !goes_on);
        if goes_on {
            guest.go_all();
            assert_eq!(guest.until_said(ms(1102)), offlined(5, 3));
        } else {
            assert!(said.contains(&offlined(5, 1)[0]), "{said:?}");
            guest.go_all();
            guest.turn(ms(1102));
            assert_eq!(guest.moved(), ["35 offline"]);
        }
    }
}

#[test]
fn a_job_that_takes_too_long_is_answered_on_time_with_what_is_offline() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("mmm");
    guest.go(34);
    offline(&mut guest, 5, 3 * BLOCK, 700);
    guest.until(ms(1500), |guest| guest.read("moved") == "34 offline");
    assert_eq!(guest.agent.job.unwrap().until, ms(2200));
    assert_eq!(guest.turn(ms(2199)), []);
    assert_eq!(guest.turn(ms(2200)), offlined(5, 1));
    assert!(guest.agent.mover.is_idle());
    assert_eq!(guest.turn(ms(2300)), []);
}

#[test]
fn grace_periods_are_short_until_a_second_after_the_hosts_time() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("m");
    guest.go_all();
    offline(&mut guest, 5, BLOCK, 700);
    guest.until_said(ms(1001));
    let value = |guest: &Guest| guest.read("sys/kernel/rcu_expedited");
    guest.turn(ms(2700));
    assert_eq!(value(&guest), "1");
    guest.turn(ms(2701));
    assert_eq!(value(&guest), "0");
}

#[test]
fn a_later_order_ends_the_one_under_way() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("mmm");
    offline(&mut guest, 5, BLOCK, 2000);
    assert_eq!(guest.turn(ms(1001)), []);
    guest.go_all();
    offline(&mut guest, 6, 2 * BLOCK, 2000);
    // The worker may have changed its current block.
    let mut said = guest.until_said(ms(1002));
    assert!(matches!(said.remove(0), FromGuest::Offlined { id: 5, bytes: 0 | BLOCK }), "{said:?}");
    while said.is_empty() {
        said = guest.until_said(ms(1003));
    }
    assert_eq!(said, offlined(6, 2));
}

#[test]
fn all_that_is_offline_comes_online_again_from_the_lowest_on() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("mokoc");
    offline(&mut guest, 5, 3 * BLOCK, 2000);
    assert_eq!(guest.turn(ms(1001)), []);
    guest.say(&FromHost::Online);
    assert_eq!(guest.turn(ms(1002)), offlined(5, 2));
    assert_eq!(guest.read("sys/kernel/rcu_expedited"), "0");
    guest.go_all();
    guest.until(ms(1003), |guest| guest.agent.mover.is_idle());
    assert_eq!(guest.moved(), ["33 online_movable", "35 online_movable", "36 online_movable"]);
}

#[test]
fn a_host_that_goes_leaves_nothing_under_way() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("mm");
    offline(&mut guest, 5, BLOCK, 2000);
    guest.say(&FromHost::Arrive { id: 6, bytes: 4 * BLOCK, timeout_ms: 5000 });
    assert_eq!(guest.turn(ms(1001)), []);
    assert!(guest.agent.job.is_some() && guest.agent.arrival.is_some());
    let (port, host) = Port::pair();
    guest.host.shutdown(std::net::Shutdown::Both).unwrap();
    guest.turn(ms(1002));
    assert!(guest.agent.job.is_none() && guest.agent.arrival.is_none());
    assert!(guest.agent.mover.is_idle() && !guest.agent.is_greeted);
    assert_eq!(guest.read("sys/kernel/rcu_expedited"), "0");
    host.set_nonblocking(true).unwrap();
    (guest.agent.port, guest.host) = (port, host);
    // The next host gets neither answer, and no message before its hello.
    assert_eq!(guest.turn(ms(9000)), []);
}

#[test]
fn new_memory_is_told_of_once_all_is_online_or_the_time_is_over() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    guest.plug("kom");
    guest.say(&FromHost::Arrive { id: 6, bytes: 2 * BLOCK + 1, timeout_ms: 50 });
    assert_eq!(guest.turn(ms(1010)), []);
    let next = guest.agent.arrival.unwrap().next;
    assert!((ms(1014)..=ms(1060)).contains(&next), "{next:?}");
    // Too early for a check.
    guest.plug("kmm");
    assert_eq!(guest.turn(next - ms(1)), []);
    assert_eq!(guest.turn(next), [FromGuest::Arrived { id: 6, bytes: 3 * BLOCK }]);
    assert_eq!(guest.turn(ms(1100)), []);

    guest.plug("koo");
    guest.say(&FromHost::Arrive { id: 7, bytes: BLOCK, timeout_ms: 50 });
    assert_eq!(guest.turn(ms(1200)), [FromGuest::Arrived { id: 7, bytes: BLOCK }]);
    guest.say(&FromHost::Arrive { id: 8, bytes: BLOCK + 1, timeout_ms: 50 });
    assert_eq!(guest.turn(ms(1300)), []);
    assert_eq!(guest.turn(ms(1350)), [FromGuest::Arrived { id: 8, bytes: BLOCK }]);
}

#[test]
fn memory_that_stayed_offline_comes_online_with_the_first_hello() {
    for (profile, word, auto) in [
        (Profile::ReturnsAll, "online_movable", "online_movable"),
        (Profile::GrowsFar, "online", "online"),
    ] {
        let mut guest = Guest::new();
        guest.plug("mo");
        guest.go_all();
        guest.put("sys/devices/system/memory/auto_online_blocks", "offline\n");
        let (reserve_bytes, most_bytes) = (RESERVE, MOST);
        let (version, interval_ms) = (VERSION, 1000);
        let hello = FromHost::Hello { version, interval_ms, reserve_bytes, most_bytes, profile };
        guest.say(&hello);
        guest.turn(ms(1000));
        guest.until(ms(1000), |guest| guest.agent.mover.is_idle());
        assert_eq!(guest.moved(), [format!("33 {word}")]);
        assert_eq!(guest.read("sys/devices/system/memory/auto_online_blocks"), auto);
        assert_eq!(guest.read("proc/sys/vm/overcommit_memory"), "1");
        // The same host's next hello changes no settings.
        guest.put("sys/devices/system/memory/auto_online_blocks", "offline\n");
        guest.say(&hello);
        guest.turn(ms(1001));
        assert_eq!(guest.read("sys/devices/system/memory/auto_online_blocks"), "offline");
    }
}

const AUTO: &str = "sys/devices/system/memory/auto_online_blocks";

#[test]
fn what_the_kernel_has_refused_once_is_set_with_the_next_hello() {
    let mut guest = Guest::new();
    // A folder can't be written to.
    fs::remove_file(guest.path(AUTO)).unwrap();
    fs::create_dir(guest.path(AUTO)).unwrap();
    guest.greeted(ms(1000));
    fs::remove_dir(guest.path(AUTO)).unwrap();
    guest.put(AUTO, "offline\n");
    guest.greeted(ms(2000));
    assert_eq!(guest.read(AUTO), "online_movable");
}

#[test]
fn another_profile_is_set_with_the_hello_that_names_it() {
    let mut guest = Guest::new();
    guest.greeted(ms(1000));
    assert_eq!(guest.read(AUTO), "online_movable");
    for (profile, auto) in [(Profile::GrowsFar, "online"), (Profile::ReturnsAll, "online_movable")]
    {
        guest.hello_for(60_000, profile);
        guest.turn(ms(1001));
        assert_eq!(guest.read(AUTO), auto);
    }
}

#[test]
fn what_programs_may_map_stays_as_it_is_where_the_owner_says_so() {
    let mut guest = Guest::new();
    guest.agent.keep_overcommit = true;
    guest.greeted(ms(1000));
    assert_eq!(guest.read("proc/sys/vm/overcommit_memory"), "0");
    assert_eq!(guest.read(AUTO), "online_movable");
}
