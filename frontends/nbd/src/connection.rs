//! One connection, on a thread of its own.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustls::{ServerConnection, Stream};
use spillway_block::Exports;
use spillway_serving::{Complaints, Latencies};
use spillway_types::{Access, Identity, Whose};
use spillway_wire::nbd::GREETING;

use crate::admission::Admission;
use crate::buffer::{Input, Output, buffer_bytes};
use crate::config::{Config, TlsMode};
use crate::error::Error;
use crate::negotiation::{Negotiation, Peer, Step, TlsState};
use crate::session::Session;
use crate::socket::Socket;
use crate::transmission::{Progress, Transmission};

/// Bytes of the buffer during the handshake: the longest option, and its header.
const HANDSHAKE_BYTES: usize = 17 << 10;

/// The state that a server's connections share.
pub struct Shared {
    pub access: Arc<dyn Access>,
    pub exports: Arc<dyn Exports>,
    pub config: Config,
    pub complaints: Complaints,
    pub latencies: Arc<Latencies>,
}

/// A connection during the handshake.
struct Handshake<'a> {
    shared: &'a Shared,
    /// Called when the peer is admitted.
    admitted: &'a dyn Fn(),
    socket: &'a Socket,
    peer: spillway_types::Peer,
    negotiation: Negotiation,
    input: Input,
    admission: Option<Admission>,
    deadline: Deadline,
}

/// The deadline of the handshake; none after the handshake.
type Deadline = Rc<Cell<Option<Instant>>>;

/// A socket whose reads and writes do not wait beyond the deadline, however many of them a TLS record takes.
struct Timed<'a> {
    socket: &'a Socket,
    deadline: Deadline,
}

