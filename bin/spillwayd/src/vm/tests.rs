//! The driver between sockets: an agent that means ill, and one that goes away, beside a monitor that answers as QEMU does.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::fs::{FallocateFlags, fallocate};
use spillway_guests::agent::{FromGuest, Profile, Status};
use spillway_guests::{End, Guest, Outcome, Settings, View, Who};
use spillway_sections::{GuestFile, Pool};
use tokio::sync::oneshot;

use super::driver::{Driver, Shared, Wanted, Wish};
use super::share;
use super::windows::Place;
use crate::config::Way;

const S: u64 = 2 << 20;
const BOOT: u64 = 64 * S;
const DEVICE: u64 = 16 * S;

/// A driver on its thread, its sockets in a folder of the test's, and a pool of 16 sections.
struct Driven {
    folder: tempfile::TempDir,
    shared: Arc<Shared>,
    wishes: Sender<Wish>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

pub fn settings() -> Settings {
    Settings {
        section_bytes: S,
        least_bytes: BOOT,
        most_bytes: BOOT + DEVICE,
        reserve_bytes: S,
        profile: Profile::ReturnsAll,
        auto: true,
        resize_timeout_us: 500_000,
        offline_timeout_us: 50_000,
        interval_ms: 50,
    }
}

impl Driven {
    fn new() -> Self {
        Self::by(|folder| Way::Monitor(folder.join("qmp")), |_| {})
    }

    /// The same for another way to the VM, in a pool that is not empty.
    fn by(way: impl Fn(&Path) -> Way, fill: impl Fn(&Pool)) -> Self {
        Self::having(way, fill, None)
    }

