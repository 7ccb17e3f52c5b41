//! Agents that mean ill, go away, or are started anew.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use spillway_guests::End;
use spillway_guests::agent::{FromGuest, Status};

use super::qemu::Qemu;
use super::{BOOT, DEVICE, Driven, S, hello};

/// Something that an agent could say, more or less: messages with numbers of all sizes, cut, changed, or only bytes.
fn lie(random: &mut StdRng) -> Vec<u8> {
    let number = |random: &mut StdRng| match random.random_range(0..4) {
        0 => random.random_range(0..DEVICE + BOOT),
        1 => random.random::<u64>() >> random.random_range(0..64),
        _ => random.random_range(0..16) * S,
    };
    let (id, bytes, urgent) = (random.random_range(0..99), number(random), random.random());
    let wait_ms = random.random();
    let mut line = match random.random_range(0..7) {
        0 => FromGuest::Need { id, bytes, urgent, wait_ms }.encode(),
        1 => FromGuest::Give { id, bytes }.encode(),
        2 => FromGuest::Offlined { id, bytes }.encode(),
        3 => hello(),
        4 => {
            let (total_bytes, available_bytes) = (number(random), number(random));
            FromGuest::Status(Status { total_bytes, available_bytes, ..Status::default() }).encode()
        }
        5 => vec![b'x'; random.random_range(1..5000)],
        _ => (0..random.random_range(1..300)).map(|_| random.random()).collect(),
    };
    match random.random_range(0..4) {
        0 => line.truncate(random.random_range(0..=line.len())),
        1 => line[0] = random.random(),
        _ => {}
    }
    line
}

/// Lies until it is told to stop, as fast as it can; now and then hears what it is told.
fn fuzz(mut agent: UnixStream, seed: u64, stop: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    agent.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    agent.set_nonblocking(false).unwrap();
    agent.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    while !stop.load(Ordering::Relaxed) {
        // What the driver does not take in time is left unsaid, half a line perhaps.
        let _ = agent.write(&lie(&mut random));
        if random.random_ratio(1, 64) {
            let _ = agent.read(&mut [0; 4096]);
        }
    }
}

#[test]
fn an_agent_that_lies_and_floods_takes_nothing_and_keeps_nobody_waiting() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    let listener = driven.listener("agent");
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    let stop = Arc::new(AtomicBool::new(false));
    let (agent, is_over) = (listener.accept().unwrap().0, stop.clone());
    let liar = thread::spawn(move || fuzz(agent, 7, &is_over));
    driven.until("lies are counted", |view| {
        view.ignored_messages + driven.shared.notes().garbled > 100
    });
    let start = Instant::now();
    let mut reached = 0;
    // It is waited for it to say that its memory is online, each time.
    while start.elapsed() < Duration::from_secs(3)
        || (reached < 4 && start.elapsed() < Duration::from_secs(60))
    {
        let to_bytes = BOOT + S * (reached % 8);
        let (outcome, took) = driven.order(to_bytes);
        // It may break off what shrinks it, and grow as far as it may.
        assert!(!matches!(outcome.end, End::Lost(_)), "{outcome:?}");
        reached += u64::from(outcome.end == End::Reached);
        assert!(took < Duration::from_secs(5), "{took:?} for {outcome:?}");
        let (usage, view) = (driven.shared.pool.usage(), driven.view());
        assert!(usage.used_bytes <= DEVICE);
        assert!(view.size_bytes <= Some(BOOT + DEVICE), "{view:?}");
        assert!(qemu.requested.load(Ordering::Relaxed) <= usage.used_bytes);
    }
    assert!(reached > 3, "{reached} orders reached their aim");
    assert!(driven.shared.notes().has_said_ignored, "no line for the operator");
    stop.store(true, Ordering::Relaxed);
    liar.join().unwrap();
}

#[test]
fn an_agent_that_is_gone_is_not_waited_for() {
    let driven = Driven::new();
    Qemu::start(&driven);
    let listener = driven.listener("agent");
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    let mut agent = listener.accept().unwrap().0;
    agent.write_all(&hello()).unwrap();
    let total_bytes = BOOT - S;
    let status = Status { total_bytes, available_bytes: S, ..Status::default() };
    agent.write_all(&FromGuest::Status(status).encode()).unwrap();
    driven.until("a status", |view| view.status.is_some() && view.kernel.is_some());
    // Nobody listens either, so that it is not the next connection that makes it forget.
    let path = driven.folder.path().join("agent");
    std::fs::remove_file(&path).unwrap();
    agent.shutdown(std::net::Shutdown::Both).unwrap();
    driven.until("no agent", |view| view.status.is_none() && view.kernel.is_none());
    // It connects again by itself.
    agent = driven.listener("agent").accept().unwrap().0;
    agent.write_all(&hello()).unwrap();
    driven.until("the agent again", |view| view.kernel.is_some());
}

/// Whatever the one before said.
#[test]
fn an_agent_that_was_started_anew_is_greeted_anew() {
    let driven = Driven::new();
    driven.shared.notes().has_said_ignored = true;
    let agent = driven.listener("agent").accept().unwrap().0;
    agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hellos =
        BufReader::new(agent).lines().filter(|line| line.as_ref().unwrap().contains("hello"));
    assert_eq!(hellos.take(2).count(), 2);
}
