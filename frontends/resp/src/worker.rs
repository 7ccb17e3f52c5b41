//! A thread that serves many connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, eventfd};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use spillway_serving::Recorder;
use spillway_types::{Peer, Whose};

use crate::connection::Connection;
use crate::error::Error;
use crate::input::LENT_BYTES;
use crate::session::Origin;
use crate::shared::Shared;
use crate::transport::Transport;

/// Most events that one wait returns.
const EVENTS: usize = 128;
/// The event of the worker's own descriptor.
const WAKE: u64 = u64::MAX;
/// Reads of a connection in one turn, before other connections have theirs.
const TURN_READS: usize = 8;
/// Time between two checks for stalled connections, milliseconds.
const TICK_MS: u64 = 1000;

/// The system's clock, milliseconds since 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// A connection that was accepted.
pub struct Accepted {
    /// Its socket.
    pub transport: Transport,
    /// The state of its protocol.
    pub connection: Connection,
    /// Where it comes from.
    pub peer: Peer,
}

/// The part of a worker that other threads use.
pub struct Inbox {
    wake: OwnedFd,
    new: Mutex<Vec<Accepted>>,
    /// The number of its connections.
    pub count: AtomicUsize,
    stops: AtomicBool,
}

impl Inbox {
    /// An empty inbox.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (new, count, stops) = (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { wake, new, count, stops })
    }

    /// Hands a connection over to the worker.
    pub fn push(&self, accepted: Accepted) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.new.lock().unwrap_or_else(PoisonError::into_inner).push(accepted);
        self.ring();
    }

    /// Ends the worker.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        // A write fails only if the eventfd's counter is full. The eventfd is readable then.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Bytes of the peer.
    In,
    /// Room for replies.
    Out,
    /// Either of the two.
    Both,
    /// Its next turn.
    Turn,
}

/// A connection and its socket.
struct Served {
    transport: Transport,
    connection: Connection,
    peer: Peer,
    /// Whether the TLS handshake is complete, and the peer was identified by its origin.
    has_begun: bool,
    /// Whether the peer sends nothing more. It may still read.
    is_at_end: bool,
    /// The event that is registered with epoll.
    waits: Wait,
    /// The time of the last received or sent byte, milliseconds since 1970.
    moved_ms: u64,
}

/// The buffers that a worker lends to its connections.
struct Spare {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// A thread that serves connections.
pub struct Worker {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    served: Vec<Option<Box<Served>>>,
    free: Vec<usize>,
    /// Connections whose turn ended before their work did.
    again: Vec<usize>,
    /// Buffers for the connection that has its turn.
    spare: Spare,
    recorder: Recorder,
    ticked_ms: u64,
}

impl Worker {
    /// A worker without connections.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(shared: Arc<Shared>, inbox: Arc<Inbox>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &inbox.wake,
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Self {
            recorder: shared.latencies.recorder(),
            shared,
            inbox,
            epoll,
            served: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            spare: Spare { input: vec![0; LENT_BYTES], output: Vec::new() },
            ticked_ms: 0,
        })
    }

    /// Serves connections until [`Inbox::stop`] is called.
    pub fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        while !self.inbox.stops.load(Ordering::Acquire) {
            events.clear();
            let timeout = if self.again.is_empty() { &second } else { &at_once };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "a RESP worker can't wait for its connections");
                    return;
                }
            }
            let now_ms = unix_ms();
            for place in std::mem::take(&mut self.again) {
                self.turn(place, false, now_ms);
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => self.take_in(now_ms),
                    place => {
                        let flags = event.flags;
                        let has_sent = flags.contains(epoll::EventFlags::IN);
                        self.turn(place as usize, has_sent, now_ms);
                    }
                }
            }
            if now_ms.abs_diff(self.ticked_ms) >= TICK_MS {
                self.ticked_ms = now_ms;
                self.end_stalled(now_ms);
            }
        }
    }

    fn take_in(&mut self, now_ms: u64) {
        let new =
            std::mem::take(&mut *self.inbox.new.lock().unwrap_or_else(PoisonError::into_inner));
        for Accepted { transport, connection, peer } in new {
            let place = self.free.pop().unwrap_or_else(|| {
                self.served.push(None);
                self.served.len() - 1
            });
            let data = epoll::EventData::new_u64(place as u64);
            let added = epoll::add(&self.epoll, &transport, data, epoll::EventFlags::IN);
            connection.session.tell(&self.shared);
            let served = Served {
                transport,
                connection,
                peer,
                has_begun: false,
                is_at_end: false,
                waits: Wait::In,
                moved_ms: now_ms,
            };
            self.served[place] = Some(Box::new(served));
            match added {
                Ok(()) => self.turn(place, false, now_ms),
                Err(error) => self.end(place, Some(&error.into())),
            }
        }
    }

    /// Gives a connection its turn. `has_sent`: bytes of its peer have arrived.
    fn turn(&mut self, place: usize, has_sent: bool, now_ms: u64) {
        let Some(Some(served)) = self.served.get_mut(place) else { return };
        served.connection.input.lend(&mut self.spare.input);
        served.connection.output.lend(&mut self.spare.output);
        let turned = served.turn(&self.shared, &self.recorder, has_sent, now_ms);
        served.connection.input.give_back(&mut self.spare.input);
        served.connection.output.give_back(&mut self.spare.output);
        match turned {
            Err(error) => self.end(place, Some(&error)),
            Ok(None) => self.end(place, None),
            Ok(Some(Wait::Turn)) => self.again.push(place),
            Ok(Some(wait)) if wait == served.waits => {}
            Ok(Some(wait)) => {
                served.waits = wait;
                let flags = match wait {
                    Wait::Out => epoll::EventFlags::OUT,
                    Wait::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                    Wait::In | Wait::Turn => epoll::EventFlags::IN,
                };
                let data = epoll::EventData::new_u64(place as u64);
                if let Err(error) = epoll::modify(&self.epoll, &served.transport, data, flags) {
                    self.end(place, Some(&error.into()));
                }
            }
        }
    }

    fn end(&mut self, place: usize, error: Option<&Error>) {
        let Some(mut served) = self.served[place].take() else { return };
        let id = served.connection.session.id;
        match error {
            None => served.transport.end(),
            Some(error) => {
                if self.shared.complaints.line(served.peer) {
                    let peer = Whose::Peer(served.peer);
                    tracing::info!(%error, id, %peer, "a RESP connection ended");
                }
            }
        }
        self.shared.places.leave(id);
        self.shared.sessions.lock().remove(&id);
        self.inbox.count.fetch_sub(1, Ordering::Relaxed);
        self.free.push(place);
    }

    /// Ends connections whose peer is too slow.
    fn end_stalled(&mut self, now_ms: u64) {
        let config = &self.shared.config;
        let (handshake, stall) = (config.handshake_timeout, config.stall_timeout);
        for place in 0..self.served.len() {
            let Some(served) = &self.served[place] else { continue };
            let connection = &served.connection;
            let is_over = |since_ms: u64, time: std::time::Duration| {
                u128::from(now_ms.saturating_sub(since_ms)) >= time.as_millis()
            };
            let is_stranger = connection.session.database.is_none();
            let owes = connection.is_within_command() || !connection.output.is_empty();
            if is_stranger && is_over(connection.session.described.began_ms, handshake) {
                self.shared.access.handshake_late();
                self.end(place, Some(&Error::Slow("the peer did not say who it is")));
            } else if owes && is_over(served.moved_ms, stall) {
                self.end(place, Some(&Error::Slow("the peer stopped in a command or reply")));
            }
        }
    }
}