    /// The same with windows for the guest's programs.
    fn having(
        way: impl Fn(&Path) -> Way,
        fill: impl Fn(&Pool),
        windows: Option<Arc<Place>>,
    ) -> Self {
        // tmpfs, as the pool demands.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = Pool::open(&spillway_sections::Settings {
            dir: folder.path().join("pool"),
            capacity_bytes: DEVICE,
            section_bytes: S,
            group: None,
        });
        let pool = pool.unwrap();
        fill(&pool);
        let shared = Arc::new(Shared {
            name: "vm".into(),
            way: way(folder.path()),
            agent: folder.path().join("agent"),
            pool: Arc::new(pool),
            guest: Mutex::new(Guest::new(settings())),
            notes: Mutex::default(),
            stop: AtomicBool::new(false),
            hunger: Arc::default(),
            windows,
        });
        let (bell, hears) = UnixStream::pair().unwrap();
        hears.set_nonblocking(true).unwrap();
        let (wishes, wished) = channel();
        let driver = Driver::new(shared.clone(), wished, hears);
        let thread = Some(thread::spawn(|| driver.run()));
        Self { folder, shared, wishes, bell, thread }
    }

    fn listener(&self, name: &str) -> UnixListener {
        UnixListener::bind(self.folder.path().join(name)).unwrap()
    }

    fn view(&self) -> View {
        self.shared.guest().view()
    }

    fn until(&self, what: &str, holds: impl Fn(&View) -> bool) {
        let start = Instant::now();
        while !holds(&self.view()) {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}: {:?}", self.view());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// What comes of an operator's order, and how long it took.
    fn order(&self, to_bytes: u64) -> (Outcome, Duration) {
        self.wish(Wanted::To(to_bytes))
    }

    fn wish(&self, wanted: Wanted) -> (Outcome, Duration) {
        let (told, heard) = oneshot::channel();
        let who = Who::Operator;
        let start = Instant::now();
        let wish = Wish::Size { wanted, who, roll_back: false, force: true, told: Some(told) };
        self.wishes.send(wish).unwrap();
        (&self.bell).write_all(&[0]).unwrap();
        (heard.blocking_recv().unwrap(), start.elapsed())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = (&self.bell).write(&[0]);
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Answers as QEMU does for a VM with one virtio-mem device, whose guest does at once what it is asked.
struct Qemu {
    path: PathBuf,
    requested: AtomicU64,
    /// What the guest does not give back, bytes.
    keeps: AtomicU64,
    /// A second device, if it has one.
    second: Option<PathBuf>,
    /// How often it was to get a further device.
    widened: AtomicU64,
    /// It ends at the next command.
    hangs_up: AtomicBool,
    /// Further devices that it takes, where it does: id, backend, file.
    added: Option<Mutex<Vec<[String; 3]>>>,
    /// What its guest has not yet plugged of what it is to have, bytes.
    lacks: AtomicU64,
    /// Where it speaks to whoever has connected.
    stream: Mutex<Option<UnixStream>>,
}

impl Qemu {
    fn start(driven: &Driven) -> Arc<Self> {
        Self::with(driven, None)
    }

    fn with(driven: &Driven, second: Option<PathBuf>) -> Arc<Self> {
        Self::that_takes(driven, second, None)
    }

    fn that_takes(
        driven: &Driven,
        second: Option<PathBuf>,
        added: Option<Mutex<Vec<[String; 3]>>>,
    ) -> Arc<Self> {
        let path = driven.shared.pool.create("vm", GuestFile::Device(1), DEVICE).unwrap();
        let (requested, keeps, widened, lacks) = Default::default();
        let (hangs_up, stream) = Default::default();
        let qemu = Arc::new(Self {
            path,
            requested,
            keeps,
            second,
            widened,
            hangs_up,
            added,
            lacks,
            stream,
        });
        let (listener, served) = (driven.listener("qmp"), qemu.clone());
        thread::spawn(move || served.serve(listener.accept().unwrap().0));
        qemu
    }

    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n").ok()?;
        let lines = BufReader::new(stream.try_clone().ok()?).lines();
        *self.stream.lock().unwrap() = stream.try_clone().ok();
        for line in lines {
            let asked: serde_json::Value = serde_json::from_str(&line.ok()?).ok()?;
            if self.hangs_up.load(Ordering::Relaxed) {
                return None;
            }
            let mut answer = serde_json::json!({ "return": self.answer(&asked) });
            if let Some(id) = asked.get("id") {
                answer["id"] = id.clone();
            }
            stream.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
        }
        Some(())
    }

    /// Touches what the guest has, and punches what it has not, as QEMU does.
    fn plug(&self, size: u64) {
        let file = std::fs::File::options().write(true).open(&self.path).unwrap();
        for section in (0..size).step_by(S as usize) {
            file.write_all_at(&[1], section).unwrap();
        }
        if size < DEVICE {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, mode, size, DEVICE - size).unwrap();
        }
    }

    /// The guest starts anew: its memory is gone, and it has still to plug what it was asked to have.
    fn reset(&self) {
        self.lacks.store(self.requested.load(Ordering::Relaxed), Ordering::Relaxed);
        self.plug(0);
        self.tell(&serde_json::json!({ "event": "RESET", "data": {} }));
    }

    /// The device has another size, of which nobody was told.
    fn change(&self, size: u64) {
        self.requested.store(size, Ordering::Relaxed);
        self.plug(size);
    }

    fn tell(&self, event: &serde_json::Value) {
        let mut stream = self.stream.lock().unwrap();
        stream.as_mut().unwrap().write_all(format!("{event}\r\n").as_bytes()).unwrap();
    }

    fn answer(&self, asked: &serde_json::Value) -> serde_json::Value {
        use serde_json::json;
        match asked["execute"].as_str().unwrap() {
            "query-memory-devices" => {
                let requested = self.requested.load(Ordering::Relaxed);
                let lacks = self.lacks.load(Ordering::Relaxed);
                let size = requested.max(self.keeps.load(Ordering::Relaxed)) - lacks;
                let device = |id: &str, memdev: &str, size, requested| {
                    json!({ "type": "virtio-mem", "data": {
                        "id": id, "memdev": memdev, "node": 0, "size": size, "max-size": DEVICE,
                        "requested-size": requested, "block-size": S, "memaddr": 0,
                    }})
                };
                let second = self.second.iter().map(|_| device("n", "/objects/c", 0, 0));
                let added = self.added.iter().flat_map(|it| it.lock().unwrap().clone());
                let added = added.filter(|it| !it[0].is_empty());
                let added =
                    added.map(|[id, memdev, _]| device(&id, &format!("/objects/{memdev}"), 0, 0));
                [device("m", "/objects/b", size, requested)]
                    .into_iter()
                    .chain(second)
                    .chain(added)
                    .collect()
            }
            "query-memory-size-summary" => json!({ "base-memory": BOOT, "plugged-memory": 0 }),
            "qom-get" => match asked["arguments"]["property"].as_str().unwrap() {
                "type" => json!("memory-backend-file"),
                "mem-path" if asked["arguments"]["path"] == "/objects/c" => json!(self.second),
                "mem-path" => {
                    let asked = asked["arguments"]["path"].as_str().unwrap();
                    let added = self.added.iter().flat_map(|it| it.lock().unwrap().clone());
                    let mut added = added.filter(|it| asked == format!("/objects/{}", it[1]));
                    added.next().map_or(json!(self.path), |it| json!(it[2]))
                }
                "size" => json!(DEVICE),
                _ => json!(true),
            },
            "qom-set" => {
                let bytes = asked["arguments"]["value"].as_u64().unwrap();
                self.requested.store(bytes, Ordering::Relaxed);
                self.plug(bytes.max(self.keeps.load(Ordering::Relaxed)));
                json!({})
            }
            "object-add" => {
                self.widened.fetch_add(1, Ordering::Relaxed);
                let text = |name: &str| asked["arguments"][name].as_str().unwrap().to_owned();
                if let Some(added) = &self.added {
                    added.lock().unwrap().push([String::new(), text("id"), text("mem-path")]);
                }
                json!({})
            }
            "device_add" => {
                let id = asked["arguments"]["id"].as_str().unwrap().to_owned();
                if let Some(added) = &self.added {
                    added.lock().unwrap().last_mut().unwrap()[0] = id;
                }
                json!({})
            }
            _ => json!({}),
        }
    }
}

