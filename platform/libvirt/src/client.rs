//! A connection: calls, serials and deadlines.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use spillway_platform::sys::peer_credentials;

use crate::description::Description;
use crate::error::Error;
use crate::wire::{self, NO_DOMAIN, Procedure, Reader, Reply, Writer};

/// libvirt's sockets: that of its daemon for QEMU, and that of its daemon for all hypervisors.
pub const SOCKETS: [&str; 2] = ["/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"];
/// Time between two attempts to connect while libvirt's listen queue is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Most bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Most reads of one [`Connection::pump`], so that a flood does not block the caller.
const PUMP_READS: usize = 16;
/// Authentication methods.
const AUTH_NONE: u32 = 0;
const AUTH_POLKIT: u32 = 2;
const AUTH_WAYS_MAX: u32 = 20;
/// The update changes the running domain, not its configuration.
const AFFECT_LIVE: u32 = 1;
const UUID_BYTES: usize = 16;

/// A client of libvirt.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    received: Vec<u8>,
    /// The last call's number.
    serial: u32,
    /// The connection is unusable: every call returns [`Error::Closed`].
    closed: bool,
}

/// A domain as libvirt names it in calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainHandle {
    name: String,
    uuid: [u8; UUID_BYTES],
    id: u32,
}

/// The first of [`SOCKETS`] that exists; the last if none does.
#[must_use]
pub fn usual_socket() -> PathBuf {
    let there = SOCKETS.iter().find(|path| Path::new(path).exists());
    PathBuf::from(there.unwrap_or(&SOCKETS[1]))
}

impl Connection {
    /// Connects, and opens the hypervisor.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Stranger`], and those of a call: [`Error::Refused`] if libvirt answers with an
    /// error;
    /// [`Error::TimedOut`], after which a late answer is dropped; [`Error::Closed`], [`Error::Garbage`], [`Error::Io`],
    /// after which every call returns [`Error::Closed`].
    pub fn open(path: &Path, deadline: Instant) -> Result<Self, Error> {
        let socket = connect_before(path, deadline)?;
        // The libvirtd of an ordinary user names its hypervisor differently.
        let is_system = peer_credentials(&socket).map_err(Error::from)?.uid == 0;
        let uri = if is_system { "qemu:///system" } else { "qemu:///session" };
        let mut connection = Self { socket, received: Vec::new(), serial: 0, closed: false };
        connection.authenticate(deadline)?;
        let arguments = Writer::default().word(1).text(uri).word(0);
        connection.call(Procedure::Open, "the connection to QEMU", arguments, deadline)?;
        Ok(connection)
    }

    fn authenticate(&mut self, deadline: Instant) -> Result<(), Error> {
        let what = "authentication";
        let answer = self.call(Procedure::AuthList, what, Writer::default(), deadline)?;
        let mut reader = Reader::new(&answer);
        let ways = (0..reader.word()?.min(AUTH_WAYS_MAX)).map(|_| reader.word());
        let ways: Vec<u32> = ways.collect::<Result<_, _>>()?;
        if ways.contains(&AUTH_NONE) || ways.is_empty() {
            return Ok(());
        }
        if !ways.contains(&AUTH_POLKIT) {
            return Err(Error::Stranger);
        }
        // polkit decides by the socket's peer, without a prompt.
        match self.call(Procedure::AuthPolkit, what, Writer::default(), deadline) {
            Err(Error::Refused { .. }) => Err(Error::Stranger),
            done => done.map(drop),
        }
    }

    /// The domain with a name.
    ///
    /// # Errors
    /// [`Error::NoDomain`], and those of a call.
    pub fn find(&mut self, name: &str, deadline: Instant) -> Result<DomainHandle, Error> {
        let what = "the lookup of a domain";
        let arguments = Writer::default().text(name);
        let answer = self.call(Procedure::LookUp, what, arguments, deadline);
        let answer = named(answer, name)?;
        self.check(|_| {
            let mut reader = Reader::new(&answer);
            let name = reader.text()?;
            let mut uuid = [0; UUID_BYTES];
            uuid.copy_from_slice(reader.take(UUID_BYTES)?);
            Ok(DomainHandle { name, uuid, id: reader.word()? })
        })
    }

    /// A domain's present description.
    ///
    /// # Errors
    /// Those of a call.
    pub fn describe(
        &mut self,
        domain: &DomainHandle,
        deadline: Instant,
    ) -> Result<Description, Error> {
        let what = "the description of a domain";
        let arguments = domain.write().word(0);
        let answer = self.call(Procedure::Describe, what, arguments, deadline);
        let answer = named(answer, &domain.name)?;
        self.check(|_| Description::read(Reader::new(&answer).text()?))
    }

