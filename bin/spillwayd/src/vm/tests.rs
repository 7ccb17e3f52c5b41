//! The driver between sockets: a monitor that answers as QEMU does, and agents.

mod agents;
mod qemu;

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use spillway_guests::agent::{FromGuest, Profile, Status};
use spillway_guests::{End, Guest, Outcome, Settings, View, Who};
use spillway_sections::{GuestFile, Pool};
use spillway_test_support::wait;
use tokio::sync::oneshot;

use self::qemu::Qemu;
use super::driver::Driver;
use super::share;
use super::shared::{Shared, Wanted, WindowsShared, Wish};
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
        windows: Option<Arc<WindowsShared>>,
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
        let what = fmt::from_fn(|f| write!(f, "{what}: {:?}", self.view()));
        wait::until(what, || holds(&self.view()));
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

fn hello() -> Vec<u8> {
    let (kernel, boot) = ("6.12".into(), "1".into());
    FromGuest::Hello { version: 1, kernel, boot, block_bytes: S }.encode()
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
    problem(&|line| line.contains("its former QEMU must end first"));
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

/// Guests as the daemon prepares them, beside a store that is lent at most so much.
fn prepared(config: &crate::config::Config) -> super::start::Prepared {
    let (own_bytes, lent_bytes) = (64 << 20, config.sections.lend_bytes);
    let most = spillway_store::Config::embedded(own_bytes + lent_bytes);
    let store = spillway_store::Store::open(most).unwrap();
    let room = crate::memory::Room { own_bytes, lent_bytes };
    super::start::Prepared::new(config, &Arc::new(store), room).unwrap().unwrap()
}

#[test]
fn what_is_lent_follows_a_ready_that_a_reload_has_changed() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("spillwayd.toml");
    let read = |ready: &str| {
        let dir = folder.path().display();
        let text = format!(
            "[listen]\ndir = \"{dir}\"\n[sections]\ncapacity = \"1G\"\nlend = \"1G\"\ndir = \"{dir}/pool\"\n\
             [[vm]]\nname = \"vm\"\nready = \"{ready}\"\n[[vm]]\nname = \"other\"\nready = \"128M\"\n"
        );
        std::fs::write(&file, text).unwrap();
        crate::config::read(Some(&file), &[]).unwrap()
    };
    let (less, more) = (read("128M"), read("512M"));
    let prepared = prepared(&less);
    let handle = prepared.handle();
    let _vms = prepared.start(None).unwrap();
    let lends =
        |mib: u64| wait::until_equal("MiB that are lent", mib, || handle.pool().lent_bytes() >> 20);
    lends(768);
    handle.configure(&less.vms, &more.vms);
    lends(384);
    handle.configure(&more.vms, &less.vms);
    lends(768);
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
    let prepared = prepared(&on);
    let handle = prepared.handle();
    let _vms = prepared.start(None).unwrap();
    let has_auto = || handle.vms().map(|vm| vm.guest().settings().auto).collect::<Vec<_>>();
    let becomes = |auto: bool, what: &str| wait::until_equal(what, vec![auto, false], has_auto);
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
    let prepared = prepared(&before);
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
    let (place, mut hears) =
        WindowsShared::new("client".into(), "no-channel".into(), None).unwrap();
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
fn a_vm_whose_balloon_may_take_pages_has_no_memory_for_windows() {
    for has_balloon in [true, false] {
        let device = Some("no-device".into());
        let (place, _hears) =
            WindowsShared::new("client".into(), "no-channel".into(), device).unwrap();
        let monitor = |folder: &Path| Way::Monitor(folder.join("qmp"));
        let driven = Driven::having(monitor, |_| {}, Some(place.clone()));
        Qemu::ballooned(&driven, has_balloon);
        driven.until("attached", |view| view.size_bytes == Some(BOOT));
        let seen = *place.seen();
        assert_eq!((seen.changes, seen.memory.is_none()), (1, has_balloon));
    }
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
