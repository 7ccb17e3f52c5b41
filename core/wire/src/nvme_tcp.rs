//! PDUs of NVMe over TCP (TCP Transport 1.0, section 3.6).
//!
//! A PDU is a common header of 8 bytes, the header of its type, perhaps a digest of both, padding, data,
//! and perhaps a digest of the data. Digests are CRC-32C. Readers take whole PDUs, so every reader has a
//! longest PDU that it takes.

use core::ops::Range;

use crate::Error;
use crate::bytes::{array_at, head, put, u16_at, u32_at};
use crate::nvme::{COMMAND_BYTES, COMPLETION_BYTES, Command, Completion};

/// Bytes of the common header.
pub const COMMON_BYTES: usize = 8;
/// Bytes of a header's or data's digest.
pub const DIGEST_BYTES: usize = 4;
/// Least that a controller may say in [`InitResponse::host_data_bytes_max`].
pub const HOST_DATA_BYTES_MIN: u32 = 4096;
/// Bytes of data that every controller takes in capsules of the admin queue.
pub const ADMIN_CAPSULE_DATA_BYTES: usize = 8192;
/// Most bytes before the data of a PDU: the longest header with data, its digest, and padding.
pub const HEADER_BYTES_MAX: usize = 128 + DIGEST_BYTES;

/// Types of PDUs.
mod kind {
    pub const INIT_REQUEST: u8 = 0x00;
    pub const INIT_RESPONSE: u8 = 0x01;
    pub const HOST_TERMINATE: u8 = 0x02;
    pub const CONTROLLER_TERMINATE: u8 = 0x03;
    pub const COMMAND: u8 = 0x04;
    pub const RESPONSE: u8 = 0x05;
    pub const HOST_DATA: u8 = 0x06;
    pub const CONTROLLER_DATA: u8 = 0x07;
    pub const READY_TO_TRANSFER: u8 = 0x09;
}

mod flag {
    pub const HEADER_DIGEST: u8 = 1 << 0;
    pub const DATA_DIGEST: u8 = 1 << 1;
    pub const LAST: u8 = 1 << 2;
    pub const SUCCESS: u8 = 1 << 3;
}

const INIT_BYTES: usize = 128;
const TERMINATE_BYTES: usize = 24;
const DATA_BYTES: usize = 24;
const CAPSULE_BYTES: usize = COMMON_BYTES + COMMAND_BYTES;
const RESPONSE_BYTES: usize = COMMON_BYTES + COMPLETION_BYTES;

/// What both sides agreed on with the first two PDUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// Data that is written starts at a multiple of so many times 4 bytes, less one (HPDA, CPDA).
    pub alignment: u8,
}

impl Framing {
    /// Where data starts after a header of `bytes`, its digest included.
    const fn data_at(self, bytes: usize) -> usize {
        let end = bytes + if self.header_digest { DIGEST_BYTES } else { 0 };
        end.next_multiple_of((self.alignment as usize + 1) * 4)
    }

    /// Bytes of a PDU whose header has `header_bytes` and which carries `data_bytes`.
    const fn pdu_bytes(self, header_bytes: usize, data_bytes: usize) -> usize {
        if data_bytes == 0 {
            return header_bytes + if self.header_digest { DIGEST_BYTES } else { 0 };
        }
        let end = self.data_at(header_bytes) + data_bytes;
        end + if self.data_digest { DIGEST_BYTES } else { 0 }
    }

    /// Bytes of a command's capsule with `data_bytes` in it.
    pub const fn command_bytes(self, data_bytes: usize) -> usize {
        self.pdu_bytes(CAPSULE_BYTES, data_bytes)
    }

    /// Bytes of a response's capsule.
    pub const fn response_bytes(self) -> usize {
        self.pdu_bytes(RESPONSE_BYTES, 0)
    }

    /// Bytes of a PDU that carries `data_bytes` of a transfer.
    pub const fn data_bytes(self, data_bytes: usize) -> usize {
        self.pdu_bytes(DATA_BYTES, data_bytes)
    }
}

/// The first PDU, from the host (ICReq).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitRequest {
    /// Version of the PDU format; 0.
    pub version: u16,
    /// Alignment of data that the controller sends, as in [`Framing::alignment`]; 0 to 31.
    pub alignment: u8,
    /// Digests asked for.
    pub header_digest: bool,
    /// Digests asked for.
    pub data_digest: bool,
    /// Ready-to-transfer PDUs that a command may have at the same time, less one.
    pub transfers_max: u32,
}

