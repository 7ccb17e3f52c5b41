//! A server with sockets.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustls::StreamOwned;
use spillway_resp::{Config, Listener, Server};
use spillway_serving::Refusal;
use spillway_store::{ClientConfig, ClientId, Store};
use spillway_test_support::access::OneClient;
use spillway_test_support::certificates::Authority;
use spillway_test_support::sockets::{expect, read_until_closed};
use spillway_test_support::wait::until;
use spillway_tls::{ClientSettings, Files, ServerSettings, Versions};
use spillway_types::Limits;

use crate::support::{command, only};

fn start(config: Config) -> (Server, SocketAddr) {
    start_with(config, None)
}

fn start_with(config: Config, tls: Option<ServerSettings>) -> (Server, SocketAddr) {
    start_at(TcpListener::bind("127.0.0.1:0").unwrap(), config, tls)
}

fn start_at(
    listener: TcpListener,
    config: Config,
    tls: Option<ServerSettings>,
) -> (Server, SocketAddr) {
    start_for(listener, config, tls, only)
}

/// For whom `access` admits.
fn start_for(
    listener: TcpListener,
    config: Config,
    tls: Option<ServerSettings>,
    access: impl FnOnce(ClientId) -> OneClient,
) -> (Server, SocketAddr) {
    let store = Arc::new(Store::open(spillway_store::Config::embedded(128 << 20)).unwrap());
    let client = store.add_client(ClientConfig::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let listeners = vec![Listener::Tcp(listener, tls)];
    (Server::start(listeners, store, Arc::new(access(client)), config).unwrap(), address)
}

fn known() -> Config {
    Config { loopback_name: Some("name".into()), workers: 2, ..Config::default() }
}

/// TLS settings of a server and a client. The client needs no certificate.
fn keys() -> (ServerSettings, ClientSettings) {
    let authority = Authority::new();
    let files = Files { authority: None, ..authority.files("127.0.0.1") };
    let server = ServerSettings::load(&files, Versions::Tls12And13).unwrap();
    (server, ClientSettings::load(&files, authority.path(), "127.0.0.1").unwrap())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

#[test]
fn clients_are_served_side_by_side() {
    let (server, address) = start(known());
    let long = vec![b'v'; 20 << 20];
    let (mut slow, mut fast) = (connect(address), connect(address));
    // A client that sends its value in part does not delay others.
    let set = command(&[b"SET", b"long", &long]);
    slow.write_all(&set[..set.len() / 2]).unwrap();
    let pipeline: Vec<u8> = (0..1000).flat_map(|_| *b"INCR n\r\n").collect();
    fast.write_all(&pipeline).unwrap();
    let replies: String = (1..=1000).map(|number| format!(":{number}\r\n")).collect();
    expect(&mut fast, replies.as_bytes());
    slow.write_all(&set[set.len() / 2..]).unwrap();
    expect(&mut slow, b"+OK\r\n");
    // Nor does a client that does not read its replies.
    (0..4).for_each(|_| slow.write_all(b"GET long\r\n").unwrap());
    fast.write_all(b"PING\r\n").unwrap();
    expect(&mut fast, b"+PONG\r\n");
    for _ in 0..4 {
        expect(&mut slow, b"$20971520\r\n");
        expect(&mut slow, &long);
        expect(&mut slow, b"\r\n");
    }
    assert_eq!(server.statistics().connections, 2);
    fast.write_all(b"QUIT\r\n").unwrap();
    assert_eq!(read_until_closed(&mut fast).unwrap(), 5);
    drop(server);
    assert_eq!(read_until_closed(&mut slow).unwrap(), 0);
}

#[test]
fn replies_before_the_end_arrive_however_late_they_are_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The reply waits until the client reads: accepted sockets inherit the small send buffer.
    set_socket_send_buffer_size(&listener, 4096).unwrap();
    let (_server, address) = start_at(listener, known(), None);
    let long = vec![b'v'; 200 << 10];
    for (last, reply) in
        [("QUIT\r\n", "+OK\r\n"), ("*x\r\n", "-ERR Protocol error: invalid multibulk length\r\n")]
    {
        let mut client = connect(address);
        client.write_all(&command(&[b"SET", b"long", &long])).unwrap();
        expect(&mut client, b"+OK\r\n");
        client.write_all(format!("GET long\r\n{last}").as_bytes()).unwrap();
        expect(&mut client, b"$204800\r\n");
        std::thread::sleep(Duration::from_millis(100));
        expect(&mut client, &long);
        expect(&mut client, format!("\r\n{reply}").as_bytes());
        assert_eq!(read_until_closed(&mut client).unwrap(), 0, "{last:?}");
    }
}

/// A listener whose connections hold few bytes on their way.
fn narrow() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepted sockets inherit both.
    set_socket_send_buffer_size(&listener, 4096).unwrap();
    set_socket_recv_buffer_size(&listener, 4096).unwrap();
    listener
}

