//! The transport of a connection: a socket, plain or with TLS.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::ServerConnection;
use spillway_tls::ServerSettings;

use crate::error::Error;

/// A non-blocking socket.
#[derive(Debug)]
pub enum Socket {
    /// A socket to a process of this host.
    Unix(UnixStream),
    /// A socket to the network.
    Tcp(TcpStream),
}

impl Socket {
    /// The address of this side: a path for Unix sockets.
    ///
    /// # Errors
    /// That of the system call.
    pub fn local_address(&self) -> io::Result<String> {
        Ok(match self {
            Self::Unix(stream) => {
                let address = stream.local_addr()?;
                address.as_pathname().map(|path| path.display().to_string()).unwrap_or_default()
            }
            Self::Tcp(stream) => stream.local_addr()?.to_string(),
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self, into)?)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket, and its TLS connection if it is encrypted.
pub struct Transport {
    socket: Arc<Socket>,
    tls: Option<Box<ServerConnection>>,
}

impl Transport {
    /// A transport over `socket`, encrypted if there are settings for TLS. An encrypted one still needs the handshake.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(socket: Arc<Socket>, tls: Option<&ServerSettings>) -> Result<Self, Error> {
        let connection = tls.map(ServerSettings::connection).transpose()?;
        Ok(Self { socket, tls: connection.map(Box::new) })
    }

    /// Continues the handshake with the bytes that have arrived. True if it is complete.
    ///
    /// # Errors
    /// The peer is gone, or the handshake failed.
    pub fn handshake(&mut self) -> Result<bool, Error> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        if tls.is_handshaking() {
            match take_in(tls, &self.socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                taken => drop(taken?),
            }
        }
        Ok(push(tls, &self.socket)? && !tls.is_handshaking())
    }

    /// The name in the peer's certificate, if the peer has sent one.
    ///
    /// # Errors
    /// The certificate can't be read.
    pub fn name(&self) -> Result<Option<String>, Error> {
        Ok(self.tls.as_deref().map(spillway_tls::name_of).transpose()?.flatten())
    }

    /// Whether the transport is a plain socket. Only then a short read means that no more bytes wait.
    pub const fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Reads the bytes that have arrived; 0 at the end.
    ///
    /// # Errors
    /// Those of the socket, among them `WouldBlock` if no bytes have arrived.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&*self.socket).read(into) };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if take_in(tls, &self.socket)? == 0 {
                // Without the closing alert of TLS an attacker may have cut the connection.
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads the bytes that have arrived into several parts, in order; 0 at the end. Only for plain sockets: TLS has
    /// the bytes in one part.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_parts(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        debug_assert!(self.is_plain());
        Ok(rustix::io::readv(&self.socket, parts)?)
    }

    /// Sends bytes. Gives the number of bytes taken. With TLS they are sent only when [`Self::flush`] gives true.
    ///
    /// # Errors
    /// Those of the socket, among them `WouldBlock` if it has no room.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return Ok(match parts {
                [one] => rustix::io::write(&self.socket, one)?,
                parts => rustix::io::writev(&self.socket, parts)?,
            });
        };
        if !push(tls, &self.socket)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        tls.writer().write_vectored(parts)
    }

    /// Sends the bytes that were taken. True if all are sent.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| push(tls, &self.socket))
    }

    /// Sends the closing alert of TLS.
    pub fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The peer may be gone already.
            let _ = push(tls, &self.socket);
        }
    }
}

/// Reads encrypted bytes from the socket; 0 at its end.
fn take_in(tls: &mut ServerConnection, mut socket: &Socket) -> io::Result<usize> {
    let bytes = tls.read_tls(&mut socket)?;
    if let Err(error) = tls.process_new_packets() {
        // The peer gets an alert with the reason, if there is room.
        let _ = push(tls, socket);
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    Ok(bytes)
}

/// Sends encrypted bytes. True if all are sent.
fn push(tls: &mut ServerConnection, mut socket: &Socket) -> io::Result<bool> {
    while tls.wants_write() {
        match tls.write_tls(&mut socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            written => drop(written?),
        }
    }
    Ok(true)
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
