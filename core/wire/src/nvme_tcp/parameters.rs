//! The parameters in the headers of PDUs.

use core::mem::offset_of;

use super::header::{
    CommonHeader, DataTransfer, InitializeConnectionRequest, InitializeConnectionResponse,
    ReadyToTransferHeader, TerminateConnectionRequest, digest, flag, kind,
};
use crate::Error;

/// The first PDU, from the host (ICReq).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitRequest {
    /// Version of the PDU format; 0.
    pub version: u16,
    /// Alignment of data that the controller sends, as in [`super::Framing::alignment`]; 0 to 31.
    pub alignment: u8,
    /// Digests asked for.
    pub header_digest: bool,
    /// Digests asked for.
    pub data_digest: bool,
    /// Most outstanding R2T PDUs of a command, less one.
    pub transfers_max: u32,
}

/// The answer to [`InitRequest`], from the controller (ICResp).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitResponse {
    /// Version of the PDU format; 0.
    pub version: u16,
    /// Alignment of data that the host sends, as in [`super::Framing::alignment`].
    pub alignment: u8,
    /// Digests granted.
    pub header_digest: bool,
    /// Digests granted.
    pub data_digest: bool,
    /// Most bytes of data of one PDU from the host; a multiple of 4, at least [`super::HOST_DATA_BYTES_MIN`].
    pub host_data_bytes_max: u32,
}

/// The reason why a side ends a connection (H2CTermReq, C2HTermReq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Fatal error status: 1 invalid header field, 2 sequence, 3 header digest, 4 data out of range,
    /// 5 limit exceeded, 6 unsupported parameter.
    pub status: u16,
    /// The details: the offset of the invalid field, or the wrong digest.
    pub detail: u32,
}

impl Terminate {
    /// A field of the header is invalid. The detail is its offset.
    pub const HEADER_FIELD: u16 = 1;
    /// A PDU came out of order.
    pub const SEQUENCE: u16 = 2;
    /// The header's digest is wrong.
    pub const HEADER_DIGEST: u16 = 3;
    /// Data is outside the requested range.
    pub const DATA_RANGE: u16 = 4;
    /// There is more data, or there are more transfers, than allowed.
    pub const LIMIT: u16 = 5;
    /// A parameter is not supported.
    pub const PARAMETER: u16 = 6;
}

impl From<Error> for Terminate {
    fn from(error: Error) -> Self {
        let (status, detail) = match error {
            Error::PduType(_) => (Self::HEADER_FIELD, 0),
            Error::PduField(at) => (Self::HEADER_FIELD, u32::from(at)),
            Error::PduLength { .. } => (Self::LIMIT, CommonHeader::PDU_LENGTH_AT.into()),
            Error::HeaderDigest => (Self::HEADER_DIGEST, 0),
            Error::Short { .. } | Error::DataDigest | Error::Field(_) => (Self::PARAMETER, 0),
        };
        Self { status, detail }
    }
}

/// The part of a command's data that a PDU carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The identifier of the command.
    pub command: u16,
    /// From the host: the tag of the R2T. From the controller: 0.
    pub tag: u16,
    /// The offset of the part in the command's data, bytes.
    pub offset: u32,
    /// The length of the part, bytes.
    pub bytes: u32,
    /// The last PDU for this R2T (from the host), or for this command (from the controller).
    pub last: bool,
    /// From the controller, with `last`: the command succeeded and no response follows.
    pub success: bool,
}

/// The controller is ready for part of a command's data (R2T).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// The identifier of the command.
    pub command: u16,
    /// The tag that the host puts into its data PDUs.
    pub tag: u16,
    /// The offset of the part in the command's data, bytes.
    pub offset: u32,
    /// The length of the part, bytes.
    pub bytes: u32,
}

impl InitRequest {
    pub(super) fn read(header: &InitializeConnectionRequest) -> Self {
        Self {
            version: header.pdu_format_version.get(),
            alignment: header.host_pdu_data_alignment,
            header_digest: header.digests & digest::HEADER != 0,
            data_digest: header.digests & digest::DATA != 0,
            transfers_max: header.maximum_outstanding_r2t.get(),
        }
    }

