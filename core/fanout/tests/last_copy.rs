//! A lender that has the last copy of a page and does not answer: requests wait for it.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spillway_block::{Data, Device, Request};
use spillway_fanout::{Cause, Counters, Effect, FanOut, Lender, Loss, PageOutcome, Settings};
use spillway_test_support::wait;
use spillway_types::Key;
use support::{Fault, Host, PAGES_PER_SLAB, SLAB_BYTES, host, losses_of, place, settings};

const LONG: Duration = Duration::from_secs(60);
/// How long a lender may take here for a request.
const REQUEST: Duration = Duration::from_millis(100);

/// Settings of a device that waits for a last copy for so long.
fn waiting(last_copy_wait: Duration) -> Settings {
    Settings { last_copy_wait, ..settings(REQUEST) }
}

fn late(effect: Effect) -> Loss {
    Loss { holder: 7, slab: 0, cause: Cause::NoAnswer, effect }
}

/// Waits until the device's counters are so.
fn until(device: &FanOut, what: &str, holds: impl Fn(Counters) -> bool) {
    wait::until(what, || holds(device.counters()));
}

/// Reads a page; what it holds, if it holds the same byte throughout.
fn value(device: &FanOut, page: u64) -> Option<u8> {
    let mut read = [0; 4096];
    device.read(page * 4096, &mut read).ok()?;
    assert!(read.iter().all(|byte| *byte == read[0]), "page {page} is torn");
    Some(read[0])
}

/// Sets a fault while a read and a write wait, and ends it when both do. What each returns.
fn read_and_write_over(fault: Fault, lone: &Host, device: &FanOut) -> (Option<u8>, bool) {
    lone.fake.set(fault);
    thread::scope(|scope| {
        let read = scope.spawn(|| value(device, 0));
        let write = scope.spawn(|| device.write(4096, &[3; 4096]).is_ok());
        until(device, "both wait", |counters| counters.waiting_pages == 2);
        lone.fake.set(Fault::None);
        (read.join().unwrap(), write.join().unwrap())
    })
}

#[test]
fn a_read_and_a_write_wait_until_the_lender_answers() {
    for fault in [Fault::Dead, Fault::Stalled, Fault::LostAnswers] {
        let lone = host(7);
        let (device, losses) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
        device.write(0, &[1; 4096]).unwrap();
        device.write(4096, &[2; 4096]).unwrap();
        assert_eq!(read_and_write_over(fault, &lone, &device), (Some(1), true), "{fault:?}");
        assert_eq!(value(&device, 1), Some(3));
        let counters = device.counters();
        assert_eq!((counters.errors, counters.lost_places), (0, 0), "{fault:?}");
        assert_eq!((counters.waits, counters.waiting_pages), (2, 0), "{fault:?}");
        assert_eq!(counters.stored_pages, 2);
        // Once for both; and once more, since it has answered in between.
        read_and_write_over(fault, &lone, &device);
        drop(device);
        assert_eq!(*losses.lock().unwrap(), [late(Effect::Wait); 2], "{fault:?}");
    }
}

#[test]
fn a_part_of_a_page_is_written_after_the_wait() {
    let lone = host(7);
    let (device, _) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    lone.fake.set(Fault::Dead);
    thread::scope(|scope| {
        let write = scope.spawn(|| device.write(100, &[2; 50]));
        until(&device, "it waits", |counters| counters.waiting_pages == 1);
        lone.fake.set(Fault::None);
        write.join().unwrap().unwrap();
    });
    let mut read = [0; 4096];
    device.read(0, &mut read).unwrap();
    assert!(
        read.iter().enumerate().all(|(at, &byte)| byte == 1 + u8::from((100..150).contains(&at)))
    );
}

#[test]
fn a_page_is_not_read_while_its_write_waits() {
    let lone = host(7);
    let (device, _) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    // The lender has the new bytes, and the device does not know that.
    lone.fake.set(Fault::LostAnswers);
    thread::scope(|scope| {
        let write = scope.spawn(|| device.write(0, &[2; 4096]));
        until(&device, "it waits", |counters| counters.waiting_pages == 1);
        let read = scope.spawn(|| value(&device, 0));
        thread::sleep(2 * REQUEST);
        assert!(!read.is_finished());
        lone.fake.set(Fault::None);
        write.join().unwrap().unwrap();
        assert_eq!(read.join().unwrap(), Some(2));
    });
    assert_eq!(device.counters().errors, 0);
}

