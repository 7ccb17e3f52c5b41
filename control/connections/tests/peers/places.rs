//! How many connections there may be.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use spillway_connections::{ConnectionLimits, Listener};
use spillway_types::{Peer, SlotLimits};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::server::{MANY, NEVER, connect, is_served, limits, over_tcp, start, until_closed};

/// A connection that has proven who it is.
async fn proven(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address).await;
    assert!(is_served(&mut stream, "/prove").await);
    stream
}

/// A connection from another address of this host.
async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Connects until a place is free. The server hears of the end of another connection when it may.
async fn place_is_free(address: SocketAddr) {
    let again = async { while !is_served(&mut connect(address).await, "/").await {} };
    tokio::time::timeout(crate::server::GIVEN_UP, again).await.expect("no place is free");
}

#[tokio::test]
async fn one_connection_too_many_is_closed_until_another_ends() {
    let address = over_tcp(limits(3, 9), NEVER).await;
    let mut kept = [proven(address).await, proven(address).await];
    let last = proven(address).await;
    assert!(!is_served(&mut connect(address).await, "/").await);
    for stream in &mut kept {
        assert!(is_served(stream, "/").await, "those that are there stay");
    }
    drop(last);
    place_is_free(address).await;
}

#[tokio::test]
async fn one_peer_does_not_take_all_places() {
    let address = over_tcp(limits(8, 2), NEVER).await;
    let own = [proven(address).await, proven(address).await];
    assert!(!is_served(&mut connect(address).await, "/").await);
    let mut other = connect_from("127.0.0.2:0", address).await;
    assert!(is_served(&mut other, "/").await);
    drop(own);
    place_is_free(address).await;
}

#[tokio::test]
async fn connections_that_prove_nothing_give_way_to_newer_ones() {
    let slots = SlotLimits { connections_max: 8, unproven_max: 4, unproven_of_peer_max: 2 };
    let address = over_tcp(ConnectionLimits { slots, of_peer_max: 8 }, NEVER).await;
    let mut operator = proven(address).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(connect(address).await);
    }
    for stream in &mut silent[..18] {
        until_closed(stream).await;
    }
    for stream in &mut silent[18..] {
        assert!(is_served(stream, "/").await, "the newest are served");
    }
    assert!(is_served(&mut operator, "/").await);
}

#[tokio::test]
async fn a_listener_that_is_full_keeps_nobody_out_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    start(UnixListener::bind(&path).unwrap(), limits(1, 9), NEVER);
    let address = over_tcp(limits(1, 9), NEVER).await;
    let _only = proven(address).await;
    assert!(!is_served(&mut connect(address).await, "/").await);
    assert!(is_served(&mut UnixStream::connect(&path).await.unwrap(), "/prove").await);
}

/// A listener of a process without descriptors, for a while.
struct Exhausted {
    listener: TcpListener,
    failures: AtomicU32,
}

impl Listener for Exhausted {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        const EMFILE: i32 = 24;
        const ECONNABORTED: i32 = 103;
        match self.failures.fetch_add(1, Ordering::Relaxed) {
            0..3 => Err(io::Error::from_raw_os_error(EMFILE)),
            3 => Err(io::Error::from_raw_os_error(ECONNABORTED)),
            _ => Listener::accept(&self.listener).await,
        }
    }
}

#[tokio::test]
async fn a_failure_to_accept_ends_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    start(Exhausted { listener, failures: AtomicU32::new(0) }, MANY, NEVER);
    assert!(is_served(&mut connect(address).await, "/").await);
}
