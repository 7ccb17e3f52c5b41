//! The server side of the Network Block Device protocol, fixed newstyle: it decodes the messages of clients, and
//! encodes those of servers. Numbers are big-endian.
//!
//! Specification: `doc/proto.md` of the NBD project. The old style and extended headers are not supported; clients do
//! not need them.

use crate::Error;

/// Longest data of an option, bytes. A name or a query has at most 4096.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Longest name of an export, or any other string, bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Bytes of the client's flags, the answer to the [`GREETING`].
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of the header of an option.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request, before a write's data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply, before a read's data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of the header of a structured reply's chunk.
pub const CHUNK_BYTES: usize = 20;

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake and client flag: fixed newstyle.
const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake and client flag: no zeros after the answer to [`option::EXPORT_NAME`].
const NO_ZEROES: u16 = 1 << 1;

/// A server's first message: its magic numbers and handshake flags.
pub const GREETING: [u8; 18] = greeting();

const fn greeting() -> [u8; 18] {
    let magic = (NBD_MAGIC as u128) << 64 | OPTION_MAGIC as u128;
    let (magic, flags) = (magic.to_be_bytes(), (FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    let mut bytes = [0; 18];
    let mut at = 0;
    while at < 16 {
        bytes[at] = magic[at];
        at += 1;
    }
    bytes[16] = flags[0];
    bytes[17] = flags[1];
    bytes
}

/// Numbers of options.
pub mod option {
    /// Choose an export and begin. A server can refuse this only by closing the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// List all exports.
    pub const LIST: u32 = 3;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export and begin.
    pub const GO: u32 = 7;
    /// Request structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export, to [`LIST`](super::option::LIST).
    pub const SERVER: u32 = 2;
    /// A piece of information about an export, to [`INFO`](super::option::INFO) and [`GO`](super::option::GO).
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUPPORTED: u32 = 1 << 31 | 1;
    /// The option is not allowed here.
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    /// The option's data is invalid.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// The option requires TLS.
    pub const ERR_TLS_REQUIRED: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name of the export.
    pub const NAME: u16 = 1;
    /// Least, preferred and largest sizes of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the features of an export.
pub mod export_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Flush.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Forced unit access.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Trim.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write zeroes.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// A read whose reply is not fragmented; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections have a consistent view of the data.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Cache.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// A write of zeros that fails instead of being slow.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of requests.
pub mod request_flags {
    /// Forced unit access.
    pub const FUA: u16 = 1 << 0;
    /// A write of zeros must not make a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply to a read must not be fragmented.
    pub const DF: u16 = 1 << 2;
    /// The reply has only one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// A write of zeros fails if it would be slow.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks of structured replies.
pub mod chunk {
    /// A chunk without payload, which ends a reply.
    pub const NONE: u16 = 0;
    /// An offset and the data read there.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Flags of extents in the context `base:allocation`.
pub mod extent_flags {
    /// The extent takes no memory.
    pub const HOLE: u32 = 1 << 0;
    /// The extent reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// The reason why a request failed, by the protocol's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The request could not be executed.
    Io = 5,
    /// The request is invalid.
    Invalid = 22,
    /// A write reaches beyond the end.
    NoSpace = 28,
    /// The data is too long for one chunk.
    Overflow = 75,
    /// The request is not supported.
    NotSupported = 95,
}

/// The client's answer to the [`GREETING`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFlags {
    /// The client understands replies to options.
    pub fixed_newstyle: bool,
    /// The client wants no zeros after the answer to [`option::EXPORT_NAME`].
    pub no_zeroes: bool,
}

impl ClientFlags {
    /// Decodes the flags.
    ///
    /// # Errors
    /// [`Error::Field`] if a flag is set that was not offered. Close the connection then.
    pub fn decode(bytes: [u8; CLIENT_FLAGS_BYTES]) -> Result<Self, Error> {
        let flags = u32::from_be_bytes(bytes);
        let (fixed, no_zeroes) = (u32::from(FIXED_NEWSTYLE), u32::from(NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(Error::Field("NBD client flags"));
        }
        Ok(Self { fixed_newstyle: flags & fixed != 0, no_zeroes: flags & no_zeroes != 0 })
    }
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`], or an unknown number.
    pub option: u32,
    /// Bytes of data that follow.
    pub bytes: u32,
}

impl OptionHeader {
    /// Decodes the header.
    ///
    /// # Errors
    /// [`Error::Field`] for a wrong magic number. Close the connection then.
    pub fn decode(bytes: [u8; OPTION_HEADER_BYTES]) -> Result<Self, Error> {
        let mut fields = Fields(&bytes);
        if fields.u64()? != OPTION_MAGIC {
            return Err(Error::Field("NBD option magic"));
        }
        Ok(Self { option: fields.u32()?, bytes: fields.u32()? })
    }
}

/// A reader of fields, from the front of a buffer.
#[derive(Clone, Copy, Debug)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Error> {
        let (part, rest) = self
            .0
            .split_at_checked(bytes)
            .ok_or(Error::Short { need: bytes, got: self.0.len() })?;
        self.0 = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length before it.
    fn string(&mut self) -> Result<&'a str, Error> {
        let bytes = self.u32()? as usize;
        string(self.take(bytes)?)
    }

    fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Field("NBD option length")) }
    }
}

/// A string of the protocol: UTF-8, no NUL, at most 4096 bytes.
fn string(bytes: &[u8]) -> Result<&str, Error> {
    let text = str::from_utf8(bytes).map_err(|_| Error::Field("NBD string"))?;
    if bytes.len() > STRING_BYTES_MAX || bytes.contains(&0) {
        return Err(Error::Field("NBD string"));
    }
    Ok(text)
}

/// The data of [`option::EXPORT_NAME`]: a name, empty for the default export.
///
/// # Errors
/// [`Error::Field`].
pub fn export_name(data: &[u8]) -> Result<&str, Error> {
    string(data)
}

/// The data of [`option::INFO`] and [`option::GO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// The export; empty for the default one.
    pub name: &'a str,
    /// The requested numbers of [`info`], two bytes each.
    wanted: &'a [u8],
}

impl<'a> InfoQuery<'a> {
    /// Decodes the data.
    ///
    /// # Errors
    /// [`Error::Short`], [`Error::Field`].
    pub fn decode(data: &'a [u8]) -> Result<Self, Error> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let wanted = fields.take(2 * usize::from(count))?;
        fields.end()?;
        Ok(Self { name, wanted })
    }

    /// Whether a kind of information is requested.
    pub fn wants(&self, info: u16) -> bool {
        self.wanted.as_chunks().0.contains(&info.to_be_bytes())
    }
}

/// The data of [`option::LIST_META_CONTEXT`] and [`option::SET_META_CONTEXT`].
#[derive(Clone, Copy, Debug)]
pub struct ContextQuery<'a> {
    /// The export; empty for the default one.
    pub name: &'a str,
    queries: Fields<'a>,
}

impl<'a> ContextQuery<'a> {
    /// Decodes the data.
    ///
    /// # Errors
    /// [`Error::Short`], [`Error::Field`].
    pub fn decode(data: &'a [u8]) -> Result<Self, Error> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32()?;
        let queries = fields;
        for _ in 0..count {
            fields.string()?;
        }
        fields.end()?;
        Ok(Self { name, queries })
    }

    /// The queries, such as `base:allocation`.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut fields = self.queries;
        core::iter::from_fn(move || fields.string().ok())
    }
}

/// Appends a reply to an option: its header, and `data` in parts.
pub fn push_option_reply(bytes: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend(reply.to_be_bytes());
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend(data.iter().copied().flatten());
}

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// End the connection.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// Free the memory of a range.
    Trim,
    /// Prepare a range for reads.
    Cache,
    /// Make a range read as zeros.
    WriteZeroes,
    /// Report which extents of a range take memory.
    BlockStatus,
    /// An unknown command.
    Other(u16),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Bits of [`request_flags`].
    pub flags: u16,
    /// The client's identifier of the request.
    pub cookie: u64,
    /// The offset of the range in the export, bytes.
    pub offset: u64,
    /// The length of the range, bytes.
    pub bytes: u32,
}

impl Request {
    /// Decodes a request.
    ///
    /// # Errors
    /// [`Error::Field`] for a wrong magic number. Close the connection then.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Error> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return Err(Error::Field("NBD request magic"));
        }
        let flags = fields.u16()?;
        let command = match fields.u16()? {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        };
        let (cookie, offset, bytes) = (fields.u64()?, fields.u64()?, fields.u32()?);
        Ok(Self { command, flags, cookie, offset, bytes })
    }
}

/// A simple reply. The data of a successful read follows it.
pub fn simple_reply(cookie: u64, failure: Option<Failure>) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&failure.map_or(0, |failure| failure as u32).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The header of a structured reply's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// One of [`chunk`].
    pub kind: u16,
    /// Whether the chunk is the reply's last.
    pub done: bool,
    /// The cookie of the request.
    pub cookie: u64,
    /// Bytes of payload that follow.
    pub bytes: u32,
}

impl Chunk {
    /// Encodes the header.
    pub fn encode(self) -> [u8; CHUNK_BYTES] {
        let mut bytes = [0; CHUNK_BYTES];
        bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&u16::from(self.done).to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }
}

/// The payload of a chunk of kind [`chunk::ERROR`], without a text.
pub fn error_payload(failure: Failure) -> [u8; 6] {
    let mut bytes = [0; 6];
    bytes[..4].copy_from_slice(&(failure as u32).to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests;
