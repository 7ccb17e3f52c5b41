//! The messages (Base 2.0, figures 488 to 506).

use super::Hash;
use crate::Error;
use crate::bytes::{head, put, u16_at, u32_at};

const COMMON: u8 = 0;
const DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// Bytes before the variable part of a challenge, a reply and a success.
const FIXED_BYTES: usize = 16;
/// Bytes of a protocol's description in negotiate.
const DESCRIPTION_BYTES: usize = 64;
/// Where the groups' numbers stand in a description: the hashes' stand from 4.
const GROUPS_AT: usize = 34;
const NUMBERS_MAX: usize = 30;

/// What a host offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// Numbers of hashes, in the order of preference.
    pub hashes: &'a [u8],
    /// Numbers of Diffie-Hellman groups, in the order of preference; 0 is none.
    pub groups: &'a [u8],
    /// A secure channel is asked for afterwards.
    pub secure_channel: u8,
}

/// What a controller wants proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Which hash.
    pub hash: Hash,
    /// Which group; 0 is none.
    pub group: u8,
    /// Sequence number, not 0.
    pub sequence: u32,
    /// Random bytes, as many as the hash has.
    pub challenge: &'a [u8],
    /// The controller's part of the exchange.
    pub exchange: &'a [u8],
}

/// The host's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The response, as many bytes as the hash has.
    pub response: &'a [u8],
    /// The host's own challenge and its sequence number, when the controller shall prove itself.
    pub challenge: Option<(&'a [u8], u32)>,
    /// The host's part of the exchange.
    pub exchange: &'a [u8],
}

/// The host's proof holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// The controller's proof, when the host asked for it.
    pub response: Option<&'a [u8]>,
    /// Bytes of the hash.
    pub hash_bytes: u8,
}

/// Why it goes no further (Base 2.0, figure 505).
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
    /// A message makes no sense.
    Payload = 6,
    /// A message does not come in this order.
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
    /// From the host: the controller's proof holds.
    Success2,
    /// From the controller. The number of a [`Failure`].
    Failure1(u8),
    /// From the host. The number of a [`Failure`].
    Failure2(u8),
}

impl<'a> Message<'a> {
    /// Reads a message and the transaction that it is of.
    ///
    /// # Errors
    /// [`Error::Short`] when lengths in it reach beyond its end, [`Error::Field`] for what is not known.
    pub fn decode(bytes: &'a [u8]) -> Result<(u16, Self), Error> {
        let start: &[u8; 8] = head(bytes)?;
        let transaction = u16_at(start, 4);
        let message = match (start[0], start[1]) {
            (COMMON, NEGOTIATE) => Self::Negotiate(negotiate(bytes)?),
            (DHCHAP, CHALLENGE) => Self::Challenge(challenge(bytes)?),
            (DHCHAP, REPLY) => Self::Reply(reply(bytes)?),
            (DHCHAP, SUCCESS1) => Self::Success1(success1(bytes)?),
            (DHCHAP, SUCCESS2) => Self::Success2,
            (COMMON, FAILURE1) => Self::Failure1(start[7]),
            (COMMON, FAILURE2) => Self::Failure2(start[7]),
            _ => return Err(Error::Field("authentication message")),
        };
        Ok((transaction, message))
    }

    /// Writes the message to the start of `out`; how many bytes it takes.
    ///
    /// # Errors
    /// [`Error::Short`] when `out` is; [`Error::Field`] for more than 30 hashes or groups.
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
        out[0] = kind;
        out[1] = id;
        put(out, 4, &transaction.to_le_bytes());
        match self {
            Self::Negotiate(negotiate) => negotiate.write(out),
            Self::Challenge(challenge) => challenge.write(out),
            Self::Reply(reply) => reply.write(out),
            Self::Success1(success) => {
                out[6] = success.hash_bytes;
                if let Some(response) = success.response {
                    out[8] = 1;
                    put(out, FIXED_BYTES, response);
                }
            }
            Self::Success2 => {}
            Self::Failure1(reason) | Self::Failure2(reason) => {
                out[6] = 1; // authentication failure; the next byte explains it
                out[7] = *reason;
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
                8 + DESCRIPTION_BYTES
            }
            Self::Challenge(c) => FIXED_BYTES + c.challenge.len() + c.exchange.len(),
            Self::Reply(r) => FIXED_BYTES + 2 * r.response.len() + r.exchange.len(),
            Self::Success1(success) => FIXED_BYTES + usize::from(success.hash_bytes),
            Self::Success2 => FIXED_BYTES,
            Self::Failure1(_) | Self::Failure2(_) => 8,
        })
    }
}

