//! Many threads at once: requests, moves, a holder that fails in the midst, and the fence behind it.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spillway_block::{Data, Device, Request};
use spillway_fanout::{
    BackupFile, Cause, Effect, Error, FanOut, Holder, Loss, Settings, SlabLocation,
};
use spillway_test_support::random::{Random, noise};
use support::{Fault, Host, PAGES_PER_SLAB, SLAB_BYTES, device, host, losses_of, place, settings};

const LONG: Duration = Duration::from_secs(60);
const SLABS: u32 = 4;
const THREADS: u64 = 4;

fn content(page: u64, version: u64) -> Vec<u8> {
    noise(page << 20 | version, 4096)
}

/// Writes, reads and discards every THREADS-th page, in batches, and knows what each must hold.
fn use_pages(device: &FanOut, thread: u64, rounds: u64) {
    let mut versions: HashMap<u64, u64> = HashMap::new();
    let mut random = Random::new(thread);
    let count = u64::from(SLABS) * PAGES_PER_SLAB / THREADS;
    for version in 1..=rounds {
        let pages: Vec<u64> = (0..24).map(|_| random.below(count) * THREADS + thread).collect();
        match random.below(8) {
            0 => {
                device.deallocate(pages[0] * 4096, 4096).unwrap();
                versions.remove(&pages[0]);
            }
            1..=3 => {
                let contents: Vec<_> = pages.iter().map(|page| content(*page, version)).collect();
                let mut requests: Vec<_> = pages
                    .iter()
                    .zip(&contents)
                    .map(|(page, bytes)| Request::new(page * 4096, Data::Write(bytes)))
                    .collect();
                device.batch(&mut requests);
                assert!(requests.iter().all(|request| !request.failed.get()), "write");
                versions.extend(pages.iter().map(|page| (*page, version)));
            }
            _ => {
                let mut rooms = vec![vec![1; 4096]; pages.len()];
                let mut requests: Vec<_> = pages
                    .iter()
                    .zip(&mut rooms)
                    .map(|(page, room)| Request::new(page * 4096, Data::Read(room)))
                    .collect();
                device.batch(&mut requests);
                assert!(requests.iter().all(|request| !request.failed.get()), "read");
                for (page, room) in pages.iter().zip(rooms) {
                    let expected = versions.get(page);
                    let expected = expected.map_or(vec![0; 4096], |&v| content(*page, v));
                    assert!(room == expected, "page {page} has other bytes");
                }
            }
        }
    }
}

fn mirrored(hosts: &[Host]) -> Vec<[Option<SlabLocation>; 2]> {
    (0..SLABS).map(|slab| [place(&hosts[0], slab), place(&hosts[1], slab)]).collect()
}

#[test]
fn requests_moves_and_a_death_at_the_same_time() {
    let hosts: Vec<_> = (0..4).map(host).collect();
    let device = device(mirrored(&hosts), LONG);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let device = &device;
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || use_pages(device, thread, 400)))
            .collect();
        let (hosts, done) = (&hosts, &done);
        // Slabs wander between hosts 0, 1 and 2, until 0 dies; then all that it had goes to 3.
        let mover = scope.spawn(move || {
            let mut random = Random::new(9);
            for turn in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                if turn == 12 {
                    hosts[0].fake.set(Fault::Dead);
                }
                let slab = random.below(SLABS.into()) as u32;
                let copy = random.below(2) as usize;
                let to = random.below(3) as usize;
                let there = SlabLocation { holder: hosts[to].holder.clone(), slab };
                match device.place(slab, copy, there) {
                    Ok(()) | Err(Error::SamePlace(_)) => {}
                    Err(Error::PlaceLost(_)) if to == 0 && turn >= 12 => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
    });
    let dead = &hosts[0];
    for slab in 0..SLABS {
        let standing = device.places(slab).unwrap();
        let on_it = |place: &SlabLocation| std::sync::Arc::ptr_eq(&place.holder, &dead.holder);
        let copy = standing.iter().flatten().position(|one| on_it(&one.place));
        if let Some(copy) = copy {
            let there = SlabLocation { holder: hosts[3].holder.clone(), slab };
            device.place(slab, copy, there).unwrap();
        }
    }
    device.forget(&dead.holder);
    dead.fake.fenced.store(true, Ordering::SeqCst);
    dead.fake.set(Fault::None);
    for thread in 0..THREADS {
        // Another round from zeros, over all that is there.
        device.deallocate(0, device.bytes()).unwrap();
        use_pages(&device, thread, 40);
    }
    assert!(!dead.fake.touched_behind_fence.load(Ordering::SeqCst), "touched behind the fence");
    assert!(device.counters().moved_pages > 0);
}

