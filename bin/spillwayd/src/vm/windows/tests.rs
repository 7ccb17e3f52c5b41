//! Windows of a VM whose agent the test plays.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use spillway_guests::Guest;
use spillway_sections::Pool;
use spillway_store::{ClientConfig, Store};
use spillway_test_support::access::OneClient;
use spillway_types::{Identity, Limits};
use spillway_wire::ring::control;

use super::*;
use crate::config::Way;
use crate::vm::layout::Layout;
use crate::vm::shared::Memory;
use crate::vm::tests::settings;

const PAGE: u64 = WINDOW_PAGE_BYTES as u64;
const BOOT: u64 = 8 * PAGE;
const LIMITS: Limits = Limits { connections_max: 8, operations_max: 1024, bytes_max: 64 << 20 };
/// Of the ring that programs ask for.
const DEPTH: u16 = 64;
const DATA_BYTES: u32 = 4 << 20;

/// The thread, for a VM whose boot memory is a file of a pool, and the agent's end of its channel.
struct Served {
    shared: Arc<Shared>,
    place: Arc<WindowsShared>,
    listener: UnixListener,
    agent: BufReader<UnixStream>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// The client may have so much. The agent has said hello.
    fn new(limits: Limits) -> Self {
        Self::with(limits, false, memory())
    }

    /// The VM has an ivshmem device of 4 pages, whose pages contain their numbers as proofs.
    fn with_device(memory: Memory) -> Self {
        let served = Self::with(LIMITS, true, memory);
        let file = File::options().write(true).open(served.place.device.as_ref().unwrap()).unwrap();
        for page in 0..4_u64 {
            file.write_all_at(&page.to_le_bytes(), page * PAGE + control::PROOF as u64).unwrap();
        }
        served
    }

    fn with(limits: Limits, has_device: bool, memory: Memory) -> Self {
        // tmpfs, as the pool demands.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = |name: &str| folder.path().join(name);
        let pool = Pool::open(&spillway_sections::Settings {
            dir: path("pool"),
            capacity_bytes: BOOT,
            section_bytes: PAGE,
            group: None,
        });
        let pool = Arc::new(pool.unwrap());
        pool.create("vm", GuestFile::Boot, BOOT).unwrap();
        let store = Store::open(spillway_store::Config::embedded(64 << 20)).unwrap();
        let client = store.add_client(ClientConfig::default()).unwrap();
        let door = OneClient::new(client).with_limits(limits);
        let door = Arc::new(door.only(|who| who == Identity::Client("guest")));
        let ring = Server::bind(&path("ring")).unwrap();
        let server = Server::start(ring, Arc::new(store), door, Default::default()).unwrap();
        let listener = UnixListener::bind(path("windows")).unwrap();
        let device = has_device.then(|| path("ivshmem"));
        if let Some(device) = &device {
            File::create(device).unwrap().set_len(4 * PAGE).unwrap();
        }
        let (place, hears) = WindowsShared::new("guest".into(), path("windows"), device).unwrap();
        let shared = Arc::new(Shared {
            name: "vm".into(),
            way: Way::Monitor(path("qmp")),
            agent: path("agent"),
            pool,
            guest: Mutex::new(Guest::new(settings())),
            notes: Mutex::default(),
            stop: AtomicBool::new(false),
            hunger: Arc::default(),
            windows: Some(place.clone()),
        });
        place.renew(Some(memory));
        let server = Some(Arc::new(server));
        let windows = Windows::new(shared.clone(), place.clone(), server, hears);
        let thread = Some(thread::spawn(|| windows.run()));
        let (agent, _) = listener.accept().unwrap();
        agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let agent = BufReader::new(agent);
        let mut served = Self { shared, place, listener, agent, thread, _folder: folder };
        assert_eq!(served.hear(), FromHost::Greet { version: VERSION });
        served.say(&FromGuest::Hello { version: VERSION, nonce: 7 });
        let heard = served.hear();
        let FromHost::Cleared { nonce: 7, device } = heard else { panic!("{heard:?}") };
        assert_eq!(device.is_some(), has_device);
        assert_eq!(device, served.place.device.as_deref().map(number_of));
        served
    }

