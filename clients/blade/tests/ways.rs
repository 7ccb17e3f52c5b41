//! A store's pages on a daemon, over its ring and over NVMe/TCP: while the daemon runs, when it ends, and when it
//! starts again with its store or without.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_blade::{Claim, carrier, claim};
use spillway_block::NoExports;
use spillway_nvme_tcp::{Config as TcpConfig, Server as TcpServer, Target};
use spillway_ring::{Config as RingConfig, Server as RingServer};
use spillway_store::{
    ClientConfig, ClientId, Config, Error, Key, PAGE_BYTES, PageBuf, PoolId, PoolSpec, Put,
    Scratch, Store,
};
use spillway_test_support::access::OneClient;
use spillway_test_support::pages::{half_text, incompressible};
use spillway_tiers::blade::{Blade, Carrier, KEY_BYTES, Ledger, Seal};

const MIB: u64 = 1 << 20;
const PAGES: u32 = 2000;
/// Longer than a busy machine keeps a daemon from its answer.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// The transport to a daemon.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Ring,
    Tcp,
}

const KINDS: [Kind; 2] = [Kind::Ring, Kind::Tcp];

/// A daemon that can end and start again, with its store or without.
struct Daemon {
    path: PathBuf,
    address: SocketAddr,
    store: Arc<Store>,
    client: ClientId,
    servers: Option<(RingServer, TcpServer)>,
}

impl Daemon {
    fn new(path: &Path) -> Self {
        Self::at(path, ([127, 0, 0, 1], 0).into())
    }

    fn at(path: &Path, address: SocketAddr) -> Self {
        let store = Arc::new(Store::open(Config::embedded(64 * MIB)).expect("store"));
        let client = store.add_client(ClientConfig::default()).expect("client");
        let mut daemon = Self { path: path.to_owned(), address, store, client, servers: None };
        daemon.start();
        daemon
    }

    fn start(&mut self) {
        let door = Arc::new(OneClient::new(self.client));
        let socket = RingServer::bind(&self.path).expect("socket");
        let config = RingConfig::default();
        let ring = RingServer::start(socket, self.store.clone(), door.clone(), config);
        let listener = TcpListener::bind(self.address).expect("port");
        self.address = listener.local_addr().expect("address");
        let store = self.store.clone();
        let target = Target::new(store, door, Arc::new(NoExports), TcpConfig::default());
        let tcp = TcpServer::start(listener, target.expect("target"), None);
        self.servers = Some((ring.expect("ring"), tcp.expect("tcp")));
    }

    fn end(&mut self) {
        drop(self.servers.take());
        let _ = std::fs::remove_file(&self.path);
    }

    fn used_pages(&self) -> u64 {
        self.store.statistics(self.client).expect("statistics").used_pages
    }

    fn claim(&self, kind: Kind) -> Claim {
        let url = match kind {
            Kind::Ring => format!("ring:{}", self.path.display()),
            Kind::Tcp => {
                format!("nvme+tcp://{}?host-nqn=nqn.2026-11.io.spillway:test", self.address)
            }
        };
        claim(&url, TIMEOUT).expect("claim")
    }
}

struct Far {
    store: Store,
    pool: PoolId,
    scratch: Scratch,
}

impl Far {
    fn new(claim: &Claim, mirror: Option<&Claim>) -> Self {
        let way = |claim: &Claim| -> &'static dyn Carrier {
            let way = carrier(&claim.address, None, claim.identity, TIMEOUT).expect("way");
            Box::leak(way)
        };
        // SAFETY: zeros are an empty ledger.
        let ledger: &Ledger = Box::leak(unsafe { Box::<Ledger>::new_zeroed().assume_init() });
        let seal = Seal::encrypted(&[1; KEY_BYTES]);
        let blade = Blade::new(seal, way(claim), mirror.map(way), ledger, 0);
        let store = Store::open(Config::embedded(2 * MIB)).expect("open").with_blade(blade);
        let client = store.add_client(ClientConfig::default()).expect("client");
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
        let mut far = Self { store, pool, scratch: Scratch::new() };
        for number in 0..PAGES {
            while far.put(number) != Put::Stored {
                assert!(far.store.demote(64, &mut far.scratch) > 0, "page {number}");
            }
        }
        far
    }

    fn put(&mut self, number: u32) -> Put {
        self.store.put_compressed(self.pool, Key::new(1, number), &page(number), &mut self.scratch)
    }

    /// Reads all pages: returns how many came back and how many are gone. Panics on any other result.
    fn read_all(&self) -> (u32, u32) {
        let (mut right, mut gone) = (0, 0);
        let mut scratch = PageBuf::ZERO;
        for number in 0..PAGES {
            match self.store.read_page(self.pool, Key::new(1, number), &mut scratch) {
                Ok(Some(read)) => {
                    assert!(*read == page(number), "page {number} is wrong");
                    right += 1;
                }
                Err(Error::Gone) => gone += 1,
                other => panic!("page {number}: {other:?}"),
            }
        }
        (right, gone)
    }

    fn blade(&self) -> &Blade {
        self.store.blade().unwrap()
    }
}

