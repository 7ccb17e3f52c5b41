//! The metrics of a daemon that runs in its sandbox.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use spillway_client::{Ring, RingOptions, Store};
use spillway_test_support::wait::until;
use spillway_types::{Key, PoolSpec, Put};

use crate::daemon::{Daemon, TOKEN, address, ask, refused, value};
use crate::http::packets;
use crate::renew::Host;

#[test]
fn the_process_is_measured_inside_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let open = value(dir.path(), "process_open_fds");
    let path = dir.path().join("run/api.sock");
    let held: Vec<_> = (0..10).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // Later than they: the daemon accepts connections in their order.
    let more = value(dir.path(), "process_open_fds");
    assert!(more >= open + 10.0 && more <= value(dir.path(), "process_max_fds"), "{open} {more}");
    drop(held);
    assert!(value(dir.path(), "process_resident_memory_bytes") > 4096.0);
    assert!(value(dir.path(), "process_threads") >= 2.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - value(dir.path(), "process_start_time_seconds");
    assert!((0.0..600.0).contains(&age), "{age}");
}

#[test]
fn connections_of_each_front_end_are_counted_before_they_are_admitted() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::write(dir.path().join("token"), TOKEN).unwrap();
    let settings = [
        format!("listen.dir={}", run.display()),
        "listen.api_tcp=127.0.0.1:0".into(),
        format!("listen.api_token_file={}", dir.path().join("token").display()),
        "listen.nvme_tcp=127.0.0.1:0".into(),
        "listen.resp_tcp=127.0.0.1:0".into(),
        "store.capacity=64M".into(),
    ];
    let settings: Vec<_> = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let daemon = Daemon::start_with(dir.path(), &settings);
    let ready = daemon.line(&[" ready "]);
    let tcp = |setting| OwnedFd::from(TcpStream::connect(address(&ready, setting)).unwrap());
    let nbd = || OwnedFd::from(UnixStream::connect(run.join("nbd.sock")).unwrap());
    // With how many a peer may have that has proven nothing.
    let connect: [(_, Option<usize>, &dyn Fn() -> OwnedFd); 6] = [
        ("nbd", Some(16), &nbd),
        ("nvme-tcp", Some(64), &|| tcp("nvme_tcp")),
        ("programs", Some(64), &|| packets(&run.join("programs.sock"))),
        ("resp", Some(256), &|| tcp("resp_tcp")),
        ("http", Some(16), &|| tcp("api_tcp")),
        ("ring", None, &|| packets(&run.join("spillway.sock"))),
    ];
    for (front_end, of_peer_max, connect) in connect {
        let name = format!("spillway_connections{{frontend=\"{front_end}\"}}");
        // The connection that asks is one of http's.
        let own = usize::from(front_end == "http");
        let are_open = |count| value(dir.path(), &name) == (own + count) as f64;
        let mut held: Vec<_> = (0..10).map(|_| connect()).collect();
        until("ten to be counted", || are_open(10));
        assert_eq!(refused(dir.path(), front_end, "displaced"), 0.0, "{front_end}");
        if let Some(of_peer_max) = of_peer_max {
            held.extend((held.len()..of_peer_max + 3).map(|_| connect()));
            until("three to give way", || refused(dir.path(), front_end, "displaced") == 3.0);
            until("the others to be counted", || are_open(of_peer_max));
        }
        drop(held);
        until("all to be gone", || are_open(0));
    }
}