    fn say(&self, said: &FromGuest) {
        self.agent.get_ref().write_all(&said.encode()).unwrap();
    }

    fn hear(&mut self) -> FromHost {
        let mut line = Vec::new();
        self.agent.read_until(b'\n', &mut line).unwrap();
        FromHost::decode(line.strip_suffix(b"\n").unwrap()).unwrap()
    }

    /// What the host says to a program's wish.
    fn open(&mut self, id: u64) -> FromHost {
        self.ask(id, WindowPlace::Pages(pages()), DATA_BYTES)
    }

    /// What the host says to a wish for a page of the device.
    fn open_on_device(&mut self, id: u64, page: u64, proof: u64) -> FromHost {
        self.ask(id, WindowPlace::Device { pages: vec![page], proof }, 4096)
    }

    fn ask(&mut self, id: u64, place: WindowPlace, data_bytes: u32) -> FromHost {
        self.say(&FromGuest::Open { id, place, depth: DEPTH, data_bytes });
        self.hear()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.place.ring();
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// The first pages, as many as the ring of DATA_BYTES needs.
fn pages() -> Vec<u64> {
    (0..Geometry::new(DEPTH, DATA_BYTES).unwrap().window_pages() as u64).collect()
}

/// The boot memory in one piece.
fn memory() -> Memory {
    let machine = |at: u64| Ok::<_, String>((at < BOOT).then(|| ("boot".to_owned(), PAGE + at)));
    Memory { boot: Some(Layout::find("boot", BOOT, machine).unwrap()) }
}

#[test]
fn a_vm_that_went_while_it_moved_leaves_the_next_one_its_windows() {
    let mut served = Served::new(LIMITS);
    served.place.look(false, Some(true));
    let FromHost::Refused { why: Some(why), .. } = served.open(0) else { panic!() };
    assert!(why.contains("migrating to another host"), "{why}");
    // It ends, and another is started under its name.
    served.place.renew(None);
    served.place.renew(Some(memory()));
    let opened = served.open(1);
    assert!(matches!(opened, FromHost::Opened { id: 1, .. }), "{opened:?}");
}

#[test]
fn a_page_of_an_open_window_is_no_other_window_s() {
    let mut served = Served::new(LIMITS);
    let opened = served.open(0);
    assert!(matches!(opened, FromHost::Opened { id: 0, .. }), "{opened:?}");
    let FromHost::Refused { id: 1, why: Some(why), .. } = served.open(1) else { panic!() };
    assert_eq!(why, "a page belongs to another window already");
    served.say(&FromGuest::Close { id: 0 });
    let closed = served.hear();
    assert!(matches!(closed, FromHost::Closed { id: 0, .. }), "{closed:?}");
    let opened = served.open(2);
    assert!(matches!(opened, FromHost::Opened { id: 2, .. }), "{opened:?}");
}

#[test]
fn a_vm_that_moves_gets_no_windows_until_its_monitor_says_that_it_has_stopped_to() {
    let mut served = Served::new(LIMITS);
    // A monitor tells what changes, and is looked at again and again.
    for (id, told) in [Some(true), None, None].into_iter().enumerate() {
        served.place.look(false, told);
        let said = served.open(id as u64);
        assert!(matches!(said, FromHost::Refused { .. }), "{told:?}: {said:?}");
    }
    served.place.look(false, Some(false));
    let said = served.open(3);
    assert!(matches!(said, FromHost::Opened { id: 3, .. }), "{said:?}");
}

#[test]
fn what_an_agent_that_hears_no_answer_wishes_for_opens_no_window() {
    let served = Served::new(LIMITS);
    served.agent.get_ref().shutdown(std::net::Shutdown::Read).unwrap();
    let place = WindowPlace::Pages(pages());
    let open = FromGuest::Open { id: 1, place, depth: DEPTH, data_bytes: DATA_BYTES };
    // In one piece: the first can't be answered.
    let said = [FromGuest::Close { id: 0 }.encode(), open.encode()].concat();
    served.agent.get_ref().write_all(&said).unwrap();
    // The channel is opened anew once no window is open.
    served.listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while served.listener.accept().is_err() {
        assert!(Instant::now() < until, "a window is open, and nobody has it");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_ring_that_the_limits_of_the_client_cut_gets_its_window() {
    let mut served = Served::new(Limits { bytes_max: 64 << 10, ..LIMITS });
    let opened = served.open(0);
    let FromHost::Opened { id: 0, depth: DEPTH, data_bytes, .. } = opened else {
        panic!("{opened:?}")
    };
    assert_eq!(data_bytes, 64 << 10);
}

/// What the first page of a device's file has as its number.
fn number_of(path: &Path) -> u64 {
    let mut number = [0; 8];
    File::open(path).unwrap().read_exact_at(&mut number, control::PROOF as u64).unwrap();
    u64::from_le_bytes(number)
}

#[test]
fn a_guest_hears_of_no_device_whose_file_is_not_there() {
    let mut served = Served::with_device(memory());
    std::fs::remove_file(served.place.device.as_ref().unwrap()).unwrap();
    served.say(&FromGuest::Hello { version: VERSION, nonce: 8 });
    assert_eq!(served.hear(), FromHost::Cleared { nonce: 8, device: None });
}

/// Why the host refuses a window.
fn why(said: FromHost) -> String {
    let FromHost::Refused { why: Some(why), .. } = said else { panic!("{said:?}") };
    why
}

#[test]
fn a_window_lies_in_the_device_without_boot_memory_that_was_found() {
    let mut served = Served::with_device(Memory { boot: None });
    let opened = served.open_on_device(0, 3, 3);
    assert!(matches!(opened, FromHost::Opened { id: 0, .. }), "{opened:?}");
    assert!(why(served.open(1)).contains("does not report where its memory lies"));
    // What the guest could discard, and what is under way to another host, is not mapped.
    served.place.renew(None);
    assert!(matches!(served.hear(), FromHost::Closed { id: 0 }));
    assert!(why(served.open_on_device(2, 3, 3)).contains("monitor does not report"));
    served.place.renew(Some(memory()));
    served.place.look(false, Some(true));
    assert!(why(served.open_on_device(3, 3, 3)).contains("migrating"));
}

#[test]
fn the_device_serves_only_pages_of_its_file_that_are_free_and_the_guest_s() {
    let mut served = Served::with_device(memory());
    for (id, page) in [(0, 4), (1, (1 << 31) - 1)] {
        assert!(why(served.open_on_device(id, page, page)).contains("beyond the end"), "{page}");
    }
    assert!(why(served.open_on_device(2, 1, 2)).contains("not the memory of the guest's device"));
    let opened = served.open_on_device(3, 1, 1);
    assert!(matches!(opened, FromHost::Opened { id: 3, .. }), "{opened:?}");
    assert_eq!(why(served.open_on_device(4, 1, 1)), "a page belongs to another window already");
    // The same numbers, but of boot memory.
    let opened = served.open(5);
    assert!(matches!(opened, FromHost::Opened { id: 5, .. }), "{opened:?}");
}

#[test]
fn a_guest_whose_device_the_host_does_not_know_gets_no_window_there() {
    let mut served = Served::new(LIMITS);
    assert!(why(served.open_on_device(0, 0, 0)).contains("names no ivshmem file"));
    let opened = served.open(1);
    assert!(matches!(opened, FromHost::Opened { id: 1, .. }), "{opened:?}");
}
