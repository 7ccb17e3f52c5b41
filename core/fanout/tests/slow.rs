//! A copy whose holder is slow or stands still: the other copy serves, and the slow one gets what it missed.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spillway_block::Device;
use spillway_fanout::{Cause, Counters, Effect, FanOut, Loss, Settings};
use spillway_test_support::wait;
use support::{Fault, Host, Losses, host, losses_of, place, settings};

const LONG: Duration = Duration::from_secs(60);
/// How long a holder may take here for a request that is not answered. A holder that a busy machine keeps from its work
/// for as long would be taken for one that is away.
const REQUEST: Duration = Duration::from_millis(1500);

/// A device of one slab with two copies, whose holders may stall for a while.
fn pair(request_timeout: Duration, stall_max: Duration) -> ([Host; 2], FanOut, Losses) {
    let hosts = [host(7), host(8)];
    let settings = Settings { stall_max, last_copy_wait: LONG, ..settings(request_timeout) };
    let (device, losses) = losses_of(settings, vec![[place(&hosts[0], 0), place(&hosts[1], 0)]]);
    (hosts, device, losses)
}

fn write(device: &FanOut, pages: core::ops::Range<u64>, value: u8) {
    for page in pages {
        device.write(page * 4096, &[value; 4096]).unwrap();
    }
}

fn value(device: &FanOut, page: u64) -> Option<u8> {
    let mut read = [0; 4096];
    device.read(page * 4096, &mut read).ok()?;
    assert!(read.iter().all(|byte| *byte == read[0]), "page {page} is torn");
    Some(read[0])
}

fn until(device: &FanOut, what: &str, holds: impl Fn(Counters) -> bool) {
    wait::until(what, || holds(device.counters()));
}

fn calls(host: &Host) -> usize {
    host.fake.calls.load(Ordering::SeqCst)
}

#[test]
fn a_read_does_not_wait_for_a_copy_that_stands_still() {
    for stuck in 0..2 {
        let (hosts, device, losses) = pair(LONG, LONG);
        write(&device, 0..8, 5);
        hosts[stuck].fake.set(Fault::Stuck);
        // Some go to the other one at once. One of them is sent to this one, and then to the other one too.
        while hosts[stuck].fake.stuck.load(Ordering::SeqCst) == 0 {
            assert_eq!(value(&device, 3), Some(5));
        }
        let is_quiet = || {
            let before = calls(&hosts[stuck]);
            (0..64).for_each(|turn| assert_eq!(value(&device, turn % 8), Some(5)));
            calls(&hosts[stuck]) == before
        };
        // A busy machine makes the other one late too, which then asks this one, but not each time.
        assert!((0..20).any(|_| is_quiet()), "it is asked before it has answered");
        let counters = device.counters();
        assert_eq!((counters.errors, counters.lost_places), (0, 0));
        hosts[stuck].fake.set(Fault::None);
        wait::until("the late answer", || hosts[stuck].fake.stuck.load(Ordering::SeqCst) == 0);
        // And what it gave late is in nobody's page.
        write(&device, 0..8, 6);
        for page in 0..8 {
            assert_eq!(value(&device, page), Some(6));
        }
        assert_eq!(device.counters().behind_pages, 0);
        assert!(device.places(0).unwrap().iter().flatten().all(|it| !it.is_lost));
        drop(device);
        assert!(losses.lock().unwrap().is_empty());
    }
}

/// A copy that stands still does not get all requests of a thread, however often the other one takes long too.
#[test]
fn reads_go_on_between_a_copy_that_stands_still_and_a_slow_one() {
    for stuck in 0..2 {
        let (hosts, device, _) = pair(LONG, LONG);
        write(&device, 0..8, 5);
        hosts[stuck].fake.set(Fault::Stuck);
        hosts[1 - stuck].fake.set(Fault::VerySlow);
        let read = AtomicUsize::new(0);
        let ended = thread::scope(|scope| {
            scope.spawn(|| {
                for page in (0..24).map(|turn| turn % 8) {
                    assert_eq!(value(&device, page), Some(5));
                    read.fetch_add(1, Ordering::SeqCst);
                }
            });
            let until = Instant::now() + LONG / 2;
            while read.load(Ordering::SeqCst) < 24 && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            let ended = read.load(Ordering::SeqCst);
            hosts[stuck].fake.set(Fault::None);
            ended
        });
        assert_eq!(ended, 24, "reads that did not wait for the copy that stands still");
    }
}

