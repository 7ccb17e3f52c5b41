//! Daemons on this machine as lenders.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, ensure};
use spillway_client::{PoolSpec, Store};
use spillway_fanout::Holder;
use spillway_lender::{Loan, Settings};
use spillway_tls::{ClientSettings, Files};

use crate::built;

/// Creates certificates as in docs/daemon.md: an authority's, the lenders' and the borrower's.
const CERTIFICATES: &str = r#"
ec="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
openssl req -x509 $ec -subj "/CN=bench" -keyout authority.key -out authority.pem
sign() {
    openssl req -x509 -CA authority.pem -CAkey authority.key $ec -subj "/CN=$1" -addext basicConstraints=CA:FALSE \
        -addext "subjectAltName=$2" -keyout "$1.key" -out "$1.pem"
}
sign lender IP:127.0.0.1
sign borrower DNS:borrower.bench
"#;
/// Limit of the time until a daemon answers.
const START: Duration = Duration::from_secs(20);

/// Two daemons. They are stopped when this is dropped.
pub struct Lenders {
    folder: PathBuf,
    daemons: Vec<Daemon>,
}

struct Daemon {
    child: Child,
    port: u16,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Use SIGTERM: then the keeper also stops the daemon. SIGKILL would leave the daemon running.
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Lenders {
    /// Starts two daemons, each with capacity for three devices.
    pub fn start(folder: &Path, device_bytes: u64) -> anyhow::Result<Self> {
        let made = Command::new("sh").args(["-ec", CERTIFICATES]).current_dir(folder).output()?;
        ensure!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
        let daemons = (0..2)
            .map(|number| start(folder, number, 4 * device_bytes))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { folder: folder.to_owned(), daemons })
    }

    /// Creates a pool on one of them, in place of a loan.
    pub fn loan(&self, lender: usize) -> anyhow::Result<Arc<Holder>> {
        let port = self.daemons[lender].port;
        let path = |name: &str| self.folder.join(name);
        let (certificate, key) = (path("borrower.pem"), path("borrower.key"));
        let files = Files { certificate, key, authority: None };
        let tls = ClientSettings::load(&files, &path("authority.pem"), "127.0.0.1")?;
        let store = self.open(port)?;
        let pool = store.open_pool(PoolSpec::PERSISTENT)?;
        let pools = store.pools()?;
        let made = pools.iter().find(|info| info.pool == pool).context("the pool is not listed")?;
        let loan = Loan::connect(&Settings {
            address: format!("127.0.0.1:{port}"),
            pool: made.identity,
            tls,
            host_nqn: "nqn.2026-11.io.spillway:bench".to_owned(),
            timeout: Duration::from_secs(2),
            queues: 1,
        })?;
        Ok(Holder::lender(lender as u64, Arc::new(loan))?)
    }

    fn open(&self, port: u16) -> anyhow::Result<Box<dyn Store>> {
        let folder = self.folder.display();
        let url = format!(
            "nvme+tls://127.0.0.1:{port}?certificate={folder}/borrower.pem&key={folder}/borrower.key\
             &authority={folder}/authority.pem"
        );
        let until = Instant::now() + START;
        loop {
            match spillway_client::open(&url) {
                Ok(store) => return Ok(store),
                Err(error) if Instant::now() > until => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn start(folder: &Path, number: usize, bytes: u64) -> anyhow::Result<Daemon> {
    // A port that was just free.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let config = folder.join(format!("lender{number}.toml"));
    let at = folder.display();
    let text = format!(
        r#"[listen]
dir = "{at}/lender{number}"
nvme_tls = "127.0.0.1:{port}"
tls_certificate = "{at}/lender.pem"
tls_key = "{at}/lender.key"
tls_clients = "{at}/authority.pem"

[store]
capacity = {bytes}

[[client]]
name = "borrower"
certificate = "borrower.bench"
"#
    );
    fs::write(&config, text)?;
    let mut command = Command::new(built()?.join("spillwayd"));
    command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::null()).spawn().context("spillwayd")?;
    Ok(Daemon { child, port })
}
