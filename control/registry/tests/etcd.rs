//! Hosts that find each other in a real etcd, which is killed and started again meanwhile.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use spillway_registry::{Host, Registry, etcd};
use spillway_test_support::certificates::Authority;
use spillway_test_support::sockets::unused_address;
use spillway_tls::ClientSettings;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// For what must happen; nothing is said about how soon.
const PATIENCE: Duration = Duration::from_secs(60);
const LEASE_S: u64 = 3;

/// An etcd of this test's own.
struct Etcd {
    child: Child,
    client: SocketAddr,
    peer: SocketAddr,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Etcd {
    fn start(folder: &Path, client: SocketAddr, peer: SocketAddr) -> Self {
        let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
        let child = Command::new("etcd")
            .args(["--name", "one", "--initial-cluster", &format!("one={peer_url}")])
            .args(["--initial-advertise-peer-urls", &peer_url, "--listen-peer-urls", &peer_url])
            .args(["--advertise-client-urls", &client_url, "--listen-client-urls", &client_url])
            .arg("--data-dir")
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd: lab/setup test installs Debian's etcd-server");
        Self { child, client, peer }
    }
}

struct Announced {
    own: watch::Sender<Host>,
    hosts: watch::Receiver<Vec<Host>>,
    task: JoinHandle<()>,
}

impl Announced {
    fn new(name: &str, endpoint: SocketAddr, tls: &ClientSettings) -> Self {
        let host = Host {
            name: name.to_owned(),
            address: ([192, 0, 2, 1], 4500).into(),
            rack: "r1".to_owned(),
            spare_bytes: 1 << 30,
        };
        let registry = Registry::Etcd(etcd::Settings {
            endpoints: vec![format!("http://{endpoint}").parse().unwrap()],
            prefix: "/spillway/hosts/".to_owned(),
            lease_s: LEASE_S,
            tls: tls.clone(),
            time: Duration::from_secs(5),
        });
        let (own, said) = watch::channel(host);
        let (told, hosts) = watch::channel(Vec::new());
        let task = tokio::spawn(registry.run(said, told));
        Self { own, hosts, task }
    }

    /// Waits until the hosts that it sees, and what they can spare, are these.
    async fn sees(&mut self, expected: &[(&str, u64)]) {
        let are_these = |hosts: &Vec<Host>| {
            let seen = hosts.iter().map(|host| (host.name.as_str(), host.spare_bytes));
            seen.eq(expected.iter().copied())
        };
        let seen = timeout(PATIENCE, self.hosts.wait_for(are_these)).await.map(drop);
        assert!(seen.is_ok(), "sees {:?} and not {expected:?}", self.hosts.borrow());
    }
}

/// Forwards connections to an etcd.
struct Proxy {
    address: SocketAddr,
    /// How many watches there were.
    watches: watch::Receiver<usize>,
    cut: watch::Sender<()>,
}

impl Proxy {
    async fn start(etcd: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (told, watches) = watch::channel(0);
        let (cut, is_cut) = watch::channel(());
        tokio::spawn(async move {
            loop {
                let (here, _) = listener.accept().await.unwrap();
                // It is not there yet.
                let Ok(there) = TcpStream::connect(etcd).await else { continue };
                tokio::spawn(Self::forward(here, there, told.clone(), is_cut.clone()));
            }
        });
        Self { address, watches, cut }
    }

    /// When a watch is cut, both ends stay connected, and nothing arrives any more.
    async fn forward(
        mut here: TcpStream,
        mut there: TcpStream,
        watches: watch::Sender<usize>,
        mut cut: watch::Receiver<()>,
    ) {
        let mut start = [0; 14];
        while here.peek(&mut start).await.is_ok_and(|bytes| bytes != 0 && bytes < start.len()) {
            tokio::task::yield_now().await;
        }
        let is_watch = start == *b"POST /v3/watch";
        watches.send_modify(|count| *count += usize::from(is_watch));
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut here, &mut there) => {}
            Ok(()) = cut.changed(), if is_watch => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn a_watch_whose_connection_is_cut_without_a_sign_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let tls = Authority::new().client("a.test", "a.test");
    let etcd = Etcd::start(&folder.path().join("etcd"), unused_address(), unused_address());
    let mut proxy = Proxy::start(etcd.client).await;
    let mut a = Announced::new("a.test", proxy.address, &tls);
    let b = Announced::new("b.test", etcd.client, &tls);
    let gib = 1 << 30;
    a.sees(&[("b.test", gib)]).await;
    proxy.watches.wait_for(|count| *count != 0).await.unwrap();
    // A host that comes.
    proxy.cut.send_replace(());
    let _c = Announced::new("c.test", etcd.client, &tls);
    a.sees(&[("b.test", gib), ("c.test", gib)]).await;
    // A host that goes.
    let before = *proxy.watches.borrow();
    proxy.watches.wait_for(|count| *count >= before.max(2)).await.unwrap();
    proxy.cut.send_replace(());
    b.task.abort();
    a.sees(&[("c.test", gib)]).await;
}

#[tokio::test]
async fn hosts_find_each_other_and_outlive_the_registry() {
    let folder = tempfile::tempdir().unwrap();
    // Keys that are not used: the endpoint is plain.
    let tls = Authority::new().client("a.test", "a.test");
    let data = folder.path().join("etcd");
    let etcd = Etcd::start(&data, unused_address(), unused_address());
    let (client, peer) = (etcd.client, etcd.peer);
    let mut a = Announced::new("a.test", client, &tls);
    let mut b = Announced::new("b.test", client, &tls);
    let gib = 1 << 30;
    a.sees(&[("b.test", gib)]).await;
    b.sees(&[("a.test", gib)]).await;
    // What a host can spare changes.
    a.own.send_modify(|own| own.spare_bytes = 5 * gib);
    b.sees(&[("a.test", 5 * gib)]).await;
    // etcd is killed: what is known stays, for longer than a lease.
    drop(etcd);
    tokio::time::sleep(Duration::from_secs(LEASE_S + 2)).await;
    b.sees(&[("a.test", 5 * gib)]).await;
    a.own.send_modify(|own| own.spare_bytes = 2 * gib);
    let _etcd = Etcd::start(&data, client, peer);
    b.sees(&[("a.test", 2 * gib)]).await;
    // A third one comes, and one goes without a word.
    let c = Announced::new("c.test", client, &tls);
    b.sees(&[("a.test", 2 * gib), ("c.test", gib)]).await;
    a.task.abort();
    b.sees(&[("c.test", gib)]).await;
    c.task.abort();
    b.sees(&[]).await;
}
