//! A fan-out device alone, to test kernels and clients with: `borrow kernel|SOCKET MIB HOLDER [HOLDER]`.
//!
//! A HOLDER is a file's path, or the URL of a store (`nvme+tls://HOST:PORT?certificate=...&key=...&authority=...`),
//! where a pool is created in place of a loan. The first has the primary copies, the second, if given, the others.
//! `kernel` attaches the device as /dev/nbdN. Otherwise it is the export `disk` of an NBD server on SOCKET. Prints its
//! counters once a second. Ends when its input ends.

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::mm::{MlockAllFlags, mlockall};
use spillway_block::{Device, ExportInfo, Exports, fresh_uuid};
use spillway_client::{PoolSpec, Url};
use spillway_fanout::{BackupFile, FanOut, Holder, Settings, SlabLocation};
use spillway_lender::Loan;
use spillway_nbd::{AttachSettings, Config, Listener, Server, attach};
use spillway_tls::{ClientSettings, Files};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

type Failed = Box<dyn std::error::Error>;

struct One(Arc<FanOut>);

impl Access for One {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 64, operations_max: 1024, bytes_max: 64 << 20 };
        Ok(Admitted { client: ClientId(1), limits })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

impl Exports for One {
    fn list(&self, _: ClientId) -> Vec<ExportInfo> {
        vec![ExportInfo { name: "disk".into(), number: 1, bytes: self.0.bytes() }]
    }

    fn open(&self, _: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        (name == "disk").then(|| self.0.clone() as Arc<dyn Device>)
    }
}

/// How long a holder may take: `BORROW_TIMEOUT` seconds, or 2.
fn timeout() -> Duration {
    let said = std::env::var("BORROW_TIMEOUT").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(said.unwrap_or(2))
}

fn holder(number: u64, text: &str, bytes: u64) -> Result<Arc<Holder>, Failed> {
    let Ok(Url::NvmeTcp { tls: true, host, port, options, .. }) = text.parse() else {
        return Ok(Holder::file(BackupFile::open(Path::new(text), bytes)?)?);
    };
    let store = spillway_client::open(text)?;
    let pool = store.open_pool(PoolSpec::PERSISTENT)?;
    let all = store.pools()?;
    let identity = all.iter().find(|info| info.pool == pool).ok_or("no pool")?.identity;
    let file = |path: &Option<std::path::PathBuf>| path.clone().ok_or("a file is not named");
    let files = Files {
        certificate: file(&options.certificate)?,
        key: file(&options.key)?,
        authority: options.authority.clone(),
    };
    let loan = Loan::connect(&spillway_lender::Settings {
        address: format!("{host}:{port}"),
        pool: identity,
        tls: ClientSettings::load(&files, &file(&options.authority)?, &host)?,
        host_nqn: options.host_nqn()?,
        timeout: timeout(),
        queues: options.queues.unwrap_or(1),
    })?;
    Ok(Holder::lender(number, Arc::new(loan))?)
}

fn main() -> Result<(), Failed> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, mib, holders @ ..] = arguments.as_slice() else {
        return Err("borrow kernel|SOCKET MIB HOLDER [HOLDER]".into());
    };
    let settings =
        Settings { slab_bytes: 16 << 20, request_timeout: timeout(), ..Settings::default() };
    let slabs = (mib.parse::<u64>()? << 20).div_ceil(settings.slab_bytes);
    let bytes = slabs * settings.slab_bytes;
    let holders: Vec<_> = (0..)
        .zip(holders)
        .map(|(number, text)| holder(number, text, bytes))
        .collect::<Result<_, _>>()?;
    let at = |copy: usize, slab: u64| {
        let holder = holders.get(copy)?.clone();
        Some(SlabLocation { holder, slab: slab as u32 })
    };
    let slabs = (0..slabs).map(|slab| [at(0, slab), at(1, slab)]).collect();
    let device =
        Arc::new(FanOut::open(settings, fresh_uuid()?, slabs, |report| eprintln!("{report}"))?);
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        eprintln!("memory is not locked: {error}");
    }
    let (mut attached, mut server) = (None, None);
    if place == "kernel" {
        let settings = AttachSettings { timeout: 10 * timeout(), ..AttachSettings::default() };
        let disk = attach(device.clone(), &settings)?;
        println!("disk {}", disk.path().display());
        attached = Some(disk);
    } else {
        let one = Arc::new(One(device.clone()));
        let listener = Listener::Unix(UnixListener::bind(place)?);
        server = Some(Server::start(listener, one.clone(), one, Config::default())?);
        println!("listening on {place}");
    }
    std::thread::spawn({
        let device = device.clone();
        move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                println!("{:?}", device.counters());
            }
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    if let Some(attached) = attached {
        attached.detach()?;
        println!("detached");
    }
    drop(server);
    println!("{:?}", device.counters());
    Ok(())
}