/// Both copies stand still in turn while pages are read and written: each read gives what was written last.
#[test]
fn a_late_answer_is_never_taken_for_another_page() {
    let (hosts, device, _) = pair(LONG, LONG);
    write(&device, 0..64, 1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let device = &device;
                scope.spawn(move || {
                    for turn in 0..300_u64 {
                        let page = thread * 16 + turn % 16;
                        if turn % 16 == 0 {
                            write(device, page..page + 16, turn as u8);
                        }
                        assert_eq!(value(device, page), Some((turn - turn % 16) as u8));
                    }
                })
            })
            .collect();
        let (hosts, done) = (&hosts, &done);
        let breaker = scope.spawn(move || {
            for turn in 0.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let fake = &hosts[turn % 2].fake;
                fake.set(Fault::Stuck);
                thread::sleep(Duration::from_millis(20));
                fake.set(Fault::None);
                thread::sleep(Duration::from_millis(3));
            }
        });
        for reader in readers {
            reader.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
        breaker.join().unwrap();
    });
    let counters = device.counters();
    assert_eq!((counters.errors, counters.lost_places), (0, 0));
    assert!(counters.hedged_pages > 0);
}

#[test]
fn a_copy_that_answers_again_gets_what_it_missed_and_no_more() {
    for fault in [Fault::Dead, Fault::Stalled, Fault::LostAnswers] {
        let (hosts, device, losses) = pair(REQUEST, LONG);
        write(&device, 0..200, 1);
        hosts[0].fake.set(fault);
        write(&device, 0..40, 2);
        device.deallocate(40 * 4096, 10 * 4096).unwrap();
        let standing = device.places(0).unwrap().map(Option::unwrap);
        assert!(!standing[0].is_lost && !standing[1].is_lost, "{fault:?}");
        assert_eq!([standing[0].behind_pages, standing[1].behind_pages], [50, 0], "{fault:?}");
        assert_eq!(device.counters().behind_pages, 50);
        for page in 0..200 {
            let expected = if page < 40 {
                2
            } else if page < 50 {
                0
            } else {
                1
            };
            assert_eq!(value(&device, page), Some(expected));
        }
        hosts[0].fake.set(Fault::None);
        until(&device, "it is up to date", |counters| counters.behind_pages == 0);
        assert_eq!(device.counters().mended_pages, 50, "{fault:?}");
        assert_eq!(hosts[0].fake.pages(), 190, "what was discarded is gone there too");
        // It has all, so the other one may go.
        hosts[1].fake.set(Fault::Dead);
        for page in 50..200 {
            assert_eq!(value(&device, page), Some(1), "page {page}");
        }
        write(&device, 60..61, 3);
        for page in 0..40 {
            assert_eq!(value(&device, page), Some(2), "page {page}");
        }
        let counters = device.counters();
        assert_eq!((counters.errors, counters.lost_places), (0, 0));
        drop(device);
        let behind =
            |holder| Loss { holder, slab: 0, cause: Cause::NoAnswer, effect: Effect::Behind };
        assert_eq!(*losses.lock().unwrap(), [behind(7), behind(8)], "{fault:?}");
    }
}

#[test]
fn one_write_that_is_not_done_for_too_long_is_enough_to_give_a_copy_up() {
    let (hosts, device, _) = pair(REQUEST, Duration::from_millis(500));
    write(&device, 0..1, 1);
    hosts[1].fake.set(Fault::Stuck);
    write(&device, 0..1, 2);
    // Nobody writes any more.
    until(&device, "the copy to be given up", |it| it.lost_places == 1);
    hosts[1].fake.set(Fault::None);
    assert_eq!(value(&device, 0), Some(2));
}

#[test]
fn a_copy_is_not_asked_for_changes_while_it_stalls() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..1, 1);
    hosts[1].fake.set(Fault::Stalled);
    write(&device, 0..1, 2);
    // One request has waited. If the others did, this would take five minutes.
    let stall_us = device.counters().longest_stall_us;
    write(&device, 0..200, 3);
    assert!(u128::from(stall_us) >= REQUEST.as_micros());
    assert!(calls(&hosts[1]) < 100, "it was asked {} times", calls(&hosts[1]));
    assert_eq!(device.counters().behind_pages, 200);
}

