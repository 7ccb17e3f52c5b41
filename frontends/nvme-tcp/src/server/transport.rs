//! How a connection's bytes are transported: plain, or inside TLS 1.3 with certificates on both sides.

use std::io::{Error as IoError, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustls::ServerConnection;
use spillway_tls::ServerSettings;

use crate::error::Error;

/// A connected non-blocking socket, and the TLS session on it.
pub(crate) struct Transport {
    stream: TcpStream,
    tls: Option<Tls>,
}

struct Tls {
    connection: Box<ServerConnection>,
    /// Decrypted bytes may remain in the session. The socket is not readable because of them.
    may_hold_more: bool,
}

impl Transport {
    pub(crate) const fn plain(stream: TcpStream) -> Self {
        Self { stream, tls: None }
    }

    /// A TLS connection. Call [`Self::handshake`] first.
    pub(crate) fn encrypted(stream: TcpStream, settings: &ServerSettings) -> Result<Self, Error> {
        let connection = Box::new(settings.connection()?);
        Ok(Self { stream, tls: Some(Tls { connection, may_hold_more: false }) })
    }

    /// Continues the handshake with the bytes that have arrived. True if it is complete; otherwise wait for the socket,
    /// for writing if [`Self::wants_write`].
    pub(crate) fn handshake(&mut self) -> Result<bool, Error> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        if tls.connection.is_handshaking() {
            match tls.take_in(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) => return Err(IoError::from(ErrorKind::UnexpectedEof).into()),
                taken => {
                    taken?;
                }
            }
        }
        match tls.push(&mut self.stream) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            pushed => {
                pushed?;
                // The last message of the handshake may have arrived together with the host's first bytes.
                tls.may_hold_more = true;
                Ok(!tls.connection.is_handshaking())
            }
        }
    }

    /// The name in the host's certificate, after the handshake. `None` without TLS.
    pub(crate) fn name(&self) -> Result<Option<String>, Error> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let name = spillway_tls::name_of(&tls.connection)?;
        // The handshake fails without a certificate, but a certificate can lack a name.
        name.map(Some).ok_or_else(|| spillway_tls::Error::Nameless.into())
    }

    /// The processor on which the last packet arrived.
    pub(crate) fn processor(&self) -> Option<usize> {
        let processor = rustix::net::sockopt::socket_incoming_cpu(&self.stream).ok()?;
        usize::try_from(processor).ok()
    }

    /// The target's address to which the host connected.
    pub(crate) fn local(&self) -> Result<SocketAddr, IoError> {
        self.stream.local_addr()
    }

    /// Whether [`Self::read`] may give bytes although the socket is not readable.
    pub(crate) fn may_hold_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.may_hold_more)
    }

    /// Whether TLS has bytes that wait for the socket to be writable.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write())
    }

    /// Reads bytes that have arrived; 0 at the end of the stream.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, IoError> {
        let Some(tls) = &mut self.tls else { return self.stream.read(into) };
        loop {
            match tls.connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => {
                    tls.may_hold_more = matches!(read, Ok(bytes) if bytes > 0);
                    return read;
                }
            }
            tls.may_hold_more = false;
            if tls.take_in(&mut self.stream)? == 0 {
                // TLS ends with close_notify. Without it, somebody may have cut the connection.
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Takes bytes to send, and gives how many. With TLS they are sent once [`Self::flush`] has succeeded.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let Some(tls) = &mut self.tls else { return self.stream.write(bytes) };
        tls.push(&mut self.stream)?;
        tls.connection.writer().write(bytes)
    }

    /// Sends the bytes that [`Self::write`] took.
    pub(crate) fn flush(&mut self) -> Result<(), IoError> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.push(&mut self.stream))
    }

    /// Ends both directions.
    pub(crate) fn shut(&mut self) {
        // Both fail if the host has already closed the connection.
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
            let _ = tls.push(&mut self.stream);
        }
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Tls {
    /// Takes encrypted bytes from the socket; 0 at its end.
    fn take_in(&mut self, stream: &mut TcpStream) -> Result<usize, IoError> {
        let bytes = self.connection.read_tls(stream)?;
        if let Err(error) = self.connection.process_new_packets() {
            // Sends TLS's alert to the host, if the socket is writable.
            let _ = self.push(stream);
            return Err(IoError::new(ErrorKind::InvalidData, error));
        }
        Ok(bytes)
    }

    fn push(&mut self, stream: &mut TcpStream) -> Result<(), IoError> {
        while self.connection.wants_write() {
            self.connection.write_tls(stream)?;
        }
        Ok(())
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
