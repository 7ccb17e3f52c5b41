//! What the log says of peers of whom it closes connections.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::daemon::{Daemon, address};

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