impl Served {
    /// Works until the connection has to wait. Gives the event to wait for; `None` at the end of the connection.
    fn turn(
        &mut self,
        shared: &Shared,
        recorder: &Recorder,
        has_sent: bool,
        now_ms: u64,
    ) -> Result<Option<Wait>, Error> {
        if !self.has_begun {
            let shaken = self.transport.handshake().inspect_err(|error| {
                if matches!(error, Error::Io(error) if error.kind() == io::ErrorKind::InvalidData) {
                    shared.access.authentication_failed();
                }
            })?;
            if !shaken {
                return Ok(Some(Wait::In));
            }
            self.begin(shared)?;
        }
        let (mut drained, mut has_sent) = (false, has_sent);
        for _ in 0..TURN_READS {
            // A client may send a whole pipeline before it reads the first reply.
            self.connection.make_room_for_replies(has_sent);
            let more = self.connection.process(shared, recorder, now_ms);
            let all_sent = self.send(now_ms)?;
            let is_last = self.connection.session.ends || self.is_at_end && !more;
            if is_last || !all_sent && !self.connection.has_room_for_replies() {
                return Ok((!all_sent).then_some(Wait::Out));
            }
            if more && all_sent {
                continue;
            }
            let wait = if all_sent { Wait::In } else { Wait::Both };
            if drained || more {
                return Ok(Some(wait));
            }
            match self.read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Some(wait));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.into()),
                Ok((0, _)) => self.is_at_end = true,
                Ok((read, room)) => {
                    self.moved_ms = now_ms;
                    has_sent = true;
                    drained = self.transport.is_plain() && read < room;
                }
            }
        }
        Ok(Some(Wait::Turn))
    }

    /// Reads the bytes that have arrived: those of a long value directly into the store's memory, others into the
    /// input.
    /// Gives the number of bytes read, and the room there was.
    fn read(&mut self) -> io::Result<(usize, usize)> {
        let (transport, connection) = (&mut self.transport, &mut self.connection);
        if transport.is_plain() {
            let mut room = 0;
            let value = connection.read_value(|parts| {
                room = parts.iter().map(|part| part.len()).sum();
                transport.read_parts(parts)
            });
            if let Some(read) = value {
                return Ok((read?, room));
            }
        }
        let wanted = connection.wanted();
        let room = connection.input.room(wanted);
        let bytes = room.len();
        let read = transport.read(room)?;
        connection.input.filled(read);
        Ok((read, bytes))
    }

    fn begin(&mut self, shared: &Shared) -> Result<(), Error> {
        self.has_begun = true;
        let session = &mut self.connection.session;
        if let Some(name) = self.transport.name()? {
            session.origin = Origin::Name(name);
        }
        if let Err(refused) = session.begin(shared) {
            session.ends = true;
            self.connection.output.reply().error(&refused.0);
        }
        session.tell(shared);
        self.connection.begun();
        Ok(())
    }

    /// Sends replies. True if all are sent.
    fn send(&mut self, now_ms: u64) -> Result<bool, Error> {
        let (transport, output) = (&mut self.transport, &mut self.connection.output);
        let mut moved = false;
        let sent = output.send(|parts| {
            let sent = transport.write(parts)?;
            moved = true;
            Ok(sent)
        });
        let all = match sent {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.connection.session.ends = true;
                return Ok(true);
            }
            sent => sent? && transport.flush()?,
        };
        if moved {
            self.moved_ms = now_ms;
        }
        Ok(all)
    }
}
