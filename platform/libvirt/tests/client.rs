//! Calls, refusals and deadlines, against a fake libvirt.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use spillway_libvirt::{Connection, Error, MESSAGE_BYTES_MAX};
use spillway_test_support::sockets::UnixServer;
use spillway_test_support::wait::{after_ms, soon};

const OPEN: u32 = 1;
const DESCRIBE: u32 = 14;
const LOOK_UP: u32 = 23;
const AUTH_LIST: u32 = 66;
const AUTH_POLKIT: u32 = 70;
const UPDATE: u32 = 174;
const XML: &str = "<domain id='5'><memory unit='KiB'>1048576</memory><devices/></domain>";

/// A socket, and the thread that serves its first connection.
struct Fake(UnixServer<()>);

struct Peer(UnixStream);

/// A received call.
struct Call {
    procedure: u32,
    serial: u32,
    arguments: Vec<u8>,
}

impl Fake {
    fn raw(serve: impl FnOnce(Peer) + Send + 'static) -> Self {
        Self(UnixServer::start(|stream| serve(Peer(stream))))
    }

    /// A fake that admits every user.
    fn new(serve: impl FnOnce(Peer) + Send + 'static) -> Self {
        Self::raw(|mut peer| {
            peer.answers(AUTH_LIST, &words(&[1, 0]));
            peer.answers(OPEN, &[]);
            serve(peer);
        })
    }

    fn open(&self) -> Result<Connection, Error> {
        Connection::open(self.0.path(), soon())
    }

    /// Waits until the fake has finished, and propagates its panic.
    fn finish(self) {
        self.0.finish();
    }
}