fn hello() -> Vec<u8> {
    let (kernel, boot) = ("6.12".into(), "1".into());
    FromGuest::Hello { version: 1, kernel, boot, block_bytes: S }.encode()
}

/// Something that an agent could say, more or less: messages with numbers of all sizes, cut, changed, or only bytes.
fn lie(random: &mut StdRng) -> Vec<u8> {
    let number = |random: &mut StdRng| match random.random_range(0..4) {
        0 => random.random_range(0..DEVICE + BOOT),
        1 => random.random::<u64>() >> random.random_range(0..64),
        _ => random.random_range(0..16) * S,
    };
    let (id, bytes, urgent) = (random.random_range(0..99), number(random), random.random());
    let wait_ms = random.random();
    let mut line = match random.random_range(0..7) {
        0 => FromGuest::Need { id, bytes, urgent, wait_ms }.encode(),
        1 => FromGuest::Give { id, bytes }.encode(),
        2 => FromGuest::Offlined { id, bytes }.encode(),
        3 => hello(),
        4 => {
            let (total_bytes, available_bytes) = (number(random), number(random));
            FromGuest::Status(Status { total_bytes, available_bytes, ..Status::default() }).encode()
        }
        5 => vec![b'x'; random.random_range(1..5000)],
        _ => (0..random.random_range(1..300)).map(|_| random.random()).collect(),
    };
    match random.random_range(0..4) {
        0 => line.truncate(random.random_range(0..=line.len())),
        1 => line[0] = random.random(),
        _ => {}
    }
    line
}

/// Lies until it is told to stop, as fast as it can; now and then hears what it is told.
fn fuzz(mut agent: UnixStream, seed: u64, stop: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    agent.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    agent.set_nonblocking(false).unwrap();
    agent.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    while !stop.load(Ordering::Relaxed) {
        // What the driver does not take in time is left unsaid, half a line perhaps.
        let _ = agent.write(&lie(&mut random));
        if random.random_ratio(1, 64) {
            let _ = agent.read(&mut [0; 4096]);
        }
    }
}

