//! A VM's thread for windows. The agent in the guest names guest memory, the ring's server maps it and serves its
//! requests, and wake-ups go over the channel. Nothing from the guest is trusted: an address must lie in the VM's boot
//! memory, and the client is the one that the configuration names.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_guests::window::{FromGuest, FromHost, VERSION, WINDOWS_MAX};
use spillway_ring::{Attached, Region, Server};
use spillway_sections::GuestFile;
use spillway_wire::ring::{Geometry, Hello, Reason, WAKE, WINDOW_PAGE_BYTES};

use crate::vm::agent::Channel;
use crate::vm::shared::{Seen, Shared, WindowsShared};

/// Pause before a channel is connected again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait, so that the thread notices the end of the daemon.
const LOOK: Duration = Duration::from_millis(500);
/// A window that takes longer to close is logged: a command of its ring is still running.
const SLOW_END: Duration = Duration::from_secs(5);
/// Most wake-ups per read of a window.
const WAKES_MAX: usize = 16;

/// A mapped window.
struct Window {
    ring: Attached,
    pages: Vec<u64>,
    /// When its end was requested.
    ending: Option<Instant>,
    is_slow: bool,
}

impl Window {
    /// Ends it for its program.
    fn end(&mut self) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now());
            self.ring.end();
        }
    }

    /// Ends it though its program may still be there.
    fn cut(&mut self) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now());
            self.ring.cut();
        }
    }
}

/// The thread.
pub struct Windows {
    shared: Arc<Shared>,
    place: Arc<WindowsShared>,
    server: Option<Arc<Server>>,
    bell: UnixStream,
    channel: Option<Channel>,
    try_at: Instant,
    open: BTreeMap<u64, Window>,
    /// A hello whose reply waits for the end of all windows.
    nonce: Option<u64>,
    changes: u64,
    has_said_refused: bool,
    has_said_broken: bool,
}

impl Windows {
    /// Serves windows through `server`, if there is one.
    pub fn new(
        shared: Arc<Shared>,
        place: Arc<WindowsShared>,
        server: Option<Arc<Server>>,
        bell: UnixStream,
    ) -> Self {
        Self {
            shared,
            place,
            server,
            bell,
            channel: None,
            try_at: Instant::now(),
            open: BTreeMap::new(),
            nonce: None,
            changes: 0,
            has_said_refused: false,
            has_said_broken: false,
        }
    }

    /// Runs until the daemon ends. Then ends all windows.
    pub fn run(mut self) {
        loop {
            if self.shared.stop.load(Ordering::Relaxed) {
                self.end_all();
                if self.open.is_empty() {
                    return;
                }
            }
            self.wait();
            self.look_at_vm();
            self.look_at_windows();
            self.look_at_channel();
        }
    }

    fn wait(&self) {
        let longest = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        if let Some(channel) = &self.channel {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, channel.has_waiting());
            flags.set(PollFlags::IN, !channel.is_over());
            if !flags.is_empty() {
                fds.push(PollFd::from_borrowed_fd(channel.as_fd(), flags));
            }
        }
        let sockets = self.open.values().map(|window| window.ring.socket.as_fd());
        fds.extend(sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // An interrupted wait is only shorter.
        let _ = poll(&mut fds, Some(&longest));
    }

