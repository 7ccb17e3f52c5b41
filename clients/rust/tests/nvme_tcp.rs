//! The NVMe/TCP client against the real target over loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spillway_block::{Device, ExportInfo, Exports};
use spillway_client::nvme_tcp::call::Call;
use spillway_client::nvme_tcp::pipe::{Closed, Dial, Pipe};
use spillway_client::nvme_tcp::session::{Data, Request, Session};
use spillway_client::nvme_tcp::settings::Settings;
use spillway_client::nvme_tcp::socket::{TcpDial, TcpPipe};
use spillway_client::{Error, Get, Key, Operation, Outcome, PoolSpec, Put, Store, VALUE_BYTES_MAX};
use spillway_nvme_tcp::{Config, Server, Target};
use spillway_store::ClientConfig;
use spillway_test_support::access::OneClient;
use spillway_test_support::random::noise;
use spillway_test_support::sockets::listen_again;
use spillway_types::{ClientId, Identity};
use spillway_wire::auth::Secret;

const HOST: &str = "nqn.2026-11.io.spillway:test";
/// Made by `nvme gen-dhchap-key`.
const SECRET: &str = "DHHC-1:00:T3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:";
const OTHER_SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

/// Lets one host in, which must prove to know the secret, if there is one.
fn one_host(client: ClientId, secret: Option<&'static str>) -> OneClient {
    OneClient::new(client)
        .only(|who| matches!(who, Identity::Host { nqn: HOST }))
        .with_secret(move |nqn| Some(Secret::parse(secret?).ok()?.key_of(nqn)))
}

struct NoExports;

impl Exports for NoExports {
    fn list(&self, _client: ClientId) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, _client: ClientId, _name: &str) -> Option<Arc<dyn Device>> {
        None
    }
}

/// A store that outlives the servers in front of it.
struct Blade {
    store: Arc<spillway_store::Store>,
    client: ClientId,
    secret: Option<&'static str>,
}

impl Blade {
    fn new(secret: Option<&'static str>) -> Self {
        let config = spillway_store::Config::embedded(256 << 20);
        let store = Arc::new(spillway_store::Store::open(config).unwrap());
        let client = store.add_client(ClientConfig::default()).unwrap();
        Self { store, client, secret }
    }

    fn serve(&self, port: u16) -> Server {
        let access = Arc::new(one_host(self.client, self.secret));
        let store = Arc::clone(&self.store);
        let target = Target::new(store, access, Arc::new(NoExports), Config::default()).unwrap();
        let listener = listen_again((Ipv4Addr::LOCALHOST, port).into());
        Server::start(listener, target, None).unwrap()
    }
}

fn open(address: SocketAddr, options: &str) -> Result<Box<dyn Store>, Error> {
    spillway_client::open(&format!("nvme+tcp://{address}?host-nqn={HOST}{options}"))
}

#[test]
fn values_of_every_length_come_back() {
    let server = Blade::new(None).serve(0);
    for options in ["", "&queues=3&digests=both", "&depth=2&digests=data"] {
        let store = open(server.address(), options).unwrap();
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        for bytes in [1, 100, 4096, 4097, 8192, 100_000, 1 << 20, VALUE_BYTES_MAX] {
            let key = Key::new(bytes as u64, 7);
            let stored = noise(bytes as u64, bytes);
            assert_eq!(store.put(pool, key, &stored).unwrap(), Put::Stored, "{bytes} {options}");
            let mut read = vec![0; bytes];
            assert_eq!(store.get(pool, key, &mut read).unwrap(), Get::Hit(bytes));
            assert!(read == stored, "{bytes} bytes came back otherwise {options}");
            if bytes > 1 {
                let got = store.get(pool, key, &mut read[..bytes - 1]).unwrap();
                assert_eq!(got, Get::Short(bytes));
            }
            assert!(store.exists(pool, key).unwrap());
            assert_eq!(store.take(pool, key, &mut read).unwrap(), Get::Hit(bytes));
            assert!(read == stored);
            assert_eq!(store.get(pool, key, &mut read).unwrap(), Get::Miss);
            assert!(!store.flush(pool, key).unwrap());
        }
        assert!(matches!(
            store.put(pool, Key::new(1, 1), &[]),
            Err(Error::Length { bytes: 0, .. })
        ));
        for index in 0..10 {
            assert_eq!(store.put(pool, Key::new(1, index), &[9; 4096]).unwrap(), Put::Stored);
        }
        assert_eq!(store.statistics().unwrap().used_pages, 10);
        assert_eq!(store.flush_object(pool, 1).unwrap(), 10);
        store.close_pool(pool).unwrap();
        assert!(matches!(store.put(pool, Key::new(1, 1), &[1]), Err(Error::PoolLost)));
    }
}

