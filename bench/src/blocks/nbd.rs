//! NBD: our server and nbdkit's memory plugin, on Unix sockets and on TCP.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use anyhow::{Context, ensure};
use spillway_block::{BlockSize, Geometry, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_nbd::{Config, Listener, Server};
use spillway_store::{ClientConfig, Store};

use super::fio::{self, Measured, Way};
use super::registry::FakeRegistry;
use super::{BENCH, DEPTHS};
use crate::rows::{Report, Row, median};
use crate::{by_size, go_on, rounds, wanted};

/// Size of the devices, bytes.
fn device_bytes() -> u64 {
    by_size(256 << 20, 64 << 20)
}

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A Unix socket.
    Unix,
    /// A TCP port on loopback.
    Tcp,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// One round of one side of a cell.
struct Sample {
    cell: (Transport, Way, u32),
    ours: bool,
    measured: Measured,
}

/// Measures all cells.
pub fn run(report: &mut Report) -> anyhow::Result<()> {
    for transport in [Transport::Unix, Transport::Tcp] {
        let name = format!("nbd {}", transport.name());
        if wanted(&name) {
            let samples = report.keep(&name, measure(transport));
            report.rows.extend(samples.iter().flat_map(|samples| rows(transport, samples)));
            go_on()?;
        }
    }
    Ok(())
}

fn measure(transport: Transport) -> anyhow::Result<Vec<Sample>> {
    let folder = Folder::new()?;
    let (ours, ours_at) = Ours::start(transport, &folder.0)?;
    let (other, other_at) = Nbdkit::start(transport, &folder.0)?;
    for uri in [&ours_at, &other_at] {
        fio::fill(uri)?;
    }
    let mut samples = Vec::new();
    let rounds = rounds()?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: nbd {}", transport.name());
        for way in [Way::Read, Way::Write] {
            for depth in DEPTHS {
                for (ours, uri) in [(true, &ours_at), (false, &other_at)] {
                    let measured = fio::run(uri, way, depth)?;
                    samples.push(Sample { cell: (transport, way, depth), ours, measured });
                }
            }
        }
    }
    drop((ours, other));
    Ok(samples)
}

fn rows(transport: Transport, samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    for way in [Way::Read, Way::Write] {
        for depth in DEPTHS {
            let cell = (transport, way, depth);
            let of = |ours: bool, figure: fn(&Measured) -> f64| {
                let mine = samples.iter().filter(|s| s.cell == cell && s.ours == ours);
                median(mine.map(|sample| figure(&sample.measured)))
            };
            let name = format!("nbd {} {} depth {depth}", transport.name(), way.name());
            let rate = |ours| of(ours, |measured| measured.rate / 1e3);
            let time = |ours| of(ours, |measured| measured.median_us);
            let other = |figure| ("nbdkit memory", figure);
            rows.push(Row::new(BENCH, &name, "kIOPS", rate(true), other(rate(false))));
            let metric = format!("{name} p50");
            rows.push(Row::new(BENCH, metric, "us", time(true), other(time(false))));
        }
    }
    rows
}

/// A directory for sockets, removed when this is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> anyhow::Result<Self> {
        let path = env::temp_dir().join(format!("spillway-bench-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The address of a server's only export.
pub fn uri_of_socket(path: &Path) -> String {
    format!("nbd+unix:///?socket={}", path.display())
}

/// Spillway's server, with one client that has one device.
struct Ours {
    _server: Server,
}

impl Ours {
    /// Starts the server. Returns it and its address.
    fn start(transport: Transport, folder: &Path) -> anyhow::Result<(Self, String)> {
        let config = spillway_store::Config::embedded(2 * device_bytes());
        let store = Arc::new(Store::open(config)?);
        let client = store.add_client(ClientConfig::default())?;
        let block_size = BlockSize::B4096;
        let geometry = Geometry { bytes: device_bytes(), block_size, uuid: fresh_uuid()? };
        let device = Arc::new(BlockDevice::create(store, client, geometry)?);
        let registry = Arc::new(FakeRegistry { client, device: Some(device) });
        let (listener, uri) = match transport {
            Transport::Unix => {
                let path = folder.join("ours.sock");
                (Listener::Unix(UnixListener::bind(&path)?), uri_of_socket(&path))
            }
            Transport::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let uri = format!("nbd://{}", listener.local_addr()?);
                (Listener::Tcp(listener), uri)
            }
        };
        let config = Config { loopback_name: Some("bench".to_owned()), ..Config::default() };
        Ok((Self { _server: Server::start(listener, registry.clone(), registry, config)? }, uri))
    }
}

/// nbdkit with its memory plugin.
pub struct Nbdkit(Child);

impl Nbdkit {
    /// Starts the server. Returns it and its address.
    pub fn start(transport: Transport, folder: &Path) -> anyhow::Result<(Self, String)> {
        let mut command = Command::new("nbdkit");
        command.arg("--foreground").stdin(Stdio::null());
        let uri = match transport {
            Transport::Unix => {
                let path = folder.join("nbdkit.sock");
                command.arg("--unix").arg(&path);
                uri_of_socket(&path)
            }
            Transport::Tcp => {
                // nbdkit does not accept port 0, so use a port that was just free.
                let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
                command.args(["--ipaddr", "127.0.0.1", "--port", &address.port().to_string()]);
                format!("nbd://{address}")
            }
        };
        let size = device_bytes().to_string();
        let child =
            command.args(["memory", &size]).spawn().context("nbdkit: run lab/setup bench")?;
        let mut nbdkit = Self(child);
        nbdkit.wait_for(&uri)?;
        Ok((nbdkit, uri))
    }

    fn wait_for(&mut self, uri: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let asked = Command::new("nbdinfo").args(["--size", uri]).output();
            if asked.context("nbdinfo: run lab/setup bench")?.status.success() {
                return Ok(());
            }
            ensure!(self.0.try_wait()?.is_none(), "nbdkit ended");
            ensure!(Instant::now() < deadline, "nbdkit does not answer");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
