//! A connection without I/O: bytes go in, replies come out.

use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use spillway_serving::{CommandKind, Recorder};
use spillway_wire::resp::{Decoder, Step};

use crate::arguments::{Arguments, Arrived};
use crate::chunks::Chunks;
use crate::commands::{Call, Reading, takes_long};
use crate::input::Input;
use crate::output::Output;
use crate::record::INLINE_BYTES_MAX;
use crate::session::{Replies, Session};
use crate::shared::Shared;

/// Commands that a connection executes in one turn, before other connections have theirs.
const TURN_COMMANDS: usize = 1000;
/// Longest command of an unauthenticated connection, bytes.
const STRANGER_BYTES_MAX: usize = 256 << 10;
/// Least and largest limit of a command's length without its long values, bytes.
const GATHERED_BYTES: (u64, u64) = (1 << 20, 64 << 20);

/// A long argument that is arriving.
#[derive(Debug)]
enum Coming {
    Value(Box<Chunks>),
    /// An argument that is skipped: the bytes that are missing.
    Passed(u64),
}

impl Coming {
    fn missing(&self) -> u64 {
        match self {
            Self::Value(chunks) => chunks.missing(),
            Self::Passed(missing) => *missing,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Value(chunks) => chunks.push(bytes),
            Self::Passed(missing) => *missing -= bytes.len() as u64,
        }
    }
}

/// Measures the commands of one turn.
struct Watch<'a> {
    recorder: &'a Recorder,
    /// The end of the last command.
    began: Instant,
}

impl Watch<'_> {
    /// The time since the last lap.
    fn lap(&mut self) -> Duration {
        let end = Instant::now();
        end - std::mem::replace(&mut self.began, end)
    }
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// The client, and the state that its commands set.
    pub session: Session,
    /// Received bytes.
    pub input: Input,
    /// Replies that wait to be sent.
    pub output: Output,
    decoder: Decoder,
    coming: Option<Coming>,
    arrived: Vec<Option<Arrived>>,
    reading: Option<Reading>,
    /// How long earlier turns have worked on the command that is not complete.
    worked: Duration,
}

