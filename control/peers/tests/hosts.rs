//! Two hosts that talk HTTP over mutual TLS, and those that are not who they say.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Method;
use spillway_connections::ConnectionLimits;
use spillway_lending::{Contact, Fault};
use spillway_peers::http::Connection;
use spillway_peers::outbox::Outbox;
use spillway_peers::server::{Host, MESSAGE_BYTES_MAX, Refusal, ServerLimits, serve};
use spillway_peers::spare::Question;
use spillway_peers::{Contacts, Error, MESSAGES_PATH, SPARE_PATH, Spare};
use spillway_serving::{ConnectionCounts, Refusal as Refused};
use spillway_test_support::certificates::Authority;
use spillway_test_support::sockets::unused_address;
use spillway_tls::{ClientSettings, Versions};
use spillway_types::SlotLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TIME: Duration = Duration::from_secs(10);
const SPARE: u64 = 12345;

/// The host "lender.test", which knows "borrower.test" and takes three messages.
#[derive(Default)]
struct Lender(Mutex<Vec<String>>);

impl Host for Lender {
    fn knows(&self, peer: &str) -> bool {
        peer == "borrower.test"
    }

    fn name(&self) -> &str {
        "lender.test"
    }

    fn message(&self, _: &str, body: &[u8]) -> Result<(), Refusal> {
        let text = String::from_utf8_lossy(body).into_owned();
        if !text.contains("\"kind\"") {
            return Err(Refusal::Unreadable("it has no kind".into()));
        }
        let mut taken = self.0.lock().unwrap();
        if taken.len() == 3 {
            return Err(Refusal::Busy);
        }
        taken.push(text);
        Ok(())
    }

    fn spare_bytes(&self) -> u64 {
        SPARE
    }
}

async fn serving(authority: &Authority) -> (SocketAddr, Arc<Lender>) {
    serving_within(authority, ServerLimits::default(), Arc::default()).await
}

async fn serving_within(
    authority: &Authority,
    limits: ServerLimits,
    counts: Arc<ConnectionCounts>,
) -> (SocketAddr, Arc<Lender>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = authority.server("lender.test", Versions::Tls13);
    let lender = Arc::<Lender>::default();
    let host = lender.clone();
    tokio::spawn(async move { serve(listener, &tls, host, limits, counts).await });
    (address, lender)
}

fn message(from: &str, to: &str) -> String {
    format!("{{\"from\":\"{from}\",\"to\":\"{to}\",\"kind\":1}}")
}

async fn post(connection: &mut Connection, body: String) -> Result<(), Error> {
    let done = connection.ask(Method::POST, MESSAGES_PATH, body.into(), TIME, 0).await;
    done.map(|_| ())
}

fn status(result: Result<(), Error>) -> u16 {
    match result {
        Ok(()) => 204,
        Err(Error::Status(status, reason)) => {
            assert!(!reason.contains('\n'), "{reason}");
            status
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn messages_arrive_from_whom_they_say_alone() {
    let authority = Authority::new();
    let (address, lender) = serving(&authority).await;
    let tls = authority.client("borrower.test", "lender.test");
    let mut connection = Connection::open(address, Some(&tls), TIME).await.unwrap();
    // Names are those of DNS: upper and lower case are the same.
    let good = message("Borrower.test", "LENDER.test");
    assert_eq!(status(post(&mut connection, good.clone()).await), 204);
    for (body, expected) in [
        (message("other.test", "lender.test"), 403),
        (message("borrower.test", "other.test"), 421),
        ("{\"from\":\"borrower.test\",\"to\":\"lender.test\"}".into(), 400),
        ("{\"from\":\"borrower.test\"}".into(), 400),
        ("no JSON".into(), 400),
        (String::new(), 400),
        (format!("{good}{}", " ".repeat(MESSAGE_BYTES_MAX)), 413),
    ] {
        let mut connection = Connection::open(address, Some(&tls), TIME).await.unwrap();
        assert_eq!(status(post(&mut connection, body.clone()).await), expected, "{body:.80}");
    }
    assert_eq!(*lender.0.lock().unwrap(), [good]);
    let answer = connection.ask(Method::GET, SPARE_PATH, "".into(), TIME, 100).await.unwrap();
    let spare: Spare = serde_json::from_slice(&answer).unwrap();
    assert_eq!(spare.spare_bytes, SPARE);
}

/// The first bytes of a TLS record: a handshake's, of which 512 bytes should follow.
const HALF_A_HANDSHAKE: [u8; 6] = [22, 3, 1, 2, 0, 1];

/// Waits for the other end to hang up.
async fn closed(mut stream: TcpStream) {
    let read = tokio::time::timeout(TIME * 2, stream.read_to_end(&mut Vec::new())).await;
    // A connection that is reset has ended, too.
    let _ = read.expect("it is not closed");
}

#[tokio::test]
async fn half_a_handshake_is_not_waited_for() {
    let authority = Authority::new();
    let limits = ServerLimits { handshake: Duration::from_millis(100), ..Default::default() };
    let (address, _lender) = serving_within(&authority, limits, Arc::default()).await;
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&HALF_A_HANDSHAKE).await.unwrap();
    closed(half).await;
}

#[tokio::test]
async fn those_who_show_no_certificate_keep_no_host_out() {
    let authority = Authority::new();
    let slots = SlotLimits { connections_max: 4, unproven_max: 2, unproven_of_peer_max: 2 };
    let connections = ConnectionLimits { slots, of_peer_max: 4 };
    let limits = ServerLimits { connections, handshake: TIME * 60, ..Default::default() };
    let counts = Arc::<ConnectionCounts>::default();
    let (address, _lender) = serving_within(&authority, limits, counts.clone()).await;
    let tls = authority.client("borrower.test", "lender.test");
    let mut first = Connection::open(address, Some(&tls), TIME).await.unwrap();
    let body = || message("borrower.test", "lender.test");
    assert_eq!(status(post(&mut first, body()).await), 204);
    let mut silent = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&HALF_A_HANDSHAKE).await.unwrap();
        silent.push(stream);
    }
    let mut last = Connection::open(address, Some(&tls), TIME).await.unwrap();
    assert_eq!(status(post(&mut last, body()).await), 204);
    assert_eq!(status(post(&mut first, body()).await), 204);
    for stream in silent.drain(..8) {
        closed(stream).await;
    }
    assert!(counts.refused(Refused::Displaced) >= 8);
    assert!((2..=4).contains(&counts.open()), "{counts:?}");
}

