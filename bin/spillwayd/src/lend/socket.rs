//! A device on a Unix socket of its own, by NBD.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_block::{Device, ExportInfo, Exports};
use spillway_nbd::{Config, Listener, Server};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

/// The one device's name.
const NAME: &str = "borrowed";
/// What all who connect may have.
const LIMITS: Limits = Limits { connections_max: 64, operations_max: 4096, bytes_max: 256 << 20 };

/// A device that is served. It ends, and its socket goes, when this is dropped.
#[derive(Debug)]
pub struct Served {
    _server: Server,
    path: PathBuf,
}

impl Served {
    /// Serves it.
    ///
    /// # Errors
    /// The socket can't be made.
    pub fn start(path: &Path, device: Arc<dyn Device>) -> io::Result<Self> {
        // One left behind by a daemon that was killed: nobody else has this name.
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
        // One that is gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A device for whoever reaches it.
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