/// With one copy alone, nothing hides a page that did not come along.
#[test]
fn lone_copies_move_under_traffic() {
    let hosts: Vec<_> = (0..2).map(host).collect();
    let device = device((0..SLABS).map(|slab| [place(&hosts[0], slab), None]).collect(), LONG);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (device, hosts, done) = (&device, &hosts, &done);
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || use_pages(device, thread, 150)))
            .collect();
        let mover = scope.spawn(move || {
            for turn in 0_u32.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let to = &hosts[1 - (turn / SLABS) as usize % 2];
                let slab = turn % SLABS;
                device.place(slab, 0, SlabLocation { holder: to.holder.clone(), slab }).unwrap();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
    });
    let counters = device.counters();
    assert_eq!((counters.errors, counters.fail_overs), (0, 0));
    assert!(counters.moved_pages > 0);
}

#[test]
fn discarded_pages_take_no_memory_with_lenders() {
    let hosts: Vec<_> = (0..2).map(host).collect();
    let device = device(mirrored(&hosts), LONG);
    device.write(0, &vec![7; 100 * 4096]).unwrap();
    assert_eq!((hosts[0].fake.pages(), hosts[1].fake.pages()), (100, 100));
    assert!(!hosts[0].fake.sees(&[7; 16]), "a lender can read it");
    device.write_zeroes(100, 50 * 4096).unwrap();
    assert_eq!(hosts[0].fake.pages(), 51);
    device.deallocate(0, device.bytes()).unwrap();
    assert_eq!((hosts[0].fake.pages(), hosts[1].fake.pages()), (0, 0));
    assert_eq!(device.counters().stored_pages, 0);
}

#[test]
fn a_holder_that_stalls_is_waited_for_once() {
    let hosts: Vec<_> = (0..2).map(host).collect();
    let (device, losses) = losses_of(settings(Duration::from_millis(300)), mirrored(&hosts));
    for slab in 0..u64::from(SLABS) {
        device.write(slab * SLAB_BYTES, &[5; 8192]).unwrap();
    }
    hosts[0].fake.set(Fault::Stalled);
    let mut read = [0; 8192];
    for slab in 0..u64::from(SLABS) {
        device.read(slab * SLAB_BYTES, &mut read).unwrap();
        assert_eq!(read, [5; 8192]);
        device.write(slab * SLAB_BYTES, &[6; 8192]).unwrap();
    }
    let counters = device.counters();
    // The read did not wait: the other copy was asked for its two pages. The write did.
    assert_eq!((counters.lost_places, counters.fail_overs), (1, 0));
    assert_eq!(counters.hedged_pages, 2);
    assert!(counters.longest_stall_us >= 300_000);
    // The other slabs did not touch it any more.
    let calls = hosts[0].fake.calls.load(Ordering::Relaxed);
    assert_eq!(calls, 2 + SLABS as usize, "two calls after it stalled");
    drop(device);
    let loss = Loss { holder: 0, slab: 0, cause: Cause::NoAnswer, effect: Effect::FailOver };
    assert_eq!(*losses.lock().unwrap(), [loss]);
}

