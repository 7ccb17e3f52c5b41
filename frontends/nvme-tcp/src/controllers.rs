//! The controllers of a target: the associations that hosts have with it now.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_types::ClientId;
use spillway_wire::fabrics::ANY_STATIC_CONTROLLER;

use crate::controller::{Controller, Host, ProvenClient};
use crate::subsystem::Subsystem;

/// Controllers by their ids.
pub(crate) struct Controllers(Mutex<Table>);

struct Table {
    by_id: HashMap<u16, Arc<Controller>>,
    last_id: u16,
}

impl Controllers {
    /// No controllers. The first gets an id soon after `last_id`.
    pub(crate) fn new(last_id: u16) -> Self {
        Self(Mutex::new(Table { by_id: HashMap::new(), last_id }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a controller. `None` when all ids are taken.
    pub(crate) fn add(
        &self,
        subsystem: Subsystem,
        host: Host,
        local: SocketAddr,
    ) -> Option<Arc<Controller>> {
        let mut table = self.table();
        let id = table.free_id()?;
        let controller = Arc::new(Controller::new(id, subsystem, host, local));
        table.by_id.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    pub(crate) fn get(&self, id: u16) -> Option<Arc<Controller>> {
        self.table().by_id.get(&id).cloned()
    }

    /// The host of a controller may act as `client`. Ends the host's earlier associations with the subsystem: when this
    /// returns, no command that they received is executed any more. So none of them takes effect after a command of the
    /// new association. A kernel may have one association with its block devices through each of the target's
    /// addresses.
    pub(crate) fn establish(&self, controller: &Arc<Controller>, client: ProvenClient) {
        let mut old = Vec::new();
        let mut table = self.table();
        table.by_id.retain(|_, other| {
            let same = other.subsystem == controller.subsystem
                && other.host == controller.host
                && (controller.subsystem == Subsystem::Pools || other.local == controller.local)
                && other.client().is_some();
            if same {
                old.push(Arc::clone(other));
            }
            !same
        });
        // Under the lock: if two are established at the same time, the later one finds the earlier one's client set.
        controller.set_client(client);
        drop(table);
        for controller in old {
            controller.end();
        }
    }

    /// Ends a controller with all its queues.
    pub(crate) fn remove(&self, controller: &Arc<Controller>) {
        let mut table = self.table();
        if table.by_id.get(&controller.id).is_some_and(|its| Arc::ptr_eq(its, controller)) {
            table.by_id.remove(&controller.id);
        }
        drop(table);
        controller.end();
    }

    /// Tells the controllers of a client that its namespaces changed.
    pub(crate) fn namespaces_changed(&self, client: ClientId) {
        for controller in self.table().by_id.values() {
            if controller.client().is_some_and(|its| its.id == client) {
                controller.tell_namespaces_changed();
            }
        }
    }
}

impl Table {
    fn free_id(&mut self) -> Option<u16> {
        // Ids from FFF0h on are reserved. The value with which Connect asks for any controller is one of them.
        const IDS: u16 = 0xfff0;
        const _: () = assert!(IDS <= ANY_STATIC_CONTROLLER);
        for _ in 0..IDS {
            self.last_id = self.last_id.wrapping_add(1) % IDS;
            if !self.by_id.contains_key(&self.last_id) {
                return Some(self.last_id);
            }
        }
        None
    }
}