#[test]
fn an_agent_that_lies_and_floods_takes_nothing_and_keeps_nobody_waiting() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    let listener = driven.listener("agent");
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    let stop = Arc::new(AtomicBool::new(false));
    let (agent, is_over) = (listener.accept().unwrap().0, stop.clone());
    let liar = thread::spawn(move || fuzz(agent, 7, &is_over));
    driven.until("lies are counted", |view| {
        view.ignored_messages + driven.shared.notes().garbled > 100
    });
    let start = Instant::now();
    let mut reached = 0;
    // It is waited for it to say that its memory is online, each time.
    while start.elapsed() < Duration::from_secs(3)
        || (reached < 4 && start.elapsed() < Duration::from_secs(60))
    {
        let to_bytes = BOOT + S * (reached % 8);
        let (outcome, took) = driven.order(to_bytes);
        // It may break off what shrinks it, and grow as far as it may.
        assert!(!matches!(outcome.end, End::Lost(_)), "{outcome:?}");
        reached += u64::from(outcome.end == End::Reached);
        assert!(took < Duration::from_secs(5), "{took:?} for {outcome:?}");
        let (usage, view) = (driven.shared.pool.usage(), driven.view());
        assert!(usage.used_bytes <= DEVICE);
        assert!(view.size_bytes <= Some(BOOT + DEVICE), "{view:?}");
        assert!(qemu.requested.load(Ordering::Relaxed) <= usage.used_bytes);
    }
    assert!(reached > 3, "{reached} orders reached their aim");
    assert!(driven.shared.notes().has_said_ignored, "no line for the operator");
    stop.store(true, Ordering::Relaxed);
    liar.join().unwrap();
}

#[test]
fn an_agent_that_is_gone_is_not_waited_for() {
    let driven = Driven::new();
    Qemu::start(&driven);
    let listener = driven.listener("agent");
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    let mut agent = listener.accept().unwrap().0;
    agent.write_all(&hello()).unwrap();
    let total_bytes = BOOT - S;
    let status = Status { total_bytes, available_bytes: S, ..Status::default() };
    agent.write_all(&FromGuest::Status(status).encode()).unwrap();
    driven.until("a status", |view| view.status.is_some() && view.kernel.is_some());
    // Nobody listens either, so that it is not the next connection that makes it forget.
    let path = driven.folder.path().join("agent");
    std::fs::remove_file(&path).unwrap();
    agent.shutdown(std::net::Shutdown::Both).unwrap();
    driven.until("no agent", |view| view.status.is_none() && view.kernel.is_none());
    // It connects again by itself.
    agent = driven.listener("agent").accept().unwrap().0;
    agent.write_all(&hello()).unwrap();
    driven.until("the agent again", |view| view.kernel.is_some());
}

/// Whatever the one before said.
#[test]
fn an_agent_that_was_started_anew_is_greeted_anew() {
    let driven = Driven::new();
    driven.shared.notes().has_said_ignored = true;
    let agent = driven.listener("agent").accept().unwrap().0;
    agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hellos =
        BufReader::new(agent).lines().filter(|line| line.as_ref().unwrap().contains("hello"));
    assert_eq!(hellos.take(2).count(), 2);
}

#[test]
fn a_guest_that_keeps_its_memory_is_left_alone_for_a_while() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    assert_eq!(driven.order(BOOT + 8 * S).0.end, End::Reached);
    assert!(!share::holder(&driven.shared, &driven.view()).is_fixed);
    qemu.keeps.store(8 * S, Ordering::Relaxed);
    assert_eq!(driven.order(BOOT).0.end, End::Partial);
    let view = driven.view();
    assert_eq!(view.kept_bytes, 8 * S);
    assert!(share::holder(&driven.shared, &view).is_fixed);
}