    /// Changes a device of a running domain to `element`, made by [`Description::resized`].
    ///
    /// # Errors
    /// Those of a call.
    pub fn update(
        &mut self,
        domain: &DomainHandle,
        element: &str,
        deadline: Instant,
    ) -> Result<(), Error> {
        let what = "the new size of a virtio-mem device";
        let arguments = domain.write().text(element).word(AFFECT_LIVE);
        let done = self.call(Procedure::UpdateDevice, what, arguments, deadline);
        named(done, &domain.name).map(drop)
    }

    /// Reads what libvirt has sent unasked, without waiting, and drops it. A poll loop calls this when [`AsFd::as_fd`]
    /// is readable.
    ///
    /// # Errors
    /// Those of a call, except [`Error::Refused`] and [`Error::TimedOut`].
    pub fn pump(&mut self) -> Result<(), Error> {
        self.check(|connection| {
            for _ in 0..PUMP_READS {
                let more = connection.receive()?;
                while connection.next_reply()?.is_some() {}
                if !more {
                    break;
                }
            }
            Ok(())
        })
    }

    fn call(
        &mut self,
        procedure: Procedure,
        what: &'static str,
        arguments: Writer,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let reply = self.check(|connection| {
            connection.serial = connection.serial.wrapping_add(1);
            let message = arguments.call(procedure, connection.serial);
            connection.send(&message, what, deadline)?;
            loop {
                while let Some(reply) = connection.next_reply()? {
                    if reply.serial == connection.serial {
                        return Ok(reply);
                    }
                }
                connection.wait(PollFlags::IN, deadline, what)?;
                connection.receive()?;
            }
        })?;
        reply.outcome.map_err(|failure| match failure.code {
            NO_DOMAIN => Error::NoDomain { name: failure.text },
            _ => Error::Refused { what, text: failure.text },
        })
    }

    /// Runs a step if the connection is usable, and records if it no longer is.
    fn check<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        let result = step(self);
        self.closed |= result.as_ref().is_err_and(Error::is_final);
        result
    }

    /// Sends a whole message. If the deadline cuts a message off, the connection becomes unusable.
    fn send(&mut self, mut rest: &[u8], what: &'static str, until: Instant) -> Result<(), Error> {
        let whole = rest.len();
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let waited = self.wait(PollFlags::OUT, until, what);
                    self.closed |= waited.is_err() && rest.len() < whole;
                    waited?;
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads available bytes once; false if there are none.
    fn receive(&mut self) -> Result<bool, Error> {
        let mut bytes = [0; READ_BYTES];
        match recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => Err(Error::Closed),
            Ok((length, _)) => {
                self.received.extend_from_slice(&bytes[..length]);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next reply among the whole messages received. Messages that are not replies are dropped.
    fn next_reply(&mut self) -> Result<Option<Reply>, Error> {
        while let Some(length) = wire::length(&self.received)? {
            if self.received.len() < length {
                break;
            }
            let message: Vec<u8> = self.received.drain(..length).collect();
            if let Some(reply) = wire::read(&message)? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Waits until the socket is ready.
    fn wait(&self, ready: PollFlags, deadline: Instant, what: &'static str) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        // Checked even if the socket is always ready: a flood must not extend the deadline.
        if left.is_zero() {
            return Err(Error::TimedOut { what });
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, ready)], Some(&timeout)) {
            Ok(0) => Err(Error::TimedOut { what }),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl DomainHandle {
    /// The number of a running domain; each start of the domain changes it.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        (self.id.cast_signed() >= 0).then_some(self.id)
    }

    fn write(&self) -> Writer {
        Writer::default().text(&self.name).fixed(&self.uuid).word(self.id)
    }
}

/// Puts the domain's name into [`Error::NoDomain`].
fn named<T>(answer: Result<T, Error>, name: &str) -> Result<T, Error> {
    answer.map_err(|error| match error {
        Error::NoDomain { .. } => Error::NoDomain { name: name.to_owned() },
        other => other,
    })
}

/// A socket connected to `path`.
fn connect_before(path: &Path, deadline: Instant) -> Result<OwnedFd, Error> {
    let absent = |errno: Errno| Error::Absent { path: path.to_owned(), error: errno.into() };
    let address = SocketAddrUnix::new(path).map_err(absent)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            // The queue of connections is full.
            Err(Errno::AGAIN) if Instant::now() < deadline => thread::sleep(CONNECT_PAUSE),
            Err(Errno::AGAIN) => return Err(Error::TimedOut { what: "a connection" }),
            Err(errno) => return Err(absent(errno)),
        }
    }
}