/// The answer to [`InitRequest`], from the controller (ICResp).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitResponse {
    /// Version of the PDU format; 0.
    pub version: u16,
    /// Alignment of data that the host sends, as in [`Framing::alignment`].
    pub alignment: u8,
    /// Digests granted.
    pub header_digest: bool,
    /// Digests granted.
    pub data_digest: bool,
    /// Most bytes of data of one PDU from the host; a multiple of 4, at least [`HOST_DATA_BYTES_MIN`].
    pub host_data_bytes_max: u32,
}

/// Why a side ends a connection (H2CTermReq, C2HTermReq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Fatal error status: 1 invalid header field, 2 sequence, 3 header digest, 4 data out of range,
    /// 5 limit exceeded, 6 unsupported parameter.
    pub status: u16,
    /// More about it: the offset of the bad field, or the digest.
    pub detail: u32,
}

impl Terminate {
    /// A field of the header is bad; the detail is its offset.
    pub const HEADER_FIELD: u16 = 1;
    /// PDUs do not come in this order.
    pub const SEQUENCE: u16 = 2;
    /// The header's digest is wrong.
    pub const HEADER_DIGEST: u16 = 3;
    /// Data outside what was asked for.
    pub const DATA_RANGE: u16 = 4;
    /// More data, or more transfers, than are allowed.
    pub const LIMIT: u16 = 5;
    /// A parameter that is not served.
    pub const PARAMETER: u16 = 6;
}

impl From<Error> for Terminate {
    fn from(error: Error) -> Self {
        let (status, detail) = match error {
            Error::PduType(_) => (Self::HEADER_FIELD, 0),
            Error::PduField(at) => (Self::HEADER_FIELD, u32::from(at)),
            Error::PduLength { .. } => (Self::LIMIT, 4),
            Error::HeaderDigest => (Self::HEADER_DIGEST, 0),
            Error::Short { .. } | Error::DataDigest | Error::Field(_) => (Self::PARAMETER, 0),
        };
        Self { status, detail }
    }
}

/// Which part of a command's data a PDU carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The command.
    pub command: u16,
    /// From the host: the tag that the controller gave with its grant. From the controller: 0.
    pub tag: u16,
    /// Where the part begins.
    pub offset: u32,
    /// Bytes of it.
    pub bytes: u32,
    /// No more PDUs of this grant (from the host), or of this command (from the controller), follow.
    pub last: bool,
    /// From the controller, with `last`: the command succeeded and no response follows.
    pub success: bool,
}

/// The controller is ready for part of a command's data (R2T).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// The command.
    pub command: u16,
    /// What the host puts into its data PDUs.
    pub tag: u16,
    /// Where the part begins.
    pub offset: u32,
    /// Bytes of it.
    pub bytes: u32,
}

