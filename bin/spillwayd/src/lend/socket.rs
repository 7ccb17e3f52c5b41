//! Serves a device by NBD on a Unix socket of its own.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_block::{Device, ExportInfo, Exports};
use spillway_nbd::{Config, Listener, Server};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

/// The name of the only device.
const NAME: &str = "borrowed";
/// The access of every connection.
const LIMITS: Limits = Limits { connections_max: 64, operations_max: 4096, bytes_max: 256 << 20 };

/// A served device. Dropping this ends the server and removes the socket.
#[derive(Debug)]
pub struct Served {
    _server: Server,
    path: PathBuf,
}

impl Served {
    /// Serves it.
    ///
    /// # Errors
    /// The socket can't be created.
    pub fn start(path: &Path, device: Arc<dyn Device>) -> io::Result<Self> {
        // A killed daemon left it: no other process uses this name.
        let _ = std::fs::remove_file(path);
        let listener = Listener::Unix(UnixListener::bind(path)?);
        let only = Arc::new(Only(device));
        let server = Server::start(listener, only.clone(), only, Config::default());
        let server = server.map_err(io::Error::other)?;
        Ok(Self { _server: server, path: path.to_owned() })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A device for every process that can connect.
struct Only(Arc<dyn Device>);

impl Access for Only {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        let own = rustix::process::geteuid().as_raw();
        match who {
            Identity::Peer { uid, .. } if uid == 0 || uid == own => {
                Ok(Admitted { client: ClientId(0), limits: LIMITS })
            }
            _ => Err(Denied::Unknown),
        }
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

impl Exports for Only {
    fn list(&self, _: ClientId) -> Vec<ExportInfo> {
        vec![ExportInfo { name: NAME.to_owned(), number: 1, bytes: self.0.bytes() }]
    }

    fn open(&self, _: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        (name == NAME).then(|| self.0.clone())
    }
}
