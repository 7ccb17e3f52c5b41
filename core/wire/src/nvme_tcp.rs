//! PDUs of NVMe over TCP (TCP 1.0, section 3.6).
//!
//! A PDU is a common header of 8 bytes, the header of its type, an optional digest of both, padding, data,
//! and an optional digest of the data. Digests are CRC-32C. Readers decode whole PDUs, so every reader limits
//! their length.

use core::ops::Range;

use zerocopy::FromBytes;

use crate::Error;
use crate::bytes::{head, put};
use crate::nvme::{Command, Completion};

pub mod header;
mod parameters;

pub use parameters::{InitRequest, InitResponse, ReadyToTransfer, Terminate, Transfer};

use header::{
    CommandCapsule, CommonHeader, DataTransfer, Header, InitializeConnectionRequest,
    InitializeConnectionResponse, ReadyToTransferHeader, ResponseCapsule,
    TerminateConnectionRequest, flag, kind,
};

/// Bytes of the common header.
pub const COMMON_BYTES: usize = size_of::<CommonHeader>();
/// Bytes of a header's or data's digest.
pub const DIGEST_BYTES: usize = 4;
/// The least value of [`InitResponse::host_data_bytes_max`].
pub const HOST_DATA_BYTES_MIN: u32 = 4096;
/// Bytes of data that every controller accepts in a capsule of the admin queue.
pub const ADMIN_CAPSULE_DATA_BYTES: usize = 8192;
/// Most bytes before the data of a PDU: the longest header with data, its digest, and padding.
pub const HEADER_BYTES_MAX: usize = 128 + DIGEST_BYTES;

/// The framing that the first two PDUs of a connection negotiated.
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
    /// The offset of the data after a header of `bytes` bytes and its digest.
    const fn data_at(self, bytes: usize) -> usize {
        let end = bytes + if self.header_digest { DIGEST_BYTES } else { 0 };
        end.next_multiple_of((self.alignment as usize + 1) * 4)
    }

    /// Bytes of a PDU with a header of `header_bytes` and `data_bytes` bytes of data.
    const fn pdu_bytes(self, header_bytes: usize, data_bytes: usize) -> usize {
        if data_bytes == 0 {
            return header_bytes + if self.header_digest { DIGEST_BYTES } else { 0 };
        }
        let end = self.data_at(header_bytes) + data_bytes;
        end + if self.data_digest { DIGEST_BYTES } else { 0 }
    }

    /// Bytes of a command capsule with `data_bytes` bytes of data.
    pub const fn command_bytes(self, data_bytes: usize) -> usize {
        self.pdu_bytes(size_of::<CommandCapsule>(), data_bytes)
    }

    /// Bytes of a response capsule.
    pub const fn response_bytes(self) -> usize {
        self.pdu_bytes(size_of::<ResponseCapsule>(), 0)
    }

    /// Bytes of a PDU with `data_bytes` bytes of a transfer.
    pub const fn data_bytes(self, data_bytes: usize) -> usize {
        self.pdu_bytes(size_of::<DataTransfer>(), data_bytes)
    }
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
    /// A command, and the data in its capsule.
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

impl CommonHeader {
    /// Bytes of the header of this type, the common header included.
    fn expected_header_bytes(self) -> Result<usize, Error> {
        Ok(match self.pdu_type {
            kind::INIT_REQUEST => size_of::<InitializeConnectionRequest>(),
            kind::INIT_RESPONSE => size_of::<InitializeConnectionResponse>(),
            kind::HOST_TERMINATE | kind::CONTROLLER_TERMINATE => {
                size_of::<TerminateConnectionRequest>()
            }
            kind::COMMAND => size_of::<CommandCapsule>(),
            kind::RESPONSE => size_of::<ResponseCapsule>(),
            kind::HOST_DATA | kind::CONTROLLER_DATA => size_of::<DataTransfer>(),
            kind::READY_TO_TRANSFER => size_of::<ReadyToTransferHeader>(),
            other => return Err(Error::PduType(other)),
        })
    }