#[test]
fn a_guest_is_not_asked_for_what_it_booted_with() {
    let driven = Driven::new();
    let least = |boot_bytes| {
        share::holder(&driven.shared, &View { boot_bytes, ..View::default() }).least_bytes
    };
    let configured = settings().least_bytes;
    assert_eq!([0, configured + S].map(least), [configured, configured + S]);
}

#[test]
fn a_guest_is_not_made_larger_than_it_can_become() {
    let driven = Driven::new();
    let most = |ceiling_bytes| {
        share::holder(&driven.shared, &View { ceiling_bytes, ..View::default() }).most_bytes
    };
    let configured = settings().most_bytes;
    assert_eq!([configured - S, configured].map(most), [configured - S, configured]);
}

#[test]
fn a_guest_that_stalls_for_a_fiftieth_of_its_time_is_pressed() {
    let stalls = |stalled_us| share::is_pressed(&View { stalled_us, ..View::default() }, 500);
    assert!(!stalls(10_000) && stalls(11_000));
    let reads = |refaults| share::is_pressed(&View { refaults, ..View::default() }, 500);
    assert!(!reads(1024) && reads(1025));
}

#[test]
fn a_vm_that_is_libvirts_now_gives_back_what_its_qemu_had() {
    let libvirt = |folder: &Path| Way::Libvirt {
        domain: "vm".into(),
        socket: Some(folder.join("no-libvirt")),
    };
    let held = Mutex::new(None);
    let driven = Driven::by(libvirt, |pool| {
        pool.create("vm", GuestFile::Boot, 2 * S).unwrap();
        let path = pool.create("vm", GuestFile::Device(1), DEVICE).unwrap();
        pool.reserve("vm", 1, S).unwrap();
        *held.lock().unwrap() = Some(std::fs::File::open(path).unwrap());
    });
    let problem = |holds: &dyn Fn(&str) -> bool| {
        driven.until("a problem", |_| driven.shared.notes().problem.as_deref().is_some_and(holds));
    };
    // Its former QEMU runs on.
    problem(&|line| line.contains("its former QEMU has to end first"));
    assert_eq!(driven.shared.pool.usage().used_bytes, 3 * S);
    *held.lock().unwrap() = None;
    driven.until("an empty pool", |_| driven.shared.pool.usage().guests.is_empty());
    assert_eq!(driven.shared.pool.usage().used_bytes, 0);
    problem(&|line| line.contains("libvirt") && !line.contains("former"));
}

#[test]
fn a_vm_that_was_libvirts_is_not_counted_any_more() {
    let monitor = |folder: &Path| Way::Monitor(folder.join("qmp"));
    let driven = Driven::by(monitor, |pool| {
        pool.count("vm", 0, 2 * S).unwrap();
        pool.count("vm", 1, S).unwrap();
    });
    driven.until("an empty pool", |_| driven.shared.pool.usage().guests.is_empty());
}

#[test]
fn a_vm_that_starts_anew_is_offered_a_further_device_again() {
    let driven = Driven::new();
    let first = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    let larger = Settings { most_bytes: BOOT + 2 * DEVICE, ..settings() };
    driven.wishes.send(Wish::Settings(larger)).unwrap();
    driven.until("a try", |_| first.widened.load(Ordering::Relaxed) == 1);
    // The VM ends, and is started as before.
    std::fs::remove_file(driven.folder.path().join("qmp")).unwrap();
    first.hangs_up.store(true, Ordering::Relaxed);
    driven.until("detached", |view| view.size_bytes.is_none());
    let second = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    driven.until("another try", |_| second.widened.load(Ordering::Relaxed) == 1);
}

