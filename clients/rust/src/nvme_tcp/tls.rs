//! TLS 1.3 over a TCP socket, with certificates on both sides, as a pipe.
//!
//! For threads of ordinary programs: rustls allocates, and its buffers are behind std's locks. The pager's tasks can
//! use neither; they seal each page instead (`clients/blade`).

use core::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::{AlertDescription, CertificateError, ClientConnection, Error as TlsError};
use spillway_tls::{ClientSettings, Files};

use super::pipe::{Closed, Dial, Pipe};
use super::session::now_us;
use super::settings::Options;
use super::socket::{TcpDial, TcpPipe};
use crate::Error;

/// Bytes to encrypt at a time: one record.
const PIECE_BYTES: usize = 16 << 10;

/// Connects to a host and runs the TLS handshake.
#[derive(Clone, Debug)]
pub struct TlsDial {
    tcp: TcpDial,
    settings: ClientSettings,
}

impl TlsDial {
    /// Looks `host` up. The settings contain the name that the target's certificate must have.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub fn with_settings(host: &str, port: u16, settings: ClientSettings) -> Result<Self, Error> {
        Ok(Self { tcp: TcpDial::new(host, port)?, settings })
    }

    /// Looks `host` up, and reads the files that the options name. The target's certificate must be for `host`.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Tls`].
    pub fn new(host: &str, port: u16, options: &Options) -> Result<Self, Error> {
        let (Some(certificate), Some(key), Some(authority)) =
            (&options.certificate, &options.key, &options.authority)
        else {
            return Err(Error::TlsFiles);
        };
        let files = Files {
            certificate: certificate.clone(),
            key: key.clone(),
            authority: Some(authority.clone()),
        };
        Self::with_settings(host, port, ClientSettings::load(&files, authority, host)?)
    }
}

impl Dial for TlsDial {
    type Pipe = TlsPipe;

    fn dial(&self, wait_us: u64) -> Result<TlsPipe, Closed> {
        let until_us = now_us() + wait_us;
        let tcp = self.tcp.dial(wait_us)?;
        let connection = self.settings.connection().map_err(|_| Closed::Refused("TLS failed"))?;
        let pipe = TlsPipe { tcp, state: Mutex::new(TlsState { connection, taken: 0 }) };
        pipe.handshake(until_us)?;
        Ok(pipe)
    }
}

/// A TLS connection.
pub struct TlsPipe {
    tcp: TcpPipe,
    state: Mutex<TlsState>,
}

struct TlsState {
    connection: ClientConnection,
    /// Bytes that are encrypted but not all sent. They count as sent only then.
    taken: usize,
}

impl fmt::Debug for TlsPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPipe").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl TlsPipe {
    fn state(&self) -> MutexGuard<'_, TlsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handshake(&self, until_us: u64) -> Result<(), Closed> {
        loop {
            let mut state = self.state();
            let came = state.take_in(&self.tcp)?;
            let sent = state.push(&self.tcp)?;
            if sent && !state.connection.is_handshaking() {
                return Ok(());
            }
            drop(state);
            match until_us.saturating_sub(now_us()) {
                0 => return Err(Closed::TimedOut),
                _ if came => {}
                left_us if sent => self.tcp.wait_bytes(left_us),
                left_us => self.tcp.wait_room(true, left_us),
            }
        }
    }
}

impl TlsState {
    /// Sends encrypted bytes. Returns whether all are sent.
    fn push(&mut self, tcp: &TcpPipe) -> Result<bool, Closed> {
        while self.connection.wants_write() {
            let mut socket = Socket { tcp, closed: None };
            let written = self.connection.write_tls(&mut socket);
            if let Some(closed) = socket.closed {
                return Err(closed);
            }
            if written.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads encrypted bytes from the socket. Returns whether there were any.
    fn take_in(&mut self, tcp: &TcpPipe) -> Result<bool, Closed> {
        let mut socket = Socket { tcp, closed: None };
        let read = self.connection.read_tls(&mut socket);
        if let Some(closed) = socket.closed {
            return Err(closed);
        }
        if read.is_err() {
            return Ok(false);
        }
        if let Err(error) = self.connection.process_new_packets() {
            // Tell the target why, if there is room.
            let _ = self.push(tcp);
            return Err(Closed::Refused(why(&error)));
        }
        Ok(true)
    }
}

/// A reason that tells the operator what to fix.
const fn why(error: &TlsError) -> &'static str {
    use AlertDescription as Alert;
    use CertificateError as Certificate;
    match error {
        TlsError::InvalidCertificate(
            Certificate::Expired
            | Certificate::ExpiredContext { .. }
            | Certificate::NotValidYet
            | Certificate::NotValidYetContext { .. },
        ) => {
            "the target's certificate has expired or is not valid yet: renew it, or set the clocks"
        }
        TlsError::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => "the target's certificate is not for the name in the URL",
        TlsError::InvalidCertificate(_) => {
            "nobody in the authority file vouches for the target's certificate"
        }
        TlsError::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::CertificateRequired,
        ) => "the target does not accept this client's certificate",
        _ => "the target does not speak TLS 1.3 as a Spillway host does",
    }
}

impl Pipe for TlsPipe {
    fn send(&self, bytes: &[u8]) -> Result<usize, Closed> {
        let mut state = self.state();
        if state.taken == 0 {
            let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
            let taken = state.connection.writer().write(piece);
            state.taken = taken.map_err(|_| Closed::Refused("TLS has ended"))?;
        }
        match state.push(&self.tcp)? {
            true => Ok(core::mem::take(&mut state.taken)),
            false => Ok(0),
        }
    }

    fn receive(&self, into: &mut [u8], wait_us: u64) -> Result<usize, Closed> {
        let until_us = now_us() + wait_us;
        loop {
            let mut state = self.state();
            match state.connection.reader().read(into) {
                Ok(0) if !into.is_empty() => return Err(Closed::ByPeer),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Closed::ByPeer),
            }
            let came = state.take_in(&self.tcp)?;
            drop(state);
            match until_us.saturating_sub(now_us()) {
                _ if came => {}
                0 => return Ok(0),
                left_us => self.tcp.wait_bytes(left_us),
            }
        }
    }

    fn wait_room(&self, or_bytes: bool, wait_us: u64) {
        self.tcp.wait_room(or_bytes, wait_us);
    }

    fn shut(&self) {
        let mut state = self.state();
        state.connection.send_close_notify();
        // The target may already be gone.
        let _ = state.push(&self.tcp);
        drop(state);
        self.tcp.shut();
    }
}

/// A socket as rustls uses it. It never waits.
struct Socket<'a> {
    tcp: &'a TcpPipe,
    /// Why the socket is closed.
    closed: Option<Closed>,
}

impl Socket<'_> {
    fn done(&mut self, result: Result<usize, Closed>) -> io::Result<usize> {
        match result {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(count) => Ok(count),
            Err(closed) => {
                self.closed = Some(closed);
                Err(ErrorKind::ConnectionAborted.into())
            }
        }
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = self.tcp.receive(into, 0);
        self.done(received)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.tcp.send(bytes);
        self.done(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
