//! The server over real sockets: the answers that programs get, and that a faulty program harms no other.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, send, socket_with,
};
use spillway_programs::{Config, Server};
use spillway_serving::Refusal;
use spillway_test_support::wait::until;
use spillway_types::{ClientId, Denied, Orders, ProgramCounters, Programs, Registration};
use spillway_wire::programs::{Answer, Hello, Reason, encode_report};

/// A registry that sets each program's target to its local pages plus its resident pages.
#[derive(Default)]
struct Echo {
    notes: Mutex<Vec<String>>,
    late: AtomicU32,
}

impl Echo {
    fn note(&self, line: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn orders(target_pages: u64) -> Orders {
    Orders { target_pages, beyond_local: false, interval_ms: 1000 }
}

impl Programs for Echo {
    fn register(&self, who: Registration<'_>) -> Result<(ClientId, Orders), Denied> {
        assert_eq!(who.uid, rustix::process::getuid().as_raw());
        assert_eq!(who.pid, std::process::id().cast_signed());
        self.note(format!("register {}", who.program));
        match who.program {
            "stranger" => Err(Denied::Unknown),
            "many" => Err(Denied::Connections),
            _ => Ok((ClientId(who.local_pages), orders(who.local_pages))),
        }
    }

    fn report(&self, program: ClientId, counters: ProgramCounters) -> Orders {
        orders(program.0 + counters.resident_pages)
    }

    fn leave(&self, program: ClientId) {
        self.note(format!("leave {}", program.0));
    }

    fn hello_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }
}

struct World {
    echo: Arc<Echo>,
    server: Option<Server>,
    address: SocketAddrUnix,
    _dir: tempfile::TempDir,
}

fn seqpacket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

impl World {
    fn new(connections_max: usize) -> Self {
        Self::with(Config { connections_max, ..Config::default() })
    }

    fn with(config: Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = SocketAddrUnix::new(dir.path().join("programs.sock")).unwrap();
        let listener = seqpacket();
        bind(&listener, &address).unwrap();
        listen(&listener, 8).unwrap();
        let echo = Arc::new(Echo::default());
        let server = Server::start(listener, echo.clone(), config).unwrap();
        Self { echo, server: Some(server), address, _dir: dir }
    }

