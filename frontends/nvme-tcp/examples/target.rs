//! A target without a daemon, for trying out hosts: `target ADDRESS MIB [HOST_NQN SECRET [CONTROLLER_SECRET]]`. All hosts
//! are one client, with a block device of MIB MiB and a pool. Each second it prints how much memory the store uses. It
//! ends at the end of its standard input.

use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use spillway_block::{BlockSize, Device, ExportInfo, Exports, Geometry, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_nvme_tcp::{Config, Server, Target};
use spillway_store::{ClientConfig, Store};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits, PoolSpec};
use spillway_wire::auth::Secret;

struct One {
    client: ClientId,
    device: Arc<BlockDevice>,
    number: u32,
    secret: Option<(String, Secret)>,
}

impl Access for One {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 64, operations_max: 1024, bytes_max: 64 << 20 };
        Ok(Admitted { client: self.client, limits })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, nqn: &str, secret: &mut [u8; 64]) -> Option<usize> {
        let (host, key) = self.secret.as_ref().filter(|(host, _)| host == nqn)?;
        let (bytes, length) = key.key_of(host);
        *secret = bytes;
        Some(length)
    }
}

impl Exports for One {
    fn list(&self, _: ClientId) -> Vec<ExportInfo> {
        let bytes = self.device.bytes();
        vec![ExportInfo { name: "disk".into(), number: self.number, bytes }]
    }

    fn open(&self, _: ClientId, _: &str) -> Option<Arc<dyn Device>> {
        Some(self.device.clone())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, mib, rest @ ..] = arguments.as_slice() else {
        return Err("target ADDRESS MIB [HOST_NQN SECRET [CONTROLLER_SECRET]]".into());
    };
    let bytes = mib.parse::<u64>()? << 20;
    let store = Arc::new(Store::open(spillway_store::Config::embedded(2 * bytes + (256 << 20)))?);
    let client = store.add_client(ClientConfig::default())?;
    let geometry = Geometry { bytes, block_size: BlockSize::B4096, uuid: fresh_uuid()? };
    let device = Arc::new(BlockDevice::create(Arc::clone(&store), client, geometry)?);
    store.create_pool(client, PoolSpec::PERSISTENT)?;
    let pools = store.pools(client)?;
    let number = pools.iter().find(|pool| pool.id == device.pool()).map_or(0, |pool| pool.number);
    let secret = match rest {
        [host, secret, ..] => Some((host.clone(), Secret::parse(secret)?)),
        _ => None,
    };
    let controller_secret = rest.get(2).map(|text| Secret::parse(text)).transpose()?;
    let one = Arc::new(One { client, device, number, secret });
    let config =
        Config { controller_secret: Arc::new(RwLock::new(controller_secret)), ..Config::default() };
    let target = Target::new(Arc::clone(&store), one.clone(), one, config)?;
    let server = Server::start(TcpListener::bind(address)?, target, None)?;
    println!("listening on {}", server.address());
    std::thread::spawn({
        let store = Arc::clone(&store);
        move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let used = store.memory_bytes() - store.free_frame_bytes();
                println!("store {} KiB", used >> 10);
            }
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    Ok(())
}