/// The content of a page. Every other page can't be compressed.
fn page(number: u32) -> [u8; PAGE_BYTES] {
    if number.is_multiple_of(2) { half_text(number) } else { incompressible(number) }
}

#[test]
fn pages_go_to_the_daemon_and_nothing_stays_after_the_run() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(&folder.path().join("one"));
        let claim = daemon.claim(kind);
        let far = Far::new(&claim, None);
        assert!(daemon.used_pages() > 1000);
        assert_eq!(far.read_all(), (PAGES, 0));
        let mut pages = vec![PageBuf::ZERO; 32];
        let keys: Vec<Key> = (100..132).map(|number| Key::new(1, number)).collect();
        assert_eq!(far.store.read_run(far.pool, &keys, &mut pages).0, 32);
        assert!((100..).zip(&pages).all(|(number, read)| read.0 == page(number)));
        for number in 0..PAGES {
            far.store.flush(far.pool, Key::new(1, number));
        }
        while far.blade().tidy(1000) > 0 {}
        assert!(daemon.used_pages() < 100, "{kind:?}: {} pages", daemon.used_pages());
        assert!(claim.carrier.end_run());
        assert_eq!(daemon.used_pages(), 0);
    }
}

#[test]
fn a_daemon_that_ends_costs_the_time_out_once_and_one_that_keeps_its_store_serves_again() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::new(&folder.path().join("one"));
        let far = Far::new(&daemon.claim(kind), None);
        daemon.end();
        let began = Instant::now();
        let (right, gone) = far.read_all();
        assert!(gone > 1000 && right + gone == PAGES, "{right} came, {gone} are gone");
        assert!(began.elapsed() < 4 * TIMEOUT, "{kind:?}: {:?}", began.elapsed());
        assert_eq!((far.blade().down(), far.blade().gone()), ((true, false), (false, false)));
        assert!(far.blade().counts().stalls > 0 && far.blade().take_stall_ns() > 0);
        daemon.start();
        std::thread::sleep(TIMEOUT);
        far.blade().tend();
        assert_eq!(far.blade().down(), (false, false), "{kind:?}");
        assert_eq!(far.read_all(), (PAGES, 0));
    }
}

#[test]
fn a_daemon_that_comes_back_empty_serves_nothing() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::new(&folder.path().join("one"));
        let far = Far::new(&daemon.claim(kind), None);
        daemon.end();
        // Another store, whose first pool has the same number as the lost one.
        let mut other = Daemon::at(&daemon.path, daemon.address);
        let _pool = other.claim(kind);
        let (right, gone) = far.read_all();
        assert!(gone > 1000 && right + gone == PAGES);
        far.blade().tend();
        assert_eq!(far.blade().down(), (true, false), "the run's pool is not there");
        assert_eq!(far.blade().gone(), (true, false), "nobody waits for it");
        other.end();
        daemon.start();
        std::thread::sleep(TIMEOUT);
        far.blade().tend();
        assert_eq!((far.blade().down(), far.blade().gone()), ((false, false), (false, false)));
        assert_eq!(far.read_all(), (PAGES, 0));
    }
}

#[test]
fn a_directory_as_mirror_serves_when_the_daemon_has_ended() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::new(&folder.path().join("one"));
        let mirror = claim(folder.path().to_str().unwrap(), TIMEOUT).unwrap();
        let far = Far::new(&daemon.claim(kind), Some(&mirror));
        daemon.end();
        assert_eq!(far.read_all(), (PAGES, 0));
        assert!(far.blade().counts().mirror_reads > 1000);
        assert_eq!(far.blade().counts().lost, 0);
    }
}

#[test]
fn another_daemon_as_mirror_serves_when_the_first_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(&folder.path().join("one"));
    let second = Daemon::new(&folder.path().join("two"));
    let far = Far::new(&daemon.claim(Kind::Ring), Some(&second.claim(Kind::Tcp)));
    assert_eq!(daemon.used_pages(), second.used_pages());
    daemon.end();
    assert_eq!(far.read_all(), (PAGES, 0));
}
