//! NVMe/TCP over TLS, against the real target over loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use spillway_block::NoExports;
use spillway_client::{Error, Get, Key, Operation, Outcome, PoolSpec, Put, Store, VALUE_BYTES_MAX};
use spillway_nvme_tcp::{Config, Server, Target};
use spillway_store::ClientConfig;
use spillway_test_support::access::OneClient;
use spillway_test_support::certificates::Authority;
use spillway_test_support::random::noise;
use spillway_test_support::sockets::listen_again;
use spillway_test_support::wait::until_equal;
use spillway_tls::{Files, Versions};
use spillway_types::{ClientId, Identity};

/// The name of the only client, in its certificate.
const CLIENT: &str = "borrower.test";

/// A client of this name, which would have to authenticate if it had no certificate.
fn one_name(client: ClientId) -> OneClient {
    let secret = |_: &str| Some(([7; 64], 32));
    OneClient::new(client).only(|who| who == Identity::Name(CLIENT)).with_secret(secret)
}

/// A target whose certificate this authority has signed, like those of its clients.
fn serve(authority: &Authority) -> Server {
    let config = spillway_store::Config::embedded(256 << 20);
    let store = Arc::new(spillway_store::Store::open(config).unwrap());
    let client = store.add_client(ClientConfig::default()).unwrap();
    let config = Config { handshake_timeout_ms: 500, ..Config::default() };
    let target =
        Target::new(store, Arc::new(one_name(client)), Arc::new(NoExports), config).unwrap();
    let settings = authority.server("127.0.0.1", Versions::Tls13);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Server::start(listener, target, Some(settings)).unwrap()
}

fn open(
    address: SocketAddr,
    own: &Files,
    authority: &Path,
    options: &str,
) -> Result<Box<dyn Store>, Error> {
    spillway_client::open(&format!(
        "nvme+tls://{address}?certificate={}&key={}&authority={}{options}",
        own.certificate.display(),
        own.key.display(),
        authority.display()
    ))
}

#[test]
fn values_of_every_length_come_back() {
    let authority = Authority::new();
    let server = serve(&authority);
    let own = authority.files(CLIENT);
    for options in ["", "&queues=3&digests=both", "&depth=2"] {
        let path = authority.path();
        let store = open(server.address(), &own, path, options).unwrap();
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        for bytes in [1, 100, 4096, 16_384, 100_000, 1 << 20, VALUE_BYTES_MAX] {
            let key = Key::new(bytes as u64, 7);
            let stored = noise(bytes as u64, bytes);
            assert_eq!(store.put(pool, key, &stored).unwrap(), Put::Stored, "{bytes} {options}");
            let mut read = vec![0; bytes];
            assert_eq!(store.get(pool, key, &mut read).unwrap(), Get::Hit(bytes));
            assert!(read == stored, "{bytes} bytes came back otherwise {options}");
        }
    }
}

#[test]
fn many_threads_share_a_session() {
    let authority = Authority::new();
    let server = serve(&authority);
    let own = authority.files(CLIENT);
    let store = open(server.address(), &own, authority.path(), "&queues=2").unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    let store = &*store;
    let work = move |thread: u64| {
        for round in 0..20 {
            let values: Vec<_> =
                (0..32).map(|index| noise(thread << 32 | round << 16 | index, 9000)).collect();
            let mut puts: Vec<_> = (0..32)
                .zip(&values)
                .map(|(index, value)| Operation::Put { pool, key: Key::new(thread, index), value })
                .collect();
            let mut outcomes = Vec::new();
            store.batch(&mut puts, &mut outcomes);
            for outcome in outcomes {
                assert!(matches!(outcome, Ok(Outcome::Put(Put::Stored))), "{outcome:?}");
            }
            for (index, value) in (0..32).zip(&values) {
                let mut read = vec![0; 9000];
                let got = store.get(pool, Key::new(thread, index), &mut read).unwrap();
                assert!(got == Get::Hit(9000) && &read == value, "{thread} {round} {index}");
            }
        }
    };
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || work(number));
        }
    });
}

#[test]
fn only_those_with_the_right_certificates_meet() {
    let authority = Authority::new();
    let server = serve(&authority);
    let path = authority.path();
    let own = authority.files(CLIENT);
    let other = Authority::new();
    let strange = other.files(CLIENT);
    let told = |result: Result<Box<dyn Store>, Error>| match result {
        Ok(_) => panic!("let in"),
        Err(error) => error.to_string(),
    };
    // The client's certificate is signed by an authority that the target does not trust.
    let line = told(open(server.address(), &strange, path, "&timeout=3"));
    assert!(line.contains("does not accept this client's certificate"), "{line}");
    // The target's certificate is signed by an authority that the client does not trust.
    let line = told(open(server.address(), &own, other.path(), "&timeout=3"));
    assert!(line.contains("nobody in the authority file vouches"), "{line}");
    // The certificate is valid, but no client has its name.
    let nobody = authority.files("nobody.test");
    let line = told(open(server.address(), &nobody, path, "&timeout=3"));
    assert!(line.contains("has no client of this host's name"), "{line}");
    // The target's certificate is for another name than that of the URL.
    let url = format!(
        "nvme+tls://localhost:{}?certificate={}&key={}&authority={}&timeout=3",
        server.address().port(),
        own.certificate.display(),
        own.key.display(),
        path.display()
    );
    let line = told(spillway_client::open(&url));
    assert!(line.contains("not for the name in the URL"), "{line}");
    // Without TLS.
    let line = told(spillway_client::open(&format!("nvme+tcp://{}?timeout=3", server.address())));
    assert!(line.starts_with("the store can't be reached"), "{line}");
    // A file without a certificate.
    let wrong = Files { certificate: own.key.clone(), ..own.clone() };
    let line = told(open(server.address(), &wrong, path, ""));
    assert!(line.contains("no certificate in it"), "{line}");
    open(server.address(), &own, path, "").unwrap();
}

#[test]
fn a_peer_that_does_not_shake_hands_is_let_go() {
    let authority = Authority::new();
    let server = serve(&authority);
    let began = Instant::now();
    for words in [&b""[..], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", &[0; 300]] {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(words).unwrap();
        let mut told = Vec::new();
        // There may be an alert; then the connection ends, by a reset if bytes were left unread.
        match socket.read_to_end(&mut told) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        assert!(told.len() < 100, "{told:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    until_equal("connections", 0, || server.connections());
}

#[test]
fn a_target_that_comes_back_is_found_again() {
    let authority = Authority::new();
    let server = serve(&authority);
    let address = server.address();
    let own = authority.files(CLIENT);
    let store = open(address, &own, authority.path(), "&timeout=10").unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    let key = Key::new(1, 1);
    assert_eq!(store.put(pool, key, &[3; 4096]).unwrap(), Put::Stored);
    // The same store behind new connections: to the client, the old ones end like a cut.
    let target = Arc::clone(server.target());
    server.stop();
    let settings = authority.server("127.0.0.1", Versions::Tls13);
    let _server = Server::start(listen_again(address), target, Some(settings)).unwrap();
    let mut read = [0; 4096];
    assert_eq!(store.get(pool, key, &mut read).unwrap(), Get::Hit(4096));
    assert_eq!(read, [3; 4096]);
}
