//! The thread of one ring, from the hello to the end.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use spillway_serving::{CommandKind, Latencies, PoolLog, Recorder};
use spillway_store::Store;
use spillway_types::Admitted;
use spillway_wire::kv::io;
use spillway_wire::nvme::Completion;
use spillway_wire::ring::{Geometry, Hello, Reason, VERSION, WAKE, Welcome};

use crate::account::Account;
use crate::bound::{BoundPools, HeldPools};
use crate::execute::Session;
use crate::pollers::{PollTime, Pollers};
use crate::region::Region;

/// The kinds of commands.
pub const COMMANDS: &[CommandKind] =
    &[CommandKind::Get, CommandKind::Put, CommandKind::Remove, CommandKind::Other];
/// One command in so many is timed, because most take little longer than to read the clock. The metrics' help says it.
const TIMED_EVERY: u32 = 64;

/// Most commands that are started before the first of them is completed.
const STEP: u32 = 16;
/// A command with more data than this ends its step, so that the client gets the completions early.
const STEP_BYTES_MAX: u32 = 64 << 10;

/// The state that all connections share.
#[derive(Debug)]
pub struct Shared {
    pub store: Arc<Store>,
    pub account: Account,
    pub bound: BoundPools,
    pub pollers: Pollers,
    /// Longest time that a connection's thread polls.
    pub poll: Duration,
    /// The same for a guest's window.
    pub poll_window: Duration,
    pub latencies: Arc<Latencies>,
    pub pool_log: PoolLog,
    /// Time limit for a client's hello.
    pub hello_timeout: Duration,
    /// Distinguishes this server from all others; see [`Welcome::Granted`].
    pub instance: u64,
    /// Set when the server ends.
    pub stopping: AtomicBool,
}

/// The reason why a connection ended, unless its client closed it.
#[derive(Debug)]
pub enum Ended {
    /// The client was refused.
    Refused(Reason),
    /// The client sent no hello in time.
    Late,
    /// The client violated the protocol.
    Protocol(&'static str),
    /// A system call failed.
    Failed(std::io::Error),
}

impl<E: Into<std::io::Error>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Refuses a client with one message, without waiting until the client reads it.
pub fn refuse(socket: BorrowedFd<'_>, reason: Reason) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = send(socket, &Welcome::Refused(reason).encode(), flags);
}

/// Serves a connection until it ends.
///
/// # Errors
/// The reason why it ended, unless its client closed it or the server stops.
pub fn serve(shared: &Shared, socket: &OwnedFd, admitted: Admitted) -> Result<(), Ended> {
    let Some(hello) = hear(socket, shared.hello_timeout)? else { return Ok(()) };
    let refused = |reason| {
        refuse(socket.as_fd(), reason);
        Err(Ended::Refused(reason))
    };
    if hello.version != VERSION {
        return refused(Reason::Version);
    }
    let Some(geometry) = shared.account.grant(admitted, hello) else {
        return refused(Reason::Limits);
    };
    let _grant = Grant { shared, admitted, geometry };
    let (region, file) = match Region::create(geometry) {
        Ok(made) => made,
        Err(error) => {
            refuse(socket.as_fd(), Reason::Failed);
            return Err(error.into());
        }
    };
    welcome(socket, geometry, shared.instance, file)?;
    let (stop, is_cut) = (&shared.stopping, &shared.stopping);
    let ended =
        exchange(shared, admitted, &region, Link { socket, poll: shared.poll, stop, is_cut });
    region.discard();
    ended
}

/// How the two sides of a region wake each other, and how its exchange ends.
#[derive(Debug)]
pub struct Link<'a> {
    /// Carries wake-ups. The exchange ends when its other end is closed.
    pub socket: &'a OwnedFd,
    /// Longest time that the thread polls before it sleeps.
    pub poll: Duration,
    /// Set to end the exchange, even if the client continues to submit commands.
    pub stop: &'a AtomicBool,
    /// Set if the exchange ends though its client may still be there.
    pub is_cut: &'a AtomicBool,
}