    /// The framing of this type. The first and last PDUs of a connection never have digests.
    const fn framing(self, agreed: Framing) -> Framing {
        match self.pdu_type {
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
            self.pdu_type,
            kind::COMMAND
                | kind::HOST_DATA
                | kind::CONTROLLER_DATA
                | kind::HOST_TERMINATE
                | kind::CONTROLLER_TERMINATE
        )
    }

    /// Checks the lengths against each other. Gives the range of the data.
    fn data(self, header_bytes: usize, framing: Framing) -> Result<Range<usize>, Error> {
        let pdu_bytes = self.pdu_length.get() as usize;
        let header_end = header_bytes + if framing.header_digest { DIGEST_BYTES } else { 0 };
        if pdu_bytes == header_end {
            return Ok(0..0);
        }
        if !self.carries_data() || pdu_bytes < header_end {
            return Err(Error::PduField(CommonHeader::PDU_LENGTH_AT));
        }
        // The data of terminate PDUs follows the header. They have no offset of it.
        let start = match self.pdu_type {
            kind::HOST_TERMINATE | kind::CONTROLLER_TERMINATE => header_end,
            _ => usize::from(self.pdu_data_offset),
        };
        let end = pdu_bytes.saturating_sub(if framing.data_digest { DIGEST_BYTES } else { 0 });
        if start < header_end || start % 4 != 0 || start >= end {
            return Err(Error::PduField(CommonHeader::PDU_DATA_OFFSET_AT));
        }
        Ok(start..end)
    }
}

/// The length of the PDU that begins with `bytes`. `None` if these are too few.
///
/// # Errors
/// The type is unknown, the length of the header is wrong, or the PDU is longer than `limit_bytes`.
pub fn pdu_bytes(bytes: &[u8], limit_bytes: usize) -> Result<Option<usize>, Error> {
    let Ok((common, _)) = CommonHeader::ref_from_prefix(bytes) else { return Ok(None) };
    let header_bytes = usize::from(common.header_length);
    if header_bytes != common.expected_header_bytes()? {
        return Err(Error::PduField(CommonHeader::HEADER_LENGTH_AT));
    }
    let length = common.pdu_length.get() as usize;
    if length < header_bytes {
        return Err(Error::PduField(CommonHeader::PDU_LENGTH_AT));
    }
    if length > limit_bytes {
        return Err(Error::PduLength { bytes: length, limit: limit_bytes });
    }
    Ok(Some(length))
}

/// Whether the PDU that begins with `start` carries data of an earlier command.
pub fn is_host_data(start: &[u8]) -> bool {
    start.first() == Some(&kind::HOST_DATA)
}

/// Decodes the PDU at the start of `bytes`. Gives the PDU and its length. `None` if it is incomplete.
///
/// # Errors
/// The PDU is invalid. No later PDU of the connection can be decoded, except after [`Error::DataDigest`]: then
/// [`decode_damaged`] gives the PDU and its length.
pub fn decode(
    bytes: &[u8],
    agreed: Framing,
    limit_bytes: usize,
) -> Result<Option<(Pdu<'_>, usize)>, Error> {
    let Some(frame) = frame(bytes, agreed, limit_bytes)? else { return Ok(None) };
    if !frame.has_data_digest() {
        return Err(Error::DataDigest);
    }
    Ok(Some((frame.pdu()?, frame.bytes.len())))
}

/// Decodes a PDU of which [`decode`] reported [`Error::DataDigest`]. Its header is as it was sent, and its data is not.
///
/// # Errors
/// The header is invalid. No later PDU of the connection can be decoded.
pub fn decode_damaged(
    bytes: &[u8],
    agreed: Framing,
    limit_bytes: usize,
) -> Result<Option<(Pdu<'_>, usize)>, Error> {
    let Some(frame) = frame(bytes, agreed, limit_bytes)? else { return Ok(None) };
    Ok(Some((frame.pdu()?, frame.bytes.len())))
}

/// The bytes of one PDU whose lengths and header digest are right.
struct Frame<'a> {
    bytes: &'a [u8],
    common: CommonHeader,
    framing: Framing,
    data: Range<usize>,
}

