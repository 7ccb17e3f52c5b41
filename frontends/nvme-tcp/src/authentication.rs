//! DH-HMAC-CHAP on the controller's side. [`spillway_wire::auth`] has the order of the messages.

use rustix::rand::{GetRandomFlags, getrandom};
use spillway_wire::auth::{
    Challenge, Failure, HASH_BYTES_MAX, Hash, Message, Negotiate, Proof, Reply, Success1,
};

/// The DH group identifier for no Diffie-Hellman exchange (NULL): a proof depends on the secret alone.
const NO_GROUP: u8 = 0;

/// The names that enter a proof.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) host: String,
    pub(crate) subsystem: String,
}

/// The authentication of one queue.
#[derive(Debug)]
pub(crate) struct Authentication {
    /// The key that the host must know.
    host_key: Vec<u8>,
    /// The key that the target proves to know, if the host asks for it.
    own_key: Option<Vec<u8>>,
    names: Names,
    step: Step,
    /// The host is authenticated. It remains so while it authenticates again.
    done: bool,
    transaction: u16,
    hash: Hash,
    challenge: [u8; HASH_BYTES_MAX],
    sequence: u32,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The host negotiates.
    Negotiate,
    /// The challenge is sent.
    SendChallenge,
    /// The host replies.
    Reply,
    /// The host is told that its proof is right, and gets the controller's proof if it asked for one.
    SendSuccess(Option<[u8; HASH_BYTES_MAX]>),
    /// The host confirms the controller's proof.
    Success2,
    /// The host is told why authentication failed.
    SendFailure(Failure),
}

impl Authentication {
    pub(crate) fn new(host_key: Vec<u8>, own_key: Option<Vec<u8>>) -> Self {
        Self {
            host_key,
            own_key,
            names: Names::default(),
            step: Step::Negotiate,
            done: false,
            transaction: 0,
            hash: Hash::Sha256,
            challenge: [0; HASH_BYTES_MAX],
            sequence: 0,
        }
    }

    pub(crate) fn set_names(&mut self, names: Names) {
        self.names = names;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// The host is not admitted although it has authenticated.
    pub(crate) fn revoke(&mut self) {
        self.done = false;
        self.step = Step::SendFailure(Failure::Failed);
    }

    /// Takes a message from the host. Gives a text for the log if authentication failed.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Option<String> {
        let next = match Message::decode(bytes) {
            Err(_) => Err(Failure::Payload),
            Ok((transaction, Message::Negotiate(negotiate))) => {
                self.transaction = transaction;
                self.negotiate(&negotiate)
            }
            Ok((transaction, _)) if transaction != self.transaction => Err(Failure::Payload),
            Ok((_, Message::Reply(reply))) if self.step == Step::Reply => self.check(&reply),
            Ok((_, Message::Success2)) if self.step == Step::Success2 => {
                self.done = true;
                Ok(Step::Negotiate)
            }
            Ok((_, Message::Failure2(_))) => Err(Failure::Failed),
            Ok(_) => Err(Failure::Order),
        };
        match next {
            Ok(step) => {
                self.step = step;
                None
            }
            Err(failure) => {
                self.done = false;
                self.step = Step::SendFailure(failure);
                Some(format!("authentication of host {:?} failed: {failure:?}", self.names.host))
            }
        }
    }

    /// Chooses a hash that both sides know, and makes the challenge.
    fn negotiate(&mut self, offer: &Negotiate<'_>) -> Result<Step, Failure> {
        if offer.secure_channel != 0 {
            return Err(Failure::SecureChannel);
        }
        let known = offer.hashes.iter().copied().find_map(Hash::from_number);
        self.hash = known.ok_or(Failure::Hash)?;
        if !offer.groups.contains(&NO_GROUP) {
            return Err(Failure::Group);
        }
        let mut random = [0; HASH_BYTES_MAX + 4];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(|_| Failure::Failed)?;
        let (challenge, sequence) = random.split_at(HASH_BYTES_MAX);
        self.challenge.copy_from_slice(challenge);
        self.sequence = sequence.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte)) | 1;
        Ok(Step::SendChallenge)
    }

    fn proof<'a>(&'a self, challenge: &'a [u8], sequence: u32) -> Proof<'a> {
        Proof {
            hash: self.hash,
            challenge,
            sequence,
            transaction: self.transaction,
            host: &self.names.host,
            subsystem: &self.names.subsystem,
        }
    }

    /// Checks the host's proof, and makes the controller's if the host asked for it.
    fn check(&self, reply: &Reply<'_>) -> Result<Step, Failure> {
        let length = self.hash.bytes();
        if reply.response.len() != length || !reply.exchange.is_empty() {
            return Err(Failure::Payload);
        }
        let proof = self.proof(&self.challenge[..length], self.sequence);
        if !proof.is_of_host(&self.host_key, reply.response) {
            return Err(Failure::Failed);
        }
        let Some((challenge, sequence)) = reply.challenge else {
            return Ok(Step::SendSuccess(None));
        };
        let own_key = self.own_key.as_ref().ok_or(Failure::Failed)?;
        // A host that returns the target's own challenge would get the answer to it.
        if challenge == &self.challenge[..length] {
            return Err(Failure::Failed);
        }
        let own = self.proof(challenge, sequence).of_controller(own_key);
        Ok(Step::SendSuccess(Some(own)))
    }

    /// Writes the message that the host waits for. `None` if it does not fit.
    pub(crate) fn send(&mut self, room: &mut [u8]) -> Option<usize> {
        let length = self.hash.bytes();
        let hash_bytes = length as u8;
        let message = match &self.step {
            Step::SendChallenge => Message::Challenge(Challenge {
                hash: self.hash,
                group: NO_GROUP,
                sequence: self.sequence,
                challenge: &self.challenge[..length],
                exchange: &[],
            }),
            Step::SendSuccess(own) => {
                let response = own.as_ref().map(|response| &response[..length]);
                Message::Success1(Success1 { response, hash_bytes })
            }
            Step::SendFailure(failure) => Message::Failure1(*failure as u8),
            Step::Negotiate | Step::Reply | Step::Success2 => {
                Message::Failure1(Failure::Order as u8)
            }
        };
        let bytes = message.encode(self.transaction, room).ok()?;
        self.step = match self.step {
            Step::SendChallenge => Step::Reply,
            Step::SendSuccess(None) => {
                self.done = true;
                Step::Negotiate
            }
            Step::SendSuccess(Some(_)) => Step::Success2,
            _ => Step::Negotiate,
        };
        Some(bytes)
    }
}
