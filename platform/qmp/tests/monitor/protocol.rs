//! Lines, ids, events and deadlines.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_qmp::{EVENTS_MAX, Error, Event, GREETING_WAIT, LINE_BYTES_MAX, Monitor};
use spillway_test_support::wait::{after_ms, soon};

use crate::fake::{FakeMonitor, GREETING, Peer, ask, readable};

#[test]
fn commands_are_answered_and_events_kept() {
    let fake = FakeMonitor::new(|mut peer| {
        let request = peer.hear();
        assert_eq!(request, json!({"execute": "x", "arguments": {"a": 1}, "id": request["id"]}));
        peer.event("STOP");
        peer.say(
            &json!({"event": "MEMORY_DEVICE_SIZE_CHANGE", "data": {"id": "vm0", "size": 4096}})
                .to_string(),
        );
        peer.answer(&request, &json!([7]));
        peer.event("RESUME");
        peer.wait();
    });
    let mut monitor = fake.connect();
    assert_eq!(monitor.peer_pid(), Some(std::process::id()));
    assert_eq!(monitor.execute("x", json!({"a": 1}), soon()).unwrap(), json!([7]));
    let change = Event::SizeChange { id: "vm0".to_owned(), bytes: 4096 };
    let mut seen: Vec<_> = monitor.events().seen.into();
    while seen.len() < 3 {
        assert!(readable(&monitor));
        monitor.pump().unwrap();
        seen.extend(monitor.events().seen);
    }
    assert_eq!(seen, [Event::Stop, change, Event::Resume]);
    monitor.pump().unwrap();
    assert_eq!(monitor.events().seen.len(), 0, "they are told once");
    drop(monitor);
    fake.finish();
}

#[test]
fn an_event_right_behind_an_answer_needs_no_further_read() {
    let fake = FakeMonitor::new(|mut peer| {
        let request = peer.hear();
        let answer = json!({ "return": {}, "id": request["id"] });
        peer.say(&format!("{answer}\n{}", json!({ "event": "RESET" })));
        peer.wait();
    });
    let mut monitor = fake.connect();
    ask(&mut monitor).unwrap();
    assert_eq!(monitor.events().seen, [Event::Reset]);
    drop(monitor);
    fake.finish();
}

#[test]
fn an_answer_of_null_is_an_answer() {
    let fake = FakeMonitor::new(|mut peer| peer.expect("x", &Value::Null, &Value::Null));
    assert_eq!(fake.connect().execute("x", Value::Null, soon()).unwrap(), Value::Null);
    fake.finish();
}

#[test]
fn a_refusal_is_one_line_and_the_connection_goes_on() {
    let fake = FakeMonitor::new(|mut peer| {
        let request = peer.hear();
        let error = json!({"class": "GenericError", "desc": "no\nsuch\u{1b}[31m thing"});
        peer.say(&json!({"id": request["id"], "error": error}).to_string());
        peer.expect("query-status", &Value::Null, &json!({}));
    });
    let mut monitor = fake.connect();
    let refused = monitor.execute("qom-get", json!({"path": "/x"}), soon()).unwrap_err();
    assert_eq!(refused.to_string(), "QEMU refused qom-get: no such [31m thing (GenericError)");
    assert!(!refused.is_final());
    ask(&mut monitor).unwrap();
    fake.finish();
}

#[test]
fn byte_by_byte_is_heard_as_well() {
    let fake = FakeMonitor::raw(|mut peer| {
        let slowly = |peer: &mut Peer, text: &str| {
            for byte in text.bytes() {
                peer.stream.write_all(&[byte]).unwrap();
                thread::sleep(Duration::from_micros(300));
            }
        };
        slowly(&mut peer, &format!("{GREETING}\n"));
        for _ in 0..2 {
            let request = peer.hear();
            slowly(&mut peer, &format!("{}\n", json!({"return": {"a": 1}, "id": request["id"]})));
        }
    });
    assert_eq!(ask(&mut fake.connect()).unwrap(), json!({"a": 1}));
    fake.finish();
}