#[test]
fn what_a_copy_missed_is_not_read_from_it() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..2, 1);
    hosts[0].fake.set(Fault::Dead);
    write(&device, 0..1, 2);
    hosts[1].fake.set(Fault::Dead);
    hosts[0].fake.set(Fault::None);
    thread::scope(|scope| {
        let read = scope.spawn(|| value(&device, 0));
        until(&device, "it waits", |counters| counters.waiting_pages == 1);
        assert_eq!(value(&device, 1), Some(1), "the first copy has this page");
        thread::sleep(2 * REQUEST);
        assert!(!read.is_finished());
        hosts[1].fake.set(Fault::None);
        assert_eq!(read.join().unwrap(), Some(2));
    });
    until(&device, "both are up to date", |counters| counters.behind_pages == 0);
    assert_eq!(device.counters().errors, 0);
}

#[test]
fn a_copy_that_has_what_the_other_one_missed_is_kept_though_it_gives_wrong_bytes() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..2, 1);
    hosts[0].fake.set(Fault::Dead);
    write(&device, 0..1, 2);
    hosts[1].fake.set(Fault::Forging);
    assert_eq!(value(&device, 0), None);
    assert!(!device.places(0).unwrap()[1].as_ref().unwrap().is_lost);
    hosts[1].fake.set(Fault::None);
    assert_eq!(value(&device, 0), Some(2));
}

/// The stall is found by a read, so no change is ever sent: those that leave the copy out count.
#[test]
fn a_copy_that_stopped_answering_reads_is_given_up_too() {
    let (hosts, device, losses) = pair(REQUEST, Duration::from_millis(400));
    write(&device, 0..4, 1);
    hosts[1].fake.set(Fault::Dead);
    let before = calls(&hosts[1]);
    while calls(&hosts[1]) == before {
        assert_eq!(value(&device, 3), Some(1));
    }
    write(&device, 0..2, 2);
    wait::until("it is given up", || device.places(0).unwrap()[1].as_ref().unwrap().is_lost);
    assert_eq!((value(&device, 0), value(&device, 3)), (Some(2), Some(1)));
    drop(device);
    let last = losses.lock().unwrap().last().copied();
    assert_eq!(last.map(|it| (it.cause, it.effect)), Some((Cause::Away, Effect::FailOver)));
}

#[test]
fn a_copy_that_stalls_for_too_long_is_given_up() {
    for fault in [Fault::Dead, Fault::Unwritable] {
        let stall_max = Duration::from_millis(400);
        let (hosts, device, losses) = pair(REQUEST, stall_max);
        write(&device, 0..4, 1);
        hosts[1].fake.set(fault);
        write(&device, 0..2, 2);
        until(&device, "it is given up", |counters| counters.lost_places == 1);
        assert!(device.places(0).unwrap()[1].as_ref().unwrap().is_lost, "{fault:?}");
        assert_eq!(device.counters().behind_pages, 0, "{fault:?}");
        drop(device);
        let losses = losses.lock().unwrap();
        let loss = |cause, effect| Loss { holder: 8, slab: 0, cause, effect };
        let expected = [loss(Cause::NoAnswer, Effect::Behind), loss(Cause::Away, Effect::FailOver)];
        assert_eq!(*losses, expected, "{fault:?}");
    }
}

#[test]
fn what_only_a_forgotten_copy_had_is_lost_and_nothing_else() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..4, 1);
    hosts[0].fake.set(Fault::Dead);
    write(&device, 0..2, 2);
    device.forget(&hosts[1].holder);
    hosts[0].fake.set(Fault::None);
    let values: Vec<_> = (0..4).map(|page| value(&device, page)).collect();
    assert_eq!(values, [None, None, Some(1), Some(1)]);
    write(&device, 0..1, 3);
    assert_eq!(value(&device, 0), Some(3));
}

