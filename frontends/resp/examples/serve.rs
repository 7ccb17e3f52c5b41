//! A RESP server without a daemon, for tests of the protocol by other programs: `serve ADDRESS [MEMORY_BYTES]`.
//! All connections belong to one client.

use std::net::TcpListener;
use std::sync::Arc;

use spillway_resp::{Config, Listener, Server};
use spillway_store::{ClientConfig, ClientId, Store};
use spillway_types::{Access, Admitted, Denied, Identity, Limits};

struct Everyone(ClientId);

impl Access for Everyone {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 4096, operations_max: 4096, bytes_max: 16 << 30 };
        Ok(Admitted { client: self.0, limits })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: serve ADDRESS [MEMORY_BYTES]")?;
    let bytes = arguments.next().map_or(Ok(1 << 30), |text| text.parse())?;
    let store = Arc::new(Store::open(spillway_store::Config::embedded(bytes))?);
    let client = store.add_client(ClientConfig::default())?;
    let config = Config { loopback_name: Some("all".into()), ..Config::default() };
    let listener = Listener::Tcp(TcpListener::bind(&address)?, None);
    let _server = Server::start(vec![listener], store, Arc::new(Everyone(client)), config)?;
    println!("serving {address}");
    loop {
        std::thread::park();
    }
}
