//! The fan-out device over real lenders: stores behind the real NVMe/TCP target inside TLS, over loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillway_block::{Device, NoExports};
use spillway_fanout::{FanOut, Holder, SlabLocation};
use spillway_lender::{Error, Loan, Settings};
use spillway_nvme_tcp::{Config, Server, Target};
use spillway_store::{ClientConfig, Store};
use spillway_test_support::access::OneClient;
use spillway_test_support::certificates::Authority;
use spillway_tls::Versions;
use spillway_types::{Identity, PoolSpec};

/// The borrower's name, in its certificate, and the lenders'.
const BORROWER: &str = "borrower.test";
const LENDER: &str = "lender.test";
const SLAB_BYTES: u64 = 1 << 20;
const SLABS: u32 = 4;
const PAGES: u64 = SLABS as u64 * SLAB_BYTES / 4096;

/// A lender, and a loan that it has reserved.
struct Lender {
    store: Arc<Store>,
    server: Option<Server>,
    address: SocketAddr,
    identity: u128,
}

impl Lender {
    fn new(authority: &Authority) -> Self {
        let store = Arc::new(Store::open(spillway_store::Config::embedded(64 << 20)).unwrap());
        let client = store.add_client(ClientConfig::default()).unwrap();
        let pool = store.create_reserved_pool(client, PoolSpec::PERSISTENT, PAGES).unwrap();
        let access = Arc::new(OneClient::new(client).only(|who| who == Identity::Name(BORROWER)));
        let target = Target::new(store.clone(), access, Arc::new(NoExports), Config::default());
        let settings = authority.server(LENDER, Versions::Tls13);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::start(listener, target.unwrap(), Some(settings)).unwrap();
        Self { identity: store.identity(pool), store, server: Some(server), address }
    }

    fn settings(&self, authority: &Authority) -> Settings {
        Settings {
            address: self.address.to_string(),
            pool: self.identity,
            tls: authority.client(BORROWER, LENDER),
            host_nqn: "nqn.2026-11.io.spillway:test".to_owned(),
            timeout: Duration::from_secs(2),
            queues: 1,
        }
    }

    fn holder(&self, number: u64, authority: &Authority) -> Arc<Holder> {
        let loan = Loan::connect(&self.settings(authority)).unwrap();
        Holder::lender(number, Arc::new(loan)).unwrap()
    }

    /// Bytes of its memory that pages take.
    fn used_bytes(&self) -> u64 {
        self.store.memory_bytes() - self.store.free_frame_bytes()
    }
}

fn device(first: &Arc<Holder>, second: &Arc<Holder>) -> FanOut {
    let at = |holder: &Arc<Holder>, slab| Some(SlabLocation { holder: holder.clone(), slab });
    let slabs = (0..SLABS).map(|slab| [at(first, slab), at(second, slab)]).collect();
    let settings = spillway_fanout::Settings {
        slab_bytes: SLAB_BYTES,
        ..spillway_fanout::Settings::default()
    };
    FanOut::open(settings, 1, slabs, |_| {}).unwrap()
}

fn content(page: u64, version: u64) -> Vec<u8> {
    (0..512).flat_map(|word| (page << 40 | version << 16 | word).to_le_bytes()).collect()
}

fn write_all(device: &FanOut, version: u64) {
    for page in 0..PAGES {
        device.write(page * 4096, &content(page, version)).unwrap();
    }
}

fn verify_all(device: &FanOut, version: u64) {
    let mut read = vec![0; 16 * 4096];
    for first in (0..PAGES).step_by(16) {
        device.read(first * 4096, &mut read).unwrap();
        for (page, read) in (first..).zip(read.chunks(4096)) {
            assert!(read == content(page, version), "page {page} has other bytes");
        }
    }
}

#[test]
fn nothing_is_lost_when_a_lender_is_killed_in_the_midst() {
    let authority = Authority::new();
    let [mut one, two, three] = core::array::from_fn(|_| Lender::new(&authority));
    let (first, second) = (one.holder(1, &authority), two.holder(2, &authority));
    let device = device(&first, &second);
    write_all(&device, 1);
    verify_all(&device, 1);
    thread::scope(|scope| {
        scope.spawn(|| write_all(&device, 2));
        let server = one.server.take();
        scope.spawn(move || drop(server));
    });
    verify_all(&device, 2);
    let counters = device.counters();
    assert_eq!((counters.errors, counters.stored_pages), (0, PAGES));
    // To a third lender, and away from the others.
    let third = three.holder(3, &authority);
    for slab in 0..SLABS {
        device.place(slab, 0, SlabLocation { holder: third.clone(), slab }).unwrap();
    }
    device.forget(&first);
    device.forget(&second);
    verify_all(&device, 2);
    assert_eq!(device.counters().moved_pages, PAGES);
    // A discard frees the memory there.
    let full_bytes = three.used_bytes();
    device.deallocate(0, device.bytes()).unwrap();
    assert!(three.used_bytes() + PAGES * 4096 / 2 < full_bytes);
    let mut read = vec![1; 8192];
    device.read(4096, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}

#[test]
fn a_loan_that_is_not_there_is_told() {
    let authority = Authority::new();
    let lender = Lender::new(&authority);
    let told = |settings: Settings| Loan::connect(&settings).unwrap_err();
    let right = lender.settings(&authority);
    let other = Settings { pool: right.pool ^ 1, ..right.clone() };
    assert!(matches!(told(other), Error::NoPool(_)));
    let name = Settings { tls: right.tls.to("other.test").unwrap(), ..right.clone() };
    assert!(told(name).to_string().contains("not for the name"));
    let nowhere = Settings { address: "nowhere".to_owned(), ..right.clone() };
    assert!(matches!(told(nowhere), Error::Address(_)));
    Loan::connect(&right).unwrap();
}