#[test]
fn what_lies_ready_is_ready_once_whatever_the_devices() {
    let driven = Driven::new();
    let second = driven.shared.pool.create("vm", GuestFile::Device(2), DEVICE).unwrap();
    driven.shared.notes().ready_bytes = 4 * S;
    Qemu::with(&driven, Some(second));
    let larger = Settings { most_bytes: BOOT + 2 * DEVICE, ..settings() };
    driven.wishes.send(Wish::Settings(larger)).unwrap();
    let ready = |device: u8| {
        let usage = driven.shared.pool.usage();
        usage.guests["vm"].devices.get(&device).map_or(0, |it| it.ready_bytes)
    };
    driven.until("four sections to be ready", |_| ready(1) == 4 * S);
    assert_eq!(ready(2), 0);
    assert_eq!(driven.shared.pool.usage().guests["vm"].ready_bytes(), 4 * S);
}

#[test]
fn a_reload_takes_an_auto_that_has_changed_and_no_other() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("spillwayd.toml");
    let read = |auto: bool| {
        let dir = folder.path().display();
        let text = format!(
            "[listen]\ndir = \"{dir}\"\n[sections]\ncapacity = \"1G\"\ndir = \"{dir}/pool\"\n\
             [[vm]]\nname = \"vm\"\nauto = {auto}\n[[vm]]\nname = \"other\"\nauto = false\n"
        );
        std::fs::write(&file, text).unwrap();
        crate::config::read(Some(&file), &[]).unwrap()
    };
    let (on, off) = (read(true), read(false));
    let prepared = super::start::Prepared::new(&on).unwrap().unwrap();
    let handle = prepared.handle();
    let _vms = prepared.start(None).unwrap();
    let has_auto = || handle.vms().map(|vm| vm.guest().settings().auto).collect::<Vec<_>>();
    let becomes = |auto: bool, what: &str| {
        let start = Instant::now();
        while has_auto() != [auto, false] {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}: {:?}", has_auto());
            thread::sleep(Duration::from_millis(2));
        }
    };
    handle.configure(&on.vms, &off.vms);
    becomes(false, "the file says off");
    handle.wish(0, Wish::Auto(true));
    becomes(true, "the operator says on");
    handle.configure(&off.vms, &off.vms);
    thread::sleep(Duration::from_millis(200));
    becomes(true, "the operator's word stays");
    handle.configure(&off.vms, &on.vms);
    handle.wish(0, Wish::Auto(false));
    becomes(false, "the operator says off");
}

#[test]
fn what_lay_ready_for_a_vm_that_has_ended_is_free() {
    let driven = Driven::new();
    driven.shared.notes().ready_bytes = 4 * S;
    let qemu = Qemu::start(&driven);
    let ready = || driven.shared.pool.usage().guests["vm"].ready_bytes();
    driven.until("four sections to be ready", |_| ready() == 4 * S);
    std::fs::remove_file(driven.folder.path().join("qmp")).unwrap();
    qemu.hangs_up.store(true, Ordering::Relaxed);
    driven.until("nothing is ready", |view| view.size_bytes.is_none() && ready() == 0);
    let held = std::fs::metadata(&qemu.path).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&held), 0);
}

#[test]
fn a_reload_takes_what_else_has_changed() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("spillwayd.toml");
    let read = |weight: u32, ready: &str| {
        let dir = folder.path().display();
        let text = format!(
            "[listen]\ndir = \"{dir}\"\n[sections]\ncapacity = \"1G\"\ndir = \"{dir}/pool\"\n\
             [[vm]]\nname = \"vm\"\nweight = {weight}\nready = \"{ready}\"\n"
        );
        std::fs::write(&file, text).unwrap();
        crate::config::read(Some(&file), &[]).unwrap()
    };
    let (before, after) = (read(1, "0"), read(7, "256M"));
    let prepared = super::start::Prepared::new(&before).unwrap().unwrap();
    let handle = prepared.handle();
    handle.configure(&before.vms, &after.vms);
    let notes = handle.vms().next().unwrap().notes().clone();
    assert_eq!((notes.weight, notes.ready_bytes), (7, 256 << 20));
}

