//! The messages (Base 2.1, sections 8.3.4.4 and 8.3.4.5).

use zerocopy::{FromZeros, IntoBytes, transmute_ref};

use super::Hash;
use super::layout::{
    ChallengeMessage, FailureMessage, MessageHeader, NUMBERS_MAX, NegotiateMessage,
    ProtocolDescriptor, ReplyMessage, Success1Message, Success2Message,
};
use crate::Error;
use crate::bytes::{prefix, put};

const COMMON: u8 = 0;
const DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// The number of DH-HMAC-CHAP among authentication protocols.
const PROTOCOL: u8 = 1;
/// The reason code of every failure. The explanation gives the details.
const AUTHENTICATION_FAILURE: u8 = 1;

/// The hashes and groups that a host offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// Numbers of hashes, in the order of preference.
    pub hashes: &'a [u8],
    /// Numbers of Diffie-Hellman groups, in the order of preference; 0 is none.
    pub groups: &'a [u8],
    /// The secure channel that the host asks for; 0 is none.
    pub secure_channel: u8,
}

/// The challenge that the host must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// The hash that the controller chose.
    pub hash: Hash,
    /// The group that the controller chose; 0 is none.
    pub group: u8,
    /// Sequence number, not 0.
    pub sequence: u32,
    /// Random bytes, as many as the hash has.
    pub challenge: &'a [u8],
    /// The controller's Diffie-Hellman value.
    pub exchange: &'a [u8],
}

/// The host's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The response, as many bytes as the hash has.
    pub response: &'a [u8],
    /// The host's own challenge and its sequence number, if the controller must authenticate, too.
    pub challenge: Option<(&'a [u8], u32)>,
    /// The host's Diffie-Hellman value.
    pub exchange: &'a [u8],
}

/// The controller accepts the host's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// The controller's proof, if the host asked for it.
    pub response: Option<&'a [u8]>,
    /// Bytes of the hash.
    pub hash_bytes: u8,
}

