//! A block device that has a name.

use std::sync::Arc;

use spillway_block::{BlockSize, Geometry};
use spillway_block_store::BlockDevice;
use spillway_store::Store;
use spillway_types::{ClientId, PoolId};

use crate::error::Error;
use crate::journal::BlockRecord;

/// A device that clients can open.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) record: BlockRecord,
    pub(crate) device: Arc<BlockDevice>,
}

impl Block {
    /// Restores a device from before the daemon was killed; none if its pool is gone.
    pub(crate) fn reopen(
        store: &Arc<Store>,
        client: ClientId,
        record: BlockRecord,
    ) -> Result<Option<Self>, Error> {
        let pool = PoolId(record.pool);
        if !store.pools(client)?.iter().any(|known| known.id == pool) {
            return Ok(None);
        }
        let geometry = geometry(record.bytes, record.block_bytes, record.uuid);
        let device = Arc::new(BlockDevice::open(Arc::clone(store), pool, geometry)?);
        Ok(Some(Self { record, device }))
    }

    /// Connections that have it open.
    pub(crate) fn opened(&self) -> usize {
        Arc::strong_count(&self.device) - 1
    }
}

/// The geometry of a device as its settings and its record have it.
pub(crate) fn geometry(bytes: u64, block_bytes: u32, uuid: u128) -> Geometry {
    let block_size = if block_bytes == 512 { BlockSize::B512 } else { BlockSize::B4096 };
    Geometry { bytes, block_size, uuid }
}
