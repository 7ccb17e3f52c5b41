//! TCP, plain or inside TLS, as the URL selects.

use super::pipe::{Closed, Dial, Pipe};
use super::settings::Options;
use super::socket::{TcpDial, TcpPipe};
use super::tls::{TlsDial, TlsPipe};
use crate::Error;

/// Connects to a target in one of the two ways.
#[derive(Clone, Debug)]
pub enum HostDial {
    /// `nvme+tcp:`
    Plain(TcpDial),
    /// `nvme+tls:`
    Tls(TlsDial),
}

impl HostDial {
    /// Looks `host` up, and reads the files that the options name.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Tls`], [`Error::TlsFiles`].
    pub fn new(tls: bool, host: &str, port: u16, options: &Options) -> Result<Self, Error> {
        if tls {
            TlsDial::new(host, port, options).map(Self::Tls)
        } else {
            TcpDial::new(host, port).map(Self::Plain)
        }
    }
}

impl Dial for HostDial {
    type Pipe = HostPipe;

    fn dial(&self, wait_us: u64) -> Result<HostPipe, Closed> {
        match self {
            Self::Plain(dial) => dial.dial(wait_us).map(HostPipe::Plain),
            Self::Tls(dial) => dial.dial(wait_us).map(|pipe| HostPipe::Tls(Box::new(pipe))),
        }
    }
}

/// A pipe of one of the two kinds.
#[derive(Debug)]
pub enum HostPipe {
    /// A socket.
    Plain(TcpPipe),
    /// One inside TLS.
    Tls(Box<TlsPipe>),
}

impl HostPipe {
    fn pipe(&self) -> &dyn Pipe {
        match self {
            Self::Plain(pipe) => pipe,
            Self::Tls(pipe) => &**pipe,
        }
    }
}

impl Pipe for HostPipe {
    fn send(&self, bytes: &[u8]) -> Result<usize, Closed> {
        self.pipe().send(bytes)
    }

    fn receive(&self, into: &mut [u8], wait_us: u64) -> Result<usize, Closed> {
        self.pipe().receive(into, wait_us)
    }

    fn wait_room(&self, or_bytes: bool, wait_us: u64) {
        self.pipe().wait_room(or_bytes, wait_us);
    }

    fn shut(&self) {
        self.pipe().shut();
    }
}
