//! The values of a command with several keys. Those in the store are read together.

use std::sync::Arc;

use crate::deadline::Deadline;
use crate::fetch::Fetched;
use crate::server::Found;
use crate::spill::spill;
use crate::value::{SpilledValue, Value};

/// What a command replies with for one key.
#[derive(Debug)]
pub enum Wanted {
    /// Nothing of the module's.
    Nothing,
    /// These bytes, which were in the server.
    Here(Vec<u8>),
    /// A value that is in the store.
    InStore(Arc<SpilledValue>),
}

impl Wanted {
    /// A value of the module's.
    pub fn of(value: &Value) -> Self {
        match value.in_store() {
            Some(value) => Self::InStore(Arc::clone(value)),
            None => Self::Here(value.inline_bytes().unwrap_or_default().to_vec()),
        }
    }

    /// The content of a key. A value of another type counts as nothing, as in MGET.
    pub fn of_key(found: &Found<'_, Value>) -> Self {
        match found {
            Found::Nothing | Found::Other => Self::Nothing,
            Found::Plain(bytes) => Self::Here(bytes.to_vec()),
            Found::Ours(value) => Self::of(value),
        }
    }

    /// The value that is in the store, if it is one.
    pub fn in_store(&self) -> Option<&Arc<SpilledValue>> {
        match self {
            Self::InStore(value) => Some(value),
            Self::Nothing | Self::Here(_) => None,
        }
    }
}

/// The bytes of each; `None` where nothing is wanted. Reads only those that are not among the fetched ones.
///
/// # Errors
/// The error reply, when one of them can't be read.
pub fn read_all(
    wanted: Vec<Wanted>,
    fetched: Option<&Fetched>,
    deadline: Deadline,
) -> Result<Vec<Option<Vec<u8>>>, String> {
    let now: Vec<_> = wanted.iter().map(Wanted::in_store).collect();
    let there = match fetched {
        Some(fetched) => fetched.take_current(&now).map_err(|error| error.to_string())?,
        None => vec![None; now.len()],
    };
    let missing = now.iter().zip(&there).filter(|(_, there)| there.is_none());
    let places: Vec<_> = missing.filter_map(|(now, _)| now.map(|value| value.place())).collect();
    let read = spill().read_many(&places, deadline).map_err(|error| error.to_string())?;
    let mut read = read.into_iter();
    let bytes = |(one, there): (Wanted, Option<Vec<u8>>)| match one {
        Wanted::Nothing => None,
        Wanted::Here(bytes) => Some(bytes),
        Wanted::InStore(_) => there.or_else(|| read.next()),
    };
    Ok(wanted.into_iter().zip(there).map(bytes).collect())
}
