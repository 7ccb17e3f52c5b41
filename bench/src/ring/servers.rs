//! Pipelining clients of memcached and Redis.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::ensure;

use super::DEEP;
use super::sides::{Buffers, Flight, Side, Way};

/// The protocol.
#[derive(Clone, Copy)]
pub enum Dialect {
    /// memcached's text protocol.
    Memcached,
    /// Redis's RESP2.
    Redis,
}

/// A connection to a server whose values all have the same length.
pub struct Server {
    stream: UnixStream,
    dialect: Dialect,
    bytes: usize,
    buffers: Buffers,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Server {
    /// Connects.
    pub fn connect(socket: &Path, dialect: Dialect, bytes: usize) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let buffers = Buffers::new(bytes);
        Ok(Self { stream, dialect, bytes, buffers, request: Vec::new(), reply: Vec::new() })
    }

    /// Sends requests in one write, and reads their replies.
    fn exchange(&mut self, way: Way, numbers: &[usize]) -> anyhow::Result<()> {
        self.request.clear();
        let values = self.buffers.numbered(numbers);
        for (&number, value) in numbers.iter().zip(values) {
            ask(&mut self.request, self.dialect, way, number, value)?;
        }
        self.stream.write_all(&self.request)?;
        // All bytes of a reply but the value are known.
        let (head, tail) = self.replies(way);
        let one = |number: &usize| head.replace("KEY", &name(*number)).len() + tail.len();
        let value_bytes = if way == Way::Get { self.bytes } else { 0 };
        let length = numbers.iter().map(|number| one(number) + value_bytes).sum();
        self.reply.resize(length, 0);
        self.stream.read_exact(&mut self.reply)?;
        let mut rest = &self.reply[..];
        for number in numbers {
            let head_bytes = one(number) - tail.len();
            let good = match way {
                Way::Put => rest[..head_bytes] == *head.as_bytes(),
                Way::Get => rest[head_bytes..][..8] == (*number as u64).to_ne_bytes(),
            };
            ensure!(good, "value {number} came back wrong");
            rest = &rest[head_bytes + value_bytes + tail.len()..];
        }
        Ok(())
    }

    /// The parts of a reply before and after the value.
    fn replies(&self, way: Way) -> (String, &'static str) {
        match (self.dialect, way) {
            (Dialect::Memcached, Way::Put) => ("STORED\r\n".into(), ""),
            (Dialect::Memcached, Way::Get) => {
                (format!("VALUE KEY 0 {}\r\n", self.bytes), "\r\nEND\r\n")
            }
            (Dialect::Redis, Way::Put) => ("+OK\r\n".into(), ""),
            (Dialect::Redis, Way::Get) => (format!("${}\r\n", self.bytes), "\r\n"),
        }
    }
}

fn name(number: usize) -> String {
    format!("key{number}")
}

/// Appends a request.
fn ask(
    to: &mut Vec<u8>,
    dialect: Dialect,
    way: Way,
    number: usize,
    value: &[u8],
) -> std::io::Result<()> {
    let (key, bytes) = (name(number), value.len());
    match (dialect, way) {
        (Dialect::Memcached, Way::Get) => return write!(to, "get {key}\r\n"),
        (Dialect::Redis, Way::Get) => {
            return write!(to, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        }
        (Dialect::Memcached, Way::Put) => write!(to, "set {key} 0 0 {bytes}\r\n")?,
        (Dialect::Redis, Way::Put) => {
            write!(to, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len())?;
        }
    }
    to.extend_from_slice(value);
    to.write_all(b"\r\n")
}

impl Side for Server {
    fn run(&mut self, way: Way, flight: Flight, numbers: &[usize]) -> anyhow::Result<()> {
        let depth = if flight == Flight::One { 1 } else { DEEP };
        numbers.chunks(depth).try_for_each(|numbers| self.exchange(way, numbers))
    }
}