#[test]
fn a_guest_that_may_have_as_much_more_once_again_gets_a_device_once_again() {
    let driven = Driven::new();
    let qemu = Qemu::that_takes(&driven, None, Some(Mutex::default()));
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    for devices in 2..=3 {
        let larger = Settings { most_bytes: BOOT + devices * DEVICE, ..settings() };
        driven.wishes.send(Wish::Settings(larger)).unwrap();
        driven.until("a further device", |view| view.ceiling_bytes == BOOT + devices * DEVICE);
        assert_eq!(qemu.widened.load(Ordering::Relaxed), devices - 1);
    }
}

#[test]
fn nothing_is_made_ready_while_a_guest_plugs_by_itself() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    assert_eq!(driven.order(BOOT + S).0.end, End::Reached);
    driven.shared.notes().ready_bytes = 2 * S;
    driven.wishes.send(Wish::Settings(settings())).unwrap();
    let ready = || driven.shared.pool.usage().guests["vm"].ready_bytes();
    driven.until("two sections to be ready", |_| ready() == 2 * S);
    qemu.reset();
    driven.until("the reset to be seen", |view| view.size_bytes == Some(BOOT));
    // For longer than the driver waits for a change that it finds under way.
    thread::sleep(Duration::from_millis(1500));
    let held = std::fs::metadata(&qemu.path).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&held), 0, "the guest plugs there");
    // It has plugged what it was to have.
    qemu.plug(S);
    qemu.lacks.store(0, Ordering::Relaxed);
    driven.wishes.send(Wish::Settings(settings())).unwrap();
    driven.until("what lies ready again", |view| view.size_bytes == Some(BOOT + S) && ready() != 0);
}

#[test]
fn what_a_guest_works_on_is_told_by_the_size_that_its_status_is_of() {
    let driven = Driven::new();
    let working_mib = |size_mib: u64, status_size_mib: u64, available_mib: u64| {
        let status = Status { available_bytes: available_mib << 20, ..Status::default() };
        let view = View {
            size_bytes: Some(size_mib << 20),
            status_size_bytes: status_size_mib << 20,
            status: Some(status),
            ..View::default()
        };
        share::holder(&driven.shared, &view).working_bytes.map(|bytes| bytes >> 20)
    };
    let reserve_mib = settings().reserve_bytes >> 20;
    assert_eq!(working_mib(1024, 512, 300), Some(512 - 300 + reserve_mib), "it has grown since");
    assert_eq!(working_mib(512, 1024, 600), Some(1024 - 600 + reserve_mib), "it has shrunk since");
}

#[test]
fn a_difference_is_from_the_size_of_now_and_not_from_the_last_that_was_read() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    for (wanted, to) in [(Wanted::Grow(S), 3 * S), (Wanted::Shrink(S), S)] {
        assert_eq!(driven.order(BOOT + 6 * S).0.end, End::Reached);
        // Sizes are read once more soon after a change, and then once a second.
        thread::sleep(Duration::from_millis(100));
        qemu.change(2 * S);
        let (outcome, _) = driven.wish(wanted);
        assert_eq!(outcome.order.to_bytes, BOOT + to, "{wanted:?} {outcome:?}");
        assert_eq!(outcome.from_bytes, BOOT + 2 * S, "{outcome:?}");
    }
}

#[test]
fn what_a_guest_asks_for_or_offers_is_from_the_size_of_now() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    assert_eq!(driven.order(BOOT + 8 * S).0.end, End::Reached);
    let agent = driven.listener("agent").accept().unwrap().0;
    agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (&agent).write_all(&hello()).unwrap();
    driven.until("the agent", |view| view.kernel.is_some());
    let mut lines = BufReader::new(agent.try_clone().unwrap()).lines();
    let need = FromGuest::Need { id: 2, bytes: S, urgent: true, wait_ms: 0 };
    for (wish, now, then) in [
        (FromGuest::Give { id: 1, bytes: 2 * S }, 4, 2),
        (need, 6, 7),
        (FromGuest::Give { id: 3, bytes: S }, 5, 4),
    ] {
        // Sizes are read once more soon after a change, and then once a second.
        thread::sleep(Duration::from_millis(100));
        qemu.change(now * S);
        (&agent).write_all(&wish.encode()).unwrap();
        let answer = lines.by_ref().map(Result::unwrap).find(|line| line.contains("answer"));
        let answer = answer.unwrap();
        assert_eq!(driven.view().size_bytes, Some(BOOT + then * S), "{wish:?} {answer}");
    }
}

