//! The floor of a request over TCP: two threads that only exchange messages of the sizes of NVMe/TCP's, with one system
//! call for each message.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::BLOCK;
use super::fio::{Measured, Way};
use crate::rows::median;

/// Bytes of a command capsule: its PDU header and the command.
const COMMAND_BYTES: usize = 72;
/// Bytes of a response capsule, and of the header of data to the host.
const RESPONSE_BYTES: usize = 24;

/// Exchanges messages for `time`, with `depth` in flight.
pub fn run(way: Way, depth: u32, time: Duration) -> anyhow::Result<Measured> {
    let (request_bytes, reply_bytes) = match way {
        Way::Read => (COMMAND_BYTES, RESPONSE_BYTES + BLOCK),
        Way::Write => (COMMAND_BYTES + BLOCK, RESPONSE_BYTES),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(move || answer(server, request_bytes, reply_bytes));
        ask(client, request_bytes, reply_bytes, depth, time)
    })
}

/// Answers until the peer closes.
fn answer(mut stream: TcpStream, request_bytes: usize, reply_bytes: usize) {
    let (mut request, reply) = (vec![0; request_bytes], vec![1; reply_bytes]);
    while stream.read_exact(&mut request).and_then(|()| stream.write_all(&reply)).is_ok() {}
}

fn ask(
    mut stream: TcpStream,
    request_bytes: usize,
    reply_bytes: usize,
    depth: u32,
    time: Duration,
) -> anyhow::Result<Measured> {
    let (request, mut reply) = (vec![2; request_bytes], vec![0; reply_bytes]);
    for _ in 1..depth {
        stream.write_all(&request)?;
    }
    let (began, mut last) = (Instant::now(), Instant::now());
    let mut times_us = Vec::new();
    while began.elapsed() < time {
        stream.write_all(&request)?;
        stream.read_exact(&mut reply)?;
        let now = Instant::now();
        times_us.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    let rate = times_us.len() as f64 / began.elapsed().as_secs_f64();
    Ok(Measured { rate, median_us: median(times_us) })
}