/// SET and GET of a value of 100,000 bytes, and the replies to them.
fn set_and_get(byte: u8) -> (Vec<u8>, Vec<u8>) {
    let value = vec![byte; 100_000];
    let mut commands = command(&[b"SET", b"long", &value]);
    commands.extend_from_slice(b"GET long\r\n");
    let replies = [b"+OK\r\n$100000\r\n", &value[..], b"\r\n"].concat();
    (commands, replies)
}

#[test]
fn a_client_may_send_a_whole_pipeline_before_it_reads() {
    let (ours, theirs) = keys();
    let (_plain, address) = start_at(narrow(), known(), None);
    let (_tls, tls_address) = start_at(narrow(), known(), Some(ours));
    let mut inside = StreamOwned::new(theirs.connection().unwrap(), connect(tls_address));
    inside.write_all(b"AUTH name secret\r\n").unwrap();
    expect(&mut inside, b"+OK\r\n");
    let (pipeline, replies): (Vec<_>, Vec<_>) = (0..40).map(set_and_get).unzip();
    let mut plain = connect(address);
    plain.write_all(&pipeline.concat()).unwrap();
    expect(&mut plain, &replies.concat());
    inside.write_all(&pipeline.concat()).unwrap();
    expect(&mut inside, &replies.concat());
    // One that sends no more may still read.
    plain.write_all(&pipeline.concat()).unwrap();
    plain.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    expect(&mut plain, &replies.concat());
    assert_eq!(read_until_closed(&mut plain).unwrap(), 0);
}

#[test]
fn a_client_that_only_sends_is_stopped_before_its_replies_take_much_memory() {
    let limits = Limits { connections_max: 64, operations_max: 64, bytes_max: 64 << 20 };
    let admits = |client| only(client).with_limits(limits);
    let (_server, address) = start_for(narrow(), known(), None, admits);
    let mut reader = connect(address);
    let mut sender = reader.try_clone().unwrap();
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200 {
                sender.write_all(&set_and_get(round).0).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (mut seen, mut since) = (0, Instant::now());
        until("the sender to be stopped", || {
            let now = sent.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, now) != now {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_secs(1)
        });
        // Its part of the client's limit is 1 MiB. The client's socket holds up to 4 MiB.
        assert!((10..80).contains(&seen), "{seen} rounds of 100,000 bytes");
        (0..200).for_each(|round| expect(&mut reader, &set_and_get(round).1));
    });
}

#[test]
fn whoever_stops_is_cut_off() {
    // Longer than a busy machine keeps this test from sending the next part of a value.
    let stall_timeout = Duration::from_secs(3);
    let (server, address) = start(Config { stall_timeout, ..known() });
    let (mut half, mut deaf, mut idle) = (connect(address), connect(address), connect(address));
    deaf.write_all(&command(&[b"SET", b"long", &vec![1; 16 << 20]])).unwrap();
    expect(&mut deaf, b"+OK\r\n");
    let began = Instant::now();
    half.write_all(b"*2\r\n$3\r\nGET\r\n").unwrap();
    (0..8).for_each(|_| deaf.write_all(b"GET long\r\n").unwrap());
    assert_eq!(read_until_closed(&mut half).unwrap(), 0);
    assert!(began.elapsed() >= stall_timeout);
    // The client begins to read too late.
    until("a client that reads nothing to go", || server.statistics().connections <= 1);
    assert!(read_until_closed(&mut deaf).unwrap() < 8 * (16 << 20));
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, b"+PONG\r\n");
}