impl Connection {
    /// A connection that has received nothing yet.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            input: Input::default(),
            output: Output::default(),
            decoder: Decoder::new(),
            coming: None,
            arrived: Vec::new(),
            reading: None,
            worked: Duration::ZERO,
        }
    }

    /// Notes that [`Session::begin`] was called: an identified peer may send longer commands.
    pub fn begun(&mut self) {
        self.decoder.set_known(self.session.database.is_some());
    }

    /// Bytes that the peer is known to send next.
    pub fn wanted(&self) -> usize {
        match &self.coming {
            // A long value needs a large buffer, too.
            Some(coming) => coming.missing().min(crate::input::LENT_BYTES as u64 / 2) as usize,
            None => self.decoder.wanted(self.input.bytes()),
        }
    }

    /// Calls `read` to read a long value directly into the store's memory. `None` if no long value is arriving, or if
    /// the input still holds bytes of it.
    pub fn read_value(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let Some(Coming::Value(chunks)) = &mut self.coming else { return None };
        (self.input.bytes().len() == self.decoder.at()).then(|| chunks.read(read)).flatten()
    }

    /// Whether a command has arrived in part.
    pub fn is_within_command(&self) -> bool {
        self.coming.is_some() || !self.input.bytes().is_empty()
    }

    /// Whether the peer may send further commands though it has not read all replies.
    pub fn has_room_for_replies(&self) -> bool {
        self.output.waiting() < self.gathered_max()
    }

    /// Makes room for the replies of a turn: beside those that the peer has not read, if it sends further commands all
    /// the same.
    pub fn make_room_for_replies(&mut self, has_sent: bool) {
        self.output.make_room(if has_sent { self.gathered_max() } else { 0 });
    }

    /// Executes the commands that have arrived, as long as there is room for replies. True if more can be done before
    /// further bytes arrive.
    pub fn process(&mut self, shared: &Shared, recorder: &Recorder, now_ms: u64) -> bool {
        let mut watch = Watch { recorder, began: Instant::now() };
        let more = self.turn(shared, &mut watch, now_ms);
        if self.coming.is_some() {
            self.worked += watch.lap();
        }
        more
    }

    fn turn(&mut self, shared: &Shared, watch: &mut Watch<'_>, now_ms: u64) -> bool {
        for _ in 0..TURN_COMMANDS {
            if self.session.ends {
                return false;
            }
            if let Some(reading) = &mut self.reading {
                let is_complete = reading.go_on(&mut self.output, now_ms);
                self.worked += watch.lap();
                if !is_complete {
                    return true;
                }
                self.reading = None;
                watch.recorder.record(CommandKind::Get, std::mem::take(&mut self.worked));
            }
            if self.output.is_full() {
                return true;
            }
            if !self.take() || !self.step(shared, watch, now_ms) {
                return false;
            }
        }
        true
    }

    /// Moves received bytes into the long argument that is arriving. True if none is missing.
    fn take(&mut self) -> bool {
        let Some(coming) = &mut self.coming else { return true };
        let at = self.decoder.at();
        let come = &self.input.bytes()[at..];
        let now = (come.len() as u64).min(coming.missing()) as usize;
        coming.push(&come[..now]);
        self.input.cut(at, now);
        if coming.missing() > 0 {
            return false;
        }
        let arrived = match self.coming.take() {
            Some(Coming::Value(chunks)) => Arrived::Value(chunks),
            _ => Arrived::Nothing,
        };
        self.arrived.push(Some(arrived));
        self.decoder.taken();
        true
    }

    /// Decodes the next part of a command. True if the input may hold more.
    fn step(&mut self, shared: &Shared, watch: &mut Watch<'_>, now_ms: u64) -> bool {
        match self.decoder.decode(self.input.bytes()) {
            Ok(Step::Command(used)) => {
                if !self.decoder.arguments().is_empty() {
                    let kind = self.run(used, shared, now_ms);
                    self.worked += watch.lap();
                    if self.reading.is_none() {
                        watch.recorder.record(kind, std::mem::take(&mut self.worked));
                    }
                }
                self.input.consume(used);
                self.arrived.clear();
                self.decoder.set_known(self.session.database.is_some());
                true
            }
            Ok(Step::Long(length)) => {
                self.begin_long(length);
                true
            }
            Ok(Step::More) => {
                let most = self.gathered_max();
                if self.input.bytes().len() > most {
                    let line = format!(
                        "ERR Protocol error: a command of more than {most} bytes beside its values"
                    );
                    self.end_with(&line);
                }
                false
            }
            Err(error) => {
                self.end_with(&format!("ERR Protocol error: {error}"));
                false
            }
        }
    }

    fn end_with(&mut self, line: &str) {
        tracing::debug!(
            id = self.session.id,
            line,
            "a RESP connection does not keep to the protocol"
        );
        self.output.reply().error(line.as_bytes());
        self.session.ends = true;
    }

    /// Most bytes of a command without its long values, and of replies that the peer has not read.
    fn gathered_max(&self) -> usize {
        let (least, most) = GATHERED_BYTES;
        let share = self.session.bytes_max().map(|share| share.clamp(least, most) as usize);
        share.unwrap_or(STRANGER_BYTES_MAX)
    }

    fn begin_long(&mut self, length: u64) {
        let text = self.decoder.text(self.input.bytes());
        let known = self.decoder.arguments();
        let mut none = Vec::new();
        let name = Arguments::new(text, known, &mut none).get(0);
        let is_value = length > INLINE_BYTES_MAX as u64 && takes_long(name, known.len());
        self.coming = Some(match &self.session.database {
            Some(database) if is_value => Coming::Value(database.begin_chunks(length)),
            _ => Coming::Passed(length),
        });
    }

    /// Executes the command in the input's first `used` bytes. Gives what it does.
    fn run(&mut self, used: usize, shared: &Shared, now_ms: u64) -> CommandKind {
        shared.counters.commands.fetch_add(1, Ordering::Relaxed);
        let (before, mark) = (self.session.replies, self.output.mark());
        if before == Replies::Skip {
            self.session.replies = Replies::Skipped;
        }
        let text = self.decoder.text(&self.input.bytes()[..used]);
        let mut call = Call {
            session: &mut self.session,
            shared,
            arguments: Arguments::new(text, self.decoder.arguments(), &mut self.arrived),
            output: &mut self.output,
            now_ms,
            reading: &mut self.reading,
        };
        let kind = call.run();
        let is_meant = match before {
            Replies::On => true,
            Replies::Off | Replies::Skip | Replies::Skipped => self.session.replies == Replies::On,
        };
        if !is_meant {
            self.output.forget_from(mark);
            self.reading = None;
        }
        if self.session.replies == Replies::Skipped {
            self.session.replies = Replies::On;
        }
        kind
    }
}