/// The reason for a failure (Base 2.1, section 8.3.4.4.2, figure 736).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The proof is wrong.
    Failed = 1,
    /// The protocol is not usable.
    Protocol = 2,
    /// A secure channel was asked for.
    SecureChannel = 3,
    /// No hash is usable.
    Hash = 4,
    /// No group is usable.
    Group = 5,
    /// A message is malformed.
    Payload = 6,
    /// A message came out of order.
    Order = 7,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// From the host.
    Negotiate(Negotiate<'a>),
    /// From the controller.
    Challenge(Challenge<'a>),
    /// From the host.
    Reply(Reply<'a>),
    /// From the controller.
    Success1(Success1<'a>),
    /// From the host, which accepts the controller's proof.
    Success2,
    /// From the controller. The number of a [`Failure`].
    Failure1(u8),
    /// From the host. The number of a [`Failure`].
    Failure2(u8),
}

impl<'a> Message<'a> {
    /// Decodes a message and the identifier of its transaction.
    ///
    /// # Errors
    /// [`Error::Short`] if lengths in the message reach beyond its end, [`Error::Field`] for an unknown value.
    pub fn decode(bytes: &'a [u8]) -> Result<(u16, Self), Error> {
        let start: &FailureMessage = prefix(bytes)?; // no message is shorter
        let header = start.header;
        let message = match (header.authentication_type, header.authentication_identifier) {
            (COMMON, NEGOTIATE) => Self::Negotiate(negotiate(bytes)?),
            (DHCHAP, CHALLENGE) => Self::Challenge(challenge(bytes)?),
            (DHCHAP, REPLY) => Self::Reply(reply(bytes)?),
            (DHCHAP, SUCCESS1) => Self::Success1(success1(bytes)?),
            (DHCHAP, SUCCESS2) => Self::Success2,
            (COMMON, FAILURE1) => Self::Failure1(start.reason_code_explanation),
            (COMMON, FAILURE2) => Self::Failure2(start.reason_code_explanation),
            _ => return Err(Error::Field("authentication message")),
        };
        Ok((header.transaction_identifier.get(), message))
    }

    /// Writes the message to the start of `out`. Gives its length, bytes.
    ///
    /// # Errors
    /// [`Error::Short`] if `out` is too short; [`Error::Field`] for more than 30 hashes or groups.
    pub fn encode(&self, transaction: u16, out: &mut [u8]) -> Result<usize, Error> {
        let length = self.length()?;
        let room = out.len();
        let out = out.get_mut(..length).ok_or(Error::Short { need: length, got: room })?;
        out.fill(0);
        let (kind, id) = match self {
            Self::Negotiate(_) => (COMMON, NEGOTIATE),
            Self::Challenge(_) => (DHCHAP, CHALLENGE),
            Self::Reply(_) => (DHCHAP, REPLY),
            Self::Success1(_) => (DHCHAP, SUCCESS1),
            Self::Success2 => (DHCHAP, SUCCESS2),
            Self::Failure1(_) => (COMMON, FAILURE1),
            Self::Failure2(_) => (COMMON, FAILURE2),
        };
        let header = MessageHeader {
            authentication_type: kind,
            authentication_identifier: id,
            reserved: [0; _],
            transaction_identifier: transaction.into(),
        };
        match self {
            Self::Negotiate(negotiate) => negotiate.write(header, out),
            Self::Challenge(challenge) => challenge.write(header, out),
            Self::Reply(reply) => reply.write(header, out),
            Self::Success1(success) => success.write(header, out),
            Self::Success2 => {
                put_all(out, [Success2Message { header, reserved: [0; _] }.as_bytes()])
            }
            Self::Failure1(reason) | Self::Failure2(reason) => {
                let failure = FailureMessage {
                    header,
                    reason_code: AUTHENTICATION_FAILURE,
                    reason_code_explanation: *reason,
                };
                put_all(out, [failure.as_bytes()]);
            }
        }
        Ok(length)
    }

    fn length(&self) -> Result<usize, Error> {
        Ok(match self {
            Self::Negotiate(negotiate) => {
                if negotiate.hashes.len().max(negotiate.groups.len()) > NUMBERS_MAX {
                    return Err(Error::Field("hashes and groups"));
                }
                size_of::<NegotiateMessage>() + size_of::<ProtocolDescriptor>()
            }
            Self::Challenge(c) => {
                size_of::<ChallengeMessage>() + c.challenge.len() + c.exchange.len()
            }
            Self::Reply(r) => size_of::<ReplyMessage>() + 2 * r.response.len() + r.exchange.len(),
            Self::Success1(success) => {
                size_of::<Success1Message>() + usize::from(success.hash_bytes)
            }
            Self::Success2 => size_of::<Success2Message>(),
            Self::Failure1(_) | Self::Failure2(_) => size_of::<FailureMessage>(),
        })
    }
}

/// Writes `parts` one after the other to the start of `out`.
fn put_all<const N: usize>(out: &mut [u8], parts: [&[u8]; N]) {
    let mut end = 0;
    for part in parts {
        put(out, end, part);
        end += part.len();
    }
}

impl Negotiate<'_> {
    fn write(&self, header: MessageHeader, out: &mut [u8]) {
        let message = NegotiateMessage {
            header,
            secure_channel_concatenation: self.secure_channel,
            number_of_descriptors: 1,
        };
        let mut descriptor = ProtocolDescriptor::new_zeroed();
        descriptor.authentication_protocol_identifier = PROTOCOL;
        descriptor.hash_list_length = self.hashes.len() as u8;
        descriptor.group_list_length = self.groups.len() as u8;
        put(&mut descriptor.hash_function_identifiers, 0, self.hashes);
        put(&mut descriptor.group_identifiers, 0, self.groups);
        put_all(out, [message.as_bytes(), descriptor.as_bytes()]);
    }
}

impl Challenge<'_> {
    fn write(&self, header: MessageHeader, out: &mut [u8]) {
        let message = ChallengeMessage {
            header,
            hash_length: self.challenge.len() as u8,
            reserved: 0,
            hash_identifier: self.hash as u8,
            group_identifier: self.group,
            dh_value_length: (self.exchange.len() as u16).into(),
            sequence_number: self.sequence.into(),
        };
        put_all(out, [message.as_bytes(), self.challenge, self.exchange]);
    }
}

impl Reply<'_> {
    fn write(&self, header: MessageHeader, out: &mut [u8]) {
        let length = self.response.len();
        let (challenge, sequence) = self.challenge.unwrap_or_default();
        let message = ReplyMessage {
            header,
            hash_length: length as u8,
            reserved_1: 0,
            challenge_valid: u8::from(self.challenge.is_some()),
            reserved_2: 0,
            dh_value_length: (self.exchange.len() as u16).into(),
            sequence_number: sequence.into(),
        };
        put_all(out, [message.as_bytes(), self.response, challenge]);
        put(out, size_of::<ReplyMessage>() + 2 * length, self.exchange);
    }
}