#[tokio::test]
async fn a_certificate_has_so_many_connections_and_no_more() {
    let authority = Authority::new();
    let counts = Arc::<ConnectionCounts>::default();
    let limits = ServerLimits::default();
    let (address, _lender) = serving_within(&authority, limits, counts.clone()).await;
    let tls = authority.client("borrower.test", "lender.test");
    let mut kept = Vec::new();
    for _ in 0..8 {
        let mut connection = Connection::open(address, Some(&tls), TIME).await.unwrap();
        let body = message("borrower.test", "elsewhere.test");
        assert_eq!(status(post(&mut connection, body).await), 421);
        kept.push(connection);
    }
    assert_eq!(counts.refused(Refused::Peer), 0);
    let mut more = Connection::open(address, Some(&tls), TIME).await.unwrap();
    let body = message("borrower.test", "elsewhere.test");
    assert!(post(&mut more, body).await.is_err());
    assert_eq!(counts.refused(Refused::Peer), 1);
}

#[tokio::test]
async fn whoever_takes_no_more_says_so() {
    let authority = Authority::new();
    let (address, _lender) = serving(&authority).await;
    let tls = authority.client("borrower.test", "lender.test");
    let mut connection = Connection::open(address, Some(&tls), TIME).await.unwrap();
    for expected in [204, 204, 204, 503] {
        let body = message("borrower.test", "lender.test");
        assert_eq!(status(post(&mut connection, body).await), expected);
    }
}