    /// Ends all windows if the VM was reset or is gone.
    fn look_at_vm(&mut self) {
        let mut rings = [0; 64];
        while matches!(io::Read::read(&mut self.bell, &mut rings), Ok(count) if count > 0) {}
        let changes = self.place.seen().changes;
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.end_all();
        }
    }

    fn end_all(&mut self) {
        self.open.values_mut().for_each(Window::cut);
    }

    /// Forwards wake-ups to the guest, and reports windows that have ended.
    fn look_at_windows(&mut self) {
        let (mut wakes, mut ended) = (Vec::new(), Vec::new());
        for (&id, window) in &mut self.open {
            let mut byte = [0; 1];
            for _ in 0..WAKES_MAX {
                match recv(&window.ring.socket, &mut byte, RecvFlags::DONTWAIT) {
                    Ok((_, 0)) | Err(Errno::CONNRESET) => {
                        ended.push(id);
                        break;
                    }
                    Ok(_) => wakes.push(id),
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            let since = window.ending.filter(|since| since.elapsed() > SLOW_END);
            if since.is_some() && !std::mem::replace(&mut window.is_slow, true) {
                tracing::warn!(
                    "vm {}: window {id} is closing, but a command is still running: its guest waits for the pages",
                    self.shared.name
                );
            }
        }
        wakes.dedup();
        for id in wakes {
            self.tell(&FromHost::Wake { id });
        }
        for id in ended {
            let is_broken = self.open.remove(&id).is_some_and(|window| window.ring.is_broken());
            tracing::debug!("vm {}: window {id} is closed", self.shared.name);
            if is_broken && !std::mem::replace(&mut self.has_said_broken, true) {
                tracing::warn!(
                    "vm {}: a window is closed because its program violated the ring's protocol; further ones are not logged",
                    self.shared.name
                );
            }
            self.tell(&FromHost::Closed { id });
        }
        if self.open.is_empty()
            && let Some(nonce) = self.nonce.take()
        {
            self.tell(&FromHost::Cleared { nonce });
        }
    }

    fn look_at_channel(&mut self) {
        // The agent assumes that a host has nothing mapped on a new connection.
        let is_due = Instant::now() >= self.try_at && self.open.is_empty();
        if self.channel.is_none() && is_due && !self.shared.stop.load(Ordering::Relaxed) {
            self.try_at = Instant::now() + RETRY;
            // Without a VM no process listens there.
            self.channel = Channel::connect(&self.place.channel).ok();
            self.tell(&FromHost::Greet { version: VERSION });
        }
        let Some(channel) = &mut self.channel else { return };
        match channel.flush().and_then(|()| channel.read_as(FromGuest::decode)) {
            Ok(said) => {
                for said in said {
                    if self.channel.is_none() {
                        // A reply was lost: ignore the remaining messages, which would open windows without a
                        // program.
                        return;
                    }
                    self.hear(said);
                }
            }
            Err(_) => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        self.channel = None;
        self.nonce = None;
        self.try_at = Instant::now() + RETRY;
        self.end_all();
    }

    /// If a guest does not read and the buffer is full, the connection is restarted.
    fn tell(&mut self, said: &FromHost) {
        let Some(channel) = &mut self.channel else { return };
        if !matches!(channel.send(said.encode()), Ok(true)) {
            self.hang_up();
        }
    }

    fn hear(&mut self, said: FromGuest) {
        match said {
            FromGuest::Hello { nonce, .. } => {
                self.end_all();
                self.nonce = Some(nonce);
            }
            FromGuest::Open { id, pages, depth, data_bytes } => {
                let hello = Hello { version: spillway_wire::ring::VERSION, depth, data_bytes };
                match self.open_window(id, pages, hello) {
                    Ok(opened) => self.tell(&opened),
                    Err((reason, why)) => {
                        self.note_refused(reason, why.as_deref());
                        self.tell(&FromHost::Refused { id, reason: reason as u16, why });
                    }
                }
            }
            FromGuest::Close { id } => match self.open.get_mut(&id) {
                Some(window) => window.end(),
                None => self.tell(&FromHost::Closed { id }),
            },
            FromGuest::Wake { id } => {
                if let Some(window) = self.open.get(&id).filter(|it| it.ending.is_none()) {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    // A full socket contains wake-ups already.
                    let _ = send(&window.ring.socket, &[WAKE], flags);
                }
            }
        }
    }

    /// Maps and serves a window.
    fn open_window(
        &mut self,
        id: u64,
        pages: Vec<u64>,
        hello: Hello,
    ) -> Result<FromHost, (Reason, Option<String>)> {
        let refused = |why: &str| Err((Reason::NoWindows, Some(why.to_owned())));
        if self.nonce.is_some() {
            return refused("windows of an earlier agent are still being closed");
        }
        if self.open.contains_key(&id) {
            return refused("a window with this number is open");
        }
        if self.open.len() >= WINDOWS_MAX {
            return refused("the guest has the maximum number of windows");
        }
        let geometry = Geometry::new(hello.depth, hello.data_bytes);
        if !geometry.is_ok_and(|geometry| geometry.window_pages() == pages.len()) {
            return refused("the window's length differs from its ring's");
        }
        let is_taken = |page: &u64| self.open.values().any(|window| window.pages.contains(page));
        let is_twice = |(at, page): (usize, &u64)| pages[..at].contains(page) || is_taken(page);
        if pages.iter().enumerate().any(is_twice) {
            return refused("a page belongs to another window already");
        }
        let Some(server) = &self.server else {
            return refused("the daemon serves no ring (listen.ring)");
        };
        let Seen { layout, is_migrating, .. } = *self.place.seen();
        if is_migrating {
            return refused("the VM is migrating to another host");
        }
        let Some(layout) = layout else {
            return refused("the VM's monitor does not report where its memory lies");
        };
        let page_bytes = WINDOW_PAGE_BYTES as u64;
        let offsets: Option<Vec<u64>> =
            pages.iter().map(|page| layout.offset(page.checked_mul(page_bytes)?)).collect();
        let Some(offsets) = offsets else {
            return refused("a page does not lie in the VM's boot memory");
        };
        let path = self.shared.pool.path(&self.shared.name, GuestFile::Boot);
        let map = |geometry: Geometry| {
            let path = path.map_err(io::Error::other)?;
            let file = std::fs::File::options().read(true).write(true).open(path)?;
            // The client's limits may have reduced the ring.
            Region::map_guest(
                &file,
                offsets.get(..geometry.window_pages()).unwrap_or_default(),
                geometry,
            )
        };
        let ring = server.attach(&self.place.client, hello, map).map_err(|why| (why, None))?;
        let (depth, data_bytes) = (ring.geometry.depth(), ring.geometry.data_bytes());
        let instance = ring.instance;
        tracing::debug!("vm {}: window {id} is open: {} pages", self.shared.name, pages.len());
        self.open.insert(id, Window { ring, pages, ending: None, is_slow: false });
        Ok(FromHost::Opened { id, depth, data_bytes, instance })
    }

    /// Logs the first refusal; a guest that repeats the request only gets an answer.
    fn note_refused(&mut self, reason: Reason, why: Option<&str>) {
        let (name, why) = (&self.shared.name, why.unwrap_or(reason.text()));
        if std::mem::replace(&mut self.has_said_refused, true) {
            tracing::debug!("vm {name}: a window is refused: {why}");
        } else {
            tracing::warn!("vm {name}: a window is refused: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::thread::{self, JoinHandle};

    use spillway_guests::Guest;
    use spillway_sections::Pool;
    use spillway_store::{ClientConfig, Store};
    use spillway_test_support::access::OneClient;
    use spillway_types::{Identity, Limits};

    use super::*;
    use crate::config::Way;
    use crate::vm::layout::Layout;
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
            let (place, hears) = WindowsShared::new("guest".into(), path("windows")).unwrap();
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
            place.renew(Some(layout()));
            let server = Some(Arc::new(server));
            let windows = Windows::new(shared.clone(), place.clone(), server, hears);
            let thread = Some(thread::spawn(|| windows.run()));
            let (agent, _) = listener.accept().unwrap();
            agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let agent = BufReader::new(agent);
            let mut served = Self { shared, place, listener, agent, thread, _folder: folder };
            assert_eq!(served.hear(), FromHost::Greet { version: VERSION });
            served.say(&FromGuest::Hello { version: VERSION, nonce: 7 });
            assert_eq!(served.hear(), FromHost::Cleared { nonce: 7 });
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
            let pages = Geometry::new(DEPTH, DATA_BYTES).unwrap().window_pages() as u64;
            let pages = (0..pages).collect();
            self.say(&FromGuest::Open { id, pages, depth: DEPTH, data_bytes: DATA_BYTES });
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

    /// The boot memory in one piece.
    fn layout() -> Layout {
        let machine =
            |at: u64| Ok::<_, String>((at < BOOT).then(|| ("boot".to_owned(), PAGE + at)));
        Layout::find("boot", BOOT, machine).unwrap()
    }

    #[test]
    fn a_vm_that_went_while_it_moved_leaves_the_next_one_its_windows() {
        let mut served = Served::new(LIMITS);
        served.place.look(false, Some(true));
        let FromHost::Refused { why: Some(why), .. } = served.open(0) else { panic!() };
        assert!(why.contains("migrating to another host"), "{why}");
        // It ends, and another is started under its name.
        served.place.renew(None);
        served.place.renew(Some(layout()));
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
        let pages = (0..Geometry::new(DEPTH, DATA_BYTES).unwrap().window_pages() as u64).collect();
        let open = FromGuest::Open { id: 1, pages, depth: DEPTH, data_bytes: DATA_BYTES };
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
}