impl Timed<'_> {
    fn hurry(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline.get() else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeout(Some(left))
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        let mut socket = self.socket;
        socket.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        let mut socket = self.socket;
        socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The reason why the handshake stopped.
enum Agreed {
    Session(Session),
    Tls,
    End,
}

/// Serves a connection to its end. Calls `admitted` when the peer is admitted.
///
/// # Errors
/// The reason why it ended, unless the peer ended it.
pub fn serve(
    socket: &Socket,
    peer: spillway_types::Peer,
    shared: &Shared,
    admitted: &dyn Fn(),
) -> Result<(), Error> {
    socket.prepare()?;
    let tls = match shared.config.tls {
        TlsMode::Off => TlsState::Off,
        TlsMode::Offered(_) => TlsState::Offered,
        TlsMode::Required(_) => TlsState::Required,
    };
    let handshake = Handshake {
        shared,
        admitted,
        socket,
        peer,
        negotiation: Negotiation::new(tls),
        input: Input::new(HANDSHAKE_BYTES),
        admission: None,
        deadline: Rc::new(Cell::new(Some(Instant::now() + shared.config.handshake_timeout))),
    };
    let deadline = Rc::clone(&handshake.deadline);
    let served = handshake.begin();
    if served.is_err() && deadline.get().is_some_and(|deadline| Instant::now() >= deadline) {
        shared.access.handshake_late();
        return Err(Error::Late);
    }
    served
}

impl Handshake<'_> {
    /// Serves the connection to its end.
    fn begin(mut self) -> Result<(), Error> {
        let mut plain = Timed { socket: self.socket, deadline: Rc::clone(&self.deadline) };
        plain.write_all(&GREETING)?;
        match self.haggle(&mut plain, None)? {
            Agreed::End => Ok(()),
            Agreed::Session(session) => self.transmit(plain, session),
            Agreed::Tls => self.encrypt(plain),
        }
    }

    /// Answers options until the peer has chosen an export or ends. `name` is the peer's, from its
    /// certificate.
    fn haggle(
        &mut self,
        stream: &mut (impl Read + Write),
        name: Option<&str>,
    ) -> Result<Agreed, Error> {
        let mut answer = Vec::new();
        loop {
            let exports = &*self.shared.exports;
            let (used, step) =
                self.negotiation.advance(self.input.bytes(), exports, &mut answer)?;
            self.input.consume(used);
            stream.write_all(&answer)?;
            answer.clear();
            match step {
                Step::Begin(session) => return Ok(Agreed::Session(session)),
                Step::StartTls => return Ok(Agreed::Tls),
                Step::End => return Ok(Agreed::End),
                Step::Meet => self.meet(name)?,
                Step::More => {
                    if self.input.fill(stream)? == 0 {
                        return Ok(Agreed::End);
                    }
                }
            }
        }
    }

    /// Identifies the peer, and decides whether to admit it.
    fn meet(&mut self, name: Option<&str>) -> Result<(), Error> {
        let identity = match name {
            Some(name) => Some(Identity::Name(name)),
            None => self.socket.identity(self.shared.config.loopback_name.as_deref())?,
        };
        let denied = spillway_types::Denied::Unknown;
        let asked = identity.map_or(Err(denied), |who| Admission::ask(&self.shared.access, who));
        let peer = match asked {
            Ok(admission) => {
                let client = admission.admitted.client;
                self.admission = Some(admission);
                (self.admitted)();
                Peer::Client(client)
            }
            Err(reason) => {
                if self.shared.complaints.line(self.peer) {
                    // Without an identity, it is its address that is not let in.
                    let peer = match identity {
                        Some(identity) => format!("{identity:?}"),
                        None => Whose::Peer(self.peer).to_string(),
                    };
                    tracing::info!(peer, %reason, "an NBD peer was not let in");
                }
                Peer::Denied(reason)
            }
        };
        self.negotiation.meet(peer);
        Ok(())
    }

    /// Switches to TLS, and continues with the handshake.
    fn encrypt(mut self, mut plain: Timed<'_>) -> Result<(), Error> {
        if !self.input.bytes().is_empty() {
            // An attacker could have injected these bytes.
            return Err(Error::Refused("the peer sent more before TLS began"));
        }
        let Some(settings) = self.shared.config.tls.settings() else { return Ok(()) };
        let mut connection = settings.connection()?;
        self.admission = None;
        while connection.is_handshaking() {
            connection.complete_io(&mut plain).inspect_err(|error| {
                if error.kind() == io::ErrorKind::InvalidData {
                    self.shared.access.authentication_failed();
                }
            })?;
        }
        let name = spillway_tls::name_of(&connection)?;
        self.negotiation.encrypted();
        let mut stream = Stream::new(&mut connection, &mut plain);
        let agreed = self.haggle(&mut stream, name.as_deref());
        let done = match agreed {
            Ok(Agreed::Session(session)) => self.transmit(stream, session),
            Ok(Agreed::End | Agreed::Tls) => Ok(()),
            Err(error) => Err(error),
        };
        say_goodbye(&mut connection, &mut plain);
        done
    }

    /// Executes requests until the peer ends.
    fn transmit(self, stream: impl Read + Write, session: Session) -> Result<(), Error> {
        let Some(admission) = &self.admission else { return Ok(()) };
        // An idle kernel may send nothing for days.
        self.deadline.set(None);
        self.socket.set_timeout(None)?;
        let bytes = buffer_bytes(&admission.admitted.limits);
        let mut input = Input::new(bytes);
        input.fill(&mut self.input.bytes())?;
        let mut output = Output::new(bytes);
        let recorder = self.shared.latencies.recorder();
        converse(Transmission::new(session).recorded(recorder), &mut input, &mut output, stream)
    }
}

/// Executes requests until the peer ends.
pub fn converse(
    mut transmission: Transmission,
    input: &mut Input,
    output: &mut Output,
    mut stream: impl Read + Write,
) -> Result<(), Error> {
    loop {
        let (used, progress) = transmission.advance(input.bytes(), output)?;
        input.consume(used);
        if !output.bytes().is_empty() {
            stream.write_all(output.bytes())?;
            stream.flush()?;
            output.clear();
        }
        match progress {
            Progress::NeedRoom => {}
            Progress::NeedInput => {
                if input.fill(&mut stream)? == 0 {
                    return Ok(());
                }
            }
            Progress::End => return Ok(()),
        }
    }
}

/// Closes TLS properly, so that the peer can distinguish this from a lost connection.
fn say_goodbye(connection: &mut ServerConnection, plain: &mut Timed<'_>) {
    connection.send_close_notify();
    while connection.wants_write() {
        // The peer may be gone already.
        if connection.write_tls(plain).is_err() {
            return;
        }
    }
}
