//! The handshake, without I/O: bytes in, bytes and decisions out.

use std::fmt::Write as _;
use std::sync::Arc;

use spillway_block::{Device, Exports};
use spillway_types::{ClientId, Denied};
use spillway_wire::nbd::{
    CLIENT_FLAGS_BYTES, ClientFlags, ContextQuery, InfoQuery, OPTION_BYTES_MAX,
    OPTION_HEADER_BYTES, OptionHeader, STRING_BYTES_MAX, export_flags, export_name, info, option,
    push_option_reply, reply,
};

use crate::error::Error;
use crate::session::{ALLOCATION, ALLOCATION_ID, Session};
use crate::transmission::REQUEST_BYTES_MAX;

/// Zeros after the answer to EXPORT_NAME, the oldest way to choose an export.
const PADDING: [u8; 124] = [0; 124];

/// The state of a connection's encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsState {
    /// Not encrypted, and TLS is not offered.
    Off,
    /// Not encrypted; the peer may start TLS.
    Offered,
    /// Not encrypted; the peer must start TLS first.
    Required,
    /// Encrypted.
    Active,
}

/// The identity of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Not determined yet.
    Unknown,
    /// A client.
    Client(ClientId),
    /// A peer that was denied.
    Denied(Denied),
}

/// The caller's next step after [`Negotiation::advance`].
#[derive(Debug)]
pub enum Step {
    /// Send the output and read more input.
    More,
    /// Identify the peer, call [`Negotiation::meet`], and continue with the same input.
    Meet,
    /// Send the output, then start TLS; see [`Negotiation::encrypted`].
    StartTls,
    /// Send the output. Requests follow.
    Begin(Session),
    /// Send the output and close.
    End,
}

/// A handshake, after the server has sent [`GREETING`](spillway_wire::nbd::GREETING).
#[derive(Debug)]
pub struct Negotiation {
    flags: Option<ClientFlags>,
    tls: TlsState,
    peer: Peer,
    structured: bool,
    /// The export for which the peer chose block status.
    allocation: Option<String>,
}

/// The result of an option.
enum Outcome {
    Next,
    Done(Step),
}

impl Negotiation {
    /// A new handshake.
    pub const fn new(tls: TlsState) -> Self {
        Self { flags: None, tls, peer: Peer::Unknown, structured: false, allocation: None }
    }

    /// Sets the identity of the peer.
    pub const fn meet(&mut self, peer: Peer) {
        self.peer = peer;
    }

    /// Records that the connection is encrypted from now on. Discards what was agreed on before.
    pub fn encrypted(&mut self) {
        *self = Self { flags: self.flags, ..Self::new(TlsState::Active) };
    }

