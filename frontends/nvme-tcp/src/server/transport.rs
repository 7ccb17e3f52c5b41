//! How a connection's bytes travel: plain, or inside TLS 1.3 with certificates of both sides.

use std::io::{Error as IoError, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustls::ServerConnection;
use spillway_tls::ServerSettings;

use crate::error::Error;

/// A connected socket that never waits, and what encrypts it.
pub(crate) struct Transport {
    stream: TcpStream,
    tls: Option<Tls>,
}

struct Tls {
    connection: Box<ServerConnection>,
    /// More may have been decrypted than was asked for, so the socket does not tell.
    may_hold_more: bool,
}

impl Transport {
    pub(crate) const fn plain(stream: TcpStream) -> Self {
        Self { stream, tls: None }
    }

    /// The handshake is still to be made: see [`Self::handshake`].
    pub(crate) fn encrypted(stream: TcpStream, settings: &ServerSettings) -> Result<Self, Error> {
        let connection = Box::new(settings.connection()?);
        Ok(Self { stream, tls: Some(Tls { connection, may_hold_more: false }) })
    }

    /// Goes on with the handshake as far as the bytes that came allow. Whether it is done; else the
    /// socket is to be waited for, see [`Self::wants_write`].
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
                // What the host has sent behind it came with it.
                tls.may_hold_more = true;
                Ok(!tls.connection.is_handshaking())
            }
        }
    }

    /// The name in the host's certificate, once the handshake is done. `None`: the connection is plain.
    pub(crate) fn name(&self) -> Result<Option<String>, Error> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let name = spillway_tls::name_of(&tls.connection)?;
        // Those without a certificate don't come so far; without a name they are nobody.
        name.map(Some).ok_or_else(|| spillway_tls::Error::Nameless.into())
    }

    /// The processor where the last packet came in.
    pub(crate) fn processor(&self) -> Option<usize> {
        let processor = rustix::net::sockopt::socket_incoming_cpu(&self.stream).ok()?;
        usize::try_from(processor).ok()
    }

    /// The target's address by which the host came.
    pub(crate) fn local(&self) -> Result<SocketAddr, IoError> {
        self.stream.local_addr()
    }

    /// Whether [`Self::read`] may have bytes that the socket does not announce.
    pub(crate) fn may_hold_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.may_hold_more)
    }

    /// Whether bytes wait for the socket to have room.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write())
    }

    /// Reads what has come; 0 at the end.
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
                // Without TLS's own end somebody may have cut it.
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Takes bytes to be sent; how many. Inside TLS they have left when [`Self::flush`] has said so.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let Some(tls) = &mut self.tls else { return self.stream.write(bytes) };
        tls.push(&mut self.stream)?;
        tls.connection.writer().write(bytes)
    }

    /// Sends what was taken.
    pub(crate) fn flush(&mut self) -> Result<(), IoError> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.push(&mut self.stream))
    }

    /// Ends both directions.
    pub(crate) fn shut(&mut self) {
        // The host may be gone already.
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
            // The host is told why, if there is room.
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