#[test]
fn threads_and_batches_share_a_connection() {
    const THREADS: u64 = 8;
    const PAGES: u32 = 300;
    let server = Blade::new(None).serve(0);
    let store = open(server.address(), "").unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    thread::scope(|scope| {
        for object in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let pages: Vec<Vec<u8>> =
                    (0..PAGES).map(|index| noise(object << 32 | u64::from(index), 4096)).collect();
                let mut outcomes = Vec::new();
                if object % 2 == 0 {
                    for (index, page) in pages.iter().enumerate() {
                        let key = Key::new(object, index as u32);
                        assert_eq!(store.put(pool, key, page).unwrap(), Put::Stored);
                    }
                } else {
                    let mut puts: Vec<Operation<'_>> = pages
                        .iter()
                        .enumerate()
                        .map(|(index, value)| Operation::Put {
                            pool,
                            key: Key::new(object, index as u32),
                            value,
                        })
                        .collect();
                    store.batch(&mut puts, &mut outcomes);
                    let stored =
                        |o: &Result<Outcome, Error>| matches!(o, Ok(Outcome::Put(Put::Stored)));
                    assert!(outcomes.len() == pages.len() && outcomes.iter().all(stored));
                }
                let mut rooms = vec![[0; 4096]; pages.len()];
                let mut gets: Vec<Operation<'_>> = rooms
                    .iter_mut()
                    .enumerate()
                    .map(|(index, room)| Operation::Get {
                        pool,
                        key: Key::new(object, index as u32),
                        value: room.as_mut_slice(),
                    })
                    .collect();
                store.batch(&mut gets, &mut outcomes);
                drop(gets);
                for ((outcome, room), page) in outcomes.iter().zip(&rooms).zip(&pages) {
                    assert!(matches!(outcome, Ok(Outcome::Get(Get::Hit(4096)))), "{outcome:?}");
                    assert!(room.as_slice() == page.as_slice());
                }
            });
        }
    });
}

#[test]
fn each_operation_of_a_batch_has_its_own_outcome() {
    let server = Blade::new(None).serve(0);
    let store = open(server.address(), "").unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    let (stored, absent) = (Key::new(1, 1), Key::new(1, 2));
    assert_eq!(store.put(pool, stored, &[7; 100]).unwrap(), Put::Stored);
    let (mut room, mut outcomes) = ([0; 100], Vec::new());
    let mut operations = [
        Operation::Flush { pool, key: absent },
        // One that is not even sent.
        Operation::Put { pool, key: absent, value: &[] },
        Operation::Exists { pool, key: stored },
        Operation::Get { pool, key: stored, value: &mut room },
    ];
    store.batch(&mut operations, &mut outcomes);
    assert!(
        matches!(
            outcomes[..],
            [
                Ok(Outcome::Flushed(0)),
                Err(Error::Length { bytes: 0, .. }),
                Ok(Outcome::Exists(true)),
                Ok(Outcome::Get(Get::Hit(100))),
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!(room, [7; 100]);
}

#[test]
fn a_host_proves_that_it_knows_its_secret() {
    let server = Blade::new(Some(SECRET)).serve(0);
    let folder = tempfile::tempdir().unwrap();
    let connect = |secret: Option<&str>| {
        let options = match secret {
            Some(secret) => {
                let path = folder.path().join("secret");
                std::fs::write(&path, format!("{secret}\n")).unwrap();
                format!("&secret-file={}", path.display())
            }
            None => String::new(),
        };
        open(server.address(), &options)
    };
    let store = connect(Some(SECRET)).unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert_eq!(store.put(pool, Key::new(1, 1), b"value").unwrap(), Put::Stored);
    let began = Instant::now();
    let wrong = [connect(Some(OTHER_SECRET)), connect(None)];
    for refused in wrong {
        let error = refused.err().expect("it must not be let in").to_string();
        assert!(error.contains("authentication failed"), "{error}");
    }
    assert!(matches!(connect(Some("nonsense")), Err(Error::Secret { .. })));
    assert!(began.elapsed() < Duration::from_secs(4), "told late");
}

#[test]
fn a_host_that_is_not_known_is_told_so() {
    let server = Blade::new(None).serve(0);
    let url =
        format!("nvme+tcp://{}?host-nqn=nqn.2026-11.io.spillway:other&timeout=1", server.address());
    let error = spillway_client::open(&url).err().expect("it must not be let in").to_string();
    assert!(error.contains("has no client of this host's name"), "{error}");
}

/// The target's process ends and comes back with its store: whoever was using it notices a delay. Then
/// it comes back with an empty one.
#[test]
fn a_target_that_comes_back_is_used_again() {
    let blade = Blade::new(None);
    let server = blade.serve(0);
    let address = server.address();
    let store = open(address, "").unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    let ephemeral = store.open_pool(PoolSpec::EPHEMERAL).unwrap();
    let puts = AtomicU64::new(0);
    let pages = |index: u64| noise(index, 4096);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while puts.load(Ordering::Relaxed) < 3_000 {
                let index = puts.load(Ordering::Relaxed);
                let key = Key::new(1, index as u32);
                assert_eq!(store.put(pool, key, &pages(index)).unwrap(), Put::Stored);
                puts.store(index + 1, Ordering::Relaxed);
            }
        });
        let mut server = Some(server);
        for part in 1..=3 {
            while puts.load(Ordering::Relaxed) < part * 700 && !writer.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            server.take().unwrap().stop();
            thread::sleep(Duration::from_millis(100));
            server = Some(blade.serve(address.port()));
        }
        writer.join().unwrap();
        let mut room = [0; 4096];
        for index in 0..3_000 {
            let got = store.get(pool, Key::new(1, index as u32), &mut room).unwrap();
            assert_eq!(got, Get::Hit(4096), "{index}");
            assert!(room == pages(index).as_slice());
        }
        server.take().unwrap().stop();
        let _empty = Blade::new(None).serve(address.port());
        assert!(matches!(store.get(pool, Key::new(1, 1), &mut room), Err(Error::PoolLost)));
        assert_eq!(store.get(ephemeral, Key::new(1, 1), &mut room).unwrap(), Get::Miss);
        let again = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        assert_eq!(store.get(again, Key::new(1, 1), &mut room).unwrap(), Get::Miss);
        assert!(matches!(store.get(pool, Key::new(1, 1), &mut room), Err(Error::PoolLost)));
    });
}