    /// Processes bytes from the peer, and appends answers to `output`. Returns the number of consumed bytes, and what
    /// to do next.
    ///
    /// # Errors
    /// [`Error::Wire`] and [`Error::Refused`]: close the connection.
    pub fn advance(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<(usize, Step), Error> {
        let mut rest = input;
        loop {
            let used = input.len() - rest.len();
            if self.flags.is_none() {
                let Some((flags, after)) = rest.split_first_chunk::<CLIENT_FLAGS_BYTES>() else {
                    return Ok((used, Step::More));
                };
                self.flags = Some(ClientFlags::decode(*flags)?);
                rest = after;
                continue;
            }
            let Some((header, after)) = rest.split_first_chunk::<OPTION_HEADER_BYTES>() else {
                return Ok((used, Step::More));
            };
            let header = OptionHeader::decode(*header)?;
            if header.bytes as usize > OPTION_BYTES_MAX {
                return Err(Error::Refused("the data of an option is longer than 16 KiB"));
            }
            let Some((data, after)) = after.split_at_checked(header.bytes as usize) else {
                return Ok((used, Step::More));
            };
            if self.needs_client(header.option) && self.peer == Peer::Unknown {
                return Ok((used, Step::Meet));
            }
            rest = after;
            if let Outcome::Done(step) = self.answer(header.option, data, exports, output)? {
                return Ok((input.len() - rest.len(), step));
            }
        }
    }

    /// Whether the answer to an option depends on the client: it concerns exports, and TLS is not required first.
    fn needs_client(&self, option: u32) -> bool {
        let about_exports = matches!(
            option,
            option::EXPORT_NAME
                | option::LIST
                | option::INFO
                | option::GO
                | option::LIST_META_CONTEXT
                | option::SET_META_CONTEXT
        );
        about_exports && self.tls != TlsState::Required
    }

    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<Outcome, Error> {
        if option == option::EXPORT_NAME {
            let session = self.begin_at_once(data, exports, output)?;
            return Ok(Outcome::Done(Step::Begin(session)));
        }
        let mut say = |kind: u32, parts: &[&[u8]]| push_option_reply(output, option, kind, parts);
        if option == option::ABORT {
            say(reply::ACK, &[]);
            return Ok(Outcome::Done(Step::End));
        }
        if self.tls == TlsState::Required && option != option::STARTTLS {
            say(reply::ERR_TLS_REQUIRED, &[b"this server speaks with TLS only"]);
            return Ok(Outcome::Next);
        }
        if let (true, Peer::Denied(reason)) = (self.needs_client(option), self.peer) {
            say(reply::ERR_POLICY, &[reason.to_string().as_bytes()]);
            return Ok(Outcome::Next);
        }
        let empty = matches!(option, option::LIST | option::STARTTLS | option::STRUCTURED_REPLY);
        if empty && !data.is_empty() {
            say(reply::ERR_INVALID, &[b"this option has no data"]);
            return Ok(Outcome::Next);
        }
        match option {
            option::LIST => self.list(exports, &mut say),
            option::STARTTLS if self.tls == TlsState::Active => {
                say(reply::ERR_INVALID, &[b"TLS is spoken already"]);
            }
            option::STARTTLS if self.tls == TlsState::Off => {
                say(reply::ERR_POLICY, &[b"this server has no certificate"]);
            }
            option::STARTTLS => {
                say(reply::ACK, &[]);
                return Ok(Outcome::Done(Step::StartTls));
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                say(reply::ACK, &[]);
            }
            option::INFO | option::GO => {
                let session = self.describe(data, exports, &mut say);
                if let (option::GO, Some(session)) = (option, session) {
                    return Ok(Outcome::Done(Step::Begin(session)));
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(option == option::SET_META_CONTEXT, data, exports, &mut say);
            }
            _ => say(reply::ERR_UNSUPPORTED, &[]),
        }
        Ok(Outcome::Next)
    }

    fn list(&self, exports: &dyn Exports, say: &mut impl FnMut(u32, &[&[u8]])) {
        if let Peer::Client(client) = self.peer {
            for export in exports.list(client) {
                let name = export.name.as_bytes();
                if name.len() <= STRING_BYTES_MAX {
                    say(reply::SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                }
            }
        }
        say(reply::ACK, &[]);
    }

    /// Finds an export. An empty name means the client's only export.
    fn find(&self, name: &str, exports: &dyn Exports) -> Option<(String, Arc<dyn Device>)> {
        let Peer::Client(client) = self.peer else { return None };
        let name = match name {
            "" => match <[_; 1]>::try_from(exports.list(client)) {
                Ok([only]) => only.name,
                Err(_) => String::new(),
            },
            name => name.to_owned(),
        };
        let device = exports.open(client, &name)?;
        Some((name, device))
    }

    fn session(&self, name: &str, device: Arc<dyn Device>) -> Session {
        let allocation = self.allocation.as_deref() == Some(name);
        Session { device, structured: self.structured, allocation }
    }

    /// The transmission flags of exports.
    fn export_flags(&self) -> u16 {
        use export_flags::{
            CAN_MULTI_CONN, HAS_FLAGS, SEND_CACHE, SEND_DF, SEND_FAST_ZERO, SEND_FLUSH, SEND_FUA,
            SEND_TRIM, SEND_WRITE_ZEROES,
        };
        let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
        let more = CAN_MULTI_CONN | SEND_CACHE | SEND_FAST_ZERO;
        always | more | if self.structured { SEND_DF } else { 0 }
    }

    /// Answers INFO and GO.
    fn describe(
        &self,
        data: &[u8],
        exports: &dyn Exports,
        say: &mut impl FnMut(u32, &[&[u8]]),
    ) -> Option<Session> {
        let Ok(query) = InfoQuery::decode(data) else {
            say(reply::ERR_INVALID, &[]);
            return None;
        };
        let Some((name, device)) = self.find(query.name, exports) else {
            say(reply::ERR_UNKNOWN, &[unknown(query.name).as_bytes()]);
            return None;
        };
        let (size, flags) = (device.bytes().to_be_bytes(), self.export_flags().to_be_bytes());
        say(reply::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        if query.wants(info::NAME) {
            say(reply::INFO, &[&info::NAME.to_be_bytes(), name.as_bytes()]);
        }
        if query.wants(info::BLOCK_SIZE) {
            let sizes = [1, 4096, REQUEST_BYTES_MAX].map(u32::to_be_bytes);
            say(reply::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        }
        say(reply::ACK, &[]);
        Some(self.session(&name, device))
    }

    /// Answers EXPORT_NAME, which has no reply for a refusal.
    fn begin_at_once(
        &self,
        data: &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<Session, Error> {
        if self.tls == TlsState::Required {
            return Err(Error::Refused("the peer chose an export without TLS"));
        }
        let found = self.find(export_name(data)?, exports);
        let (name, device) = found.ok_or(Error::Refused("the peer chose an unknown export"))?;
        output.extend(device.bytes().to_be_bytes());
        output.extend(self.export_flags().to_be_bytes());
        if !self.flags.is_some_and(|flags| flags.no_zeroes) {
            output.extend(PADDING);
        }
        Ok(self.session(&name, device))
    }

    /// Answers the options about metadata contexts.
    fn contexts(
        &mut self,
        set: bool,
        data: &[u8],
        exports: &dyn Exports,
        say: &mut impl FnMut(u32, &[&[u8]]),
    ) {
        if set {
            self.allocation = None;
        }
        let query = match ContextQuery::decode(data) {
            Ok(query) if self.structured => query,
            Ok(_) => return say(reply::ERR_INVALID, &[b"ask for structured replies first"]),
            Err(_) => return say(reply::ERR_INVALID, &[]),
        };
        let Some((name, _)) = self.find(query.name, exports) else {
            return say(reply::ERR_UNKNOWN, &[unknown(query.name).as_bytes()]);
        };
        let named = |query: &str| query == ALLOCATION || !set && query == "base:";
        let all = !set && query.queries().next().is_none();
        if all || query.queries().any(named) {
            let id = if set { ALLOCATION_ID } else { 0 };
            say(reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
            if set {
                self.allocation = Some(name);
            }
        }
        say(reply::ACK, &[]);
    }
}

/// The message for a client that names an unknown export.
fn unknown(name: &str) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match name {
        "" => write!(text, "there is no one export that needs no name; ask for the list"),
        name => write!(text, "no export is called {name:.200}"),
    };
    text
}