#[test]
fn a_page_that_the_only_copy_with_it_has_lost_is_told_and_not_mended_for_ever() {
    let (hosts, device, losses) = pair(REQUEST, LONG);
    write(&device, 0..4, 1);
    hosts[1].fake.set(Fault::Dead);
    write(&device, 0..2, 2);
    hosts[0].fake.set(Fault::Emptied);
    hosts[1].fake.set(Fault::None);
    until(&device, "nothing to be left to mend", |counters| counters.behind_pages == 0);
    assert_eq!(device.counters().errors, 2);
    assert_eq!((value(&device, 0), value(&device, 3)), (None, Some(1)), "the old bytes are wrong");
    write(&device, 0..1, 3);
    assert_eq!(value(&device, 0), Some(3));
    drop(device);
    let lost = Loss { holder: 7, slab: 0, cause: Cause::Missing, effect: Effect::Error };
    assert!(losses.lock().unwrap().contains(&lost));
}

#[test]
fn a_page_is_mended_when_the_only_copy_with_it_gives_right_bytes_again() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..4, 1);
    hosts[1].fake.set(Fault::Dead);
    write(&device, 0..2, 2);
    hosts[0].fake.set(Fault::Forging);
    hosts[1].fake.set(Fault::None);
    let before = calls(&hosts[0]);
    wait::until("the mender to be given wrong bytes", || calls(&hosts[0]) > before + 2);
    hosts[0].fake.set(Fault::None);
    until(&device, "the copy to have all", |counters| counters.behind_pages == 0);
    hosts[0].fake.set(Fault::Dead);
    assert_eq!((value(&device, 0), value(&device, 3)), (Some(2), Some(1)));
}

#[test]
fn a_copy_that_is_needed_though_it_gave_wrong_bytes_gets_the_right_ones() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..4, 1);
    hosts[1].fake.set(Fault::Unwritable);
    // Only the first copy has these, so it stays in use.
    write(&device, 0..2, 2);
    hosts[0].fake.set(Fault::Forging);
    wait::until("a read to find wrong bytes", || {
        assert_eq!(value(&device, 3), Some(1));
        device.counters().fail_overs > 0
    });
    hosts[0].fake.set(Fault::None);
    until(&device, "the page to be copied there", |counters| counters.mended_pages > 0);
    hosts[1].fake.set(Fault::None);
    until(&device, "the copies to have all", |counters| counters.behind_pages == 0);
    assert_eq!(device.counters().mended_pages, 3);
    hosts[1].fake.set(Fault::Dead);
    assert_eq!((value(&device, 0), value(&device, 3)), (Some(2), Some(1)));
}

#[test]
fn a_forgotten_copy_that_was_behind_costs_no_page() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    write(&device, 0..4, 1);
    hosts[0].fake.set(Fault::Dead);
    write(&device, 0..2, 2);
    device.forget(&hosts[0].holder);
    let values: Vec<_> = (0..4).map(|page| value(&device, page)).collect();
    assert_eq!(values, [Some(2), Some(2), Some(1), Some(1)]);
    assert_eq!((device.counters().behind_pages, device.counters().errors), (0, 0));
}

#[test]
fn a_slab_moves_with_what_its_copy_missed() {
    let (hosts, device, _) = pair(REQUEST, LONG);
    let third = host(9);
    write(&device, 0..4, 1);
    hosts[0].fake.set(Fault::Dead);
    write(&device, 0..2, 2);
    device.place(0, 0, place(&third, 0).unwrap()).unwrap();
    assert_eq!(device.counters().behind_pages, 0);
    hosts[1].fake.set(Fault::Dead);
    let values: Vec<_> = (0..4).map(|page| value(&device, page)).collect();
    assert_eq!(values, [Some(2), Some(2), Some(1), Some(1)]);
}

#[test]
fn the_faster_copy_is_read_and_the_slower_one_now_and_then() {
    let (hosts, device, _) = pair(LONG, LONG);
    write(&device, 0..1, 1);
    for slow in [0, 1, 0] {
        hosts[slow].fake.set(Fault::Slow);
        hosts[1 - slow].fake.set(Fault::None);
        // Until the times of before have faded.
        let reads = || {
            let before = calls(&hosts[slow]);
            (0..640).for_each(|_| assert_eq!(value(&device, 0), Some(1)));
            calls(&hosts[slow]) - before
        };
        // None are sent to the slow one while it takes long for an earlier one.
        wait::until("the faster one is preferred, and the other one measured", || {
            (1..=30).contains(&reads())
        });
    }
}