impl Negotiate<'_> {
    fn write(&self, out: &mut [u8]) {
        out[6] = self.secure_channel;
        out[7] = 1; // descriptions
        out[8] = 1; // DH-HMAC-CHAP
        out[10] = self.hashes.len() as u8;
        out[11] = self.groups.len() as u8;
        put(out, 8 + 4, self.hashes);
        put(out, 8 + GROUPS_AT, self.groups);
    }
}

impl Challenge<'_> {
    fn write(&self, out: &mut [u8]) {
        out[6] = self.challenge.len() as u8;
        out[8] = self.hash as u8;
        out[9] = self.group;
        put(out, 10, &(self.exchange.len() as u16).to_le_bytes());
        put(out, 12, &self.sequence.to_le_bytes());
        put(out, FIXED_BYTES, self.challenge);
        put(out, FIXED_BYTES + self.challenge.len(), self.exchange);
    }
}

impl Reply<'_> {
    fn write(&self, out: &mut [u8]) {
        let length = self.response.len();
        out[6] = length as u8;
        put(out, 10, &(self.exchange.len() as u16).to_le_bytes());
        put(out, FIXED_BYTES, self.response);
        if let Some((challenge, sequence)) = self.challenge {
            out[8] = 1;
            put(out, 12, &sequence.to_le_bytes());
            put(out, FIXED_BYTES + length, challenge);
        }
        put(out, FIXED_BYTES + 2 * length, self.exchange);
    }
}

fn negotiate(bytes: &[u8]) -> Result<Negotiate<'_>, Error> {
    let start: &[u8; 8] = head(bytes)?;
    let descriptions = bytes[8..].chunks_exact(DESCRIPTION_BYTES).take(usize::from(start[7]));
    let ours = descriptions.into_iter().find(|description| description[0] == 1);
    let description = ours.ok_or(Error::Field("authentication protocol"))?;
    let (hashes, groups) = (usize::from(description[2]), usize::from(description[3]));
    if hashes.max(groups) > NUMBERS_MAX {
        return Err(Error::Field("hashes and groups"));
    }
    Ok(Negotiate {
        hashes: &description[4..4 + hashes],
        groups: &description[GROUPS_AT..GROUPS_AT + groups],
        secure_channel: start[6],
    })
}

/// The variable part of a message, cut at `lengths`.
fn parts<const N: usize>(bytes: &[u8], lengths: [usize; N]) -> Result<[&[u8]; N], Error> {
    let need = FIXED_BYTES + lengths.iter().sum::<usize>();
    if bytes.len() < need {
        return Err(Error::Short { need, got: bytes.len() });
    }
    let mut at = FIXED_BYTES;
    Ok(lengths.map(|length| {
        at += length;
        &bytes[at - length..at]
    }))
}

fn challenge(bytes: &[u8]) -> Result<Challenge<'_>, Error> {
    let start: &[u8; FIXED_BYTES] = head(bytes)?;
    let hash = Hash::from_number(start[8]).ok_or(Error::Field("hash"))?;
    let lengths = [usize::from(start[6]), usize::from(u16_at(start, 10))];
    let [challenge, exchange] = parts(bytes, lengths)?;
    Ok(Challenge { hash, group: start[9], sequence: u32_at(start, 12), challenge, exchange })
}

fn reply(bytes: &[u8]) -> Result<Reply<'_>, Error> {
    let start: &[u8; FIXED_BYTES] = head(bytes)?;
    let length = usize::from(start[6]);
    let [response, challenge, exchange] =
        parts(bytes, [length, length, usize::from(u16_at(start, 10))])?;
    let asked = start[8] & 1 != 0;
    Ok(Reply { response, challenge: asked.then(|| (challenge, u32_at(start, 12))), exchange })
}

fn success1(bytes: &[u8]) -> Result<Success1<'_>, Error> {
    let start: &[u8; FIXED_BYTES] = head(bytes)?;
    let hash_bytes = start[6];
    let proven = start[8] & 1 != 0;
    let [response] = parts(bytes, [if proven { usize::from(hash_bytes) } else { 0 }])?;
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

    #[test]
    fn lengths_that_lie_are_refused() {
        for message in samples() {
            let mut out = [0; 1024];
            let length = message.encode(1, &mut out).unwrap();
            for cut in 0..length {
                // Only Success 1 without a proof says less than its length.
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