#[test]
fn whoever_sends_is_not_cut_off_however_long_it_takes() {
    let stall_timeout = Duration::from_secs(2);
    let (_server, address) = start(Config { stall_timeout, ..known() });
    let mut client = connect(address);
    // An idle client has no time limit. The limit begins with its next command.
    std::thread::sleep(stall_timeout * 3 / 2);
    let set = command(&[b"SET", b"long", &vec![b'v'; 100 << 10]]);
    for piece in set.chunks(set.len().div_ceil(12)) {
        client.write_all(piece).unwrap();
        std::thread::sleep(stall_timeout / 8);
    }
    expect(&mut client, b"+OK\r\n");
}

#[test]
fn whoever_reads_is_not_cut_off_however_long_it_takes() {
    let stall_timeout = Duration::from_secs(2);
    let (_server, address) = start(Config { stall_timeout, ..known() });
    let mut client = connect(address);
    let long = vec![b'v'; 16 << 20];
    client.write_all(&command(&[b"SET", b"long", &long])).unwrap();
    expect(&mut client, b"+OK\r\n");
    // The sockets hold about 4 MiB of the reply.
    set_socket_recv_buffer_size(&client, 64 << 10).unwrap();
    client.write_all(b"GET long\r\n").unwrap();
    expect(&mut client, b"$16777216\r\n");
    for piece in long.chunks(1 << 20) {
        std::thread::sleep(stall_timeout / 5);
        expect(&mut client, piece);
    }
    expect(&mut client, b"\r\n");
}

#[test]
fn strangers_are_few_and_do_not_stay() {
    let handshake_timeout = Duration::from_secs(3);
    let config = Config { handshake_timeout, connections_max: 32, workers: 2, ..Config::default() };
    let (listener, late) = (TcpListener::bind("127.0.0.1:0").unwrap(), Cell::default());
    let (server, address) = start_for(listener, config, None, |client| {
        let access = only(client);
        late.set(access.late());
        access
    });
    let mut known = connect(address);
    known.write_all(b"AUTH name secret\r\n").unwrap();
    expect(&mut known, b"+OK\r\n");
    // One host may have a quarter of a quarter of 32 slots. The oldest connection is replaced.
    let mut strangers: Vec<_> = (0..3).map(|_| connect(address)).collect();
    assert_eq!(read_until_closed(&mut strangers[0]).unwrap(), 0);
    for stranger in &mut strangers[1..] {
        assert_eq!(read_until_closed(stranger).unwrap(), 0);
    }
    known.write_all(b"PING\r\n").unwrap();
    expect(&mut known, b"+PONG\r\n");
    assert_eq!(server.statistics().connections, 1);
    assert_eq!(late.take().load(Ordering::Relaxed), 2, "those that were not replaced");
}

