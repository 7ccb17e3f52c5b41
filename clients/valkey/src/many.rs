//! The values of a command with several keys. Those in the store are read together.

use std::sync::Arc;

use crate::deadline::Deadline;
use crate::error::Error;
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
}

/// The bytes of each; `None` where nothing is wanted.
///
/// # Errors
/// Why one of them can't be read.
pub fn read_all(wanted: Vec<Wanted>, deadline: Deadline) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let in_store = |one: &Wanted| match one {
        Wanted::InStore(value) => Some(value.place()),
        Wanted::Nothing | Wanted::Here(_) => None,
    };
    let places: Vec<_> = wanted.iter().filter_map(in_store).collect();
    let mut read = spill().read_many(&places, deadline)?.into_iter();
    let bytes = |one| match one {
        Wanted::Nothing => None,
        Wanted::Here(bytes) => Some(bytes),
        Wanted::InStore(_) => read.next(),
    };
    Ok(wanted.into_iter().map(bytes).collect())
}