impl Success1<'_> {
    fn write(&self, header: MessageHeader, out: &mut [u8]) {
        let message = Success1Message {
            header,
            hash_length: self.hash_bytes,
            reserved_1: 0,
            response_valid: u8::from(self.response.is_some()),
            reserved_2: [0; _],
        };
        put_all(out, [message.as_bytes(), self.response.unwrap_or_default()]);
    }
}

fn negotiate(bytes: &[u8]) -> Result<Negotiate<'_>, Error> {
    let message: &NegotiateMessage = prefix(bytes)?;
    let (descriptors, _) = bytes[size_of::<NegotiateMessage>()..].as_chunks();
    let ours = descriptors
        .iter()
        .take(usize::from(message.number_of_descriptors))
        .map(|bytes: &[u8; size_of::<ProtocolDescriptor>()]| -> &ProtocolDescriptor {
            transmute_ref!(bytes)
        })
        .find(|descriptor| descriptor.authentication_protocol_identifier == PROTOCOL);
    let descriptor = ours.ok_or(Error::Field("authentication protocol"))?;
    let hashes = descriptor.hash_function_identifiers.get(..descriptor.hash_list_length.into());
    let groups = descriptor.group_identifiers.get(..descriptor.group_list_length.into());
    let (hashes, groups) = hashes.zip(groups).ok_or(Error::Field("hashes and groups"))?;
    Ok(Negotiate { hashes, groups, secure_channel: message.secure_channel_concatenation })
}

/// The variable part of a message after its fixed part `M`, cut at `lengths`.
fn parts<M, const N: usize>(bytes: &[u8], lengths: [usize; N]) -> Result<[&[u8]; N], Error> {
    let need = size_of::<M>() + lengths.iter().sum::<usize>();
    if bytes.len() < need {
        return Err(Error::Short { need, got: bytes.len() });
    }
    let mut at = size_of::<M>();
    Ok(lengths.map(|length| {
        at += length;
        &bytes[at - length..at]
    }))
}

fn challenge(bytes: &[u8]) -> Result<Challenge<'_>, Error> {
    let message: &ChallengeMessage = prefix(bytes)?;
    let hash = Hash::from_number(message.hash_identifier).ok_or(Error::Field("hash"))?;
    let lengths = [message.hash_length.into(), message.dh_value_length.get().into()];
    let [challenge, exchange] = parts::<ChallengeMessage, _>(bytes, lengths)?;
    Ok(Challenge {
        hash,
        group: message.group_identifier,
        sequence: message.sequence_number.get(),
        challenge,
        exchange,
    })
}

fn reply(bytes: &[u8]) -> Result<Reply<'_>, Error> {
    let message: &ReplyMessage = prefix(bytes)?;
    let length = usize::from(message.hash_length);
    let lengths = [length, length, message.dh_value_length.get().into()];
    let [response, challenge, exchange] = parts::<ReplyMessage, _>(bytes, lengths)?;
    let asked = message.challenge_valid & 1 != 0;
    let challenge = asked.then_some((challenge, message.sequence_number.get()));
    Ok(Reply { response, challenge, exchange })
}