/// Serves the commands of a region until its link ends.
///
/// # Errors
/// As [`serve`].
pub fn exchange(
    shared: &Shared,
    admitted: Admitted,
    region: &Region,
    link: Link<'_>,
) -> Result<(), Ended> {
    let bound = HeldPools::new(&shared.bound, link.is_cut);
    let session = Session::new(&shared.store, admitted.client, bound, &shared.pool_log);
    let recorder = shared.latencies.recorder();
    let (taken, slept_since, timed) = (0, None, 0);
    Ring { shared, link, region, session, taken, slept_since, recorder, timed }.run()
}

/// A connection's grant. Dropping it returns the grant.
struct Grant<'a> {
    shared: &'a Shared,
    admitted: Admitted,
    geometry: Geometry,
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.shared.account.give_back(self.admitted.client, self.geometry);
    }
}

/// Waits for the hello. `None` if the client is gone already.
fn hear(socket: &OwnedFd, timeout: Duration) -> Result<Option<Hello>, Ended> {
    set_socket_timeout(socket, Timeout::Recv, Some(timeout))?;
    let mut bytes = [0; Hello::BYTES + 1];
    let length = match recv(socket, &mut bytes, RecvFlags::empty()) {
        Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(None),
        Ok((_, length)) => length,
        Err(Errno::AGAIN) => return Err(Ended::Late),
        Err(errno) => return Err(errno.into()),
    };
    set_socket_timeout(socket, Timeout::Recv, None)?;
    if length != Hello::BYTES {
        return Err(Ended::Protocol("its hello has a wrong length"));
    }
    Hello::decode(&bytes).map(Some).map_err(|_| Ended::Protocol("its first message is not a hello"))
}

/// Sends the region to the client.
fn welcome(
    socket: &OwnedFd,
    geometry: Geometry,
    instance: u64,
    file: OwnedFd,
) -> Result<(), Ended> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Ended::Protocol("no room for a descriptor"));
    }
    let bytes = Welcome::Granted { geometry, instance }.encode();
    sendmsg(
        socket,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The result of a wait.
enum Waited {
    /// There may be commands.
    Commands,
    /// The connection is closed.
    Closed,
}

/// The server's end of a queue pair.
struct Ring<'a> {
    shared: &'a Shared,
    link: Link<'a>,
    region: &'a Region,
    session: Session<'a>,
    /// Commands taken out of the queue so far.
    taken: u32,
    /// The time at which the thread ran out of commands, if it has slept since.
    slept_since: Option<Instant>,
    recorder: Recorder,
    /// Number of the next command that is timed.
    timed: u32,
}

