//! Identifiers in messages.

use core::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Error;

/// Longest host name, in bytes, as in DNS.
pub const HOST_BYTES_MAX: usize = 253;

/// A host: one spillwayd. Its name is the DNS name in its certificate; case does not matter, and it is stored
/// in lower case. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(Arc<str>);

impl HostId {
    /// The host of this name: 1 to 253 bytes of letters, digits and `. - _`.
    ///
    /// # Errors
    /// [`Error::Host`].
    pub fn new(name: &str) -> Result<Self, Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.is_empty() || name.len() > HOST_BYTES_MAX || !name.bytes().all(fits) {
            return Err(Error::Host(name.chars().take(64).collect()));
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    /// The name, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for HostId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HostId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Distinguishes starts of a host's daemon: a random number drawn at each start. Epochs are only compared for
/// equality and have no order, so they need neither a clock nor a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Identifies a loan from one lender to one borrower. The borrower assigns the number and never reuses it: the
/// high 32 bits are random at each start of its daemon, the low ones count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoanId {
    /// The borrower.
    pub borrower: HostId,
    /// Which of its loans.
    #[serde(with = "hex_u64")]
    pub number: u64,
}

impl fmt::Display for LoanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:016x}", self.borrower, self.number)
    }
}

impl fmt::Debug for LoanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Identifies a swap device of a borrower. Counts from 0 at each start of the daemon and is never reused before
/// the next start, so that (device, page, version) never repeats under a key.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a loan on the lender: the random identity of its pool, or the UUID of its namespace. It is new
/// for each grant, so that late writes never reach another owner's memory: this is the fence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolIdentity(pub u128);

/// A number as a string of hexadecimal digits, because many JSON parsers keep only 53 bits of a number.
macro_rules! hex_text {
    ($name:ident, $number:ty, $digits:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                digits(&text, $digits)
                    .map(|number| Self(number as $number))
                    .ok_or_else(|| de::Error::custom(concat!($digits, " hexadecimal digits")))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:0width$x}", self.0, width = $digits)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

hex_text!(Epoch, u64, 16);
hex_text!(PoolIdentity, u128, 32);

/// Reads exactly `count` lower-case hexadecimal digits.
fn digits(text: &str, count: usize) -> Option<u128> {
    let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != count || !text.bytes().all(fits) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

mod hex_u64 {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::digits(&text, 16)
            .and_then(|number| u64::try_from(number).ok())
            .ok_or_else(|| de::Error::custom("16 hexadecimal digits"))
    }
}

/// The place of a slab's copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyLocation {
    /// In a loan.
    Lender {
        /// The loan.
        loan: LoanId,
        /// The index of its slab, which is the object of its pages' keys.
        index: u32,
    },
    /// In the local file, at the slab's own offset.
    File,
}

impl CopyLocation {
    /// Whether it is a place in this loan.
    pub fn is_in(&self, its: &LoanId) -> bool {
        matches!(self, Self::Lender { loan, .. } if loan == its)
    }
}
