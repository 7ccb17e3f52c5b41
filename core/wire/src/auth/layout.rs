//! The fixed parts of the messages.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header of all messages.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct MessageHeader {
    /// Authentication type (AUTH_TYPE).
    pub authentication_type: u8,
    /// Authentication identifier (AUTH_ID).
    pub authentication_identifier: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Transaction identifier (T_ID).
    pub transaction_identifier: U16,
}

const _: () = assert!(size_of::<MessageHeader>() == 6);

/// AUTH_Negotiate, before its descriptors (Base 2.1, section 8.3.4.4.1, figure 731).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct NegotiateMessage {
    /// Header.
    pub header: MessageHeader,
    /// Secure channel concatenation (SC_C).
    pub secure_channel_concatenation: u8,
    /// Number of authentication protocol descriptors (NAPD).
    pub number_of_descriptors: u8,
}

const _: () = assert!(size_of::<NegotiateMessage>() == 8);

/// Most hashes, and most groups, of a descriptor.
pub(super) const NUMBERS_MAX: usize = 30;

/// Authentication protocol descriptor for DH-HMAC-CHAP (Base 2.1, section 8.3.4.5.2, figure 739).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ProtocolDescriptor {
    /// Authentication protocol identifier (AuthID).
    pub authentication_protocol_identifier: u8,
    /// Reserved.
    pub reserved: u8,
    /// HashIDList length (HALEN).
    pub hash_list_length: u8,
    /// DHgIDList length (DHLEN).
    pub group_list_length: u8,
    /// Hash function identifier list (HashIDList).
    pub hash_function_identifiers: [u8; NUMBERS_MAX],
    /// Diffie-Hellman group identifier list (DHgIDList).
    pub group_identifiers: [u8; NUMBERS_MAX],
}

const _: () = assert!(size_of::<ProtocolDescriptor>() == 64);

/// DH-HMAC-CHAP_Challenge, before its challenge and DH value (Base 2.1, section 8.3.4.5.3, figure 742).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ChallengeMessage {
    /// Header.
    pub header: MessageHeader,
    /// Hash length (HL), bytes.
    pub hash_length: u8,
    /// Reserved.
    pub reserved: u8,
    /// Hash identifier (HashID).
    pub hash_identifier: u8,
    /// Diffie-Hellman group identifier (DHgID).
    pub group_identifier: u8,
    /// DH value length (DHVLEN), bytes.
    pub dh_value_length: U16,
    /// Sequence number (SEQNUM).
    pub sequence_number: U32,
}

const _: () = assert!(size_of::<ChallengeMessage>() == 16);

/// DH-HMAC-CHAP_Reply, before its response, challenge and DH value (Base 2.1, section 8.3.4.5.4, figure
/// 743).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ReplyMessage {
    /// Header.
    pub header: MessageHeader,
    /// Hash length (HL), bytes.
    pub hash_length: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Challenge valid (CVALID): 1 if there is a challenge.
    pub challenge_valid: u8,
    /// Reserved.
    pub reserved_2: u8,
    /// DH value length (DHVLEN), bytes.
    pub dh_value_length: U16,
    /// Sequence number (SEQNUM).
    pub sequence_number: U32,
}

const _: () = assert!(size_of::<ReplyMessage>() == 16);

/// DH-HMAC-CHAP_Success1, before its response (Base 2.1, section 8.3.4.5.5, figure 744).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Success1Message {
    /// Header.
    pub header: MessageHeader,
    /// Hash length (HL), bytes.
    pub hash_length: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Response valid (RVALID): 1 if there is a response.
    pub response_valid: u8,
    /// Reserved.
    pub reserved_2: [u8; 7],
}

const _: () = assert!(size_of::<Success1Message>() == 16);

/// DH-HMAC-CHAP_Success2 (Base 2.1, section 8.3.4.5.6, figure 745).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Success2Message {
    /// Header.
    pub header: MessageHeader,
    /// Reserved.
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<Success2Message>() == 16);

/// AUTH_Failure1 and AUTH_Failure2, the shortest messages (Base 2.1, section 8.3.4.4.2, figure 734).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FailureMessage {
    /// Header.
    pub header: MessageHeader,
    /// Reason code (RCODE).
    pub reason_code: u8,
    /// Reason code explanation (RCODEEX).
    pub reason_code_explanation: u8,
}

const _: () = assert!(size_of::<FailureMessage>() == 8);