/// The PDU at the start of `bytes`. `None` if it is incomplete.
fn frame(bytes: &[u8], agreed: Framing, limit_bytes: usize) -> Result<Option<Frame<'_>>, Error> {
    let Some(length) = pdu_bytes(bytes, limit_bytes)? else { return Ok(None) };
    let Some(bytes) = bytes.get(..length) else { return Ok(None) };
    let (&common, _) = CommonHeader::ref_from_prefix(bytes).map_err(|_| Error::PduField(0))?;
    let header_bytes = usize::from(common.header_length);
    let framing = common.framing(agreed);
    let data = common.data(header_bytes, framing)?;
    let (header, rest) = bytes.split_at(header_bytes);
    if framing.header_digest && head(rest)? != &crc32c::crc32c(header).to_le_bytes() {
        return Err(Error::HeaderDigest);
    }
    Ok(Some(Frame { bytes, common, framing, data }))
}

impl<'a> Frame<'a> {
    /// Whether the digest of the data is right, if there is to be one.
    fn has_data_digest(&self) -> bool {
        let data = &self.bytes[self.data.clone()];
        !self.framing.data_digest
            || data.is_empty()
            || self.bytes[self.data.end..] == crc32c::crc32c(data).to_le_bytes()
    }

    fn pdu(&self) -> Result<Pdu<'a>, Error> {
        let header = &self.bytes[..usize::from(self.common.header_length)];
        decode_body(self.common, header, &self.bytes[self.data.clone()])
    }
}

/// The bytes of a header as its structure. The caller has checked their number.
fn view<H: Header>(header: &[u8]) -> Result<&H, Error> {
    H::ref_from_bytes(header).map_err(|_| Error::PduField(CommonHeader::HEADER_LENGTH_AT))
}

/// Decodes a PDU by its type. The caller has checked the length of the header.
fn decode_body<'a>(common: CommonHeader, header: &[u8], data: &'a [u8]) -> Result<Pdu<'a>, Error> {
    Ok(match common.pdu_type {
        kind::INIT_REQUEST => Pdu::InitRequest(InitRequest::read(view(header)?)),
        kind::INIT_RESPONSE => Pdu::InitResponse(InitResponse::read(view(header)?)),
        kind::HOST_TERMINATE => Pdu::HostTerminate(Terminate::read(view(header)?)),
        kind::CONTROLLER_TERMINATE => Pdu::ControllerTerminate(Terminate::read(view(header)?)),
        kind::COMMAND => {
            let capsule: &CommandCapsule = view(header)?;
            Pdu::Command((&capsule.submission_queue_entry).into(), data)
        }
        kind::RESPONSE => {
            let capsule: &ResponseCapsule = view(header)?;
            Pdu::Response((&capsule.completion_queue_entry).into())
        }
        kind::HOST_DATA => Pdu::HostData(Transfer::read(view(header)?, data.len())?, data),
        kind::CONTROLLER_DATA => {
            Pdu::ControllerData(Transfer::read(view(header)?, data.len())?, data)
        }
        kind::READY_TO_TRANSFER => Pdu::ReadyToTransfer(ReadyToTransfer::read(view(header)?)),
        other => return Err(Error::PduType(other)),
    })
}