#[test]
fn a_target_that_is_silent_costs_the_time_that_was_given() {
    // It accepts, and that is all.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let began = Instant::now();
    let error = open(listener.local_addr().unwrap(), "&timeout=1").err().expect("nobody is there");
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());

    let blade = Blade::new(None);
    let server = blade.serve(0);
    let store = open(server.address(), "&timeout=1").unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    server.stop();
    for _ in 0..2 {
        let began = Instant::now();
        let error = store.put(pool, Key::new(1, 1), &[1]).unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error}");
        assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
    }
}

/// Counts what goes through the pipes it makes.
struct Counting {
    dial: TcpDial,
    calls: Arc<AtomicU64>,
}

struct CountingPipe(TcpPipe, Arc<AtomicU64>);

impl Dial for Counting {
    type Pipe = CountingPipe;

    fn dial(&self, wait_us: u64) -> Result<CountingPipe, Closed> {
        Ok(CountingPipe(self.dial.dial(wait_us)?, Arc::clone(&self.calls)))
    }
}

impl Pipe for CountingPipe {
    fn send(&self, bytes: &[u8]) -> Result<usize, Closed> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.send(bytes)
    }

    fn receive(&self, into: &mut [u8], wait_us: u64) -> Result<usize, Closed> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.receive(into, wait_us)
    }

    fn wait_room(&self, or_bytes: bool, wait_us: u64) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.wait_room(or_bytes, wait_us);
    }

    fn shut(&self) {
        self.0.shut();
    }
}

#[test]
fn a_command_costs_one_write_and_one_read() {
    let server = Blade::new(None).serve(0);
    let address = server.address();
    let calls = Arc::new(AtomicU64::new(0));
    let dial = TcpDial::new(&address.ip().to_string(), address.port()).unwrap();
    let settings = Settings::new(HOST.to_owned(), [9; 16]);
    let session = Session::new(Counting { dial, calls: Arc::clone(&calls) }, settings, 1);
    session.connect().unwrap();
    let mut list = vec![0; 4096];
    let mut create = [Request::new(Call::Create(PoolSpec::PERSISTENT), Data::None)];
    session.run(&mut create);
    session.run(&mut [Request::new(Call::Pools(4096), Data::In(&mut list))]);
    let entry = spillway_wire::kv::PoolEntry::decode(&list).unwrap();
    let pool = session.with(|its| its.pools().adopt(entry.number, entry.identity, true)).unwrap();
    let page = noise(1_u64, 4096);
    let mut room = vec![0; 4096];
    let before = calls.load(Ordering::Relaxed);
    for index in 0..100 {
        let key = Key::new(1, index);
        session.run(&mut [Request::new(Call::Store(pool, key, 4096), Data::Out(&page))]);
        session.run(&mut [Request::new(Call::Retrieve(pool, key, 4096), Data::In(&mut room))]);
        assert!(room == page);
    }
    let each = (calls.load(Ordering::Relaxed) - before) as f64 / 200.0;
    // A page may come in two pieces now and then.
    assert!(each < 2.1, "{each} calls on the pipe for each command");

    let before = calls.load(Ordering::Relaxed);
    let mut rooms = vec![[0; 4096]; 96];
    let mut requests: Vec<Request<'_>> = rooms
        .iter_mut()
        .enumerate()
        .map(|(index, room)| {
            let key = Key::new(1, index as u32);
            Request::new(Call::Retrieve(pool, key, 4096), Data::In(room.as_mut_slice()))
        })
        .collect();
    session.run(&mut requests);
    drop(requests);
    assert!(rooms.iter().all(|room| room.as_slice() == page.as_slice()));
    let batch = calls.load(Ordering::Relaxed) - before;
    assert!(batch < 48, "{batch} calls on the pipe for a batch of 96");
    session.stop();
}
