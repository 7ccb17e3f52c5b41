//! A client's namespaces: its block exports, or its pools. A client sees no namespace of another client.

use std::sync::Arc;

use spillway_block::Device;
use spillway_types::{ClientId, PoolInfo};

use crate::controller::Controller;
use crate::subsystem::Subsystem;
use crate::target::Target;

/// The highest namespace id: the most pools that a store can have.
pub(crate) const NAMESPACES_MAX: u32 = 8192;

/// A client's pools of keys and values. Pools in which block devices lie are left out.
pub(crate) fn pools(target: &Target, client: ClientId) -> impl Iterator<Item = PoolInfo> {
    // The order matters. While a device is created, `list` waits, and then it contains the device. So if its pool is
    // listed here, the device is too.
    let pools = target.store.pools(client).unwrap_or_default();
    let exports = target.exports.list(client);
    pools.into_iter().filter(move |pool| exports.iter().all(|block| block.number != pool.number))
}

/// The client's pool with this number.
pub(crate) fn pool(target: &Target, client: ClientId, number: u32) -> Option<PoolInfo> {
    pools(target, client).find(|pool| pool.number == number)
}

/// The block device with this number, if the client may use it.
pub(crate) fn device(target: &Target, client: ClientId, number: u32) -> Option<Arc<dyn Device>> {
    let exports = target.exports.list(client);
    let export = exports.iter().find(|export| export.number == number)?;
    target.exports.open(client, &export.name)
}

/// The ids of a controller's namespaces in ascending order, each with an identity that a later namespace of the same id
/// does not have.
pub(crate) fn list(target: &Target, controller: &Controller) -> Vec<(u32, u128)> {
    let Some(client) = controller.client() else { return Vec::new() };
    let mut list: Vec<(u32, u128)> = match controller.subsystem {
        Subsystem::Discovery => Vec::new(),
        Subsystem::Pools => {
            let named = |pool: PoolInfo| (pool.number, target.store.identity(pool.id));
            pools(target, client.id).map(named).collect()
        }
        Subsystem::Blocks => target
            .exports
            .list(client.id)
            .into_iter()
            .filter_map(|export| {
                let device = target.exports.open(client.id, &export.name)?;
                Some((export.number, device.geometry().uuid))
            })
            .collect(),
    };
    list.sort_unstable();
    list
}
