//! The grants of each client's rings, so that their sum stays within its limits.

use std::sync::{Mutex, PoisonError};

use spillway_types::{Admitted, ClientId};
use spillway_wire::ring::{DATA_BYTES_MAX, DEPTH_MAX, Geometry, Hello};

/// The operations and bytes granted to each client with a ring.
#[derive(Debug, Default)]
pub struct Account {
    granted: Mutex<Vec<Granted>>,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    client: ClientId,
    operations: u32,
    bytes: u64,
}

impl Account {
    /// Grants as much of what `hello` requests as the client's limits leave. `None` if that is too little for a ring.
    pub fn grant(&self, admitted: Admitted, hello: Hello) -> Option<Geometry> {
        let Admitted { client, limits } = admitted;
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match granted.iter().position(|entry| entry.client == client) {
            Some(at) => at,
            None => {
                granted.push(Granted { client, operations: 0, bytes: 0 });
                granted.len() - 1
            }
        };
        let entry = &mut granted[entry];
        let operations = limits.operations_max.saturating_sub(entry.operations);
        let bytes = limits.bytes_max.saturating_sub(entry.bytes);
        let depth = u32::from(hello.depth.min(DEPTH_MAX)).min(operations);
        let data_bytes = u64::from(hello.data_bytes.min(DATA_BYTES_MAX)).min(bytes);
        let depth = 1 << depth.checked_ilog2()?;
        let page = u64::from(Geometry::DATA_BYTES_MIN);
        let geometry = Geometry::new(depth, (data_bytes / page * page) as u32).ok()?;
        entry.operations += u32::from(depth);
        entry.bytes += u64::from(geometry.data_bytes());
        Some(geometry)
    }

    /// Returns a grant.
    pub fn give_back(&self, client: ClientId, geometry: Geometry) {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = granted.iter().position(|entry| entry.client == client) else { return };
        let entry = &mut granted[at];
        entry.operations -= u32::from(geometry.depth());
        entry.bytes -= u64::from(geometry.data_bytes());
        if entry.operations == 0 {
            granted.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_types::Limits;
    use spillway_wire::ring::VERSION;

    #[test]
    fn all_rings_of_a_client_together_stay_within_its_limits() {
        let account = Account::default();
        let limits = Limits { connections_max: 9, operations_max: 100, bytes_max: 1 << 20 };
        let admitted = |client| Admitted { client: ClientId(client), limits };
        let hello = |depth, data_bytes| Hello { version: VERSION, depth, data_bytes };
        let sizes = |ring: Geometry| (ring.depth(), ring.data_bytes());
        let first = account.grant(admitted(1), hello(64, 512 << 10)).unwrap();
        assert_eq!(sizes(first), (64, 512 << 10));
        let second = account.grant(admitted(1), hello(64, u32::MAX)).unwrap();
        assert_eq!(sizes(second), (32, 512 << 10));
        assert_eq!(account.grant(admitted(1), hello(1, 4096)), None);
        // Another client has limits of its own.
        assert!(account.grant(admitted(2), hello(64, 1 << 20)).is_some());
        account.give_back(ClientId(1), first);
        assert_eq!(sizes(account.grant(admitted(1), hello(256, 9999)).unwrap()), (64, 8192));
        assert_eq!(account.grant(admitted(3), hello(0, 4096)), None);
        assert_eq!(account.grant(admitted(3), hello(1, 4095)), None);
    }
}
