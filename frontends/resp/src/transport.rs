//! How a connection's bytes travel: plain, or inside TLS.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::ServerConnection;
use spillway_tls::ServerSettings;

use crate::error::Error;

/// A socket that never waits.
#[derive(Debug)]
pub enum Socket {
    /// To a process of this host.
    Unix(UnixStream),
    /// To the network.
    Tcp(TcpStream),
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

/// A socket, and what encrypts it.
pub struct Transport {
    socket: Arc<Socket>,
    tls: Option<Box<ServerConnection>>,
}

impl Transport {
    /// A connection that is encrypted, if there are settings for that. Then the handshake is still to be made.
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn new(socket: Arc<Socket>, tls: Option<&ServerSettings>) -> Result<Self, Error> {
        let connection = tls.map(ServerSettings::connection).transpose()?;
        Ok(Self { socket, tls: connection.map(Box::new) })
    }

    /// Goes on with the handshake as far as the bytes that came allow. Whether it is done.
    ///
    /// # Errors
    /// The peer is gone, or can't be agreed with.
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

    /// The name in the peer's certificate, if it has shown one.
    ///
    /// # Errors
    /// The certificate can't be read.
    pub fn name(&self) -> Result<Option<String>, Error> {
        Ok(self.tls.as_deref().map(spillway_tls::name_of).transpose()?.flatten())
    }

    /// Whether a read that gives less than there is room for has given all.
    pub const fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Reads what has come; 0 at the end.
    ///
    /// # Errors
    /// Those of the socket, among them that nothing has come.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&*self.socket).read(into) };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if take_in(tls, &self.socket)? == 0 {
                // Without TLS's own end somebody may have cut it.
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads what has come into several parts, one behind the other; 0 at the end. Only without TLS, which has it in one
    /// part.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_parts(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        debug_assert!(self.is_plain());
        Ok(rustix::io::readv(&self.socket, parts)?)
    }

    /// Sends bytes; how many were taken. Inside TLS they have left when [`Self::flush`] has said so.
    ///
    /// # Errors
    /// Those of the socket, among them that it has no room.
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

    /// Sends what was taken. Whether all has left.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| push(tls, &self.socket))
    }

    /// Tells the peer that no more comes.
    pub fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The peer may be gone already.
            let _ = push(tls, &self.socket);
        }
    }
}

/// Takes encrypted bytes from the socket; 0 at its end.
fn take_in(tls: &mut ServerConnection, mut socket: &Socket) -> io::Result<usize> {
    let bytes = tls.read_tls(&mut socket)?;
    if let Err(error) = tls.process_new_packets() {
        // The peer is told why, if there is room.
        let _ = push(tls, socket);
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    Ok(bytes)
}

/// Sends encrypted bytes. Whether all have left.
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