#[test]
fn connections_inside_tls_are_counted_before_they_are_admitted() {
    let host = Host::new();
    host.renew(1, "a.example");
    let lend = "api_tls = \"127.0.0.1:0\"\n[lend]\nroles = \"lend\"\nlisten = \"127.0.0.1:0\"\n\
                [[peer]]\nname = \"b.example\"\naddress = \"127.0.0.1:1\"\n";
    let daemon = host.start(lend);
    let (ready, dir) = (daemon.line(&[" ready "]), host.path(""));
    // With how many a peer may have that has proven nothing.
    for (front_end, setting, of_peer_max) in [("https", "api_tls", 16), ("lending", "lend", 64)] {
        let name = format!("spillway_connections{{frontend=\"{front_end}\"}}");
        let are_open = |count: usize| value(&dir, &name) == count as f64;
        let connect = |_| TcpStream::connect(address(&ready, setting)).unwrap();
        let held: Vec<_> = (0..10).map(connect).collect();
        until("ten to be counted", || are_open(10));
        assert_eq!(refused(&dir, front_end, "displaced"), 0.0, "{front_end}");
        let more: Vec<_> = (held.len()..of_peer_max + 3).map(connect).collect();
        until("three to give way", || refused(&dir, front_end, "displaced") == 3.0);
        until("the others to be counted", || are_open(of_peer_max));
        drop((held, more));
        until("all to be gone", || are_open(0));
    }
}

#[test]
fn a_late_handshake_inside_tls_is_counted_once() {
    let host = Host::new();
    host.renew(1, "a.example");
    let daemon = host.start(
        "resp_tls = \"127.0.0.1:0\"\nnbd_tcp = \"127.0.0.1:0\"\napi_tls = \"127.0.0.1:0\"\n",
    );
    let ready = daemon.line(&[" ready "]);
    let mut late = Vec::new();
    for setting in ["nvme_tls", "resp_tls", "nbd_tcp", "api_tls"] {
        // One says nothing, the other stops in its first record.
        for record in [&[][..], &[22, 3, 1, 2, 0, 1]] {
            let mut stream = TcpStream::connect(address(&ready, setting)).unwrap();
            if setting == "nbd_tcp" {
                // NBD_OPT_STARTTLS, and the server's consent.
                stream.read_exact(&mut [0; 18]).unwrap();
                stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
                stream.read_exact(&mut [0; 20]).unwrap();
            }
            stream.write_all(record).unwrap();
            late.push(stream);
        }
    }
    for stream in &mut late {
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let count = |name| value(&host.path(""), name) as usize;
    // A connection may end before it is counted.
    until("the late ones to be counted", || count("spillway_late_handshakes_total") >= late.len());
    assert_eq!(count("spillway_late_handshakes_total"), late.len());
    assert_eq!(count("spillway_failed_authentications_total"), 0);
}

#[test]
fn a_handshake_inside_tls_that_fails_is_counted_once() {
    let host = Host::new();
    host.renew(1, "a.example");
    let daemon = host.start("resp_tls = \"127.0.0.1:0\"\napi_tls = \"127.0.0.1:0\"\n");
    let ready = daemon.line(&[" ready "]);
    let count = |name| value(&host.path(""), name) as usize;
    for (at, setting) in ["nvme_tls", "resp_tls", "api_tls"].into_iter().enumerate() {
        // One that only tests whether the port is open is no failure.
        drop(TcpStream::connect(address(&ready, setting)).unwrap());
        let mut stream = TcpStream::connect(address(&ready, setting)).unwrap();
        stream.write_all(b"\x16\x03nonsense, and more of it").unwrap();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut Vec::new());
        until("the failure to be counted", || {
            count("spillway_failed_authentications_total") == at + 1
        });
    }
    assert_eq!(count("spillway_late_handshakes_total"), 0);
}

#[test]
fn wrong_tokens_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    let ready = daemon.line(&[" ready "]);
    let tcp = || TcpStream::connect(address(&ready, "api_tcp")).unwrap();
    for (token, status) in [("wrong", 401), ("", 401), (TOKEN, 200)] {
        assert_eq!(ask(tcp(), "GET /v1/version", token, ""), status);
    }
    assert_eq!(value(dir.path(), "spillway_failed_authentications_total"), 2.0);
}

