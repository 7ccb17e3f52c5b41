//! The paper's five messages (section "Signaling"), extended so that they can be lost, repeated and
//! reordered safely.
//!
//! Each travels one way, as JSON in the body of an HTTP POST; answers are messages of their own. Every message may be
//! sent again at any time:
//!
//! - `mem_bor_req` requests a loan. A repetition requests the answer again. With [`MemBorReq::holds`] it renews the
//!   lease. Each has a new [`MemBorReq::sequence`], which the answer repeats, so that the borrower counts the lease
//!   from when it sent that request.
//! - `mem_bor_ack` grants or renews. The borrower answers `mem_bor_fin` for an unknown loan. So a lender in doubt,
//!   because the borrower's epoch has changed, sends the ack again with a lease of 0.
//! - `mem_bor_rej` refuses, or reports that the lender has no such loan.
//! - `mem_bor_fin` ends a loan for good. It is repeated until `mem_bor_rej` with [`Reason::Unknown`] reports
//!   that the lender no longer has the loan.
//! - `mem_len_fin` recalls a loan. It is repeated until the loan has ended.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{Epoch, Error, HostId, LoanId, PoolIdentity};

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Most slabs of a loan.
pub const LOAN_SLABS_MAX: u32 = 1 << 16;
/// Longest time in a message, a week.
pub const MESSAGE_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// Most bytes of an address, "host:port".
pub const ADDRESS_BYTES_MAX: usize = 262;
/// Most bytes of a subsystem's NQN.
pub const NQN_BYTES_MAX: usize = 223;

/// A message from one host to another. The receiver must check that `from` is the name in the sender's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The sender.
    pub from: HostId,
    /// The receiver.
    pub to: HostId,
    /// The sender's boot epoch.
    pub epoch: Epoch,
    /// Its content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// The borrower requests a loan, or renews it.
    MemBorReq(MemBorReq),
    /// The lender grants or renews.
    MemBorAck(MemBorAck),
    /// The lender refuses, or has no such loan.
    MemBorRej(MemBorRej),
    /// The borrower has stopped using the loan, for good.
    MemBorFin(MemBorFin),
    /// The lender recalls the loan.
    MemLenFin(MemLenFin),
}

/// `mem_bor_req`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemBorReq {
    /// The loan; its borrower is the sender.
    pub loan: LoanId,
    /// The number of this request for the loan, from 1.
    pub sequence: u32,
    /// The size, in slabs of `slab_bytes`.
    #[serde(deserialize_with = "loan_slabs")]
    pub slabs: u32,
    /// Bytes of a slab: a power of two, 1 MiB to 1 GiB.
    #[serde(deserialize_with = "slab_bytes")]
    pub slab_bytes: u64,
    /// How it will be used.
    pub mode: Mode,
    /// The granted memory, if this is a renewal: a lender that does not have exactly that must not
    /// grant again.
    pub holds: Option<PoolIdentity>,
}

/// `mem_bor_ack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemBorAck {
    /// The loan.
    pub loan: LoanId,
    /// The request that this answers.
    pub sequence: u32,
    /// How to reach it.
    pub access: Access,
    /// How long the borrower may use it, from when it sent that request, ms. 0 asks whether the borrower still
    /// knows the loan.
    #[serde(deserialize_with = "milliseconds")]
    pub lease_ms: u64,
}

/// `mem_bor_rej`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemBorRej {
    /// The loan.
    pub loan: LoanId,
    /// The request that this answers; 0 answers `mem_bor_fin`.
    pub sequence: u32,
    /// Why.
    pub reason: Reason,
    /// What the lender could grant just now, in slabs of the request.
    #[serde(deserialize_with = "spare_slabs")]
    pub spare_slabs: u32,
}

/// `mem_bor_fin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemBorFin {
    /// The loan; its borrower is the sender.
    pub loan: LoanId,
}

/// `mem_len_fin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemLenFin {
    /// The loan.
    pub loan: LoanId,
    /// When the lender takes the memory back in any case, counted from the sending, ms. The lease ends earlier.
    #[serde(deserialize_with = "milliseconds")]
    pub deadline_ms: u64,
}