#[test]
fn bytes_that_never_end_a_line_are_a_time_out() {
    let fake = FakeMonitor::raw(|mut peer| {
        while peer.stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let begun = Instant::now();
    let late = Monitor::connect(fake.path(), begun + GREETING_WAIT + Duration::from_millis(300));
    assert!(matches!(late, Err(Error::TimedOut { .. })), "it is not silent: {late:?}");
    assert!(begun.elapsed() >= GREETING_WAIT);
    assert!(begun.elapsed() < GREETING_WAIT + Duration::from_secs(2));
    fake.finish();
}

#[test]
fn a_monitor_that_does_not_greet_is_held_by_somebody_else() {
    let fake = FakeMonitor::raw(Peer::wait);
    let begun = Instant::now();
    let held = fake.refusal();
    assert!(matches!(&held, Error::Held { path } if path == fake.path()), "{held}");
    assert!(held.to_string().contains("held by somebody else: no greeting for 2 s"), "{held}");
    assert!(begun.elapsed() >= GREETING_WAIT && begun.elapsed() < GREETING_WAIT * 3);
    fake.finish();
}

#[test]
fn a_deadline_before_the_greeting_says_nothing_of_who_holds_it() {
    let fake = FakeMonitor::raw(Peer::wait);
    let begun = Instant::now();
    let late = Monitor::connect(fake.path(), after_ms(50)).unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    assert!(begun.elapsed() < GREETING_WAIT, "it waited for the greeting");
    fake.finish();
}

#[test]
fn a_full_queue_of_connections_is_held_as_well() {
    let fake = FakeMonitor::raw(Peer::wait);
    let _first = UnixStream::connect(fake.path()).unwrap();
    // The listener takes one connection and none after it, so that its queue fills.
    let address = rustix::net::SocketAddrUnix::new(fake.path()).unwrap();
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let mut waiting = Vec::new();
    loop {
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        if rustix::net::connect(&socket, &address).is_err() {
            break;
        }
        waiting.push(socket);
    }
    let late = Monitor::connect(fake.path(), after_ms(60)).unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    let begun = Instant::now();
    assert!(matches!(fake.refusal(), Error::Held { .. }));
    assert!(begun.elapsed() >= GREETING_WAIT, "QEMU may take one any time");
}

#[test]
fn nobody_listens() {
    let absent = Path::new("/nonexistent/qmp.sock");
    let error = Monitor::connect(absent, soon()).unwrap_err();
    assert!(error.to_string().starts_with("no QEMU listens on /nonexistent/qmp.sock: "), "{error}");
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
    assert!(matches!(Monitor::connect(&long, soon()), Err(Error::Absent { .. })));
    // The socket file of a QEMU that has ended.
    let ended = std::env::temp_dir().join(format!("qmp-ended-{}", std::process::id()));
    drop(UnixListener::bind(&ended).unwrap());
    assert!(matches!(Monitor::connect(&ended, soon()), Err(Error::Absent { .. })));
    std::fs::remove_file(&ended).unwrap();
}

#[test]
fn closed_at_any_time() {
    let fake = FakeMonitor::raw(drop);
    assert!(matches!(fake.refusal(), Error::Closed));
    fake.finish();
    let fake =
        FakeMonitor::raw(|mut peer| peer.stream.write_all(&GREETING.as_bytes()[..9]).unwrap());
    assert!(matches!(fake.refusal(), Error::Closed));
    fake.finish();
    let fake = FakeMonitor::new(|mut peer| {
        peer.hear();
        peer.event("SHUTDOWN");
        peer.stream.write_all(b"{\"return\": {").unwrap();
    });
    let mut monitor = fake.connect();
    assert!(matches!(ask(&mut monitor), Err(Error::Closed)));
    assert!(matches!(ask(&mut monitor), Err(Error::Closed)), "and it stays closed");
    assert!(matches!(monitor.pump(), Err(Error::Closed)));
    assert_eq!(monitor.events().seen, [Event::Shutdown], "what came before is not lost");
    fake.finish();
}

#[test]
fn pump_tells_the_end() {
    let fake = FakeMonitor::new(|mut peer| peer.event("SHUTDOWN"));
    let mut monitor = fake.connect();
    fake.finish();
    assert!(readable(&monitor));
    let end = (0..3).find_map(|_| monitor.pump().err());
    assert!(matches!(end, Some(Error::Closed)), "{end:?}");
    assert_eq!(monitor.events().seen, [Event::Shutdown]);
}

#[test]
fn pump_reads_all_that_has_come() {
    let (said, go) = mpsc::channel();
    let fake = FakeMonitor::new(move |mut peer| {
        // More than one read takes.
        (0..100)
            .for_each(|_| peer.say(&json!({"event": "X", "data": "x".repeat(400)}).to_string()));
        peer.event("STOP");
        said.send(()).unwrap();
        peer.wait();
    });
    let mut monitor = fake.connect();
    go.recv().unwrap();
    monitor.pump().unwrap();
    assert_eq!(monitor.events().seen.back(), Some(&Event::Stop));
    drop(monitor);
    fake.finish();
}

#[test]
fn pump_does_not_wait() {
    let fake = FakeMonitor::new(Peer::wait);
    let mut monitor = fake.connect();
    let begun = Instant::now();
    monitor.pump().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
    drop(monitor);
    fake.finish();
}

#[test]
fn garbage_ends_the_connection() {
    let lines = [
        "HTTP/1.1 400 Bad Request",
        "[]",
        "{}",
        "7",
        r#"{"return": {}}"#,
        r#"{"return": {}, "id": 99}"#,
        r#"{"return": {}, "id": 0}"#,
        r#"{"return": {}, "id": "2"}"#,
        r#"{"return": {}, "error": {"class": "a", "desc": "b"}, "id": 2}"#,
        r#"{"error": "no", "id": 2}"#,
        "{\"return\": \"\u{0}\", \"id\": 2}",
        &"[".repeat(5000),
    ];
    for line in lines {
        let said = line.to_owned();
        let fake = FakeMonitor::new(move |mut peer| {
            peer.hear();
            peer.say(&said);
            peer.wait();
        });
        let mut monitor = fake.connect();
        let error = ask(&mut monitor).unwrap_err();
        assert!(matches!(error, Error::Garbage { .. }), "{line}: {error}");
        assert!(error.is_final() && !error.to_string().contains('\n'));
        assert!(matches!(ask(&mut monitor), Err(Error::Closed)));
        drop(monitor);
        fake.finish();
    }
}

#[test]
fn what_greets_otherwise_is_no_monitor() {
    for line in ["220 mail.example.org", r#"{"event": "STOP"}"#, "{}"] {
        let fake = FakeMonitor::raw(|mut peer| {
            peer.say(line);
            peer.wait();
        });
        assert!(matches!(fake.refusal(), Error::Garbage { .. }), "{line}");
        fake.finish();
    }
}

#[test]
fn a_line_without_end_is_given_up() {
    let fake = FakeMonitor::new(|mut peer| {
        peer.hear();
        while peer.stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let mut monitor = fake.connect();
    let error = ask(&mut monitor).unwrap_err();
    assert!(matches!(error, Error::LineTooLong) && error.is_final(), "{error}");
    drop(monitor);
    fake.finish();
}

#[test]
fn a_long_answer_is_read() {
    let text = "x".repeat(LINE_BYTES_MAX - 100);
    let said = text.clone();
    let fake = FakeMonitor::new(move |mut peer| peer.expect("x", &Value::Null, &json!(said)));
    assert_eq!(fake.connect().execute("x", Value::Null, soon()).unwrap(), json!(text));
    fake.finish();
}

#[test]
fn a_flood_of_events_is_bounded_and_puts_no_deadline_off() {
    let fake = FakeMonitor::new(|mut peer| {
        peer.hear();
        peer.event("RESET");
        let flood = "{\"event\": \"RTC_CHANGE\"}\r\n".repeat(100);
        while peer.stream.write_all(flood.as_bytes()).is_ok() {}
    });
    let mut monitor = fake.connect();
    let begun = Instant::now();
    let error = monitor.execute("x", Value::Null, after_ms(200)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    let begun = Instant::now();
    monitor.pump().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));
    let events = monitor.events();
    assert_eq!(events.seen.len(), EVENTS_MAX);
    assert!(events.lost > 0);
    assert_eq!(events.seen[0], Event::Reset);
    drop(monitor);
    fake.finish();
}

#[test]
fn a_late_answer_is_not_taken_for_the_next_one() {
    let fake = FakeMonitor::new(|mut peer| {
        let first = peer.hear();
        let second = peer.hear();
        peer.answer(&first, &json!("late"));
        peer.answer(&second, &json!("right"));
        peer.answer(&first, &json!("twice"));
        peer.event("STOP");
        peer.wait();
    });
    let mut monitor = fake.connect();
    let late = monitor.execute("slow", Value::Null, after_ms(500)).unwrap_err();
    assert_eq!(late.to_string(), "the monitor did not answer in time: slow");
    assert!(!late.is_final());
    assert_eq!(ask(&mut monitor).unwrap(), json!("right"));
    while monitor.events().seen.is_empty() {
        assert!(readable(&monitor));
        monitor.pump().unwrap();
    }
    drop(monitor);
    fake.finish();
}

/// QEMU executes commands on a thread of their own, and answers a slow one to the client that is connected when it
/// ends.
#[test]
fn an_answer_that_is_late_for_an_earlier_connection_is_passed_over() {
    for is_before_the_greeting in [false, true] {
        let (said, first) = mpsc::channel();
        let earlier = FakeMonitor::new(move |mut peer| {
            said.send(peer.hear()).unwrap();
            peer.wait();
        });
        let mut monitor = earlier.connect();
        monitor.execute("slow", Value::Null, after_ms(500)).unwrap_err();
        drop(monitor);
        earlier.finish();
        let first = first.recv().unwrap();
        let fake = FakeMonitor::raw(move |mut peer| {
            if is_before_the_greeting {
                peer.answer(&first, &json!("late"));
            }
            peer.say(GREETING);
            let request = peer.hear();
            assert_eq!(request["execute"], "qmp_capabilities");
            thread::sleep(Duration::from_millis(50));
            // Answers to another program, too, with its ids or none.
            peer.answer(&first, &json!("late"));
            peer.say(r#"{"return": {}}"#);
            peer.say(r#"{"error": {"class": "GenericError", "desc": "late"}, "id": "libvirt-9"}"#);
            peer.answer(&request, &json!({}));
            peer.expect("query-status", &Value::Null, &json!("right"));
            peer.wait();
        });
        let mut monitor = fake.connect();
        assert_eq!(ask(&mut monitor).unwrap(), json!("right"));
        drop(monitor);
        fake.finish();
    }
}

#[test]
fn answers_to_others_without_end_put_no_deadline_off() {
    let fake = FakeMonitor::raw(|mut peer| {
        peer.say(GREETING);
        let flood = "{\"return\": {}, \"id\": 7}\r\n".repeat(100);
        while peer.stream.write_all(flood.as_bytes()).is_ok() {}
    });
    let begun = Instant::now();
    let late = Monitor::connect(fake.path(), after_ms(300)).unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    fake.finish();
}

#[test]
fn a_deadline_that_has_passed_is_not_put_off_by_what_there_is_to_read() {
    let (connected, go) = mpsc::channel();
    let fake = FakeMonitor::new(move |mut peer| {
        go.recv().unwrap();
        peer.event("STOP");
        peer.wait();
    });
    let mut monitor = fake.connect();
    connected.send(()).unwrap();
    assert!(readable(&monitor));
    let late = monitor.execute("x", Value::Null, Instant::now()).unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    assert!(monitor.events().seen.is_empty(), "nothing is read any more");
    drop(monitor);
    fake.finish();
}

#[test]
fn a_greeting_that_has_begun_may_take_longer() {
    let fake = FakeMonitor::raw(|mut peer| {
        for byte in format!("{GREETING}\n").bytes() {
            peer.stream.write_all(&[byte]).unwrap();
            thread::sleep(GREETING_WAIT / 100);
        }
        let request = peer.hear();
        peer.answer(&request, &json!({}));
    });
    let begun = Instant::now();
    fake.connect();
    assert!(begun.elapsed() > GREETING_WAIT);
    fake.finish();
}

#[test]
fn a_peer_that_does_not_read_is_a_time_out() {
    let (end, ended) = mpsc::channel::<()>();
    let fake = FakeMonitor::new(move |_peer| {
        let _ = ended.recv();
    });
    let mut monitor = fake.connect();
    let huge = json!({ "text": "x".repeat(4 << 20) });
    let error = monitor.execute("x", huge, after_ms(100)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let begun = Instant::now();
    assert!(matches!(ask(&mut monitor), Err(Error::Closed)), "half a line was sent");
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(end);
    fake.finish();
}
