//! A store's pages on a daemon of this host, over its ring: while it lives, when it ends, and when it
//! comes back with or without what it held.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_blade::{Claim, carrier, claim};
use spillway_ring::{Config as RingConfig, Server};
use spillway_store::{
    ClientConfig, ClientId, Config, Error, Key, PAGE_BYTES, PageBuf, PoolId, PoolSpec, Put,
    Scratch, Store,
};
use spillway_tiers::blade::{Blade, Carrier, KEY_BYTES, Ledger, Seal};
use spillway_types::{Access, Admitted, Denied, Identity, Limits};

const MIB: u64 = 1 << 20;
const PAGES: u32 = 2000;
const TIMEOUT: Duration = Duration::from_millis(500);

/// Lets everybody in, as one client.
struct Door(ClientId);

impl Access for Door {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 64, operations_max: 4096, bytes_max: 512 << 20 };
        Ok(Admitted { client: self.0, limits })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

/// A daemon that can end and start again, with its store or without.
struct Daemon {
    path: PathBuf,
    store: Arc<Store>,
    client: ClientId,
    server: Option<Server>,
}

impl Daemon {
    fn new(path: &Path) -> Self {
        let store = Arc::new(Store::open(Config::embedded(64 * MIB)).expect("store"));
        let client = store.add_client(ClientConfig::default()).expect("client");
        let mut daemon = Self { path: path.to_owned(), store, client, server: None };
        daemon.start();
        daemon
    }

    fn start(&mut self) {
        let listener = Server::bind(&self.path).expect("socket");
        let door = Arc::new(Door(self.client));
        let server = Server::start(listener, self.store.clone(), door, RingConfig::default());
        self.server = Some(server.expect("server"));
    }

    fn end(&mut self) {
        drop(self.server.take());
        let _ = std::fs::remove_file(&self.path);
    }

    fn used_pages(&self) -> u64 {
        self.store.statistics(self.client).expect("statistics").used_pages
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

    /// Pages that came back right, that are told to be gone, and never anything else.
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

/// Every other page can't be packed.
fn page(number: u32) -> [u8; PAGE_BYTES] {
    let mut state = u64::from(number) << 1 | 1;
    let mut page = [0; PAGE_BYTES];
    for word in page.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&(state ^ state >> 29).to_ne_bytes());
    }
    if number.is_multiple_of(2) {
        page.chunks_mut(16).for_each(|chunk| chunk[..8].copy_from_slice(b"spillway"));
    }
    page
}

fn claim_on(daemon: &Daemon) -> Claim {
    claim(&format!("ring:{}", daemon.path.display()), TIMEOUT).expect("claim")
}

#[test]
fn pages_go_over_the_ring_and_nothing_stays_after_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::new(&folder.path().join("one"));
    let claim = claim_on(&daemon);
    let far = Far::new(&claim, None);
    assert!(daemon.used_pages() > 1000);
    assert_eq!(far.read_all(), (PAGES, 0));
    let mut pages = vec![PageBuf::ZERO; 32];
    let keys: Vec<Key> = (100..132).map(|number| Key::new(1, number)).collect();
    assert_eq!(far.store.read_run(far.pool, &keys, &mut pages), 32);
    assert!((100..).zip(&pages).all(|(number, read)| read.0 == page(number)));
    assert!(claim.carrier.end_run());
    assert_eq!(daemon.used_pages(), 0);
}

#[test]
fn a_daemon_that_ends_costs_the_time_out_once_and_one_that_keeps_its_store_serves_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(&folder.path().join("one"));
    let far = Far::new(&claim_on(&daemon), None);
    daemon.end();
    let began = Instant::now();
    let (right, gone) = far.read_all();
    assert!(gone > 1000 && right + gone == PAGES, "{right} came, {gone} are gone");
    assert!(began.elapsed() < 4 * TIMEOUT, "{:?}", began.elapsed());
    assert_eq!(far.blade().down(), (true, false));
    assert!(far.blade().counts().stalls > 0 && far.blade().take_stall_ns() > 0);
    daemon.start();
    std::thread::sleep(TIMEOUT);
    far.blade().tend();
    assert_eq!(far.blade().down(), (false, false));
    assert_eq!(far.read_all(), (PAGES, 0));
}

#[test]
fn a_daemon_that_comes_back_empty_serves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(&folder.path().join("one"));
    let far = Far::new(&claim_on(&daemon), None);
    daemon.end();
    // Another store, whose first pool has the number of the one that is gone.
    let other = Daemon::new(&daemon.path);
    let _pool = claim_on(&other);
    let (right, gone) = far.read_all();
    assert!(gone > 1000 && right + gone == PAGES);
    far.blade().tend();
    assert_eq!(far.blade().down(), (true, false), "the run's pool is not there");
}

#[test]
fn a_directory_as_mirror_serves_when_the_daemon_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(&folder.path().join("one"));
    let mirror = claim(folder.path().to_str().unwrap(), TIMEOUT).unwrap();
    let far = Far::new(&claim_on(&daemon), Some(&mirror));
    daemon.end();
    assert_eq!(far.read_all(), (PAGES, 0));
    assert!(far.blade().counts().mirror_reads > 1000);
    assert_eq!(far.blade().counts().lost, 0);
}

#[test]
fn another_daemon_as_mirror_serves_when_the_first_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(&folder.path().join("one"));
    let second = Daemon::new(&folder.path().join("two"));
    let far = Far::new(&claim_on(&daemon), Some(&claim_on(&second)));
    assert_eq!(daemon.used_pages(), second.used_pages());
    daemon.end();
    assert_eq!(far.read_all(), (PAGES, 0));
}
