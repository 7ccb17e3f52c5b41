//! What a client sees as namespaces: its block exports, or its pools. Never those of others.

use std::sync::Arc;

use spillway_block::Device;
use spillway_types::{ClientId, PoolInfo};

use crate::controller::Controller;
use crate::subsystem::Subsystem;
use crate::target::Target;

/// Highest namespace id: the number of pools that a store can have.
pub(crate) const NAMESPACES_MAX: u32 = 8192;

/// Pools of a client that hold keys and values. Those that block devices lie in are no namespaces here.
pub(crate) fn pools(target: &Target, client: ClientId) -> impl Iterator<Item = PoolInfo> {
    // In this order: whoever makes a device announces it before it lets others look.
    let pools = target.store.pools(client).unwrap_or_default();
    let exports = target.exports.list(client);
    pools.into_iter().filter(move |pool| exports.iter().all(|block| block.number != pool.number))
}

/// The pool of a number, if it is the client's.
pub(crate) fn pool(target: &Target, client: ClientId, number: u32) -> Option<PoolInfo> {
    pools(target, client).find(|pool| pool.number == number)
}

/// The block device of a number, if the client may use it.
pub(crate) fn device(target: &Target, client: ClientId, number: u32) -> Option<Arc<dyn Device>> {
    let exports = target.exports.list(client);
    let export = exports.iter().find(|export| export.number == number)?;
    target.exports.open(client, &export.name)
}

/// Ids of a controller's namespaces, which ascend, each with what tells it from a later one of its id.
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