/// One PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu<'a> {
    /// ICReq.
    InitRequest(InitRequest),
    /// ICResp.
    InitResponse(InitResponse),
    /// H2CTermReq.
    HostTerminate(Terminate),
    /// C2HTermReq.
    ControllerTerminate(Terminate),
    /// A command, and data that came with it.
    Command(Command, &'a [u8]),
    /// A completion.
    Response(Completion),
    /// Data from the host.
    HostData(Transfer, &'a [u8]),
    /// Data from the controller.
    ControllerData(Transfer, &'a [u8]),
    /// R2T.
    ReadyToTransfer(ReadyToTransfer),
}

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Common {
    kind: u8,
    flags: u8,
    header_bytes: u8,
    data_at: u8,
    pdu_bytes: u32,
}

impl Common {
    fn decode(bytes: &[u8; COMMON_BYTES]) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2],
            data_at: bytes[3],
            pdu_bytes: u32_at(bytes, 4),
        }
    }

    /// Bytes of the header that a type has, the common part included.
    fn expected_header_bytes(self) -> Result<usize, Error> {
        Ok(match self.kind {
            kind::INIT_REQUEST | kind::INIT_RESPONSE => INIT_BYTES,
            kind::HOST_TERMINATE | kind::CONTROLLER_TERMINATE => TERMINATE_BYTES,
            kind::COMMAND => CAPSULE_BYTES,
            kind::RESPONSE => RESPONSE_BYTES,
            kind::HOST_DATA | kind::CONTROLLER_DATA | kind::READY_TO_TRANSFER => DATA_BYTES,
            other => return Err(Error::PduType(other)),
        })
    }

    /// The first and last PDUs of a connection have no digests, whatever was agreed on.
    const fn framing(self, agreed: Framing) -> Framing {
        match self.kind {
            kind::INIT_REQUEST
            | kind::INIT_RESPONSE
            | kind::HOST_TERMINATE
            | kind::CONTROLLER_TERMINATE => {
                Framing { header_digest: false, data_digest: false, alignment: 0 }
            }
            _ => agreed,
        }
    }

    /// Whether a type may carry data.
    const fn carries_data(self) -> bool {
        matches!(
            self.kind,
            kind::COMMAND
                | kind::HOST_DATA
                | kind::CONTROLLER_DATA
                | kind::HOST_TERMINATE
                | kind::CONTROLLER_TERMINATE
        )
    }

    /// Checks the lengths against each other; where the data lies.
    fn data(self, header_bytes: usize, framing: Framing) -> Result<Range<usize>, Error> {
        let pdu_bytes = self.pdu_bytes as usize;
        let header_end = header_bytes + if framing.header_digest { DIGEST_BYTES } else { 0 };
        if pdu_bytes == header_end {
            return Ok(0..0);
        }
        if !self.carries_data() || pdu_bytes < header_end {
            return Err(Error::PduField(4));
        }
        // Terminate PDUs have their data right after the header, and no offset of it.
        let start = match self.kind {
            kind::HOST_TERMINATE | kind::CONTROLLER_TERMINATE => header_end,
            _ => usize::from(self.data_at),
        };
        let end = pdu_bytes.saturating_sub(if framing.data_digest { DIGEST_BYTES } else { 0 });
        if start < header_end || start % 4 != 0 || start >= end {
            return Err(Error::PduField(3));
        }
        Ok(start..end)
    }
}

/// Bytes of the PDU that begins with `bytes`; `None` when these are too few to know it.
///
/// # Errors
/// For a type that is not known, a header of the wrong length, a PDU longer than `limit_bytes`.
pub fn pdu_bytes(bytes: &[u8], limit_bytes: usize) -> Result<Option<usize>, Error> {
    let Some(common) = bytes.first_chunk() else { return Ok(None) };
    let common = Common::decode(common);
    if usize::from(common.header_bytes) != common.expected_header_bytes()? {
        return Err(Error::PduField(2));
    }
    let length = common.pdu_bytes as usize;
    if length < usize::from(common.header_bytes) {
        return Err(Error::PduField(4));
    }
    if length > limit_bytes {
        return Err(Error::PduLength { bytes: length, limit: limit_bytes });
    }
    Ok(Some(length))
}

/// Whether a PDU that begins so is one with data of a command that came before it.
pub fn is_host_data(start: &[u8]) -> bool {
    start.first() == Some(&kind::HOST_DATA)
}

/// Reads the PDU at the start of `bytes`, and how many bytes it takes; `None` when it is not whole yet.
///
/// # Errors
/// Whatever is wrong with it: nothing after it on the connection can be read.
pub fn decode(
    bytes: &[u8],
    agreed: Framing,
    limit_bytes: usize,
) -> Result<Option<(Pdu<'_>, usize)>, Error> {
    let Some(length) = pdu_bytes(bytes, limit_bytes)? else { return Ok(None) };
    let Some(bytes) = bytes.get(..length) else { return Ok(None) };
    let common = Common::decode(head(bytes)?);
    let header_bytes = usize::from(common.header_bytes);
    let framing = common.framing(agreed);
    let data = common.data(header_bytes, framing)?;
    let (header, rest) = bytes.split_at(header_bytes);
    if framing.header_digest && head(rest)? != &crc32c::crc32c(header).to_le_bytes() {
        return Err(Error::HeaderDigest);
    }
    if framing.data_digest
        && !data.is_empty()
        && bytes[data.end..] != crc32c::crc32c(&bytes[data.clone()]).to_le_bytes()
    {
        return Err(Error::DataDigest);
    }
    Ok(Some((decode_body(common, header, &bytes[data])?, length)))
}

