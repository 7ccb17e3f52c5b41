//! Block devices by name.

use std::sync::Arc;

use spillway_block::{Device, ExportInfo, Exports, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_types::{ClientId, PoolId};

use crate::block::{Block, geometry};
use crate::entry::check_name;
use crate::error::Error;
use crate::journal::BlockRecord;
use crate::registry::{ClientRegistry, RegistryState};
use crate::settings::BlockSettings;
use crate::views::BlockView;

impl Exports for ClientRegistry {
    fn list(&self, client: ClientId) -> Vec<ExportInfo> {
        let state = self.lock();
        let name = state.name_of(client);
        let its = state.blocks.iter().filter(|block| block.record.client == name);
        let info = |block: &Block| ExportInfo {
            name: block.record.name.clone(),
            number: block.record.number,
            bytes: block.record.bytes,
        };
        its.map(info).collect()
    }

    fn open(&self, client: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        let state = self.lock();
        let owner = state.name_of(client);
        let is_it = |block: &&Block| block.record.name == name && block.record.client == owner;
        state.blocks.iter().find(is_it).map(|block| block.device.clone() as Arc<dyn Device>)
    }
}

impl ClientRegistry {
    /// Creates a block device, and reserves all its memory if requested.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::BlockExists`], [`Error::NoClient`], [`Error::Block`] if the size
    /// is invalid or the device does not fit in the store.
    pub fn create_block(&self, settings: &BlockSettings) -> Result<BlockView, Error> {
        self.lock().change_pools(&settings.client)?;
        self.create_block_as(settings, fresh_uuid()?)?;
        let state = self.lock();
        let made = state.blocks.iter().find(|block| block.record.name == settings.name);
        made.map(view).ok_or_else(|| Error::NoBlock(settings.name.clone()))
    }

    /// Creates a block device with a given UUID; returns its pool.
    pub(crate) fn create_block_as(
        &self,
        settings: &BlockSettings,
        uuid: u128,
    ) -> Result<PoolId, Error> {
        check_name(&settings.name)?;
        let mut state = self.lock();
        if state.blocks.iter().any(|block| block.record.name == settings.name) {
            return Err(Error::BlockExists(settings.name.clone()));
        }
        let pool = self.insert_block(&mut state, settings, uuid)?;
        state.remember()?;
        let client = state.find(&settings.client).map(|at| state.clients[at].id);
        drop(state);
        client.into_iter().for_each(|client| self.changed(client));
        Ok(pool)
    }

    /// Creates a configured device, if it does not exist.
    pub(crate) fn configure_block(
        &self,
        state: &mut RegistryState,
        settings: &BlockSettings,
    ) -> Result<(), Error> {
        let known = state.blocks.iter().find(|block| block.record.name == settings.name);
        let Some(known) = known else {
            state.change_pools(&settings.client)?;
            return self.insert_block(state, settings, fresh_uuid()?).map(|_| ());
        };
        let record = &known.record;
        if (&record.client, record.bytes, record.block_bytes)
            != (&settings.client, settings.bytes, settings.block_bytes)
        {
            tracing::warn!(
                block = record.name,
                "an existing device keeps its client and size: destroy it first"
            );
        }
        Ok(())
    }

    fn insert_block(
        &self,
        state: &mut RegistryState,
        settings: &BlockSettings,
        uuid: u128,
    ) -> Result<PoolId, Error> {
        let client = state.clients[state.find(&settings.client)?].id;
        let geometry = geometry(settings.bytes, settings.block_bytes, uuid);
        let store = Arc::clone(&self.store);
        let device = match settings.reserve {
            true => BlockDevice::create(store, client, geometry)?,
            false => BlockDevice::create_unreserved(store, client, geometry)?,
        };
        let pool = device.pool();
        let pools = self.store.pools(client)?;
        let number = pools.iter().find(|known| known.id == pool).map_or(0, |known| known.number);
        let record = BlockRecord {
            name: settings.name.clone(),
            client: settings.client.clone(),
            pool: pool.0,
            number,
            bytes: settings.bytes,
            block_bytes: settings.block_bytes,
            uuid,
        };
        state.blocks.push(Block { record, device: Arc::new(device) });
        Ok(pool)
    }

    /// Destroys a block device with its pool.
    ///
    /// A kernel reads each device that it connects to, and keeps it open until it disconnects. Whether it still uses
    /// the device only the contents tell: a file system, a swap space and a partition table are never empty.
    ///
    /// # Errors
    /// [`Error::NoBlock`]; [`Error::InUse`] when it is open and not empty.
    pub fn destroy_block(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.blocks.iter().position(|block| block.record.name == name);
        let at = at.ok_or_else(|| Error::NoBlock(name.to_owned()))?;
        if state.blocks[at].opened() > 0 && !self.is_empty(&state, &state.blocks[at].record)? {
            return Err(Error::InUse(name.to_owned()));
        }
        let client = state.blocks[at].record.client.clone();
        state.change_pools(&client)?;
        let block = state.blocks.remove(at);
        self.store.destroy_pool(PoolId(block.record.pool))?;
        state.remember()?;
        let client = state.find(&block.record.client).map(|at| state.clients[at].id);
        drop(state);
        client.into_iter().for_each(|client| self.changed(client));
        Ok(())
    }

    /// Whether all blocks of a device were discarded, or never written.
    fn is_empty(&self, state: &RegistryState, record: &BlockRecord) -> Result<bool, Error> {
        let client = state.clients[state.find(&record.client)?].id;
        let pools = self.store.pools(client)?;
        Ok(pools.iter().any(|pool| pool.id == PoolId(record.pool) && pool.pages == 0))
    }

    /// Removes a device and its memory, even if it is open: requests to it fail from then on.
    pub(crate) fn end_block(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.blocks.iter().position(|block| block.record.name == name);
        let Some(at) = at else { return Ok(()) };
        let block = state.blocks.remove(at);
        Ok(self.store.destroy_pool(PoolId(block.record.pool))?)
    }

    /// All block devices, by name.
    pub fn blocks(&self) -> Vec<BlockView> {
        let mut views: Vec<_> = self.lock().blocks.iter().map(view).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }
}

fn view(block: &Block) -> BlockView {
    let record = &block.record;
    BlockView {
        name: record.name.clone(),
        client: record.client.clone(),
        number: record.number,
        bytes: record.bytes,
        block_bytes: record.block_bytes,
        uuid: record.uuid,
        opened: block.opened(),
    }
}