#[test]
fn a_change_that_the_vm_tells_of_is_seen_at_once() {
    let driven = Driven::new();
    let qemu = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    assert_eq!(driven.order(BOOT + 6 * S).0.end, End::Reached);
    thread::sleep(Duration::from_millis(100));
    let mut took = Vec::new();
    for size in [4 * S, 3 * S, 2 * S] {
        qemu.change(size);
        let data = serde_json::json!({ "id": "m", "size": size });
        qemu.tell(&serde_json::json!({ "event": "MEMORY_DEVICE_SIZE_CHANGE", "data": data }));
        let start = Instant::now();
        driven.until("the change", |view| view.size_bytes == Some(BOOT + size));
        took.push(start.elapsed());
    }
    // Without being told the driver looks once a second.
    assert!(took.iter().any(|it| *it < Duration::from_millis(400)), "{took:?}");
}

#[test]
fn a_problem_is_over_once_the_vm_answers() {
    let driven = Driven::new();
    let notes = || driven.shared.notes().clone();
    driven.until("no VM", |_| notes().is_absent && notes().problem.is_some());
    Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    assert_eq!((notes().is_absent, notes().problem), (false, None));
}

#[test]
fn windows_end_with_a_reset_and_when_the_vm_is_out_of_reach() {
    let (place, mut hears) = Place::new("client".into(), "no-channel".into()).unwrap();
    let monitor = |folder: &Path| Way::Monitor(folder.join("qmp"));
    let driven = Driven::having(monitor, |_| {}, Some(place));
    let qemu = Qemu::start(&driven);
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    assert_eq!(driven.order(BOOT + S).0.end, End::Reached);
    let mut rings = move || hears.read(&mut [0; 64]).unwrap_or(0);
    assert!(rings() > 0, "another VM");
    assert_eq!(rings(), 0);
    let rings = std::cell::RefCell::new(rings);
    qemu.reset();
    driven.until("windows to end with the reset", |_| rings.borrow_mut()() > 0);
    driven.until("the reset", |view| view.size_bytes == Some(BOOT));
    std::fs::remove_file(driven.folder.path().join("qmp")).unwrap();
    qemu.hangs_up.store(true, Ordering::Relaxed);
    driven.until("detached", |view| view.size_bytes.is_none());
    driven.until("windows to end with the VM", |_| rings.borrow_mut()() > 0);
}

#[test]
fn a_guest_that_waits_for_memory_that_others_have_is_told_of_at_once() {
    let monitor = |folder: &Path| Way::Monitor(folder.join("qmp"));
    let driven = Driven::by(monitor, |pool| {
        pool.create("other", GuestFile::Boot, DEVICE - S).unwrap();
    });
    Qemu::start(&driven);
    let listener = driven.listener("agent");
    driven.until("attached", |view| view.size_bytes == Some(BOOT));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let is_hungry = |time_ms| {
        runtime.block_on(async {
            let time = Duration::from_millis(time_ms);
            tokio::time::timeout(time, driven.shared.hunger.notified()).await.is_ok()
        })
    };
    let mut agent = listener.accept().unwrap().0;
    agent.write_all(&hello()).unwrap();
    let (total_bytes, kernel_free_bytes) = (BOOT, BOOT);
    let status = Status { total_bytes, kernel_free_bytes, ..Status::default() };
    agent.write_all(&FromGuest::Status(status).encode()).unwrap();
    driven.until("a status", |view| view.status.is_some());
    assert!(!is_hungry(1));
    let need = FromGuest::Need { id: 1, bytes: 8 * S, urgent: true, wait_ms: 0 };
    agent.write_all(&need.encode()).unwrap();
    assert!(is_hungry(30_000), "{:?}", driven.view());
}
