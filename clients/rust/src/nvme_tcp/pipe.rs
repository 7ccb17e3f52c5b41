//! The byte pipes that a session talks through.
//!
//! A session knows no sockets: it asks a [`Dial`] for one [`Pipe`] a queue. Production hands in TCP
//! sockets ([`TcpDial`](super::socket::TcpDial)), plain or inside TLS ([`TlsDial`](super::tls::TlsDial)).

use core::fmt;

/// A pipe that carries nothing any more, with the kernel's reason where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer ended it.
    ByPeer,
    /// The kernel reported this error number.
    Errno(i32),
    /// Nobody answered within the time that was given.
    TimedOut,
    /// TLS or the name of the host failed; the text says how.
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

/// Two directions of bytes, in order. One thread sends while another receives.
pub trait Pipe: Send + Sync {
    /// Takes as many bytes as there is room for, without waiting; 0 when there is none. The next call begins
    /// with what was not taken.
    ///
    /// # Errors
    /// [`Closed`]: nothing will be taken any more.
    fn send(&self, bytes: &[u8]) -> Result<usize, Closed>;

    /// Waits up to `wait_us` (about; 0 does not wait) for bytes and puts them into `into`. 0 when
    /// none came.
    ///
    /// # Errors
    /// [`Closed`]: nothing will come any more.
    fn receive(&self, into: &mut [u8], wait_us: u64) -> Result<usize, Closed>;

    /// Waits up to `wait_us` until there may be room to send, or, if `or_bytes`, bytes to receive.
    fn wait_room(&self, or_bytes: bool, wait_us: u64);

    /// Ends both directions. A thread that waits in another call comes back from it.
    fn shut(&self);
}

/// Makes pipes to one target.
pub trait Dial: Send + Sync {
    /// What it makes.
    type Pipe: Pipe;

    /// Connects within `wait_us`.
    ///
    /// # Errors
    /// [`Closed`]: it could not.
    fn dial(&self, wait_us: u64) -> Result<Self::Pipe, Closed>;
}
