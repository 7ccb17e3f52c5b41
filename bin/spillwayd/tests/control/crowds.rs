//! What the log says of peers of whom it closes connections.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use spillway_test_support::wait::until;

use crate::daemon::{Daemon, TOKEN, address, refused};
use crate::http::packets;

#[test]
fn peers_are_named_plainly() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    let ready = daemon.line(&[" ready "]);
    // One more than a peer may have that has proven nothing.
    let fill = |setting, of_peer_max| -> Vec<_> {
        (0..=of_peer_max).map(|_| TcpStream::connect(address(&ready, setting)).unwrap()).collect()
    };
    let _held = [fill("nvme_tcp", 64), fill("nbd_tcp", 16)];
    daemon.line(&["NVMe/TCP: many connections of hosts that prove nothing", "peer=127.0.0.1 "]);
    daemon.line(&["NBD: 127.0.0.1 holds many unidentified connections"]);
    // A choice of the export x, which a peer without a name of its own may not make.
    let mut stream = TcpStream::connect(address(&ready, "nbd_tcp")).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let choice = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01x\0\0";
    stream.write_all(choice).unwrap();
    daemon.line(&["an NBD peer was not let in", "peer=\"127.0.0.1\""]);
    assert!(!daemon.lines().contains("Some("), "{}", daemon.lines());
}

/// A connection from the address 127.0.0.`from` of this host.
fn connected_from(from: u8, to: &str) -> OwnedFd {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new([127, 0, 0, from].into(), 0)).unwrap();
    connect(&socket, &to.parse::<SocketAddrV4>().unwrap()).unwrap();
    socket
}

/// The last line with `words`.
fn last_line(daemon: &Daemon, words: &str) -> String {
    daemon.line(&[words]);
    let lines = daemon.lines();
    lines.lines().rfind(|line| line.contains(words)).unwrap().to_owned()
}

#[test]
fn whoever_gives_way_is_told_and_not_the_newcomer() {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), TOKEN).unwrap();
    let settings = [
        format!("listen.dir={}", dir.path().join("run").display()),
        "listen.api_tcp=127.0.0.1:0".into(),
        format!("listen.api_token_file={}", dir.path().join("token").display()),
        "listen.nbd_tcp=127.0.0.1:0".into(),
        "listen.nvme_tcp=127.0.0.1:0".into(),
        "listen.resp_tcp=127.0.0.1:0".into(),
        "store.capacity=64M".into(),
    ];
    let settings: Vec<_> = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let daemon = Daemon::start_with(dir.path(), &settings);
    let ready = daemon.line(&[" ready "]);
    let mut wrong = Vec::new();
    for (front_end, setting, of_peer_max, words) in [
        ("http", "api_tcp", 16, "an unauthenticated connection is closed in favour of a newer"),
        ("nbd", "nbd_tcp", 16, "holds many unidentified connections"),
        ("nvme-tcp", "nvme_tcp", 64, "many connections of hosts that prove nothing"),
        ("resp", "resp_tcp", 256, "RESP: too many connections"),
    ] {
        let to = address(&ready, setting);
        // Four have as many as one may have, and all together as many as there may be.
        let held: Vec<_> = (2..6)
            .flat_map(|from| (0..of_peer_max).map(move |_| connected_from(from, to)))
            .collect();
        assert_eq!(refused(dir.path(), front_end, "displaced"), 0.0, "{front_end}");
        let newcomer = connected_from(9, to);
        until("one to give way", || refused(dir.path(), front_end, "displaced") == 1.0);
        let line = last_line(&daemon, words);
        if !line.contains("127.0.0.2") || line.contains("127.0.0.9") {
            wrong.push(line);
        }
        drop((held, newcomer));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_user_whose_program_gives_way_is_told_and_not_the_newcomer() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can connect as another user");
        return;
    }
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.line(&[" ready "]);
    let path = dir.path().join("run/programs.sock");
    let connect = |uid: u32, count: usize| -> Vec<_> {
        let connected = || {
            // Of this thread only.
            let user = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            (0..count).map(|_| packets(&path)).collect()
        };
        thread::scope(|scope| scope.spawn(connected).join().unwrap())
    };
    let _held: Vec<_> = (1001..1005).map(|uid| connect(uid, 64)).collect();
    let _newcomer = connect(1009, 1);
    let line = last_line(&daemon, "programs: connections without a hello were closed");
    assert!(line.contains("uid 1001") && !line.contains("1009"), "{line}");
}
