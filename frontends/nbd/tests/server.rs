//! The server with real sockets.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use spillway_nbd::{Config, Listener, Server, TlsMode};
use spillway_test_support::certificates::Authority;
use spillway_test_support::sockets::{expect, is_closed};
use spillway_test_support::wait::{until, within};
use spillway_tls::{Files, ServerSettings, Versions};
use support::*;

const ERR_POLICY: u32 = 0x8000_0002;

fn serve_unix(registry: &Arc<FakeRegistry>, directory: &Path) -> (Server, impl Fn() -> UnixStream) {
    let path = directory.join("nbd.sock");
    let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
    let config = Config { handshake_timeout: Duration::from_millis(300), ..Config::default() };
    let server = Server::start(listener, registry.clone(), registry.clone(), config).unwrap();
    (server, move || {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    })
}

fn serve_tcp(registry: &Arc<FakeRegistry>, config: Config) -> (Server, impl Fn() -> TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::Tcp(listener);
    let server = Server::start(listener, registry.clone(), registry.clone(), config).unwrap();
    (server, move || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    })
}

#[test]
fn connections_share_a_device() {
    let registry = Arc::new(FakeRegistry::new());
    let directory = tempfile::tempdir().unwrap();
    let (server, connect) = serve_unix(&registry, directory.path());
    let (mut one, mut two) = (connect(), connect());
    begin(&mut one, "disk");
    begin(&mut two, "");
    one.write_all(&[&request(WRITE, 0, 1, 512, 1024)[..], &[7; 1024]].concat()).unwrap();
    expect(&mut one, &simple(1, 0));
    two.write_all(&request(READ, 0, 2, 500, 1100)).unwrap();
    expect(&mut two, &[&simple(2, 0)[..], &[0; 12], &[7; 1024], &[0; 64]].concat());
    let uid = rustix::process::getuid().as_raw();
    let known = registry.names.lock().unwrap().iter().all(|name| {
        name.starts_with(&format!("uid {uid}, ")) && name.contains(&std::process::id().to_string())
    });
    assert!(known, "the kernel says who connects: {:?}", registry.names);
    assert_eq!(registry.connections.load(Ordering::SeqCst), 2);
    one.write_all(&request(DISCONNECT, 0, 0, 0, 0)).unwrap();
    assert!(is_closed(&mut one));
    drop(two);
    until("places to be given back", || registry.connections.load(Ordering::SeqCst) == 0);
    until("nobody to be left", || server.connections() == 0);
}

#[test]
fn slow_and_stuck_peers_hold_nobody_up() {
    let registry = Arc::new(FakeRegistry::new());
    let directory = tempfile::tempdir().unwrap();
    let (server, connect) = serve_unix(&registry, directory.path());
    // The first requests more than all buffers hold and reads none of it. The second stops in the middle of a request,
    // the third in the middle of a write's data.
    let (mut deaf, mut silent, mut amid) = (connect(), connect(), connect());
    begin(&mut deaf, "disk");
    begin(&mut silent, "disk");
    begin(&mut amid, "disk");
    for cookie in 0..16 {
        deaf.write_all(&request(READ, 0, cookie, 0, 32 << 20)).unwrap();
    }
    silent.write_all(&request(READ, 0, 0, 0, 4096)[..20]).unwrap();
    amid.write_all(&[&request(WRITE, 0, 0, 0, 1 << 20)[..], &[1; 5000]].concat()).unwrap();
    let mut fine = connect();
    begin(&mut fine, "disk");
    for cookie in 0..200 {
        let offset = 8 * MIB + cookie * 4096;
        let write = [&request(WRITE, 0, cookie, offset, 4096)[..], &[cookie as u8; 4096]].concat();
        fine.write_all(&write).unwrap();
        expect(&mut fine, &simple(cookie, 0));
    }
    // The server ends within its grace period, even with stuck peers.
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(is_closed(&mut deaf) && is_closed(&mut silent) && is_closed(&mut amid));
    assert_eq!(registry.connections.load(Ordering::SeqCst), 0);
}