#[test]
fn a_write_that_is_stuck_is_not_waited_for_but_by_the_fence() {
    let hosts: Vec<_> = (0..2).map(host).collect();
    let (device, _) = losses_of(settings(Duration::from_millis(200)), mirrored(&hosts));
    device.write(0, &[5; 4096]).unwrap();
    hosts[1].fake.set(Fault::Stuck);
    device.write(0, &[6; 4096]).unwrap();
    assert_eq!(hosts[1].fake.stuck.load(Ordering::SeqCst), 1, "the write is still on its way");
    let (device, second, forgotten) = (&device, &hosts[1], &AtomicBool::new(false));
    thread::scope(|scope| {
        let forgetter = scope.spawn(move || {
            device.forget(&second.holder);
            forgotten.store(true, Ordering::SeqCst);
            assert_eq!(second.fake.stuck.load(Ordering::SeqCst), 0, "it was still on its way");
            second.fake.fenced.store(true, Ordering::SeqCst);
        });
        // Requests go on meanwhile.
        for value in 0..50 {
            device.write(4096, &[value; 4096]).unwrap();
        }
        assert!(!forgotten.load(Ordering::SeqCst));
        second.fake.set(Fault::None);
        forgetter.join().unwrap();
    });
    let mut read = [0; 4096];
    device.read(0, &mut read).unwrap();
    assert_eq!(read, [6; 4096]);
    assert!(!hosts[1].fake.touched_behind_fence.load(Ordering::SeqCst));
}

#[test]
fn a_last_copy_that_is_not_waited_for_fails_requests_and_may_come_back() {
    let lone = host(7);
    let (device, losses) = losses_of(settings(LONG), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    device.write(4096, &[2; 4096]).unwrap();
    lone.fake.set(Fault::Dead);
    assert!(device.read(0, &mut [0; 4096]).is_err());
    assert!(device.write(4096, &[3; 4096]).is_err());
    assert!(device.write(4096, &[3; 4096]).is_err());
    lone.fake.set(Fault::None);
    let mut read = [0; 4096];
    device.read(0, &mut read).unwrap();
    assert_eq!(read, [1; 4096]);
    // Nobody knows what is there, until it is written again.
    assert!(device.read(4096, &mut read).is_err());
    device.write(4096, &[4; 4096]).unwrap();
    device.read(4096, &mut read).unwrap();
    assert_eq!(read, [4; 4096]);
    drop(device);
    let loss = Loss { holder: 7, slab: 0, cause: Cause::NoAnswer, effect: Effect::Error };
    assert_eq!(*losses.lock().unwrap(), [loss], "told once");
}

#[test]
fn a_forgotten_last_copy_is_lost_and_its_slab_can_be_placed_anew() {
    let (lone, other) = (host(7), host(8));
    let (device, _) = losses_of(settings(LONG), vec![[place(&lone, 0), None]]);
    device.write(0, &[1; 4096]).unwrap();
    device.forget(&lone.holder);
    let mut read = [0; 4096];
    assert!(device.read(0, &mut read).is_err(), "it was the only copy");
    assert!(device.write(4096, &[2; 4096]).is_err(), "there is no place");
    device.place(0, 0, place(&other, 3).unwrap()).unwrap();
    assert!(device.read(0, &mut read).is_err(), "what was lost does not come back");
    assert!(device.read(4096, &mut read).is_err(), "what was refused was written by nobody");
    device.read(8192, &mut read).unwrap();
    assert_eq!(read, [0; 4096], "what was never written is zeros");
    device.write(0, &[3; 4096]).unwrap();
    device.read(0, &mut read).unwrap();
    assert_eq!(read, [3; 4096]);
    device.forget(&other.holder);
}

#[test]
fn a_file_is_a_copy_as_good_as_a_lender() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let bytes = u64::from(SLABS) * SLAB_BYTES;
    let file = Holder::file(BackupFile::open(&path, bytes).unwrap()).unwrap();
    assert!(!path.exists(), "it goes with the device");
    let lender = host(0);
    let slabs = (0..SLABS)
        .map(|slab| [place(&lender, slab), Some(SlabLocation { holder: file.clone(), slab })])
        .collect();
    let device = device(slabs, LONG);
    thread::scope(|scope| {
        let (device, lender) = (&device, &lender);
        for thread in 0..THREADS {
            scope.spawn(move || use_pages(device, thread, 200));
        }
        scope.spawn(move || {
            let until = Instant::now() + LONG;
            while device.counters().writes < 2000 && Instant::now() < until {
                thread::yield_now();
            }
            lender.fake.set(Fault::Emptied);
        });
    });
    assert_eq!(device.counters().errors, 0);
    // From the file alone to another lender, and back into the file.
    let other = host(1);
    for slab in 0..SLABS {
        device.place(slab, 0, SlabLocation { holder: other.holder.clone(), slab }).unwrap();
    }
    device.forget(&file);
    for slab in 0..SLABS {
        device.place(slab, 1, SlabLocation { holder: file.clone(), slab }).unwrap();
    }
}