#[test]
fn who_says_nothing_is_counted_and_seldom_told() {
    const SILENT: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let connect = |name: &str| {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let path = dir.path().join("run").join(name);
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    };
    let sockets = ["spillway.sock", "programs.sock"];
    let _silent: Vec<_> =
        sockets.iter().flat_map(|name| [name; SILENT]).map(|name| connect(name)).collect();
    let count = || value(dir.path(), "spillway_late_handshakes_total") as usize;
    until("all to be counted", || count() == 2 * SILENT);
    for end in ["its client sent no hello in time", "why=\"it sent no hello in time\""] {
        daemon.line(&["WARN", end]);
        let lines = daemon.lines();
        assert!((1..=8).contains(&lines.matches(end).count()), "{lines}");
    }
}

#[test]
fn the_policy_and_what_it_goes_by_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let unix = || UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    let client = r#"{"name":"c","identity":{"uid":1},"target_pages":1000}"#;
    assert_eq!(ask(unix(), "POST /v1/clients", "", client), 201);
    let change = r#"{"floor_pages":10,"weight":3}"#;
    assert_eq!(ask(unix(), "PATCH /v1/clients/c", "", change), 200);
    let policy = r#"{"policy":"smart-alloc","p":0.75,"threshold_pages":100,"interval_ms":2500}"#;
    assert_eq!(ask(unix(), "PUT /v1/policy", "", policy), 200);
    for (name, expected) in [
        ("spillway_policy_info{policy=\"smart-alloc\"}", 1.0),
        ("spillway_policy_interval_seconds", 2.5),
        ("spillway_policy_step_ratio", 0.0075),
        ("spillway_policy_threshold_bytes", 409_600.0),
        ("spillway_client_cap_bytes{client=\"c\"}", 4_096_000.0),
        ("spillway_client_floor_bytes{client=\"c\"}", 40_960.0),
        ("spillway_client_weight{client=\"c\"}", 3.0),
    ] {
        assert_eq!(value(dir.path(), name), expected, "{name}");
    }
}

#[test]
fn commands_of_each_front_end_are_timed() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings = [
        format!("listen.dir={}", run.display()),
        "listen.resp=resp.sock".into(),
        "store.capacity=64M".into(),
        "unnamed.users=all".into(),
    ];
    let settings: Vec<_> = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let daemon = Daemon::start_with(dir.path(), &settings);
    daemon.line(&[" ready "]);
    let name = |part: &str, front_end: &str, command: &str, bound: &str| {
        let labels = format!("frontend=\"{front_end}\",command=\"{command}\"{bound}");
        format!("spillway_command_duration_seconds_{part}{{{labels}}}")
    };
    let count = |front_end, command| value(dir.path(), &name("count", front_end, command, ""));

    let mut resp = UnixStream::connect(run.join("resp.sock")).unwrap();
    for (command, reply) in
        [("SET a 1", "+OK\r\n"), ("GET a", "$1\r\n1\r\n"), ("PING", "+PONG\r\n")]
    {
        resp.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut got = vec![0; reply.len()];
        resp.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), reply);
    }
    for (command, times) in [("get", 1.0), ("put", 1.0), ("remove", 0.0), ("other", 1.0)] {
        assert_eq!(count("resp", command), times, "{command}");
    }
    let all = value(dir.path(), &name("bucket", "resp", "get", ",le=\"+Inf\""));
    assert_eq!(all, 1.0);
    assert!(value(dir.path(), &name("sum", "resp", "get", "")) > 0.0);

    // One command in 64.
    let options = RingOptions { depth: 1, connections_max: 1, ..RingOptions::default() };
    let ring = Ring::connect_with(&run.join("spillway.sock"), options).unwrap();
    let pool = ring.open_pool(PoolSpec::PERSISTENT).unwrap();
    for index in 0..640 {
        assert_eq!(ring.put(pool, Key::new(1, index), &[1; 100]).unwrap(), Put::Stored);
    }
    let timed = ["get", "put", "remove", "other"];
    // The last one may be recorded after its answer.
    until("the ring's commands to be timed", || count("ring", "put") >= 9.0);
    let sum: f64 = timed.into_iter().map(|command| count("ring", command)).sum();
    assert!((10.0..=12.0).contains(&sum) && count("ring", "put") <= 11.0, "{sum}");
    assert_eq!(count("nbd", "read"), 0.0);
}
