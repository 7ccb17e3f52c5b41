//! The driver over a kernel and lenders in memory, on a clock that stands still unless a test lets time pass.

mod attach;
mod detach;
mod kernel;
mod late;
mod lenders;
mod memory;
mod orders;
mod roles;

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use spillway_api::LendOrder;
use spillway_api::types::LendStatus;
use spillway_lending::Body;
use spillway_registry::Host;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use self::kernel::FakeKernel;
use self::lenders::{FakeHosts, FakePools};
use crate::driver::{self, Asked, Inputs, Outputs};
use crate::lender::tests::{client_registry, host, loan};
use crate::settings::Settings;
use crate::settings::tests::{SLAB_BYTES, settings};
use crate::shared::Shared;
use crate::start::{Handle, Lending, share};
use crate::status;

const OWN: &str = "a.test";
const B: &str = "b.test";
const C: &str = "c.test";

/// A running driver, and all around it.
struct Rig {
    shared: Arc<Shared>,
    kernel: FakeKernel,
    pools: FakePools,
    hosts: FakeHosts,
    asked: mpsc::Sender<Asked>,
    /// The hosts of the registry.
    listed: watch::Sender<Vec<Host>>,
    /// What the registry is told of this one.
    own: watch::Receiver<Host>,
    log: Log,
    _tasks: JoinSet<()>,
    _logs: DefaultGuard,
}

impl Rig {
    /// Half of the memory is in use, and two hosts have some to spare.
    async fn start(settings: Settings) -> Self {
        let log = Log::default();
        let lines = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let _logs = tracing::subscriber::set_default(lines);
        let kernel = FakeKernel::new(kernel::TOTAL_BYTES / 2);
        let pools = FakePools::default();
        let (its_kernel, its_pools) = (Arc::new(kernel.clone()), Arc::new(pools.clone()));
        let store = client_registry(64 << 20);
        let (shared, messages) = share(host(OWN), settings, store, its_kernel, its_pools).unwrap();
        let shared = Arc::new(shared);
        let hosts = FakeHosts::new(shared.peers.clone());
        let (results, waiting) = mpsc::unbounded_channel();
        let (asked, orders) = mpsc::channel(16);
        let (listed, its_hosts) = watch::channel(Vec::new());
        let (its_own, own) = watch::channel(listed_host(OWN, 9, 0));
        let inputs = Inputs { messages, results: waiting, orders, hosts: its_hosts };
        let outbox = Box::new(hosts.clone());
        let outputs = Outputs { outbox, results: results.clone(), own: its_own };
        let mut tasks = JoinSet::new();
        tasks.spawn(driver::run(shared.clone(), inputs, outputs));
        tasks.spawn(driver::watch_places(shared.clone(), results));
        let rig =
            Self { shared, kernel, pools, hosts, asked, listed, own, log, _tasks: tasks, _logs };
        rig.list(&[B, C]).await;
        rig
    }

    /// Has the registry list hosts, in this order by their addresses.
    async fn list(&self, names: &[&str]) {
        let hosts = names.iter().zip(1..).map(|(name, last)| listed_host(name, last, 64 << 20));
        self.listed.send_replace(hosts.collect());
        let is_known = || {
            self.shared.peers.hosts().into_iter().map(|host| host.name).eq(names.iter().copied())
        };
        self.until(is_known).await;
    }

    async fn order(&self, order: LendOrder) -> Result<(), String> {
        let (told, answer) = oneshot::channel();
        self.asked.try_send((order, told)).unwrap();
        tokio::select! {
            answer = answer => answer.unwrap(),
            () = self.until(|| false) => unreachable!("it would have panicked"),
        }
    }

    /// Borrows a device of so many slabs from one host.
    async fn borrow(&self, slabs: u64, from: &str) {
        let before = self.kernel.count("swap_on");
        self.list(&[from]).await;
        self.order(LendOrder::Borrow(slabs * SLAB_BYTES)).await.unwrap();
        self.until(|| self.kernel.count("swap_on") > before).await;
        self.until(|| self.status().devices.iter().all(|device| device.state == "attached")).await;
    }

    fn status(&self) -> LendStatus {
        status::status(&self.shared)
    }

    /// The state of each device.
    fn states(&self) -> Vec<String> {
        self.status().devices.into_iter().map(|device| device.state).collect()
    }

    /// Lending as the daemon has it.
    fn lending(&self) -> Lending {
        let (shared, asked) = (self.shared.clone(), self.asked.clone());
        Lending { stop: None, thread: None, handle: Arc::new(Handle { shared, asked }) }
    }

    fn say(&self, from: &str, body: Body) {
        self.hosts.say(&host(from), &host(OWN), body);
    }

    /// Waits for threads, while the clock stands still.
    async fn until(&self, holds: impl Fn() -> bool) {
        // So many turns take ten seconds or more: no measurement, but the end of a test that hangs.
        for _ in 0..10_000 {
            if holds() {
                return;
            }
            tokio::task::yield_now().await;
            thread::sleep(Duration::from_millis(1));
        }
        panic!("it does not come; {:#?}\n{:#?}\n{}", self.status(), self.kernel.calls(), self.log);
    }

    /// Lets time pass, from one thing that is due to the next. It stands still while a thread works for the driver, so
    /// none may hang.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets time pass although a thread hangs. Others may fall behind.
    async fn push(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(100);
        for _ in 0..time.div_duration_f64(STEP) as u32 {
            tokio::time::advance(STEP).await;
            // What is due is done, with what follows from it.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The runtime waits for its threads.
        self.kernel.let_go();
        self.pools.let_go();
    }
}

fn listed_host(name: &str, last: u8, spare_bytes: u64) -> Host {
    let address = ([192, 0, 2, last], 7000).into();
    Host { name: name.to_owned(), address, rack: String::new(), spare_bytes }
}

/// The lines that the test's own thread has logged.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn count(&self, text: &str) -> usize {
        self.to_string().lines().filter(|line| line.contains(text)).count()
    }

    fn has(&self, text: &str) -> bool {
        self.count(text) != 0
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0.lock().unwrap()))
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