#[test]
fn a_lost_copy_is_made_anew_in_another_slab_of_its_loan() {
    for (lost, new) in [(0, 1), (1, 0)] {
        let hosts: Vec<_> = (0..2).map(host).collect();
        let device = device(vec![[place(&hosts[0], lost), place(&hosts[1], 0)]], LONG);
        device.write(0, &[1; 4096]).unwrap();
        hosts[0].fake.set(Fault::LostAnswers);
        device.write(0, &[2; 4096]).unwrap();
        hosts[0].fake.set(Fault::None);
        let again = |slab| device.place(0, 0, place(&hosts[0], slab).unwrap());
        // A late write may still reach the slab that was given up.
        assert!(matches!(again(lost), Err(Error::SamePlace(0))));
        again(new).unwrap();
        assert!(!device.places(0).unwrap()[0].as_ref().unwrap().is_lost);
        assert!(matches!(again(2), Err(Error::SamePlace(0))), "the copy is in this loan already");
        hosts[1].fake.set(Fault::Dead);
        let mut read = [0; 4096];
        device.read(0, &mut read).unwrap();
        assert_eq!(read, [2; 4096]);
    }
}

#[test]
fn wrong_slabs_and_places_are_refused() {
    let one = host(0);
    let with = |slab_bytes| Settings { slab_bytes, ..Settings::default() };
    let open = |slab_bytes, slabs| FanOut::open(with(slab_bytes), 1, slabs, |_| {});
    let lone = || vec![[place(&one, 0), None]];
    assert!(matches!(open(1 << 19, lone()), Err(Error::SlabBytes(_))));
    assert!(matches!(open(3 << 20, lone()), Err(Error::SlabBytes(_))));
    assert!(matches!(open(SLAB_BYTES, vec![]), Err(Error::NoPlace(0))));
    assert!(matches!(open(SLAB_BYTES, vec![[None, None]]), Err(Error::NoPlace(0))));
    let twice = vec![[place(&one, 0), place(&one, 1)]];
    assert!(matches!(open(SLAB_BYTES, twice), Err(Error::SamePlace(0))));
    let device = open(SLAB_BYTES, lone()).unwrap();
    assert!(device.read(SLAB_BYTES - 1, &mut [0; 2]).is_err());
    assert!(device.write(u64::MAX, &[0; 2]).is_err());
    let there = || place(&one, 1).unwrap();
    assert!(matches!(device.place(1, 0, there()), Err(Error::NoSlab { .. })));
    assert!(matches!(device.place(0, 2, there()), Err(Error::NoSlab { .. })));
    assert!(matches!(device.place(0, 1, there()), Err(Error::SamePlace(0))));
}