impl Pdu<'_> {
    /// Writes the PDU to the start of `out`. Gives its length.
    ///
    /// # Errors
    /// [`Error::Short`] if `out` is too short.
    pub fn encode(&self, agreed: Framing, out: &mut [u8]) -> Result<usize, Error> {
        let (data_at, data): (usize, &[u8]) = match self {
            Pdu::InitRequest(request) => (write_header(out, request.header(), 0, agreed)?, &[]),
            Pdu::InitResponse(response) => (write_header(out, response.header(), 0, agreed)?, &[]),
            Pdu::HostTerminate(terminate) => {
                (write_header(out, terminate.header(kind::HOST_TERMINATE), 0, agreed)?, &[])
            }
            Pdu::ControllerTerminate(terminate) => {
                (write_header(out, terminate.header(kind::CONTROLLER_TERMINATE), 0, agreed)?, &[])
            }
            Pdu::Command(command, data) => {
                let capsule = CommandCapsule {
                    common: CommonHeader::new(kind::COMMAND, 0),
                    submission_queue_entry: command.into(),
                };
                (write_header(out, capsule, data.len(), agreed)?, data)
            }
            Pdu::Response(completion) => {
                let capsule = ResponseCapsule {
                    common: CommonHeader::new(kind::RESPONSE, 0),
                    completion_queue_entry: completion.into(),
                };
                (write_header(out, capsule, 0, agreed)?, &[])
            }
            Pdu::HostData(transfer, data) => {
                (transfer.begin(kind::HOST_DATA, data.len(), agreed, out)?, data)
            }
            Pdu::ControllerData(transfer, data) => {
                (transfer.begin(kind::CONTROLLER_DATA, data.len(), agreed, out)?, data)
            }
            Pdu::ReadyToTransfer(ready) => (write_header(out, ready.header(), 0, agreed)?, &[]),
        };
        if data.is_empty() {
            return Ok(data_at);
        }
        put(out, data_at, data);
        finish_data(out, data_at..data_at + data.len(), agreed)
    }
}

impl Transfer {
    /// Writes the header of a C2HData PDU to the start of `out`. Gives the offset of its [`Self::bytes`] bytes of data.
    /// The caller puts the data there and calls [`finish_data`], so that it is copied only once.
    ///
    /// # Errors
    /// [`Error::Short`] if `out` has no room for the whole PDU.
    pub fn begin_controller_data(&self, agreed: Framing, out: &mut [u8]) -> Result<usize, Error> {
        self.begin(kind::CONTROLLER_DATA, self.bytes as usize, agreed, out)
    }

    /// Writes the header of a PDU with `data_bytes` bytes of data. Gives the offset of the data.
    fn begin(
        &self,
        pdu_type: u8,
        data_bytes: usize,
        agreed: Framing,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        write_header(out, self.header(pdu_type), data_bytes, agreed)
    }
}

/// Appends the digest of the range `data` of `out`, if data has digests. Gives the end of the PDU.
///
/// # Errors
/// [`Error::Short`] if `out` is too short.
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

/// Writes a header with its lengths, digest and padding. Gives the offset of the data; without data, the end of the
/// header. `out` must have room for the whole PDU.
///
/// This function is inlined, so that the fields go from registers to `out`. To build the header in memory and copy it
/// would double the cost.
#[inline(always)]
fn write_header<H: Header>(
    out: &mut [u8],
    header: H,
    data_bytes: usize,
    agreed: Framing,
) -> Result<usize, Error> {
    let header_bytes = size_of::<H>();
    let common = header.common();
    let framing = common.framing(agreed);
    let length = framing.pdu_bytes(header_bytes, data_bytes);
    let short = Error::Short { need: length, got: out.len() };
    if out.len() < length {
        return Err(short);
    }
    let header_end = framing.pdu_bytes(header_bytes, 0);
    let data_at = if data_bytes == 0 { header_end } else { framing.data_at(header_bytes) };
    let header_digest = if framing.header_digest { flag::HEADER_DIGEST } else { 0 };
    let has_data_digest = framing.data_digest && data_bytes != 0;
    let data_digest = if has_data_digest { flag::DATA_DIGEST } else { 0 };
    let common = CommonHeader {
        pdu_type: common.pdu_type,
        flags: common.flags | header_digest | data_digest,
        header_length: header_bytes as u8,
        pdu_data_offset: if data_bytes == 0 { 0 } else { data_at as u8 },
        pdu_length: (length as u32).into(),
    };
    let (place, _) = H::mut_from_prefix(out).map_err(|_| short)?;
    *place = header.with_common(common);
    if framing.header_digest {
        let digest = crc32c::crc32c(&out[..header_bytes]);
        put(out, header_bytes, &digest.to_le_bytes());
    }
    out[header_end..data_at].fill(0);
    Ok(data_at)
}

#[cfg(test)]
mod tests;
