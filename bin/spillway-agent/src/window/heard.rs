//! What a program says on its socket.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use spillway_wire::ring::WAKE;

/// Most wake-ups per read: several count as one.
const WAKES_MAX: usize = 64;

/// An event of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// It wakes the host.
    Wake,
    /// It has closed its socket.
    Closed,
    /// It has closed its socket, or violated the protocol.
    Gone,
    /// The host has not answered in time.
    HostSilent,
}

/// Reads what a program sends on a socket that does not block.
pub fn hear(stream: &mut UnixStream) -> Heard {
    let mut bytes = [0; WAKES_MAX];
    match stream.read(&mut bytes) {
        Ok(0) => Heard::Closed,
        Ok(count) if bytes[..count].iter().all(|&byte| byte == WAKE) => Heard::Wake,
        Ok(_) => Heard::Gone,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Heard::Nothing
        }
        Err(_) => Heard::Closed,
    }
}