impl Ring<'_> {
    fn run(&mut self) -> Result<(), Ended> {
        let mut poll_time = PollTime::new(self.link.poll);
        let mut worked = true;
        while !self.is_ending() {
            let submitted = self.region.submitted().load(Ordering::Acquire);
            let waiting = submitted.wrapping_sub(self.taken);
            if waiting == 0 {
                match self.wait(worked, &mut poll_time)? {
                    Waited::Commands => worked = false,
                    Waited::Closed => break,
                }
                continue;
            }
            if waiting > u32::from(self.region.geometry().depth()) {
                return Err(Ended::Protocol(
                    "its doorbell counts more commands than the queue holds",
                ));
            }
            worked = true;
            if let Some(since) = self.slept_since.take() {
                poll_time.slept(since.elapsed());
            }
            self.timed_step(waiting.min(STEP));
            // One wake-up for all completions: a client on the same core would run after the first.
            self.wake_client();
        }
        Ok(())
    }

    #[inline]
    fn is_ending(&self) -> bool {
        self.link.stop.load(Ordering::Relaxed) || self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Executes the next `count` commands. If one of them is due to be timed, its time is that of the step: all of the
    /// step's commands begin before the first is completed.
    #[inline]
    fn timed_step(&mut self, count: u32) {
        let (start, ahead) = (self.taken, self.timed.wrapping_sub(self.taken));
        if ahead >= count {
            return self.step(count);
        }
        let kind = kind(self.region.command(self.timed).opcode);
        let began = Instant::now();
        self.step(count);
        // A step can end early.
        if self.taken.wrapping_sub(start) > ahead {
            self.recorder.record(kind, began.elapsed());
            self.timed = self.timed.wrapping_add(TIMED_EVERY);
        }
    }

    /// Executes the next `count` commands, at most [`STEP`].
    #[inline]
    fn step(&mut self, count: u32) {
        let mut count = count;
        let mut begun = [const { None }; STEP as usize];
        // The pages of the commands before this index are published.
        let mut settled = 0;
        for at in 0.. {
            if at == count as usize {
                break;
            }
            let command = self.region.command(self.taken.wrapping_add(at as u32));
            if command.data.bytes > STEP_BYTES_MAX {
                count = at as u32 + 1;
            }
            let filled = self.session.fill(self.region, &command);
            let carried_out = filled.unwrap_or_else(|| {
                Session::publish(&mut begun[settled..at]);
                settled = at + 1;
                self.session.begin(self.region, &command)
            });
            begun[at] = Some((command.id, carried_out));
        }
        Session::publish(&mut begun[settled..count as usize]);
        let mut shown = [const { None }; STEP as usize];
        for (place, shown) in begun[..count as usize].iter_mut().zip(&mut shown) {
            let Some((id, begun)) = place.take() else { break };
            let (status, result, held) = self.session.finish(self.region, begun);
            *shown = held;
            let number = self.taken;
            self.taken = number.wrapping_add(1);
            let queue_head = self.taken as u16;
            let completion = Completion { result, queue_head, queue: 1, id, status, phase: false };
            self.region.complete(number, completion);
        }
    }

    /// Wakes the client if it sleeps. The send may fail on a full socket, which holds wake-ups already.
    #[inline]
    fn wake_client(&self) {
        let asleep = self.region.client_asleep();
        if asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0 {
            let _ = send(self.link.socket, &[WAKE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Waits for commands: polls for a while if there were some since the last wait, then sleeps
    /// until the client sends a wake-up.
    fn wait(&mut self, worked: bool, poll_time: &mut PollTime) -> Result<Waited, Ended> {
        let there = || {
            // A client that fell asleep meanwhile must see the last completions.
            self.wake_client();
            self.region.submitted().load(Ordering::Relaxed) != self.taken || self.is_ending()
        };
        if worked {
            self.session.rest();
        }
        let start = Instant::now();
        if worked && self.shared.pollers.poll(poll_time, there) {
            return Ok(Waited::Commands);
        }
        let asleep = self.region.server_asleep();
        asleep.store(1, Ordering::Relaxed);
        // With this fence, either this side sees the doorbell or the client sees that it must send a wake-up. The same
        // holds for completions.
        fence(Ordering::SeqCst);
        if there() {
            asleep.store(0, Ordering::Relaxed);
            return Ok(Waited::Commands);
        }
        let mut byte = [0; 2];
        let received = loop {
            match recv(self.link.socket, &mut byte, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                done => break done,
            }
        };
        // Writes nothing after the end, because a guest's window may be in use for something else by then.
        if matches!(received, Ok((_, 0)) | Err(Errno::CONNRESET)) {
            return Ok(Waited::Closed);
        }
        asleep.store(0, Ordering::Relaxed);
        self.slept_since.get_or_insert(start);
        match received {
            Ok((_, 1)) if byte[0] == WAKE => Ok(Waited::Commands),
            Ok(_) => Err(Ended::Protocol("its socket carries bytes other than wake-ups")),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// What a command does, for the metrics.
const fn kind(opcode: u8) -> CommandKind {
    match opcode {
        io::RETRIEVE | io::TAKE => CommandKind::Get,
        io::STORE => CommandKind::Put,
        io::DELETE | io::FLUSH_OBJECT => CommandKind::Remove,
        _ => CommandKind::Other,
    }
}