#[test]
fn who_never_chooses_is_sent_away() {
    let registry = Arc::new(FakeRegistry::new());
    let directory = tempfile::tempdir().unwrap();
    let (server, connect) = serve_unix(&registry, directory.path());
    let (mut idle, mut chatty, gone) = (connect(), connect(), connect());
    drop(gone);
    let began = Instant::now();
    chatty.write_all(&FLAGS).unwrap();
    // The time limit is for the whole handshake, not for each message.
    while chatty.write_all(&option(99, &[])).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(20));
    }
    assert!(is_closed(&mut idle));
    until("both to be gone", || server.connections() == 0);
    assert_eq!(registry.late.load(Ordering::SeqCst), 2);
    // One that has chosen is not late, however it ends.
    let mut chosen = connect();
    begin(&mut chosen, "disk");
    chosen.write_all(&[0; 28]).unwrap();
    assert!(is_closed(&mut chosen));
    until("it to be gone", || server.connections() == 0);
    assert_eq!(registry.late.load(Ordering::SeqCst), 2);
}

#[test]
fn a_client_has_so_many_connections_and_no_more() {
    let registry = Arc::new(FakeRegistry { connections_max: 1, ..FakeRegistry::new() });
    let directory = tempfile::tempdir().unwrap();
    let (_server, connect) = serve_unix(&registry, directory.path());
    let mut first = connect();
    begin(&mut first, "disk");
    let mut second = connect();
    second.read_exact(&mut [0; 18]).unwrap();
    second.write_all(&[&FLAGS[..], &option(7, &info("disk"))].concat()).unwrap();
    let (kind, text) = option_reply(&mut second);
    assert_eq!(kind, ERR_POLICY);
    assert!(String::from_utf8_lossy(&text).contains("connections"));
    drop(first);
    until("the place to be free", || registry.connections.load(Ordering::SeqCst) == 0);
    begin(&mut connect(), "disk");
}

/// A connection from another address of this host.
fn connect_from(address: [u8; 4], server: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(address.into(), 0)).unwrap();
    rustix::net::connect(&socket, &server).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

#[test]
fn who_holds_connections_without_a_word_keeps_nobody_out() {
    let registry = Arc::new(FakeRegistry { connections_max: 64, ..FakeRegistry::new() });
    // At most 16 unidentified connections, 4 of them of one peer.
    let config = Config {
        connections_max: 64,
        loopback_name: Some("local".into()),
        handshake_timeout: Duration::from_secs(60),
        ..Config::default()
    };
    let (server, connect) = serve_tcp(&registry, config);
    let address = connect().peer_addr().unwrap();
    let mut before = connect();
    begin(&mut before, "disk");
    let mut idle: Vec<_> = (0..200).map(|_| connect_from([127, 0, 0, 2], address)).collect();
    begin(&mut connect(), "disk");
    begin(&mut connect_from([127, 0, 0, 2], address), "disk");
    // Displaced connections end much sooner than the handshake's timeout.
    within(Duration::from_secs(20), "what gave way to end", || server.connections() < 4 + 4);
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !is_closed(stream)
    };
    let open = idle.iter_mut().filter_map(|stream| is_open(stream).then_some(())).count();
    assert!((1..=4).contains(&open), "{open} of 200 are left");
    before.write_all(&request(FLUSH, 0, 1, 0, 0)).unwrap();
    expect(&mut before, &simple(1, 0));
}

#[test]
fn who_floods_is_not_served_until_the_second_ends() {
    let registry = Arc::new(FakeRegistry::new());
    let directory = tempfile::tempdir().unwrap();
    let (_server, connect) = serve_unix(&registry, directory.path());
    // No newer connection displaces it.
    let is_served = || connect().read_exact(&mut [0; 18]).is_ok();
    within(Duration::from_secs(20), "the flood to be refused", || {
        let _flood: Vec<_> = (0..400).map(|_| connect()).collect();
        !is_served()
    });
    within(Duration::from_secs(20), "the user to be served again", is_served);
}

#[test]
fn malformed_bytes_end_that_connection_alone() {
    let registry = Arc::new(FakeRegistry::new());
    let directory = tempfile::tempdir().unwrap();
    let (_server, connect) = serve_unix(&registry, directory.path());
    let mut fine = connect();
    begin(&mut fine, "disk");
    for junk in [&[0xff; 4][..], &[&FLAGS[..], &[0; 16]].concat(), b"GET / HTTP/1.1\r\n\r\n"] {
        let mut bad = connect();
        bad.write_all(junk).unwrap();
        assert!(is_closed(&mut bad));
    }
    let mut bad = connect();
    begin(&mut bad, "disk");
    bad.write_all(&[0; 28]).unwrap();
    assert!(is_closed(&mut bad));
    fine.write_all(&request(FLUSH, 0, 1, 0, 0)).unwrap();
    expect(&mut fine, &simple(1, 0));
}