#[test]
fn a_user_who_floods_is_refused_until_the_second_ends() {
    let store = Arc::new(Store::open(spillway_store::Config::embedded(16 << 20)).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("resp.sock");
    let listeners = vec![Listener::Unix(UnixListener::bind(&path).unwrap())];
    let client = store.add_client(ClientConfig::default()).unwrap();
    let config = Config { connections_max: 64, ..Config::default() };
    let nobody = Arc::new(only(client).only(|_| false));
    let server = Server::start(listeners, store, nobody, config).unwrap();
    let answer = || {
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may have closed it already.
        let _ = peer.write_all(b"*1\r\n$4\r\nPING\r\n");
        let mut answer = [0; 4];
        peer.read_exact(&mut answer).ok().map(|()| answer)
    };
    until("the flood to be refused", || {
        let _flood: Vec<_> = (0..400).map(|_| UnixStream::connect(&path).unwrap()).collect();
        answer() == Some(*b"-ERR")
    });
    assert!(server.shared().places.counts().refused(Refusal::Peer) > 0);
    until("the user to be served again", || answer() == Some(*b"-NOA"));
}

#[test]
fn replies_that_nobody_wants_take_no_room_however_long_they_are() {
    let (_server, address) = start(known());
    let mut client = connect(address);
    client.write_all(&command(&[b"SET", b"long", &vec![b'v'; 1 << 20]])).unwrap();
    expect(&mut client, b"+OK\r\n");
    client.write_all(b"CLIENT REPLY OFF\r\n").unwrap();
    (0..4).for_each(|_| client.write_all(b"GET long\r\n").unwrap());
    client.write_all(b"CLIENT REPLY ON\r\nPING\r\n").unwrap();
    expect(&mut client, b"+OK\r\n+PONG\r\n");
}

#[test]
fn long_values_are_whole_wherever_the_bytes_are_cut() {
    let (_server, address) = start(known());
    let lengths = [65_537, 70_000, 1 << 20, (1 << 20) + 5, (3 << 20) - 1];
    let value = |at: usize| -> Vec<u8> {
        (0..lengths[at]).map(|byte| (byte * 31 + byte / 253) as u8 ^ at as u8).collect()
    };
    let values: Vec<_> = (0..lengths.len()).map(value).collect();
    let mut all = Vec::new();
    for (name, value) in values.iter().enumerate() {
        let name = name.to_string();
        all.extend_from_slice(&command(&[b"SET", name.as_bytes(), value]));
        all.extend_from_slice(&command(&[
            b"MSET", b"first", value, b"second", b"s", b"third", value,
        ]));
        all.extend_from_slice(b"PING\r\n");
    }
    for piece in [1_000, 4_096, 70_001, 1 << 20, all.len()] {
        let (mut client, mut sender) = (connect(address), connect(address));
        let mut reader = sender.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (number, part) in all.chunks(piece).enumerate() {
                    sender.write_all(part).unwrap();
                    if number % 16 == 0 {
                        // So that the server reads the piece before it gets more.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            for _ in &values {
                expect(&mut reader, b"+OK\r\n+OK\r\n+PONG\r\n");
            }
        });
        for (name, value) in values.iter().enumerate() {
            client.write_all(format!("GET {name}\r\nDEL {name}\r\n").as_bytes()).unwrap();
            expect(&mut client, format!("${}\r\n", value.len()).as_bytes());
            expect(&mut client, value);
            expect(&mut client, b"\r\n:1\r\n");
        }
        client.write_all(b"GET third\r\nGET second\r\n").unwrap();
        expect(&mut client, format!("${}\r\n", values[values.len() - 1].len()).as_bytes());
        expect(&mut client, &values[values.len() - 1]);
        expect(&mut client, b"\r\n$1\r\ns\r\n");
    }
}

#[test]
fn a_failed_tls_handshake_is_counted() {
    let store = Arc::new(Store::open(spillway_store::Config::embedded(64 << 20)).unwrap());
    let access = Arc::new(only(store.add_client(ClientConfig::default()).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, theirs) = keys();
    let listeners = vec![Listener::Tcp(listener, Some(ours))];
    let _server = Server::start(listeners, store, access.clone(), known()).unwrap();
    let mut good = StreamOwned::new(theirs.connection().unwrap(), connect(address));
    good.write_all(b"AUTH name secret\r\n").unwrap();
    expect(&mut good, b"+OK\r\n");
    // One that goes away has failed at nothing.
    drop(connect(address));
    let mut plain = connect(address);
    plain.write_all(b"AUTH name secret\r\nPING\r\n").unwrap();
    // A reset is an end, too.
    let _ = read_until_closed(&mut plain);
    until("the failure to be counted", || access.failures() > 0);
    assert_eq!(access.failures(), 1);
}

#[test]
fn inside_tls_a_client_of_this_host_is_a_stranger_too() {
    let (ours, theirs) = keys();
    let (_server, address) = start_with(known(), Some(ours));
    let mut client = StreamOwned::new(theirs.connection().unwrap(), connect(address));
    client.write_all(b"GET a\r\n").unwrap();
    // Only the first byte, because another reply would be shorter.
    expect(&mut client, b"-");
    expect(&mut client, b"NOAUTH Authentication required.\r\n");
    client.write_all(b"AUTH name secret\r\nGET a\r\n").unwrap();
    expect(&mut client, b"+OK\r\n$-1\r\n");
}
