//! What an import has brought to a client, and which pools move at all.

use serde::{Deserialize, Serialize};
use spillway_store::{PoolInfo, Store};
use spillway_types::{ClientId, PoolSpec};

use crate::error::Error;

/// What an import has brought, as long as nobody has connected to use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Arrival {
    /// Nothing, or somebody has connected since.
    #[default]
    None,
    /// A part.
    Begun,
    /// All of it.
    Complete,
}

/// Whether a pool moves with its client.
pub(crate) fn moves(pool: &PoolInfo) -> bool {
    pool.spec == PoolSpec::PERSISTENT
}

/// Removes the part that an import has brought which a kill has cut off.
///
/// # Errors
/// Only the store's own.
pub(crate) fn remove_part(store: &Store, client: ClientId, name: &str) -> Result<(), Error> {
    for pool in store.pools(client)?.iter().filter(|pool| moves(pool)) {
        store.destroy_pool(pool.id)?;
    }
    tracing::info!(client = name, "an import was cut off: what it had brought is removed");
    Ok(())
}