#[test]
fn a_loopback_peer_needs_a_configured_name() {
    let registry = Arc::new(FakeRegistry::new());
    let (_server, connect) = serve_tcp(&registry, Config::default());
    let mut peer = connect();
    peer.read_exact(&mut [0; 18]).unwrap();
    peer.write_all(&[&FLAGS[..], &option(3, &[])].concat()).unwrap();
    assert_eq!(option_reply(&mut peer).0, ERR_POLICY);
    let named = Config { loopback_name: Some("other".into()), ..Config::default() };
    let (_server, connect) = serve_tcp(&registry, named);
    begin(&mut connect(), "secret");
}

/// Starts TLS as a client with a certificate for `names`, signed by `signer`. `authority` signs the server's.
fn go_over(
    authority: &Authority,
    mut socket: TcpStream,
    signer: &Authority,
    names: &[&str],
) -> StreamOwned<ClientConnection, TcpStream> {
    socket.read_exact(&mut [0; 18]).unwrap();
    socket.write_all(&[&FLAGS[..], &option(5, &[])].concat()).unwrap();
    assert_eq!(option_reply(&mut socket).0, 1);
    let signed = signer.sign(names);
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![signed.der().clone()];
    let key = PrivateKeyDer::try_from(signed.key_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let name = ServerName::try_from("blade.test").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, socket)
}

#[test]
fn a_certificate_names_its_client() {
    let registry = Arc::new(FakeRegistry::new());
    let authority = Authority::new();
    let tls = TlsMode::Required(authority.server("blade.test", Versions::Tls12And13));
    let config = Config { tls, loopback_name: Some("local".into()), ..Config::default() };
    let (_server, connect) = serve_tcp(&registry, config);
    let mut peer = go_over(&authority, connect(), &authority, &["other", "alias"]);
    peer.write_all(&option(7, &info("secret"))).unwrap();
    assert_eq!(option_reply(&mut peer).0, 3);
    assert_eq!(option_reply(&mut peer).0, 1);
    let data: Vec<u8> = (0..100_000_u32).map(|at| (at % 239) as u8).collect();
    peer.write_all(&[request(WRITE, 0, 1, 77, 100_000), data.clone()].concat()).unwrap();
    expect(&mut peer, &simple(1, 0));
    peer.write_all(&request(READ, 0, 2, 77, 100_000)).unwrap();
    expect(&mut peer, &[simple(2, 0), data].concat());
    peer.write_all(&request(DISCONNECT, 0, 0, 0, 0)).unwrap();
    assert_eq!(peer.read(&mut [0; 16]).unwrap(), 0, "TLS ends with a goodbye");

    // A peer with an unknown name is refused, under TLS.
    let mut peer = go_over(&authority, connect(), &authority, &["stranger"]);
    peer.write_all(&option(3, &[])).unwrap();
    assert_eq!(option_reply(&mut peer).0, ERR_POLICY);

    assert_eq!(registry.failures.load(Ordering::SeqCst), 0);

    // A certificate of another authority, and one without a name, are refused. The first fails the handshake.
    for (signer, names) in [(&Authority::new(), &["other"][..]), (&authority, &[])] {
        let mut peer = go_over(&authority, connect(), signer, names);
        let _ = peer.write_all(&option(3, &[]));
        assert!(!matches!(peer.read(&mut [0; 16]), Ok(1..)));
    }
    until("the failure to be counted", || registry.failures.load(Ordering::SeqCst) > 0);
    assert_eq!(registry.failures.load(Ordering::SeqCst), 1);
}

#[test]
fn bytes_that_run_ahead_of_tls_are_refused() {
    let registry = Arc::new(FakeRegistry::new());
    let tls = TlsMode::Offered(Authority::new().server("blade.test", Versions::Tls12And13));
    let config = Config { tls, loopback_name: Some("local".into()), ..Config::default() };
    let (_server, connect) = serve_tcp(&registry, config);
    let mut peer = connect();
    peer.read_exact(&mut [0; 18]).unwrap();
    let ahead = [&FLAGS[..], &option(5, &[]), &option(7, &info("disk"))].concat();
    peer.write_all(&ahead).unwrap();
    assert_eq!(option_reply(&mut peer).0, 1);
    assert!(is_closed(&mut peer));
    // If TLS is only offered, a peer may go without it.
    begin(&mut connect(), "disk");
}

#[test]
fn unfit_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty.pem");
    std::fs::write(&path, "").unwrap();
    let files = Files { certificate: path.clone(), key: path, authority: None };
    let error = ServerSettings::load(&files, Versions::Tls13).unwrap_err().to_string();
    assert!(error.contains("empty.pem"), "{error}");
}