#[tokio::test]
async fn certificates_decide_who_gets_in() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, lender) = serving(&authority).await;
    // A client of the same authority that is no host of the registry, such as one of NBD.
    let tls = authority.client("client.test", "lender.test");
    let mut connection = Connection::open(address, Some(&tls), TIME).await.unwrap();
    let body = message("client.test", "lender.test");
    assert_eq!(status(post(&mut connection, body).await), 403);
    // One that says it is the borrower, signed by somebody else; it trusts the lender all the same.
    let own = stranger.files("borrower.test");
    let tls = ClientSettings::load(&own, authority.path(), "lender.test").unwrap();
    let refused = async {
        let mut connection = Connection::open(address, Some(&tls), TIME).await?;
        post(&mut connection, message("borrower.test", "lender.test")).await
    };
    assert!(matches!(refused.await, Err(Error::Io(_) | Error::Http(_))));
    // A lender that is not the one that was meant.
    let tls = authority.client("borrower.test", "other.test");
    assert!(matches!(Connection::open(address, Some(&tls), TIME).await, Err(Error::Io(_))));
    // No TLS at all.
    let mut plain = Connection::open(address, None, TIME).await.unwrap();
    assert!(post(&mut plain, message("borrower.test", "lender.test")).await.is_err());
    assert!(lender.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_outbox_delivers_in_order_and_outlives_a_lender_that_is_away() {
    let authority = Authority::new();
    let (address, lender) = serving(&authority).await;
    let tls = authority.client("borrower.test", "any.test");
    let contacts = Arc::<Heard>::default();
    let mut outbox = Outbox::new(tls, TIME, contacts.clone());
    let unused = unused_address();
    let mut send = |address, key: &str, mark: &str| {
        let body = message("borrower.test", "lender.test").replace('1', mark);
        outbox.send("lender.test", address, key.to_owned(), body.into_bytes()).unwrap();
    };
    // Nobody is there: it is dropped. The next ones go elsewhere.
    send(unused, "a", "7");
    send(address, "b", "8");
    send(address, "c", "9");
    let taken = || lender.0.lock().unwrap().clone();
    while taken().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let marks: Vec<_> = taken().iter().map(|text| text.contains(":8}")).collect();
    assert_eq!(marks, [true, false]);
    while contacts.0.lock().unwrap().len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let heard = std::mem::take(&mut *contacts.0.lock().unwrap());
    assert_eq!(heard[0].0, "lender.test");
    assert_eq!(heard[0].1, unused);
    assert_eq!(failed(&heard[0].2), (Fault::Unreachable, NOBODY));
    for (_, to, contact) in &heard[1..] {
        assert_eq!(*to, address);
        assert!(matches!(contact, Contact::Answered(took) if *took < TIME), "{contact:?}");
    }
}

/// The reason where nothing listens.
const NOBODY: &str = "connection refused: no daemon listens there";

/// How requests went.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<(String, SocketAddr, Contact)>>);

impl Contacts for Heard {
    fn contact(&self, peer: &str, address: SocketAddr, contact: Contact) {
        self.0.lock().unwrap().push((peer.to_owned(), address, contact));
    }
}

fn failed(contact: &Contact) -> (Fault, &str) {
    match contact {
        Contact::Failed { fault, reason } => (*fault, reason),
        Contact::Answered(_) => panic!("it was answered"),
    }
}

/// What is heard of one question to a host.
async fn heard(tls: ClientSettings, name: &str, address: SocketAddr, time: Duration) -> Contact {
    let contacts = Arc::<Heard>::default();
    let mut question = Question::new(name.into(), address, tls, time, contacts.clone());
    let answer = question.ask().await;
    let (peer, to, contact) = contacts.0.lock().unwrap().pop().unwrap();
    assert_eq!((peer.as_str(), to), (name, address));
    assert_eq!(answer.ok(), matches!(contact, Contact::Answered(_)).then_some(SPARE));
    contact
}

#[tokio::test]
async fn a_question_tells_why_a_host_does_not_answer() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, _lender) = serving(&authority).await;
    let own = |name| authority.client(name, "any.test");
    let well = heard(own("borrower.test"), "lender.test", address, TIME).await;
    assert!(matches!(well, Contact::Answered(took) if took < TIME), "{well:?}");

    let other = heard(own("borrower.test"), "other.test", address, TIME).await;
    let reason = "its certificate does not match: it is for another name";
    assert_eq!(failed(&other), (Fault::Refused, reason));

    let unknown = heard(own("client.test"), "lender.test", address, TIME).await;
    let reason = "it refuses this host: client.test is not a host that lends or borrows here";
    assert_eq!(failed(&unknown), (Fault::Refused, reason));

    // Whom this host does not trust, and who does not trust this host.
    let theirs = stranger.client("borrower.test", "any.test");
    let distrusted = heard(theirs, "lender.test", address, TIME).await;
    let reason = "its certificate does not match: no authority of listen.tls_clients signed it";
    assert_eq!(failed(&distrusted), (Fault::Refused, reason));
    let theirs = stranger.files("borrower.test");
    let theirs = ClientSettings::load(&theirs, authority.path(), "any.test").unwrap();
    let distrusts = heard(theirs, "lender.test", address, TIME).await;
    let reason = "it does not accept this host's certificate";
    assert_eq!(failed(&distrusts), (Fault::Refused, reason));

    let unused = unused_address();
    let dead = heard(own("borrower.test"), "lender.test", unused, TIME).await;
    assert_eq!(failed(&dead), (Fault::Unreachable, NOBODY));

    // The kernel takes connections, and nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, time) = (silent.local_addr().unwrap(), Duration::from_millis(100));
    let stopped = heard(own("borrower.test"), "lender.test", at, time).await;
    assert_eq!(failed(&stopped), (Fault::Late, "no answer within 100 ms"));
    // The first is the connection that was given up above.
    let hangs_up = std::thread::spawn(move || {
        drop(silent.accept().unwrap());
        drop(silent.accept().unwrap());
    });
    let closed = heard(own("borrower.test"), "lender.test", at, TIME).await;
    hangs_up.join().unwrap();
    assert_eq!(failed(&closed), (Fault::Unreachable, "it closed the connection"));
}