#[test]
fn the_wait_has_an_end() {
    let lone = host(7);
    let wait = Duration::from_millis(400);
    let (device, losses) = losses_of(waiting(wait), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    lone.fake.set(Fault::Dead);
    let began = Instant::now();
    assert_eq!(value(&device, 0), None);
    assert!(began.elapsed() >= wait);
    let counters = device.counters();
    assert_eq!((counters.errors, counters.waits, counters.waiting_pages), (1, 1, 0));
    lone.fake.set(Fault::None);
    assert_eq!(value(&device, 0), Some(1), "it may come back");
    drop(device);
    assert_eq!(*losses.lock().unwrap(), [late(Effect::Wait), late(Effect::Error)]);
}

#[test]
fn nothing_waits_for_a_loan_that_is_forgotten() {
    let lone = host(7);
    let (device, _) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    lone.fake.set(Fault::Dead);
    thread::scope(|scope| {
        let read = scope.spawn(|| value(&device, 0));
        let write = scope.spawn(|| device.write(4096, &[3; 4096]));
        until(&device, "both wait", |counters| counters.waiting_pages == 2);
        device.forget(&lone.holder);
        lone.fake.fenced.store(true, Ordering::SeqCst);
        assert_eq!(read.join().unwrap(), None);
        assert!(write.join().unwrap().is_err());
    });
    assert!(!lone.fake.touched_behind_fence.load(Ordering::SeqCst));
    assert_eq!(device.counters().waiting_pages, 0);
}

#[test]
fn other_slabs_are_used_and_moved_meanwhile() {
    let (lone, others) = (host(7), [host(8), host(9)]);
    let slabs = vec![[place(&lone, 0), None], [place(&others[0], 0), None]];
    let (device, _) = losses_of(waiting(LONG), slabs);
    for slab in 0..2 {
        device.write(slab * SLAB_BYTES, &[1 + slab as u8; 4096]).unwrap();
    }
    lone.fake.set(Fault::Dead);
    thread::scope(|scope| {
        let read = scope.spawn(|| value(&device, 0));
        until(&device, "it waits", |counters| counters.waiting_pages == 1);
        device.place(1, 0, place(&others[1], 0).unwrap()).unwrap();
        device.write(SLAB_BYTES + 4096, &[3; 4096]).unwrap();
        assert_eq!(value(&device, PAGES_PER_SLAB), Some(2));
        assert!(device.place(0, 1, place(&others[0], 1).unwrap()).is_err(), "its copy is away");
        assert!(!read.is_finished());
        lone.fake.set(Fault::None);
        assert_eq!(read.join().unwrap(), Some(1));
    });
}

#[test]
fn of_two_copies_that_are_away_the_first_to_come_back_serves() {
    for back in 0..2 {
        let hosts = [host(7), host(8)];
        let slabs = vec![[place(&hosts[0], 0), place(&hosts[1], 0)]];
        let (device, losses) = losses_of(waiting(LONG), slabs);
        device.write(0, &[1; 4096]).unwrap();
        hosts.iter().for_each(|host| host.fake.set(Fault::Dead));
        thread::scope(|scope| {
            let read = scope.spawn(|| value(&device, 0));
            let write = scope.spawn(|| device.write(4096, &[2; 4096]));
            until(&device, "both wait", |counters| counters.waiting_pages == 2);
            hosts[back].fake.set(Fault::None);
            assert_eq!(read.join().unwrap(), Some(1));
            write.join().unwrap().unwrap();
        });
        let lost = device.places(0).unwrap().map(|it| it.unwrap().is_lost);
        assert_eq!(lost, [back != 0, back != 1], "the write has given up the other one");
        assert_eq!(device.counters().errors, 0);
        drop(device);
        let gave_up =
            losses.lock().unwrap().iter().filter(|it| it.effect == Effect::FailOver).count();
        assert_eq!(gave_up, 1);
    }
}

#[test]
fn what_is_known_to_be_lost_is_not_waited_for() {
    for fault in [Fault::Emptied, Fault::Forging] {
        let lone = host(7);
        let (device, losses) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
        device.write(0, &[1; 4096]).unwrap();
        lone.fake.set(fault);
        assert_eq!(value(&device, 0), None, "{fault:?}");
        assert_eq!(device.counters().waits, 0);
        drop(device);
        assert!(losses.lock().unwrap().iter().all(|loss| loss.effect == Effect::Error));
    }
}

#[test]
fn the_pages_of_a_batch_that_are_there_are_done_once() {
    let hosts = [host(7), host(8)];
    let slabs = vec![[place(&hosts[0], 0), None], [place(&hosts[1], 0), None]];
    let (device, _) = losses_of(waiting(LONG), slabs);
    hosts[0].fake.set(Fault::Dead);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let bytes: Vec<_> = (0..8_u8).map(|page| [page + 1; 4096]).collect();
            let offset = |page: u64| page % 2 * SLAB_BYTES + page * 4096;
            let mut requests: Vec<_> = (0..8)
                .map(|page| Request::new(offset(page), Data::Write(&bytes[page as usize])))
                .collect();
            device.batch(&mut requests);
            assert!(requests.iter().all(|request| !request.failed.get()));
            done.store(true, Ordering::SeqCst);
        });
        until(&device, "half of it waits", |counters| counters.waiting_pages == 4);
        let calls = hosts[1].fake.calls.load(Ordering::Relaxed);
        thread::sleep(2 * REQUEST);
        assert_eq!(hosts[1].fake.calls.load(Ordering::Relaxed), calls);
        assert!(!done.load(Ordering::SeqCst), "half of it was acknowledged");
        hosts[0].fake.set(Fault::None);
    });
    for page in 0..8 {
        let at = page % 2 * PAGES_PER_SLAB + page;
        assert_eq!(value(&device, at), Some(page as u8 + 1));
    }
}

