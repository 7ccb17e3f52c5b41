//! The byte pipes that a session uses.
//!
//! A session does not know sockets: it asks a [`Dial`] for one [`Pipe`] for each queue. Production uses TCP sockets
//! ([`TcpDial`](super::socket::TcpDial)), plain or inside TLS ([`TlsDial`](super::tls::TlsDial)).

use core::fmt;

/// Why a pipe is closed, with the kernel's error if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer ended it.
    ByPeer,
    /// The kernel reported this error number.
    Errno(i32),
    /// There was no answer in time.
    TimedOut,
    /// TLS or the lookup of the host failed; the text says how.
    Refused(&'static str),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByPeer => f.write_str("the target closed the connection"),
            Self::Errno(errno) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
            Self::TimedOut => f.write_str("nobody answers"),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

/// A bidirectional byte stream. One thread may send while another receives.
pub trait Pipe: Send + Sync {
    /// Takes as many bytes as there is room for, without waiting; 0 when there is none. The next call must begin with
    /// the bytes that were not taken.
    ///
    /// # Errors
    /// [`Closed`]: no more bytes will be taken.
    fn send(&self, bytes: &[u8]) -> Result<usize, Closed>;

    /// Waits about `wait_us` for bytes (0: does not wait), and copies them to `into`. Returns 0 when none came.
    ///
    /// # Errors
    /// [`Closed`]: no more bytes will come.
    fn receive(&self, into: &mut [u8], wait_us: u64) -> Result<usize, Closed>;

    /// Waits up to `wait_us` until there may be room to send or, if `or_bytes`, bytes to receive.
    fn wait_room(&self, or_bytes: bool, wait_us: u64);

    /// Ends both directions. A thread that waits in another call returns.
    fn shut(&self);
}

/// Makes pipes to one target.
pub trait Dial: Send + Sync {
    /// The pipe that it makes.
    type Pipe: Pipe;

    /// Connects within `wait_us`.
    ///
    /// # Errors
    /// [`Closed`]: it could not connect.
    fn dial(&self, wait_us: u64) -> Result<Self::Pipe, Closed>;
}
