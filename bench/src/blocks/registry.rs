//! A fake client registry: every connection is the same client, which has at most one device.

use std::sync::Arc;

use spillway_block::{Device, ExportInfo, Exports};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

/// A client registry and a list of exports.
pub struct FakeRegistry {
    pub client: ClientId,
    pub device: Option<Arc<dyn Device>>,
}

impl Access for FakeRegistry {
    fn admit(&self, _who: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 16, operations_max: 1024, bytes_max: 16 << 20 };
        Ok(Admitted { client: self.client, limits })
    }

    fn leave(&self, _client: ClientId) {}

    fn host_secret(&self, _nqn: &str, _secret: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

impl Exports for FakeRegistry {
    fn list(&self, _client: ClientId) -> Vec<ExportInfo> {
        let export = |device: &Arc<dyn Device>| ExportInfo {
            name: "disk".to_owned(),
            number: 1,
            bytes: device.bytes(),
        };
        self.device.iter().map(export).collect()
    }

    fn open(&self, _client: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        self.device.clone().filter(|_| name == "disk")
    }
}