#[test]
fn a_slab_moves_without_the_pages_that_are_lost() {
    let (lone, other) = (host(7), host(8));
    let (device, losses) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
    for page in 0..64 {
        device.write(page * 4096, &[page as u8; 4096]).unwrap();
    }
    lone.fake.flush(&[Key::new(0, 40)], &mut [PageOutcome::Lost], Instant::now());
    device.place(0, 0, place(&other, 3).unwrap()).unwrap();
    assert_eq!(device.counters().moved_pages, 63);
    device.forget(&lone.holder);
    for page in 0..64 {
        assert_eq!(value(&device, page), (page != 40).then_some(page as u8));
    }
    device.write(40 * 4096, &[9; 4096]).unwrap();
    assert_eq!(value(&device, 40), Some(9));
    drop(device);
    let loss = Loss { holder: 7, slab: 0, cause: Cause::Missing, effect: Effect::Error };
    assert_eq!(losses.lock().unwrap()[0], loss);
}

#[test]
fn what_is_queued_behind_a_wait_does_not_wait_anew() {
    let lone = host(7);
    let wait = Duration::from_secs(1);
    let (device, losses) = losses_of(waiting(wait), vec![[place(&lone, 0), None]]);
    for page in 0..200 {
        device.write(page * 4096, &[1; 4096]).unwrap();
    }
    lone.fake.set(Fault::Dead);
    let began = Instant::now();
    // Seven batches, one after the other.
    assert!(device.read(0, &mut [0; 200 * 4096]).is_err());
    assert!(began.elapsed() >= wait && began.elapsed() < 5 * wait, "{:?}", began.elapsed());
    lone.fake.set(Fault::None);
    assert_eq!(value(&device, 0), Some(1));
    drop(device);
    assert_eq!(*losses.lock().unwrap(), [late(Effect::Wait), late(Effect::Error)]);
}

#[test]
fn pages_that_are_lost_are_no_wait_and_are_told_once() {
    let lone = host(7);
    let (device, losses) = losses_of(waiting(LONG), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    device.write(4096, &[2; 4096]).unwrap();
    lone.fake.flush(&[Key::new(0, 1)], &mut [PageOutcome::Lost], Instant::now());
    for _ in 0..3 {
        assert_eq!(value(&device, 1), None);
        assert_eq!(value(&device, 0), Some(1));
    }
    drop(device);
    assert_eq!(losses.lock().unwrap().len(), 1);
}