/// Reads the header of a type; its length was checked.
fn decode_body<'a>(common: Common, header: &[u8], data: &'a [u8]) -> Result<Pdu<'a>, Error> {
    let terminate = || Terminate { status: u16_at(header, 8), detail: u32_at(header, 10) };
    let transfer = || {
        let transfer = Transfer {
            command: u16_at(header, 8),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12),
            bytes: u32_at(header, 16),
            last: common.flags & flag::LAST != 0,
            success: common.flags & flag::SUCCESS != 0,
        };
        if transfer.bytes as usize != data.len() {
            return Err(Error::PduField(16));
        }
        Ok(transfer)
    };
    Ok(match common.kind {
        kind::INIT_REQUEST => Pdu::InitRequest(InitRequest {
            version: u16_at(header, 8),
            alignment: header[10],
            header_digest: header[11] & 1 != 0,
            data_digest: header[11] & 2 != 0,
            transfers_max: u32_at(header, 12),
        }),
        kind::INIT_RESPONSE => Pdu::InitResponse(InitResponse {
            version: u16_at(header, 8),
            alignment: header[10],
            header_digest: header[11] & 1 != 0,
            data_digest: header[11] & 2 != 0,
            host_data_bytes_max: u32_at(header, 12),
        }),
        kind::HOST_TERMINATE => Pdu::HostTerminate(terminate()),
        kind::CONTROLLER_TERMINATE => Pdu::ControllerTerminate(terminate()),
        kind::COMMAND => Pdu::Command(Command::decode(&array_at(header, COMMON_BYTES)), data),
        kind::RESPONSE => Pdu::Response(Completion::decode(&array_at(header, COMMON_BYTES))),
        kind::HOST_DATA => Pdu::HostData(transfer()?, data),
        kind::CONTROLLER_DATA => Pdu::ControllerData(transfer()?, data),
        kind::READY_TO_TRANSFER => Pdu::ReadyToTransfer(ReadyToTransfer {
            command: u16_at(header, 8),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12),
            bytes: u32_at(header, 16),
        }),
        other => return Err(Error::PduType(other)),
    })
}

impl Pdu<'_> {
    /// Writes the PDU to the start of `out`; how many bytes it takes.
    ///
    /// # Errors
    /// [`Error::Short`] when `out` is.
    pub fn encode(&self, agreed: Framing, out: &mut [u8]) -> Result<usize, Error> {
        let mut body = [0; INIT_BYTES - COMMON_BYTES];
        let (kind, flags, body_bytes, data) = self.body(&mut body);
        let data_at = write_header(out, kind, flags, &body[..body_bytes], data.len(), agreed)?;
        if data.is_empty() {
            return Ok(data_at);
        }
        put(out, data_at, data);
        finish_data(out, data_at..data_at + data.len(), agreed)
    }

    /// The parts of a PDU: its type, flags, length of its own header and data.
    fn body(&self, body: &mut [u8]) -> (u8, u8, usize, &[u8]) {
        let kind = match self {
            Pdu::InitRequest(_) => kind::INIT_REQUEST,
            Pdu::InitResponse(_) => kind::INIT_RESPONSE,
            Pdu::HostTerminate(_) => kind::HOST_TERMINATE,
            Pdu::ControllerTerminate(_) => kind::CONTROLLER_TERMINATE,
            Pdu::Command(..) => kind::COMMAND,
            Pdu::Response(_) => kind::RESPONSE,
            Pdu::HostData(..) => kind::HOST_DATA,
            Pdu::ControllerData(..) => kind::CONTROLLER_DATA,
            Pdu::ReadyToTransfer(_) => kind::READY_TO_TRANSFER,
        };
        let mut init = |version: u16, alignment, header: bool, data: bool, last: u32| {
            put(body, 0, &version.to_le_bytes());
            body[2] = alignment;
            body[3] = u8::from(header) | u8::from(data) << 1;
            put(body, 4, &last.to_le_bytes());
        };
        match self {
            Pdu::InitRequest(i) => {
                init(i.version, i.alignment, i.header_digest, i.data_digest, i.transfers_max);
                (kind, 0, INIT_BYTES - COMMON_BYTES, &[])
            }
            Pdu::InitResponse(i) => {
                init(i.version, i.alignment, i.header_digest, i.data_digest, i.host_data_bytes_max);
                (kind, 0, INIT_BYTES - COMMON_BYTES, &[])
            }
            Pdu::HostTerminate(terminate) | Pdu::ControllerTerminate(terminate) => {
                put(body, 0, &terminate.status.to_le_bytes());
                put(body, 2, &terminate.detail.to_le_bytes());
                (kind, 0, TERMINATE_BYTES - COMMON_BYTES, &[])
            }
            Pdu::Command(command, data) => {
                put(body, 0, &command.encode());
                (kind, 0, COMMAND_BYTES, data)
            }
            Pdu::Response(completion) => {
                put(body, 0, &completion.encode());
                (kind, 0, COMPLETION_BYTES, &[])
            }
            Pdu::HostData(transfer, data) | Pdu::ControllerData(transfer, data) => {
                (kind, transfer.write(body), DATA_BYTES - COMMON_BYTES, data)
            }
            Pdu::ReadyToTransfer(ready) => {
                put(body, 0, &ready.command.to_le_bytes());
                put(body, 2, &ready.tag.to_le_bytes());
                put(body, 4, &ready.offset.to_le_bytes());
                put(body, 8, &ready.bytes.to_le_bytes());
                (kind, 0, DATA_BYTES - COMMON_BYTES, &[])
            }
        }
    }
}

