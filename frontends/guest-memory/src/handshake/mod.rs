//! The monitors' handover messages: an adapter for each.

mod cloud_hypervisor;
mod firecracker;

use serde::de::DeserializeOwned;

use crate::{Claimed, Error};

/// A monitor's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// As proposed in cloud-hypervisor/cloud-hypervisor#8657, with the memory files beside the
    /// userfaultfd as its review requests. Not merged there; it may change.
    CloudHypervisor,
    /// As Firecracker documents it for page faults on snapshot resume.
    Firecracker,
}

impl Handshake {
    /// The monitor's name.
    pub const fn monitor(self) -> &'static str {
        match self {
            Self::CloudHypervisor => "Cloud Hypervisor",
            Self::Firecracker => "Firecracker",
        }
    }

    /// Whether pages can leave the guest: the memory lies in files that came with it.
    pub const fn pages_out(self) -> bool {
        matches!(self, Self::CloudHypervisor)
    }

    /// Parses the regions from the received bytes; `None` if the message is incomplete. `files` is the
    /// number of received memory files.
    ///
    /// # Errors
    /// The problem of the text.
    pub fn decode(self, bytes: &[u8], files: usize) -> Result<Option<Vec<Claimed>>, Error> {
        match self {
            Self::CloudHypervisor => cloud_hypervisor::decode(bytes, files),
            Self::Firecracker => firecracker::decode(bytes),
        }
    }

    /// The reply to the monitor: that a manager serves its memory, or why none does. Empty for a
    /// monitor that reads no reply.
    pub fn answer(self, outcome: Result<(), &Error>) -> String {
        match self {
            Self::CloudHypervisor => cloud_hypervisor::answer(outcome),
            Self::Firecracker => String::new(),
        }
    }
}

/// The single JSON value in `bytes`, which may have trailing blanks; `None` while it is incomplete.
fn document<T: DeserializeOwned>(monitor: &'static str, bytes: &[u8]) -> Result<Option<T>, Error> {
    let wrong = |why: String| Error::Message { monitor, why };
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<T>();
    let value = match values.next() {
        None => return Ok(None),
        Some(Err(error)) if error.is_eof() => return Ok(None),
        Some(Err(error)) => return Err(wrong(error.to_string())),
        Some(Ok(value)) => value,
    };
    let rest = &bytes[values.byte_offset()..];
    if rest.iter().any(|byte| !byte.is_ascii_whitespace() && *byte != 0) {
        return Err(wrong(format!("{} bytes come after it", rest.len())));
    }
    Ok(Some(value))
}
