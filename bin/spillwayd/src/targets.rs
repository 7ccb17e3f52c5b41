//! Drives the memory manager: samples the clients, stores the sample in the history, and sets the targets
//! that have changed.

use std::sync::PoisonError;
use std::time::Duration;

use spillway_api::Daemon;
use spillway_directory::{ClientView, Error};
use spillway_history::StoreLevels;
use spillway_manager::{Change, ManagedClient, Room};
use spillway_types::Statistics;

/// Processes the end of an interval of this length.
///
/// # Errors
/// A client can't be sampled.
pub fn interval(daemon: &Daemon, interval: Duration) -> Result<(), Error> {
    let client_registry = &daemon.client_registry;
    let mut views = client_registry.clients()?;
    // A client that is being imported keeps its target until the import is complete.
    let managed = views.iter().filter(|view| !view.importing);
    let mut clients: Vec<_> = managed.map(client).collect();
    let statistics: Vec<_> = views.iter().map(|view| view.statistics).collect();
    let total_pages = room(daemon, &statistics)?.pages();
    let mut manager = daemon.manager.lock().unwrap_or_else(PoisonError::into_inner);
    manager.set_interval_us(interval.as_micros() as u64);
    let samples = manager.policy().wants_curves();
    for client in &mut clients {
        // A client that is gone since the sample needs no target.
        let _ = client_registry.store().set_sampling(client.id, samples);
        client.curve = client_registry.store().reuse(client.id).unwrap_or_default();
    }
    let changes = manager.interval(total_pages, &clients);
    client_registry.set_first_target(manager.first_target_pages(total_pages));
    drop(manager);
    views.extend(programs(daemon, interval));
    record(daemon, &views, total_pages);
    for Change { id, target_pages } in changes {
        // A client that is gone since the sample needs no target.
        let _ = client_registry.store().set_target(id, target_pages);
    }
    Ok(())
}

/// Processes the end of the interval for paged programs, which are counted in any case. Returns
/// their samples.
fn programs(daemon: &Daemon, interval: Duration) -> Vec<ClientView> {
    let client_registry = &daemon.client_registry;
    let views = client_registry.programs();
    let Some(total_pages) = daemon.program_pages() else {
        client_registry.set_programs_first_target(interval, None);
        return views;
    };
    let programs: Vec<_> = views.iter().map(program).collect();
    let mut manager = daemon.programs.lock().unwrap_or_else(PoisonError::into_inner);
    manager.set_interval_us(interval.as_micros() as u64);
    let changes = manager.interval(total_pages, &programs);
    client_registry
        .set_programs_first_target(interval, Some(manager.first_target_pages(total_pages)));
    drop(manager);
    for Change { id, target_pages } in changes {
        client_registry.set_program_target(id, target_pages);
    }
    views
}

/// A program in the manager's terms. The part of its budget that its evictor keeps free counts as
/// held.
fn program(view: &ClientView) -> ManagedClient {
    let mut client = client(view);
    let statistics = &mut client.statistics;
    let held_pages = statistics.used_pages.saturating_add(view.reserve_pages);
    statistics.used_pages = held_pages.min(statistics.target_pages).max(statistics.used_pages);
    client
}

/// Stores the sample in the history.
fn record(daemon: &Daemon, views: &[ClientView], total_pages: u64) {
    let store = daemon.client_registry.store();
    let levels = StoreLevels {
        total_pages,
        memory_bytes: store.memory_bytes(),
        free_frame_bytes: store.free_frame_bytes(),
        disk_bytes: store.disk_bytes(),
        same_filled_pages: store.same_filled_pages(),
        compressed_pages: store.compressed_pages(),
    };
    let clients = views.iter().map(|view| spillway_history::ObservedClient {
        id: view.id,
        name: &view.name,
        statistics: view.statistics,
    });
    // The system clock may be changed, so it is used only at the start.
    let at_ms = daemon.started_ms + daemon.started.elapsed().as_millis() as u64;
    let mut history = daemon.history.lock().unwrap_or_else(PoisonError::into_inner);
    history.record(at_ms, levels, clients);
}

/// A client in the manager's terms.
fn client(view: &ClientView) -> ManagedClient {
    ManagedClient {
        cap_pages: view.cap_pages,
        floor_pages: view.floor_pages,
        weight: view.weight,
        ..ManagedClient::new(view.id, view.statistics)
    }
}

/// The store's memory in the manager's terms.
fn room(daemon: &Daemon, clients: &[Statistics]) -> Result<Room, Error> {
    let store = daemon.client_registry.store();
    let reserved_pages = clients.iter().map(|its| its.reserved_pages).sum();
    let written_pages = if reserved_pages == 0 {
        0
    } else {
        let pools = daemon.client_registry.pools()?;
        pools.iter().filter(|pool| pool.reserved_pages != 0).map(|pool| pool.pages).sum()
    };
    let disk = store.disk_counters().unwrap_or_default();
    Ok(Room {
        capacity_bytes: store.capacity_bytes(),
        taken_bytes: store.memory_bytes().saturating_sub(store.free_frame_bytes()),
        used_pages: clients.iter().map(|its| its.used_pages).sum(),
        reserved_pages,
        written_pages,
        disk_pages_max: disk.capacity_pages,
        disk_pages: disk.pages,
    })
}