impl Transfer {
    /// Writes the header's own part; gives the flags.
    fn write(&self, body: &mut [u8]) -> u8 {
        put(body, 0, &self.command.to_le_bytes());
        put(body, 2, &self.tag.to_le_bytes());
        put(body, 4, &self.offset.to_le_bytes());
        put(body, 8, &self.bytes.to_le_bytes());
        (if self.last { flag::LAST } else { 0 }) | if self.success { flag::SUCCESS } else { 0 }
    }

    /// Writes the header of a PDU of data from the controller to the start of `out`; where its
    /// [`Self::bytes`] of data go. The caller puts them there and calls [`finish_data`], so that they are
    /// copied once.
    ///
    /// # Errors
    /// [`Error::Short`] when `out` has no room for the whole PDU.
    pub fn begin_controller_data(&self, agreed: Framing, out: &mut [u8]) -> Result<usize, Error> {
        let mut body = [0; DATA_BYTES - COMMON_BYTES];
        let flags = self.write(&mut body);
        write_header(out, kind::CONTROLLER_DATA, flags, &body, self.bytes as usize, agreed)
    }
}

/// Puts the digest of `data`, a part of `out`, behind it if there are digests; where the PDU ends.
///
/// # Errors
/// [`Error::Short`] when `out` is.
pub fn finish_data(out: &mut [u8], data: Range<usize>, agreed: Framing) -> Result<usize, Error> {
    if !agreed.data_digest {
        return Ok(data.end);
    }
    let end = data.end + DIGEST_BYTES;
    if out.len() < end {
        return Err(Error::Short { need: end, got: out.len() });
    }
    let digest = crc32c::crc32c(&out[data.clone()]);
    put(out, data.end, &digest.to_le_bytes());
    Ok(end)
}

/// Writes the header of a PDU with its digest and padding; where its data begins, or, without data, where
/// it ends. There is room for all of the PDU.
fn write_header(
    out: &mut [u8],
    kind: u8,
    flags: u8,
    body: &[u8],
    data_bytes: usize,
    agreed: Framing,
) -> Result<usize, Error> {
    let header_bytes = COMMON_BYTES + body.len();
    let mut common =
        Common { kind, flags, header_bytes: header_bytes as u8, data_at: 0, pdu_bytes: 0 };
    let framing = common.framing(agreed);
    let length = framing.pdu_bytes(header_bytes, data_bytes);
    if out.len() < length {
        return Err(Error::Short { need: length, got: out.len() });
    }
    let header_end = framing.pdu_bytes(header_bytes, 0);
    let data_at = if data_bytes == 0 { header_end } else { framing.data_at(header_bytes) };
    common.data_at = if data_bytes == 0 { 0 } else { data_at as u8 };
    common.pdu_bytes = length as u32;
    if framing.header_digest {
        common.flags |= flag::HEADER_DIGEST;
    }
    if framing.data_digest && data_bytes != 0 {
        common.flags |= flag::DATA_DIGEST;
    }
    out[..4].copy_from_slice(&[kind, common.flags, common.header_bytes, common.data_at]);
    put(out, 4, &common.pdu_bytes.to_le_bytes());
    put(out, COMMON_BYTES, body);
    if framing.header_digest {
        let digest = crc32c::crc32c(&out[..header_bytes]);
        put(out, header_bytes, &digest.to_le_bytes());
    }
    out[header_end..data_at].fill(0);
    Ok(data_at)
}

#[cfg(test)]
mod tests;
