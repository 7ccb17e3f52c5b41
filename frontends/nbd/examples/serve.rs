//! Serves a single device, to test clients: `serve ADDRESS|SOCKET MIB`. Each connection gets an export
//! `disk` of MIB MiB. Prints its memory use once a second. Ends at the end of its standard input.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use spillway_block::{BlockSize, Device, ExportInfo, Exports, Geometry, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_nbd::{Config, Listener, Server};
use spillway_store::{ClientConfig, Store};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

struct One {
    client: ClientId,
    device: Arc<BlockDevice>,
}

impl Access for One {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 64, operations_max: 1024, bytes_max: 64 << 20 };
        Ok(Admitted { client: self.client, limits })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

impl Exports for One {
    fn list(&self, _: ClientId) -> Vec<ExportInfo> {
        vec![ExportInfo { name: "disk".into(), number: 1, bytes: self.device.bytes() }]
    }

    fn open(&self, _: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        (name == "disk").then(|| self.device.clone() as Arc<dyn Device>)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, mib] = arguments.as_slice() else {
        return Err("serve ADDRESS|SOCKET MIB".into());
    };
    let bytes = mib.parse::<u64>()? << 20;
    let store = Arc::new(Store::open(spillway_store::Config::embedded(bytes + (64 << 20)))?);
    let client = store.add_client(ClientConfig::default())?;
    let geometry = Geometry { bytes, block_size: BlockSize::B4096, uuid: fresh_uuid()? };
    let device = Arc::new(BlockDevice::create(Arc::clone(&store), client, geometry)?);
    let one = Arc::new(One { client, device });
    let listener = if place.contains('/') {
        println!("listening on {place}");
        Listener::Unix(UnixListener::bind(place)?)
    } else {
        let listener = TcpListener::bind(place)?;
        println!("listening on {}", listener.local_addr()?);
        Listener::Tcp(listener)
    };
    let config = Config { loopback_name: Some("local".into()), ..Config::default() };
    let server = Server::start(listener, one.clone(), one, config)?;
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            println!("store {} KiB", (store.memory_bytes() - store.free_frame_bytes()) >> 10);
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(server);
    Ok(())
}