    pub(super) fn header(&self) -> InitializeConnectionRequest {
        InitializeConnectionRequest {
            common: CommonHeader::new(kind::INIT_REQUEST, 0),
            pdu_format_version: self.version.into(),
            host_pdu_data_alignment: self.alignment,
            digests: digests(self.header_digest, self.data_digest),
            maximum_outstanding_r2t: self.transfers_max.into(),
            reserved: [0; _],
        }
    }
}

impl InitResponse {
    pub(super) fn read(header: &InitializeConnectionResponse) -> Self {
        Self {
            version: header.pdu_format_version.get(),
            alignment: header.controller_pdu_data_alignment,
            header_digest: header.digests & digest::HEADER != 0,
            data_digest: header.digests & digest::DATA != 0,
            host_data_bytes_max: header.maximum_host_to_controller_data_length.get(),
        }
    }

    pub(super) fn header(&self) -> InitializeConnectionResponse {
        InitializeConnectionResponse {
            common: CommonHeader::new(kind::INIT_RESPONSE, 0),
            pdu_format_version: self.version.into(),
            controller_pdu_data_alignment: self.alignment,
            digests: digests(self.header_digest, self.data_digest),
            maximum_host_to_controller_data_length: self.host_data_bytes_max.into(),
            reserved: [0; _],
        }
    }
}

const fn digests(header: bool, data: bool) -> u8 {
    (if header { digest::HEADER } else { 0 }) | if data { digest::DATA } else { 0 }
}

impl Terminate {
    pub(super) fn read(header: &TerminateConnectionRequest) -> Self {
        Self {
            status: header.fatal_error_status.get(),
            detail: header.fatal_error_information.get(),
        }
    }

    pub(super) fn header(&self, pdu_type: u8) -> TerminateConnectionRequest {
        TerminateConnectionRequest {
            common: CommonHeader::new(pdu_type, 0),
            fatal_error_status: self.status.into(),
            fatal_error_information: self.detail.into(),
            reserved: [0; _],
        }
    }
}

impl ReadyToTransfer {
    pub(super) fn read(header: &ReadyToTransferHeader) -> Self {
        Self {
            command: header.command_capsule_cid.get(),
            tag: header.transfer_tag.get(),
            offset: header.requested_data_offset.get(),
            bytes: header.requested_data_length.get(),
        }
    }

    pub(super) fn header(&self) -> ReadyToTransferHeader {
        ReadyToTransferHeader {
            common: CommonHeader::new(kind::READY_TO_TRANSFER, 0),
            command_capsule_cid: self.command.into(),
            transfer_tag: self.tag.into(),
            requested_data_offset: self.offset.into(),
            requested_data_length: self.bytes.into(),
            reserved: [0; _],
        }
    }
}

impl Transfer {
    /// Decodes the header of a PDU with `data_bytes` bytes of data.
    pub(super) fn read(header: &DataTransfer, data_bytes: usize) -> Result<Self, Error> {
        if header.data_length.get() as usize != data_bytes {
            return Err(Error::PduField(offset_of!(DataTransfer, data_length) as u16));
        }
        Ok(Self {
            command: header.command_capsule_cid.get(),
            tag: header.transfer_tag.get(),
            offset: header.data_offset.get(),
            bytes: header.data_length.get(),
            last: header.common.flags & flag::LAST != 0,
            success: header.common.flags & flag::SUCCESS != 0,
        })
    }

    #[inline]
    pub(super) fn header(&self, pdu_type: u8) -> DataTransfer {
        let last = if self.last { flag::LAST } else { 0 };
        let success = if self.success { flag::SUCCESS } else { 0 };
        DataTransfer {
            common: CommonHeader::new(pdu_type, last | success),
            command_capsule_cid: self.command.into(),
            transfer_tag: self.tag.into(),
            data_offset: self.offset.into(),
            data_length: self.bytes.into(),
            reserved: [0; _],
        }
    }
}