    fn connect(&self) -> OwnedFd {
        let socket = seqpacket();
        connect(&socket, &self.address).unwrap();
        // Makes the test fail if the server sends no answer.
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
        socket
    }
}

fn say(socket: &OwnedFd, bytes: &[u8]) {
    send(socket, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// The next answer; none if the server has closed the connection.
fn hear(socket: &OwnedFd) -> Option<Answer> {
    let mut bytes = [0; 64];
    match recv(socket, &mut bytes, RecvFlags::empty()) {
        Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => None,
        Ok((_, length)) => Some(Answer::decode(&bytes[..length]).unwrap()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn programs_hear_what_they_may_hold_until_they_go() {
    let world = World::new(64);
    let (one, two) = (world.connect(), world.connect());
    say(&one, &Hello::new("one", 100).encode());
    say(&two, &Hello::new("two", 200).encode());
    assert_eq!(hear(&one), Some(Answer::Orders(orders(100))));
    assert_eq!(hear(&two), Some(Answer::Orders(orders(200))));
    for resident_pages in 1..4 {
        let counters = ProgramCounters { resident_pages, ..ProgramCounters::default() };
        say(&two, &encode_report(&counters));
        say(&one, &encode_report(&counters));
        assert_eq!(hear(&one), Some(Answer::Orders(orders(100 + resident_pages))));
        assert_eq!(hear(&two), Some(Answer::Orders(orders(200 + resident_pages))));
    }
    drop(one);
    // The server notices the end when it next polls.
    while !world.echo.notes().contains(&"leave 100".to_owned()) {
        std::thread::yield_now();
    }
    say(&two, &encode_report(&ProgramCounters::default()));
    assert_eq!(hear(&two), Some(Answer::Orders(orders(200))));
}

#[test]
fn who_breaks_the_protocol_is_hung_up_on_alone() {
    let world = World::new(64);
    let good = world.connect();
    say(&good, &Hello::new("good", 7).encode());
    assert!(hear(&good).is_some());
    let no_hello = world.connect();
    say(&no_hello, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(hear(&no_hello), None);
    let long = world.connect();
    let mut bytes = Hello::new("long", 1).encode().to_vec();
    bytes.push(0);
    say(&long, &bytes);
    assert_eq!(hear(&long), None);
    let other = world.connect();
    let mut hello = Hello::new("other", 1);
    hello.version = 9;
    say(&other, &hello.encode());
    assert_eq!(hear(&other), Some(Answer::Refused(Reason::Version)));
    assert_eq!(hear(&other), None);
    let stranger = world.connect();
    say(&stranger, &Hello::new("stranger", 1).encode());
    assert_eq!(hear(&stranger), Some(Answer::Refused(Reason::Unknown)));
    let short = world.connect();
    say(&short, &Hello::new("short", 8).encode());
    assert!(hear(&short).is_some());
    say(&short, &[0; 47]);
    assert_eq!(hear(&short), None);
    say(&good, &encode_report(&ProgramCounters::default()));
    assert_eq!(hear(&good), Some(Answer::Orders(orders(7))));
    let notes = world.echo.notes();
    assert_eq!(notes, ["register good", "register stranger", "register short", "leave 8"]);
}

#[test]
fn a_flood_of_reports_ends_who_sends_it() {
    let world = World::new(64);
    let flood = world.connect();
    say(&flood, &Hello::new("flood", 1).encode());
    let report = encode_report(&ProgramCounters::default());
    // Enough reports that more than MESSAGES_MAX of them arrive within one window.
    let mut answers = 0;
    for _ in 0..100_000 {
        if send(&flood, &report, SendFlags::NOSIGNAL).is_err() {
            break;
        }
        if hear(&flood).is_none() {
            break;
        }
        answers += 1;
    }
    assert!(answers < 100_000, "a flood was answered");
}

#[test]
fn more_than_there_may_be_are_refused_and_the_end_hangs_up() {
    let mut world = World::new(1);
    let first = world.connect();
    say(&first, &Hello::new("first", 1).encode());
    assert!(hear(&first).is_some());
    let second = world.connect();
    assert_eq!(hear(&second), Some(Answer::Refused(Reason::Many)));
    let counts = world.server.as_ref().unwrap().counts();
    assert_eq!((counts.open(), counts.refused(Refusal::Full)), (1, 1));
    drop(world.server.take());
    assert_eq!(hear(&first), None);
    assert_eq!(world.echo.notes(), ["register first", "leave 1"]);
}

#[test]
fn a_program_more_than_its_user_may_have_is_counted() {
    let world = World::new(64);
    let many = world.connect();
    say(&many, &Hello::new("many", 1).encode());
    assert_eq!(hear(&many), Some(Answer::Refused(Reason::Many)));
    assert_eq!(hear(&many), None);
    assert_eq!(world.server.as_ref().unwrap().counts().refused(Refusal::Peer), 1);
}

#[test]
fn who_says_no_hello_keeps_nobody_out() {
    let world = World::new(64);
    let first = world.connect();
    say(&first, &Hello::new("first", 1).encode());
    assert!(hear(&first).is_some());
    let idle: Vec<_> = (0..20).map(|_| world.connect()).collect();
    let late = world.connect();
    say(&late, &Hello::new("late", 2).encode());
    assert_eq!(hear(&late), Some(Answer::Orders(orders(2))));
    // The server closed the oldest idle connection, but not one that has sent its hello.
    assert_eq!(hear(&idle[0]), None);
    say(&first, &encode_report(&ProgramCounters::default()));
    assert_eq!(hear(&first), Some(Answer::Orders(orders(1))));
}

#[test]
fn who_floods_is_refused_until_the_second_ends() {
    let world = World::new(64);
    let answer = || {
        let socket = world.connect();
        // The server may have closed it already.
        let _ = send(&socket, &Hello::new("late", 2).encode(), SendFlags::NOSIGNAL);
        hear(&socket)
    };
    let refused = Some(Answer::Refused(Reason::Many));
    until("the flood to be refused", || {
        let _flood: Vec<_> = (0..400).map(|_| world.connect()).collect();
        answer() == refused
    });
    assert!(world.server.as_ref().unwrap().counts().refused(Refusal::Peer) > 0);
    let orders = Some(Answer::Orders(orders(2)));
    until("the user to be served again", || answer() == orders);
}

#[test]
fn who_says_nothing_is_sent_away_in_time() {
    let hello_timeout = Duration::from_millis(200);
    let world = World::with(Config { hello_timeout, ..Config::default() });
    let good = world.connect();
    say(&good, &Hello::new("good", 7).encode());
    assert!(hear(&good).is_some());
    let (began, silent) = (Instant::now(), [(); 3].map(|()| world.connect()));
    for socket in &silent {
        assert_eq!(hear(socket), None);
    }
    let took = began.elapsed();
    assert!(took >= hello_timeout && took < Duration::from_secs(4), "{took:?}");
    assert_eq!(world.echo.late.load(Ordering::Relaxed), 3);
    // The time limit is only for the hello.
    say(&good, &encode_report(&ProgramCounters::default()));
    assert_eq!(hear(&good), Some(Answer::Orders(orders(7))));
}

#[test]
fn a_short_time_for_the_hello_does_not_wait_for_the_longest_interval() {
    let hello_timeout = Duration::from_millis(20);
    let world = World::with(Config { hello_timeout, ..Config::default() });
    // More than once, because the machine may be busy.
    until("one to be sent away at once", || {
        let (began, silent) = (Instant::now(), world.connect());
        assert_eq!(hear(&silent), None);
        began.elapsed() < Duration::from_millis(900)
    });
}