impl Peer {
    fn hear(&mut self) -> Option<Call> {
        let mut header = [0; 28];
        self.0.read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(4), word(8), word(16), word(24)), (0x2000_8086, 1, 0, 0));
        let mut arguments = vec![0; word(0) as usize - header.len()];
        self.0.read_exact(&mut arguments).ok()?;
        Some(Call { procedure: word(12), serial: word(20), arguments })
    }

    fn say(&mut self, program: u32, kind: u32, serial: u32, status: u32, body: &[u8]) {
        let length = 28 + body.len() as u32;
        let mut message = words(&[length, program, 1, 0, kind, serial, status]);
        message.extend(body);
        let _ = self.0.write_all(&message);
    }

    fn reply(&mut self, call: &Call, body: &[u8]) {
        self.say(0x2000_8086, 1, call.serial, 0, body);
    }

    fn refuse(&mut self, call: &Call, code: u32, why: &str) {
        let mut body = words(&[code, 10, 1]);
        body.extend(text(why));
        self.say(0x2000_8086, 1, call.serial, 1, &body);
    }

    fn answers(&mut self, procedure: u32, body: &[u8]) -> Vec<u8> {
        let call = self.hear().expect("a call");
        assert_eq!(call.procedure, procedure);
        self.reply(&call, body);
        call.arguments
    }

    fn until_gone(mut self) {
        while self.hear().is_some() {}
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = words(&[text.len() as u32]);
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn domain(id: u32) -> Vec<u8> {
    [text("web"), vec![7; 16], words(&[id])].concat()
}

#[test]
fn a_domain_is_found_described_and_changed() {
    let fake = Fake::new(|mut peer| {
        assert_eq!(peer.answers(LOOK_UP, &domain(5)), text("web"));
        // Unasked messages can arrive at any time: an event, a message of another program.
        peer.say(0x2000_8086, 2, 0, 0, &words(&[1, 2, 3]));
        peer.say(0x6b65_6570, 2, 0, 0, &[]);
        let asked = peer.answers(DESCRIBE, &text(XML));
        assert_eq!(asked, [domain(5), words(&[0])].concat());
        let asked = peer.answers(UPDATE, &[]);
        assert_eq!(asked, [domain(5), text("<memory/>"), words(&[1])].concat());
        peer.until_gone();
    });
    let mut libvirt = fake.open().unwrap();
    let web = libvirt.find("web", soon()).unwrap();
    assert_eq!(web.id(), Some(5));
    let description = libvirt.describe(&web, soon()).unwrap();
    assert_eq!((description.id, description.boot_bytes), (Some(5), 1 << 30));
    libvirt.update(&web, "<memory/>", soon()).unwrap();
    drop(libvirt);
    fake.finish();
}

#[test]
fn a_domain_that_is_off_has_no_number_and_one_that_is_not_there_is_named() {
    let fake = Fake::new(|mut peer| {
        peer.answers(LOOK_UP, &domain(u32::MAX));
        let call = peer.hear().unwrap();
        peer.refuse(&call, 42, "Domain not found");
        let call = peer.hear().unwrap();
        peer.refuse(&call, 38, "cannot\nlook");
        peer.until_gone();
    });
    let mut libvirt = fake.open().unwrap();
    assert_eq!(libvirt.find("web", soon()).unwrap().id(), None);
    let error = libvirt.find("web", soon()).unwrap_err();
    assert_eq!(error.to_string(), "libvirt has no domain 'web'");
    let error = libvirt.find("web", soon()).unwrap_err();
    assert_eq!(error.to_string(), "libvirt refused the lookup of a domain: cannot look");
    assert!(!error.is_final());
    drop(libvirt);
    fake.finish();
}

#[test]
fn strangers_are_told_who_may_come_in() {
    for (ways, is_asked) in [(vec![1, 1], false), (vec![1, 2], true)] {
        let fake = Fake::raw(move |mut peer| {
            peer.answers(AUTH_LIST, &words(&ways));
            if is_asked {
                let call = peer.hear().unwrap();
                assert_eq!(call.procedure, AUTH_POLKIT);
                peer.refuse(&call, 45, "authentication failed");
            }
            peer.until_gone();
        });
        let error = fake.open().unwrap_err();
        assert!(matches!(error, Error::Stranger), "{error}");
        assert!(error.to_string().contains("libvirt's group"), "{error}");
        fake.finish();
    }
    let fake = Fake::raw(|mut peer| {
        peer.answers(AUTH_LIST, &words(&[1, 2]));
        peer.answers(AUTH_POLKIT, &words(&[1]));
        peer.answers(OPEN, &[]);
        peer.until_gone();
    });
    fake.open().map(drop).unwrap();
    fake.finish();
}

#[test]
fn a_libvirt_that_hangs_costs_its_deadline_and_a_late_answer_is_dropped() {
    let fake = Fake::new(|mut peer| {
        let late = peer.hear().unwrap();
        let next = peer.hear().unwrap();
        peer.reply(&late, &domain(1));
        peer.reply(&next, &domain(2));
        peer.until_gone();
    });
    let mut libvirt = fake.open().unwrap();
    let began = Instant::now();
    let error = libvirt.find("web", after_ms(500)).unwrap_err();
    assert_eq!(error.to_string(), "libvirt did not answer in time: the lookup of a domain");
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert_eq!(libvirt.find("web", soon()).unwrap().id(), Some(2));
    drop(libvirt);
    fake.finish();
}

#[test]
fn one_that_never_answers_is_not_waited_for() {
    // A socket that listens but accepts no connection, as that of a stopped process.
    let path = std::env::temp_dir().join(format!("libvirt-stopped-{}", std::process::id()));
    let _listener = UnixListener::bind(&path).unwrap();
    let error = Connection::open(&path, after_ms(500)).unwrap_err();
    assert_eq!(error.to_string(), "libvirt did not answer in time: authentication");
    std::fs::remove_file(&path).unwrap();
    let error = Connection::open(&path, soon()).unwrap_err();
    assert!(error.to_string().starts_with("no libvirt listens on /"), "{error}");
}

#[test]
fn the_end_of_libvirt_is_noticed() {
    let fake = Fake::new(|mut peer| {
        peer.hear();
        peer.0.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let mut libvirt = fake.open().unwrap();
    assert!(matches!(libvirt.find("web", soon()), Err(Error::Closed)));
    assert!(matches!(libvirt.pump(), Err(Error::Closed)));
    fake.finish();
}

#[test]
fn what_is_not_libvirt_ends_the_connection() {
    for garbage in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        words(&[MESSAGE_BYTES_MAX as u32 + 1]),
        words(&[28, 0x2000_8086, 2, 23, 1, 3, 0]),
        words(&[28, 0x2000_8086, 1, 23, 1, 3, 0]),
    ] {
        let fake = Fake::new(move |mut peer| {
            peer.hear();
            peer.0.write_all(&garbage).unwrap();
            peer.until_gone();
        });
        let mut libvirt = fake.open().unwrap();
        let error = libvirt.find("web", soon()).unwrap_err();
        assert!(matches!(error, Error::Garbage { .. }), "{error}");
        drop(libvirt);
        fake.finish();
    }
}

#[test]
fn a_flood_does_not_put_the_deadline_off() {
    let fake = Fake::new(|mut peer| {
        peer.hear();
        let event = words(&[28, 0x2000_8086, 1, 1, 2, 0, 0]);
        while peer.0.write_all(&event).is_ok() {}
    });
    let mut libvirt = fake.open().unwrap();
    let error = libvirt.find("web", after_ms(100)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    libvirt.pump().unwrap();
    drop(libvirt);
    fake.finish();
}
