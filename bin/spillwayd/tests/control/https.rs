//! The HTTP interface inside TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, ProtocolVersion, StreamOwned};
use spillway_api::ServerLimits;
use spillway_tls::{Authorities, ClientSettings};

use crate::daemon::{Daemon, READ_TOKEN, TOKEN, address, ask};
use crate::renew::Host;

/// A connection inside TLS.
type Tls = StreamOwned<ClientConnection, TcpStream>;

fn start() -> (Host, Daemon, String) {
    let host = Host::new();
    host.renew(1, "a.example");
    let daemon = host.start("api_tls = \"127.0.0.1:0\"\n");
    let address = address(&daemon.line(&[" ready "]), "api_tls").to_owned();
    (host, daemon, address)
}

/// Connects as the commands do: without a certificate.
fn connect(host: &Host, address: &str) -> Tls {
    let authorities = Authorities::read(&host.path("ours")).unwrap();
    let settings = ClientSettings::anonymous(authorities, "127.0.0.1").unwrap();
    StreamOwned::new(settings.connection().unwrap(), TcpStream::connect(address).unwrap())
}

/// Whether a request on a connection that stays is answered with status 200.
fn is_served(stream: &mut Tls) -> bool {
    let head =
        format!("GET /v1/policy HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let mut answer = [0; 12];
    stream.write_all(head.as_bytes()).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == *b"HTTP/1.1 200"
}

#[test]
fn tokens_permit_what_they_do_without_tls() {
    // Its configuration names an authority for clients, and nobody here has a certificate of it.
    let (host, daemon, address) = start();
    let status = |request, token| ask(connect(&host, &address), request, token, "");
    for (request, token, code) in [
        ("GET /v1/clients", TOKEN, 200),
        ("GET /v1/clients", READ_TOKEN, 200),
        ("GET /v1/clients", "", 401),
        ("GET /", "", 200),
        ("DELETE /v1/clients/x", READ_TOKEN, 403),
        ("DELETE /v1/clients/x", TOKEN, 404),
    ] {
        assert_eq!(status(request, token), code, "{request}");
    }
    daemon.line(&["asked to change", "by=127.0.0.1:", "token=\"api_token_file\""]);
    let mut stream = connect(&host, &address);
    assert!(is_served(&mut stream));
    assert_eq!(stream.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
}

#[test]
fn plain_http_is_told_to_use_tls() {
    let (_host, daemon, address) = start();
    let mut stream = TcpStream::connect(&address).unwrap();
    let request = format!(
        "GET /v1/clients HTTP/1.1\r\nHost: here\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("use https://"), "{answer}");
    // Neither of the two.
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"\x16\x03nonsense, and more of it").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    daemon.line(&["INFO", "HTTPS: the TLS handshake failed", "by=127.0.0.1:"]);
}

#[test]
fn a_handshake_that_stops_is_not_waited_for() {
    let (_host, daemon, address) = start();
    let silent = TcpStream::connect(&address).unwrap();
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(&[22, 3, 1, 2]).unwrap();
    for mut stream in [silent, half] {
        match stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            Ok(_) => panic!("nobody has said anything"),
        }
    }
    daemon.line(&["HTTPS: the TLS handshake failed: not complete within 5s"]);
}

#[test]
fn handshakes_give_way_to_newer_ones_and_never_the_operator() {
    let (host, daemon, address) = start();
    let mut operator = connect(&host, &address);
    assert!(is_served(&mut operator));
    let silent = ServerLimits::default().connections.slots.unproven_of_peer_max + 4;
    let _silent: Vec<_> = (0..silent).map(|_| TcpStream::connect(&address).unwrap()).collect();
    daemon.line(&["HTTPS: an unauthenticated connection", "peer=127.0.0.1"]);
    assert!(is_served(&mut connect(&host, &address)), "the newest is served");
    // The rest of the first answer comes first.
    let request = format!(
        "GET /v1/version HTTP/1.1\r\nHost: here\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    operator.write_all(request.as_bytes()).unwrap();
    let mut answers = String::new();
    operator.read_to_string(&mut answers).unwrap();
    assert!(answers.contains("HTTP/1.1 200 ") && answers.contains("\"pid\":"), "{answers}");
}
