//! A client of a server without sockets.

use std::io::IoSlice;
use std::sync::Arc;

use spillway_resp::{Config, Connection, Described, Origin, Session, Shared};
use spillway_serving::Recorder;
use spillway_store::{ClientConfig, ClientId, Lifetime, Store};
use spillway_test_support::access::OneClient;
use spillway_types::Identity;

/// Admits the name `name`, and the user of this name with the password `secret`.
pub fn only(client: ClientId) -> OneClient {
    OneClient::new(client).only(|who| match who {
        Identity::Name(name) => name == "name",
        Identity::User { name, password } => name == "name" && password == b"secret",
        _ => false,
    })
}

pub fn shared_of(store: &Arc<Store>, client: ClientId, lifetime: Lifetime) -> Arc<Shared> {
    let config = Config { lifetime, ..Config::default() };
    Arc::new(Shared::new(Arc::clone(store), Arc::new(only(client)), config))
}

/// A server whose store has `bytes` bytes of memory.
pub fn server(bytes: u64) -> Arc<Shared> {
    let store = Arc::new(Store::open(spillway_store::Config::embedded(bytes)).unwrap());
    let client = store.add_client(ClientConfig::default()).unwrap();
    shared_of(&store, client, Lifetime::Persistent)
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
}

impl Reply {
    pub fn bulk(text: impl AsRef<[u8]>) -> Self {
        Self::Bulk(text.as_ref().to_vec())
    }

    pub fn ok() -> Self {
        Self::Simple("OK".into())
    }
}

pub struct TestClient {
    shared: Arc<Shared>,
    pub connection: Connection,
    recorder: Recorder,
    pub now_ms: u64,
    replies: Vec<u8>,
}

/// A command of bulk strings.
pub fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl TestClient {
    pub fn stranger(shared: &Arc<Shared>) -> Self {
        let session = Session::new(1, Origin::Stranger, Described::default());
        Self {
            shared: Arc::clone(shared),
            connection: Connection::new(session),
            recorder: shared.latencies.recorder(),
            now_ms: 1_700_000_000_000,
            replies: Vec::new(),
        }
    }

    pub fn new(shared: &Arc<Shared>) -> Self {
        let mut client = Self::stranger(shared);
        client.connection.session.origin = Origin::Name("name".into());
        client.connection.session.begin(shared).unwrap();
        client.connection.begun();
        client
    }

    /// Sends bytes to the server in pieces of `step`, and collects its replies.
    pub fn feed(&mut self, bytes: &[u8], step: usize) {
        for piece in bytes.chunks(step.max(1)) {
            let mut left = piece;
            while !left.is_empty() {
                let wanted = self.connection.wanted();
                let room = self.connection.input.room(wanted);
                let now = room.len().min(left.len());
                room[..now].copy_from_slice(&left[..now]);
                self.connection.input.filled(now);
                left = &left[now..];
                self.process();
            }
        }
    }

    fn process(&mut self) {
        loop {
            let more = self.connection.process(&self.shared, &self.recorder, self.now_ms);
            let replies = &mut self.replies;
            // A limit for each call, so that values are sent in parts.
            let take = |parts: &[IoSlice<'_>]| {
                let before = replies.len();
                for part in parts {
                    let room = 100_000 - (replies.len() - before);
                    replies.extend_from_slice(&part[..part.len().min(room)]);
                }
                Ok(replies.len() - before)
            };
            assert!(self.connection.output.send(take).unwrap());
            if !more {
                return;
            }
        }
    }

    pub fn bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

    /// All replies that have arrived.
    pub fn replies(&mut self) -> Vec<Reply> {
        let bytes = self.bytes();
        let (mut at, mut replies) = (0, Vec::new());
        while at < bytes.len() {
            replies.push(parse(&bytes, &mut at));
        }
        replies
    }

    pub fn ask(&mut self, parts: &[&[u8]]) -> Reply {
        self.feed(&command(parts), usize::MAX);
        let mut replies = self.replies();
        assert_eq!(replies.len(), 1, "{parts:?}: {replies:?}");
        replies.remove(0)
    }

    /// Sends a command whose arguments have no spaces.
    pub fn say(&mut self, line: &str) -> Reply {
        let parts: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&parts)
    }

    pub fn error(&mut self, line: &str) -> String {
        match self.say(line) {
            Reply::Error(line) => line,
            other => panic!("{line}: {other:?}"),
        }
    }
}

fn parse(bytes: &[u8], at: &mut usize) -> Reply {
    let end = *at + bytes[*at..].windows(2).position(|pair| pair == b"\r\n").unwrap();
    // An error may show what a client sent, which need not be text.
    let (kind, line) = (bytes[*at], String::from_utf8_lossy(&bytes[*at + 1..end]));
    *at = end + 2;
    let number = || line.parse::<i64>().unwrap();
    match kind {
        b'+' => Reply::Simple(line.into()),
        b'-' => Reply::Error(line.into()),
        b':' => Reply::Integer(number()),
        b'_' => Reply::Null,
        b'$' | b'*' if number() < 0 => Reply::Null,
        b'$' | b'=' => {
            let value = bytes[*at..*at + number() as usize].to_vec();
            *at += value.len() + 2;
            Reply::Bulk(value)
        }
        b'*' | b'~' => Reply::Array((0..number()).map(|_| parse(bytes, at)).collect()),
        b'%' => Reply::Array((0..2 * number()).map(|_| parse(bytes, at)).collect()),
        other => panic!("a reply that begins with {other}"),
    }
}
