//! The host's side of DH-HMAC-CHAP (Base 2.1, section 8.3.4.5): proves that it knows its secret.
//!
//! Only the null group is offered: a secret made by `nvme gen-dhchap-key` is random and at least 256 bits long, so an
//! eavesdropper can't guess it.

use spillway_wire::auth::{
    HASH_BYTES_MAX, Hash, MESSAGE_BYTES_MAX, Message, Negotiate, Proof, Reply,
};
use spillway_wire::fabrics::{AuthTransfer, Fabrics};
use spillway_wire::nvme::Completion;

use super::association::Association;
use super::call::Trouble;
use super::commands::succeeded;
use super::phase::Exchange;
use super::queue::Payload;

/// The transaction id; there is one exchange at a time.
const TRANSACTION: u16 = 1;
/// The null group.
const NO_GROUP: u8 = 0;

impl Association {
    pub(super) fn begin_authentication(&mut self, lane: usize) -> Result<Exchange, Trouble> {
        if self.settings.secret.is_none() {
            return Err(Trouble::Authentication(
                "the target wants a secret, and none is configured",
            ));
        }
        let negotiate = Negotiate {
            hashes: &Hash::ALL.map(|hash| hash as u8),
            groups: &[NO_GROUP],
            secure_channel: 0,
        };
        let mut message = [0; 128];
        let length = Message::Negotiate(negotiate).encode(TRANSACTION, &mut message)?;
        self.send_message(lane, &message[..length])?;
        Ok(Exchange::Negotiate)
    }

    /// Handles the answer to a step of the exchange. Returns the next step, or `None` when the target has accepted this
    /// host.
    pub(super) fn authenticate(
        &mut self,
        lane: usize,
        stage: Exchange,
        completion: &Completion,
    ) -> Result<Option<Exchange>, Trouble> {
        succeeded("authentication", completion)?;
        let next = match stage {
            Exchange::Negotiate => {
                self.want_message(lane)?;
                Exchange::WantChallenge
            }
            Exchange::WantChallenge => {
                let mut reply = [0; 256];
                let length = self.prove(&mut reply)?;
                self.send_message(lane, &reply[..length])?;
                Exchange::Reply
            }
            Exchange::Reply => {
                self.want_message(lane)?;
                Exchange::WantVerdict
            }
            Exchange::WantVerdict => match self.message()? {
                Message::Success1(_) => return Ok(None),
                _ => return Err(Trouble::Authentication(UNEXPECTED)),
            },
        };
        Ok(Some(next))
    }

    /// The message from the target. Messages that end the exchange are errors.
    fn message(&self) -> Result<Message<'_>, Trouble> {
        let bytes = &self.buffer[..self.buffered.min(MESSAGE_BYTES_MAX)];
        match Message::decode(bytes)? {
            (_, Message::Failure1(_)) => {
                Err(Trouble::Authentication("the target does not accept the secret"))
            }
            (TRANSACTION, message) => Ok(message),
            _ => Err(Trouble::Authentication(UNEXPECTED)),
        }
    }

    /// Writes the reply to the target's challenge.
    fn prove(&self, reply: &mut [u8]) -> Result<usize, Trouble> {
        let Message::Challenge(challenge) = self.message()? else {
            return Err(Trouble::Authentication(UNEXPECTED));
        };
        let hash = challenge.hash;
        if challenge.group != NO_GROUP || challenge.challenge.len() != hash.bytes() {
            return Err(Trouble::Authentication("the target chose what was not offered"));
        }
        let Some(secret) = &self.settings.secret else {
            return Err(Trouble::Authentication(UNEXPECTED));
        };
        let (key, key_bytes) = secret.key_of(&self.settings.host);
        let proof = Proof {
            hash,
            challenge: challenge.challenge,
            sequence: challenge.sequence,
            transaction: TRANSACTION,
            host: &self.settings.host,
            subsystem: &self.settings.subsystem,
        };
        let response: [u8; HASH_BYTES_MAX] = proof.of_host(&key[..key_bytes]);
        let message = Reply { response: &response[..hash.bytes()], challenge: None, exchange: &[] };
        Ok(Message::Reply(message).encode(TRANSACTION, reply)?)
    }

    fn send_message(&mut self, lane: usize, message: &[u8]) -> Result<(), Trouble> {
        let transfer = AuthTransfer::in_band(message.len() as u32);
        self.ask(lane, Fabrics::AuthSend(transfer).encode(0), Payload::Out(message))
    }

    fn want_message(&mut self, lane: usize) -> Result<(), Trouble> {
        let bytes = MESSAGE_BYTES_MAX as u32;
        let command = Fabrics::AuthReceive(AuthTransfer::in_band(bytes)).encode(0);
        self.ask(lane, command, Payload::In(bytes))
    }
}

const UNEXPECTED: &str = "the target sends a message that does not belong here";
