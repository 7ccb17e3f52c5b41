//! Drives the memory manager: samples the clients, and sets the targets that have changed.

use std::sync::PoisonError;

use spillway_api::Daemon;
use spillway_directory::Error;
use spillway_manager::{Change, Client};
use spillway_types::{PAGE_BYTES, Statistics};

/// Ends an interval.
///
/// # Errors
/// A client can't be sampled.
pub fn interval(daemon: &Daemon) -> Result<(), Error> {
    let directory = &daemon.directory;
    let views = directory.clients()?;
    let clients = views.iter().map(|view| Client {
        id: view.id,
        cap_pages: view.cap_pages,
        statistics: view.statistics,
    });
    let clients: Vec<_> = clients.collect();
    let total_pages = total_pages(daemon, &clients);
    let mut manager = daemon.manager.lock().unwrap_or_else(PoisonError::into_inner);
    let changes = manager.interval(total_pages, &clients);
    directory.set_first_target(manager.first_target_pages(total_pages));
    drop(manager);
    for Change { id, target_pages } in changes {
        // A client that has gone since it was sampled needs none.
        let _ = directory.store().set_target(id, target_pages);
    }
    Ok(())
}

/// How many pages the store can hold, as they are packed now. In steps of a sixteenth of its capacity, so
/// that targets don't change at every page.
fn total_pages(daemon: &Daemon, clients: &[Client]) -> u64 {
    let of_all = |count: fn(&Statistics) -> u64| -> u64 {
        clients.iter().map(|client| count(&client.statistics)).sum()
    };
    // What block devices have is not to be had.
    let reserved_bytes = of_all(|its| its.reserved_pages) * PAGE_BYTES as u64;
    let capacity_bytes = daemon.capacity_bytes.saturating_sub(reserved_bytes);
    let store = daemon.directory.store();
    let taken_bytes = store.memory_bytes().saturating_sub(store.free_frame_bytes());
    // A store that is nearly empty tells nothing.
    let sixteenths = if taken_bytes < capacity_bytes / 8 {
        16
    } else {
        let held_bytes = u128::from(of_all(|its| its.used_pages)) * PAGE_BYTES as u128;
        (held_bytes * 16 / u128::from(taken_bytes.max(1))).clamp(8, 16 * 64) as u64
    };
    capacity_bytes / 16 * sixteenths / PAGE_BYTES as u64
}