/// How a loan is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A key-value pool: the borrower's own device spreads encrypted slabs over lenders.
    FanOut,
    /// A block namespace to which the borrower's kernel connects; one lender, pages in the clear.
    Direct,
}

/// How to reach the granted memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// "host:port" of the lender's data plane.
    #[serde(deserialize_with = "address")]
    pub address: String,
    /// The pool's identity, or the namespace's UUID. New for each grant.
    pub pool: PoolIdentity,
    /// The subsystem to connect to, in direct mode.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nqn")]
    pub nqn: Option<String>,
}

/// Why a lender refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It can't spare that much.
    NoRoom,
    /// It is a borrower, or waits for an answer to a request of its own.
    Busy,
    /// Its operator is draining it.
    Draining,
    /// It could not reserve the memory, or does not lend in this mode.
    Failed,
    /// It has no such loan.
    Unknown,
}

impl Body {
    /// The paper's name: the last part of its POST path.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::MemBorReq(_) => "mem_bor_req",
            Self::MemBorAck(_) => "mem_bor_ack",
            Self::MemBorRej(_) => "mem_bor_rej",
            Self::MemBorFin(_) => "mem_bor_fin",
            Self::MemLenFin(_) => "mem_len_fin",
        }
    }

    /// Its loan.
    pub const fn loan(&self) -> &LoanId {
        match self {
            Self::MemBorReq(body) => &body.loan,
            Self::MemBorAck(body) => &body.loan,
            Self::MemBorRej(body) => &body.loan,
            Self::MemBorFin(body) => &body.loan,
            Self::MemLenFin(body) => &body.loan,
        }
    }

    const fn is_from_borrower(&self) -> bool {
        matches!(self, Self::MemBorReq(_) | Self::MemBorFin(_))
    }
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Error::Long`]; [`Error::Message`] also if the loan's borrower is not the expected one of sender and receiver,
    /// or both are the same host.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Error::Long(bytes.len()));
        }
        let message: Self =
            serde_json::from_slice(bytes).map_err(|error| Error::Message(error.to_string()))?;
        let borrower = if message.body.is_from_borrower() { &message.from } else { &message.to };
        if message.body.loan().borrower != *borrower {
            return Err(Error::Message("its loan is another host's".into()));
        }
        if message.from == message.to {
            return Err(Error::Message("it is from its own receiver".into()));
        }
        Ok(message)
    }

    /// Writes it: at most [`MESSAGE_BYTES_MAX`] bytes, as long as [`Access`] is within its bounds.
    pub fn encode(&self) -> Vec<u8> {
        // Writing can't fail: the keys are strings, and the writer is memory.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn loan_slabs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let slabs = u32::deserialize(deserializer)?;
    within(slabs, slabs != 0 && slabs <= LOAN_SLABS_MAX, "slabs: 1 to 65536")
}

fn spare_slabs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let slabs = u32::deserialize(deserializer)?;
    within(slabs, slabs <= LOAN_SLABS_MAX, "spare_slabs: at most 65536")
}

fn slab_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    within(bytes, is_slab(bytes), "slab_bytes: a power of two, 1 MiB to 1 GiB")
}

/// Whether a slab may have this many bytes.
pub(crate) const fn is_slab(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= 1 << 20 && bytes <= 1 << 30
}

fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let ms = u64::deserialize(deserializer)?;
    within(ms, ms <= MESSAGE_MS_MAX, "a time of at most a week")
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fits = is_plain(&text, ADDRESS_BYTES_MAX) && text.contains(':');
    within(text, fits, "address: host:port")
}

fn nqn<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let fits = text.as_ref().is_none_or(|text| is_plain(text, NQN_BYTES_MAX));
    within(text, fits, "nqn: 1 to 223 bytes without spaces")
}

/// Visible ASCII, without characters that are special in JSON or a shell.
fn is_plain(text: &str, bytes_max: usize) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\`$".contains(&byte);
    !text.is_empty() && text.len() <= bytes_max && text.bytes().all(fits)
}

fn within<T, E: de::Error>(value: T, fits: bool, bounds: &'static str) -> Result<T, E> {
    if fits { Ok(value) } else { Err(E::custom(bounds)) }
}
