//! The headers of PDUs (TCP 1.0, section 3.6.2). Each begins with the common header.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::{CompletionQueueEntry, SubmissionQueueEntry};

/// Types of PDUs (section 3.3, figure 10).
pub mod kind {
    /// ICReq.
    pub const INIT_REQUEST: u8 = 0x00;
    /// ICResp.
    pub const INIT_RESPONSE: u8 = 0x01;
    /// H2CTermReq.
    pub const HOST_TERMINATE: u8 = 0x02;
    /// C2HTermReq.
    pub const CONTROLLER_TERMINATE: u8 = 0x03;
    /// CapsuleCmd.
    pub const COMMAND: u8 = 0x04;
    /// CapsuleResp.
    pub const RESPONSE: u8 = 0x05;
    /// H2CData.
    pub const HOST_DATA: u8 = 0x06;
    /// C2HData.
    pub const CONTROLLER_DATA: u8 = 0x07;
    /// R2T.
    pub const READY_TO_TRANSFER: u8 = 0x09;
}

/// Bits of the common header's flags.
pub(super) mod flag {
    pub const HEADER_DIGEST: u8 = 1 << 0;
    pub const DATA_DIGEST: u8 = 1 << 1;
    pub const LAST: u8 = 1 << 2;
    pub const SUCCESS: u8 = 1 << 3;
}

/// Bits of [`InitializeConnectionRequest::digests`] and of the response's.
pub(super) mod digest {
    pub const HEADER: u8 = 1 << 0;
    pub const DATA: u8 = 1 << 1;
}

/// PDU common header, CH (section 3.6.2.1, figure 19).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type (figure 10).
    pub pdu_type: u8,
    /// FLAGS: specific to the type.
    pub flags: u8,
    /// Header length (HLEN): bytes of the header, without its digest.
    pub header_length: u8,
    /// PDU data offset (PDO): from the start of the PDU.
    pub pdu_data_offset: u8,
    /// PDU length (PLEN): bytes of the whole PDU.
    pub pdu_length: U32,
}

const _: () = assert!(size_of::<CommonHeader>() == 8);

impl CommonHeader {
    // Offsets of fields, for errors.
    pub(super) const HEADER_LENGTH_AT: u16 = offset_of!(Self, header_length) as u16;
    pub(super) const PDU_DATA_OFFSET_AT: u16 = offset_of!(Self, pdu_data_offset) as u16;
    pub(super) const PDU_LENGTH_AT: u16 = offset_of!(Self, pdu_length) as u16;

    /// A header without lengths. The writer of the PDU sets them.
    pub(super) fn new(pdu_type: u8, flags: u8) -> Self {
        Self { pdu_type, flags, ..Self::new_zeroed() }
    }
}

/// Initialize Connection Request, ICReq (section 3.6.2.2, figure 20).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InitializeConnectionRequest {
    /// Common header (CH).
    pub common: CommonHeader,
    /// PDU format version (PFV).
    pub pdu_format_version: U16,
    /// Host PDU data alignment (HPDA), dwords less one.
    pub host_pdu_data_alignment: u8,
    /// DGST: header digest (HDGST_ENABLE) in bit 0, data digest (DDGST_ENABLE) in bit 1.
    pub digests: u8,
    /// Maximum number of outstanding R2T (MAXR2T), less one.
    pub maximum_outstanding_r2t: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

const _: () = assert!(size_of::<InitializeConnectionRequest>() == 128);

/// Initialize Connection Response, ICResp (section 3.6.2.3, figure 21).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InitializeConnectionResponse {
    /// Common header (CH).
    pub common: CommonHeader,
    /// PDU format version (PFV).
    pub pdu_format_version: U16,
    /// Controller PDU data alignment (CPDA), dwords less one.
    pub controller_pdu_data_alignment: u8,
    /// DGST, as in the request.
    pub digests: u8,
    /// Maximum host to controller data length (MAXH2CDATA), bytes.
    pub maximum_host_to_controller_data_length: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

const _: () = assert!(size_of::<InitializeConnectionResponse>() == 128);

/// Terminate Connection Request, H2CTermReq and C2HTermReq (sections 3.6.2.4 and 3.6.2.5, figures 22
/// and 23).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TerminateConnectionRequest {
    /// Common header (CH).
    pub common: CommonHeader,
    /// Fatal error status (FES).
    pub fatal_error_status: U16,
    /// Fatal error information (FEI).
    pub fatal_error_information: U32,
    /// Reserved.
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<TerminateConnectionRequest>() == 24);

/// Command capsule, CapsuleCmd (section 3.6.2.6, figure 24).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandCapsule {
    /// Common header (CH).
    pub common: CommonHeader,
    /// Command capsule SQE (CCSQE).
    pub submission_queue_entry: SubmissionQueueEntry,
}

const _: () = assert!(size_of::<CommandCapsule>() == 72);

/// Response capsule, CapsuleResp (section 3.6.2.7, figure 25).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ResponseCapsule {
    /// Common header (CH).
    pub common: CommonHeader,
    /// Response capsule CQE (RCCQE).
    pub completion_queue_entry: CompletionQueueEntry,
}

const _: () = assert!(size_of::<ResponseCapsule>() == 24);

/// Data transfer, H2CData and C2HData (sections 3.6.2.8 and 3.6.2.9, figures 26 and 27).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DataTransfer {
    /// Common header (CH).
    pub common: CommonHeader,
    /// Command capsule CID (CCCID).
    pub command_capsule_cid: U16,
    /// Transfer tag (TTAG); reserved in C2HData.
    pub transfer_tag: U16,
    /// Data offset (DATAO) in the command's data.
    pub data_offset: U32,
    /// Data length (DATAL), bytes.
    pub data_length: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<DataTransfer>() == 24);

/// Ready to Transfer, R2T (section 3.6.2.10, figure 28).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadyToTransferHeader {
    /// Common header (CH).
    pub common: CommonHeader,
    /// Command capsule CID (CCCID).
    pub command_capsule_cid: U16,
    /// Transfer tag (TTAG).
    pub transfer_tag: U16,
    /// Requested data offset (R2TO) in the command's data.
    pub requested_data_offset: U32,
    /// Requested data length (R2TL), bytes.
    pub requested_data_length: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<ReadyToTransferHeader>() == 24);

/// The header of a PDU. It begins with the common header.
pub(super) trait Header:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned
{
    /// The common header.
    fn common(&self) -> CommonHeader;
    /// The same header with another common header.
    fn with_common(self, common: CommonHeader) -> Self;
}

macro_rules! headers {
    ($($header:ty),* $(,)?) => {
        $(impl Header for $header {
            #[inline]
            fn common(&self) -> CommonHeader {
                self.common
            }

            #[inline]
            fn with_common(self, common: CommonHeader) -> Self {
                Self { common, ..self }
            }
        })*
    };
}

headers!(
    InitializeConnectionRequest,
    InitializeConnectionResponse,
    TerminateConnectionRequest,
    CommandCapsule,
    ResponseCapsule,
    DataTransfer,
    ReadyToTransferHeader,
);