fn success1(bytes: &[u8]) -> Result<Success1<'_>, Error> {
    let message: &Success1Message = prefix(bytes)?;
    let hash_bytes = message.hash_length;
    let proven = message.response_valid & 1 != 0;
    let length = if proven { usize::from(hash_bytes) } else { 0 };
    let [response] = parts::<Success1Message, _>(bytes, [length])?;
    Ok(Success1 { response: proven.then_some(response), hash_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message<'static>> {
        vec![
            Message::Negotiate(Negotiate {
                hashes: &[1, 2, 3],
                groups: &[0, 1, 2],
                secure_channel: 0,
            }),
            Message::Challenge(Challenge {
                hash: Hash::Sha384,
                group: 1,
                sequence: 77,
                challenge: &[9; 48],
                exchange: &[8; 256],
            }),
            Message::Reply(Reply {
                response: &[1; 32],
                challenge: Some((&[2; 32], 5)),
                exchange: &[3; 256],
            }),
            Message::Reply(Reply { response: &[1; 64], challenge: None, exchange: &[] }),
            Message::Success1(Success1 { response: Some(&[4; 32]), hash_bytes: 32 }),
            Message::Success1(Success1 { response: None, hash_bytes: 64 }),
            Message::Success2,
            Message::Failure1(Failure::Failed as u8),
            Message::Failure2(Failure::Hash as u8),
        ]
    }

    #[test]
    fn messages_come_back() {
        for message in samples() {
            let mut out = [0xff; 1024];
            let length = message.encode(0x1234, &mut out).unwrap();
            assert_eq!(Message::decode(&out[..length]), Ok((0x1234, message)));
            assert!(message.encode(1, &mut out[..length - 1]).is_err());
        }
    }

    /// Messages as in figures 731, 734, 739 and 742 to 745. Each field has other bytes.
    #[test]
    fn messages_are_laid_out_as_the_figures_say() {
        let negotiate = Negotiate { hashes: &[1, 2], groups: &[0, 3, 4], secure_channel: 2 };
        let mut negotiated = [0; 72];
        negotiated[..14].copy_from_slice(&[0, 0, 0, 0, 0x34, 0x12, 2, 1, 1, 0, 2, 3, 1, 2]);
        negotiated[42..45].copy_from_slice(&[0, 3, 4]);
        let challenge = Challenge {
            hash: Hash::Sha512,
            group: 9,
            sequence: 0x0403_0201,
            challenge: &[7; 2],
            exchange: &[8; 3],
        };
        let challenged = [1, 1, 0, 0, 0x34, 0x12, 2, 0, 3, 9, 3, 0, 1, 2, 3, 4, 7, 7, 8, 8, 8];
        let reply = Reply { response: &[7], challenge: Some((&[8], 0x0403_0201)), exchange: &[9] };
        let replied = [1, 2, 0, 0, 0x34, 0x12, 1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 7, 8, 9];
        let alone = Reply { challenge: None, ..reply };
        let replied_alone = [1, 2, 0, 0, 0x34, 0x12, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 7, 0, 9];
        let success = Success1 { response: Some(&[7, 8]), hash_bytes: 2 };
        let succeeded = [1, 3, 0, 0, 0x34, 0x12, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 8];
        let cases: [(Message<'_>, &[u8]); 8] = [
            (Message::Negotiate(negotiate), &negotiated),
            (Message::Challenge(challenge), &challenged),
            (Message::Reply(reply), &replied),
            (Message::Reply(alone), &replied_alone),
            (Message::Success1(success), &succeeded),
            (Message::Success2, &[1, 4, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (Message::Failure1(5), &[0, 0xf1, 0, 0, 0x34, 0x12, 1, 5]),
            (Message::Failure2(6), &[0, 0xf0, 0, 0, 0x34, 0x12, 1, 6]),
        ];
        for (message, bytes) in cases {
            let mut out = [0xee; 128];
            let length = message.encode(0x1234, &mut out).unwrap();
            assert_eq!(&out[..length], bytes);
            assert_eq!(Message::decode(bytes), Ok((0x1234, message)));
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for message in samples() {
            let mut out = [0; 1024];
            let length = message.encode(1, &mut out).unwrap();
            for cut in 0..length {
                // Only Success 1 without a proof has more bytes than it needs.
                if let Ok((_, read)) = Message::decode(&out[..cut]) {
                    assert_eq!(read, message, "cut at {cut}");
                }
            }
        }
        let mut many = [0; 72];
        many[7..12].copy_from_slice(&[1, 1, 0, 31, 0]);
        assert_eq!(Message::decode(&many), Err(Error::Field("hashes and groups")));
    }

    /// The negotiation of Linux 6.12's host: three hashes, six groups.
    #[test]
    fn reads_the_kernels_negotiation() {
        let mut bytes = [0; 72];
        bytes[4] = 1;
        bytes[7] = 1;
        bytes[8..12].copy_from_slice(&[1, 0, 3, 6]);
        bytes[12..15].copy_from_slice(&[1, 2, 3]);
        bytes[42..48].copy_from_slice(&[0, 1, 2, 3, 4, 5]);
        let (transaction, message) = Message::decode(&bytes).unwrap();
        let expected =
            Negotiate { hashes: &[1, 2, 3], groups: &[0, 1, 2, 3, 4, 5], secure_channel: 0 };
        assert_eq!((transaction, message), (1, Message::Negotiate(expected)));
    }
}
