//! Windows: memory of this guest, or of its ivshmem device, in which its programs and the host's store exchange values. A
//! thread of its own lends them: it finds pages, asks the host to map them, passes them to programs, forwards wake-ups, and
//! frees no page before the host reports that it has released it. docs/adr/0030-windows-in-the-guests-memory.md explains
//! why.

mod device;
mod heard;
mod holder;
mod lent;
mod memory;
mod pages;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use rustix::process::setpriority_process;
use spillway_guests::window::{FromGuest, FromHost, PORT, VERSION, WINDOWS_MAX};
use spillway_wire::ring::{Geometry, PART_VERSION, Reason, WINDOW_PAGES_MAX};

use crate::options::Run;
use crate::parse;
use crate::port::{News, Port, readable, wait};
use device::Device;
use heard::Heard;
pub use holder::hold;
pub use lent::Borrower;
use lent::Lent;
use memory::{HeldMemory, Memory};
use pages::{PAGE_BYTES, Pages, random, run_name};

/// Most huge pages of all windows together, and of one user. Only the first limit applies to root. A device may have
/// as many pages in addition.
const PAGES_MAX: u64 = 64;
const PAGES_OF_USER_MAX: usize = 16;
/// Windows take at most this part of the guest's memory.
const MEMORY_PART: u64 = 8;
/// How long the host may take to answer a program's request.
const OPEN_TIME: Duration = Duration::from_secs(5);
/// How long the agent waits at its end for the host to release windows.
const END_TIME: Duration = Duration::from_secs(2);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Handle of the thread.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    bell: UnixStream,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    wishes: Mutex<VecDeque<Borrower>>,
    is_ending: AtomicBool,
}

impl Handle {
    /// Passes a program that wants a window to the thread.
    pub fn lend(&self, borrower: Borrower) {
        self.shared.wishes.lock().unwrap_or_else(PoisonError::into_inner).push_back(borrower);
        self.ring();
    }

    /// Ends all windows, and waits a while for the host to release them.
    pub fn end(self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.ring();
        // A panic was reported already.
        let _ = self.thread.join();
    }

    fn ring(&self) {
        // When it is full, the thread will wake anyway.
        let _ = (&self.bell).write(&[0]);
    }
}

/// The thread's state.
pub struct Windows {
    shared: Arc<Shared>,
    bell: UnixStream,
    start: Instant,
    port: Port<FromHost>,
    memory: Memory,
    run: String,
    /// Exists from the first window on. When it closes, the holder knows that the agent has ended.
    holder: Option<UnixStream>,
    /// Most pages of all windows.
    pages_max: usize,
    lent: BTreeMap<u64, Lent>,
    next: u64,
    was_up: bool,
    /// Identifies the last hello, until the host has answered it.
    nonce: Option<u64>,
    is_clear: bool,
    /// Windows below this number ended with the last hello.
    first: u64,
    last_problem: String,
}

impl Windows {
    /// Opens what needs privileges. None if windows are impossible, which is logged.
    pub fn open(options: &Run) -> Option<(Self, UnixStream)> {
        if options.hugetlbfs.as_os_str() == "none" {
            return None;
        }
        let opened = Self::try_open(options);
        if let Err(error) = &opened {
            eprintln!("spillway-agent: no windows for programs: {error}");
        }
        opened.ok()
    }

    fn try_open(options: &Run) -> io::Result<(Self, UnixStream)> {
        let (run, root, mount) = (run_name()?, &options.root, &options.hugetlbfs);
        let devices = Device::find_all(root, options.ivshmem_uid).unwrap_or_else(|error| {
            eprintln!("spillway-agent: no windows in the ivshmem device: {error}");
            Vec::new()
        });
        let pages = Pages::open(root, mount, run.clone())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", mount.display())));
        let pages = match pages {
            Ok(pages) => Some(pages),
            Err(error) if devices.is_empty() => return Err(error),
            Err(error) => {
                eprintln!("spillway-agent: no windows in guest memory: {error}");
                None
            }
        };
        let memory = Memory { pages, devices, used: None };
        let meminfo = fs::read_to_string(root.join("proc/meminfo"))?;
        let part = parse::meminfo(&meminfo).total / MEMORY_PART / PAGE_BYTES;
        let (bell, hears) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        hears.set_nonblocking(true)?;
        let port = Port::new(&options.windows_port, root, PORT, FromHost::decode);
        let windows = Self {
            shared: Arc::default(),
            bell: hears,
            start: Instant::now(),
            port,
            memory,
            run,
            holder: None,
            pages_max: PAGES_MAX.min(part) as usize,
            lent: BTreeMap::new(),
            next: 0,
            was_up: false,
            nonce: None,
            is_clear: false,
            first: 0,
            last_problem: String::new(),
        };
        Ok((windows, bell))
    }

    /// Starts the thread, without privileges.
    pub fn start((windows, bell): (Self, UnixStream)) -> Option<Handle> {
        let shared = windows.shared.clone();
        let thread = thread::Builder::new().name("windows".into());
        match thread.spawn(move || windows.go_on()) {
            Ok(thread) => Some(Handle { shared, bell, thread }),
            Err(error) => {
                eprintln!("spillway-agent: no windows for programs: {error}");
                None
            }
        }
    }

    fn go_on(mut self) {
        // Resets the priority of this thread only: programs that wake the host repeatedly must not take CPU time from
        // others.
        let _ = setpriority_process(None, 0);
        let mut until = None;
        loop {
            let now = self.start.elapsed();
            if self.shared.is_ending.load(Ordering::Relaxed) {
                let until = *until.get_or_insert(now + END_TIME);
                (self.first, self.is_clear) = (self.next, false);
                self.close_old();
                // The next agent releases the remaining pages; until then the holder holds them.
                if self.lent.is_empty() || now >= until {
                    return;
                }
            }
            self.turn(now);
            self.sleep(now);
        }
    }

    fn turn(&mut self, now: Duration) {
        let mut rings = [0; 64];
        while matches!(io::Read::read(&mut self.bell, &mut rings), Ok(count) if count > 0) {}
        let mut news = Vec::new();
        self.port.go_on(now, |it| news.push(it));
        let is_free = self.port.is_up() && self.port.is_flushed();
        if is_free && !std::mem::replace(&mut self.was_up, true) {
            self.greet();
        }
        for news in news {
            match news {
                News::Said(said) => self.hear(said),
                News::Gone => {
                    self.was_up = false;
                    self.end_all();
                }
            }
        }
        let wishes =
            std::mem::take(&mut *self.shared.wishes.lock().unwrap_or_else(PoisonError::into_inner));
        for borrower in wishes {
            self.lend(now, borrower);
        }
        self.hear_programs(now);
    }

    fn sleep(&self, now: Duration) {
        let mut waits: Vec<PollFd<'_>> = vec![readable(&self.bell)];
        waits.extend(self.port.interest());
        waits.extend(self.lent.values().filter_map(Lent::interest));
        waits.extend(self.memory.interest());
        let due = self.lent.values().filter_map(Lent::deadline).chain(self.port.deadline()).min();
        let due = due.unwrap_or(now + SLEEP_MAX).saturating_sub(self.start.elapsed());
        wait(&mut waits, due.min(SLEEP_MAX));
    }

    /// Ends all windows. The host confirms that it has released them by answering this hello.
    fn greet(&mut self) {
        self.end_all();
        let Ok(nonce) = random() else { return };
        self.nonce = Some(nonce);
        // Ends a line that an earlier agent may have left incomplete.
        self.port.say_nothing();
        self.say(&FromGuest::Hello { version: VERSION, nonce });
    }

    /// Closes every program's window. The pages stay.
    fn end_all(&mut self) {
        (self.first, self.is_clear) = (self.next, false);
        self.lent.values_mut().for_each(Lent::end);
    }

    /// Asks the host to release windows whose programs know of the end.
    fn close_old(&mut self) {
        let mut ids = Vec::new();
        for (&id, lent) in &mut self.lent {
            if !lent.is_ending() {
                lent.end();
                ids.push(id);
            }
        }
        for id in ids {
            self.say(&FromGuest::Close { id });
        }
    }

    fn say(&mut self, said: &FromGuest) {
        if !self.port.send(&said.encode()) && self.port.is_up() {
            // The host does not read. The next hello replaces the unsent messages.
            self.was_up = false;
        }
    }

    fn hear(&mut self, said: FromHost) {
        match said {
            FromHost::Greet { version } => {
                if version != VERSION {
                    eprintln!(
                        "spillway-agent: the host's windows are of version {version}, these of {VERSION}"
                    );
                }
                self.greet();
            }
            FromHost::Cleared { nonce, device } if self.nonce == Some(nonce) => {
                self.nonce = None;
                let newer = self.lent.split_off(&self.first);
                let old = std::mem::replace(&mut self.lent, newer);
                for lent in old.into_values() {
                    self.memory.give_back(lent.into_held());
                }
                self.memory.forget_others();
                self.memory.use_device(device);
                self.is_clear = true;
                self.note_devices(device.is_some());
            }
            FromHost::Cleared { .. } => {}
            FromHost::Opened { id, depth, data_bytes, instance } => {
                self.opened(id, depth, data_bytes, instance);
            }
            FromHost::Refused { id, reason, why } => {
                if let Some(lent) = self.taken(id) {
                    let reason = Reason::of(reason).unwrap_or(Reason::Failed);
                    self.refused(lent, reason, why.as_deref());
                }
            }
            FromHost::Closed { id } => {
                if let Some(lent) = self.taken(id) {
                    self.memory.give_back(lent.into_held());
                }
            }
            FromHost::Wake { id } => {
                if let Some(lent) = self.lent.get_mut(&id).filter(|_| id >= self.first) {
                    lent.wake();
                }
            }
        }
    }

    /// A window that the host has released. Not one from before the last hello: the answer to that hello releases
    /// those.
    fn taken(&mut self, id: u64) -> Option<Lent> {
        if id < self.first && !self.shared.is_ending.load(Ordering::Relaxed) {
            return None;
        }
        self.lent.remove(&id)
    }

    /// Reports why no windows lie in the guest's device, if it or the host has one.
    fn note_devices(&mut self, host_has_one: bool) {
        let has_devices = !self.memory.devices.is_empty();
        let problem = match (host_has_one, has_devices) {
            (true, true) if self.memory.used.is_some() => return,
            (false, false) => return,
            (true, false) => {
                "the host has a file for an ivshmem device, but this guest has no such device: no windows lie there"
            }
            (true, true) => {
                "the host's ivshmem file is not the memory of this guest's device: no windows lie there"
            }
            (false, true) => {
                "this guest has an ivshmem device, but the host uses no file for it (ivshmem of [[vm]]): no windows lie there"
            }
        };
        self.note(problem.into());
    }

    fn opened(&mut self, id: u64, depth: u16, data_bytes: u32, instance: u64) {
        let Some(lent) = self.lent.get_mut(&id).filter(|_| id >= self.first) else { return };
        self.memory.hand_over(&lent.held);
        let geometry = Geometry::new(depth, data_bytes).ok();
        let is_good = geometry
            .filter(|geometry| geometry.window_pages() <= lent.held.count())
            .is_some_and(|geometry| lent.welcome(&lent.held.welcome(geometry, instance)));
        if !is_good {
            lent.end();
            self.say(&FromGuest::Close { id });
        }
    }

    /// Tells the program, or tries guest memory if the host can't map the device.
    fn refused(&mut self, lent: Lent, reason: Reason, why: Option<&str>) {
        self.note(format!("the host refuses a window: {}", why.unwrap_or(reason.text())));
        let (borrower, held) = lent.into_parts();
        let was_on_device = held.is_on_device();
        // The program does not have it yet.
        self.memory.give_back((held, None));
        let Some(borrower) = borrower else { return };
        let is_of_device = matches!(reason, Reason::NoWindows | Reason::Failed);
        if was_on_device && is_of_device && self.is_clear {
            return self.lend_from(self.start.elapsed(), borrower, Self::find_pages);
        }
        borrower.refuse(reason);
    }

    /// Finds a window for a program, and asks the host to serve it.
    fn lend(&mut self, now: Duration, borrower: Borrower) {
        self.lend_from(now, borrower, |windows, borrower, count| {
            windows
                .find_part(borrower, count)
                .map_or_else(|| windows.find_pages(borrower, count), Ok)
        });
    }

    /// [`Self::lend`] of what `find` finds.
    fn lend_from(
        &mut self,
        now: Duration,
        borrower: Borrower,
        find: impl FnOnce(&mut Self, &Borrower, usize) -> Result<HeldMemory, Reason>,
    ) {
        let found = match borrower.pages() {
            _ if !self.is_clear || self.shared.is_ending.load(Ordering::Relaxed) => {
                Err(Reason::HostAway)
            }
            None => Err(Reason::Limits),
            Some(count) => find(self, &borrower, count),
        };
        match found {
            Ok(held) => self.ask(now, borrower, held),
            Err(reason) => borrower.refuse(reason),
        }
    }

    /// Pages of the device, for the user that may have them and a program that finds them there.
    fn find_part(&mut self, borrower: &Borrower, count: usize) -> Option<HeldMemory> {
        let device = self.memory.device()?;
        let may = borrower.user == device.user && borrower.hello.version >= PART_VERSION;
        // Other users find windows too.
        let most = if borrower.user == 0 { WINDOWS_MAX } else { WINDOWS_MAX / 2 };
        let has_room = self.lent.len() < most;
        if may && has_room { self.memory.lend_part(count) } else { None }
    }

    /// Pages of the guest's memory.
    fn find_pages(&mut self, borrower: &Borrower, count: usize) -> Result<HeldMemory, Reason> {
        if !self.has_room(borrower.user, count) {
            self.note("windows have as many huge pages as they may have".into());
            return Err(Reason::NoPages);
        }
        let (holder, run) = (&mut self.holder, &self.run);
        let hold = |pins: &OwnedFd, folder: &Path| {
            if holder.is_none() {
                *holder = Some(holder::start(pins, folder, run)?);
            }
            Ok(())
        };
        self.memory.make(self.next, count, self.pages_max, hold).map_err(|error| {
            self.note(format!("no window of {count} huge pages: {error}"));
            Reason::NoPages
        })
    }

    fn ask(&mut self, now: Duration, borrower: Borrower, held: HeldMemory) {
        let id = self.next;
        self.next += 1;
        let (depth, data_bytes) = (borrower.hello.depth, borrower.hello.data_bytes);
        let place = held.place();
        self.lent.insert(id, Lent::new(borrower, held, now + OPEN_TIME));
        self.say(&FromGuest::Open { id, place, depth, data_bytes });
    }

    fn has_room(&self, user: u32, count: usize) -> bool {
        let pages = |of: &dyn Fn(&Lent) -> bool| -> usize {
            self.lent.values().filter(|lent| of(lent)).map(|lent| lent.held.guest_pages()).sum()
        };
        let is_root = user == 0;
        self.lent.len() < WINDOWS_MAX
            && pages(&|_| true) + count <= self.pages_max
            && (is_root || pages(&|lent| lent.user == user) + count <= PAGES_OF_USER_MAX)
    }

    /// Reads the programs' wake-ups and ends.
    fn hear_programs(&mut self, now: Duration) {
        self.memory.hear_programs();
        let (mut wakes, mut gone) = (Vec::new(), Vec::new());
        for (&id, lent) in &mut self.lent {
            match lent.hear(now) {
                Heard::Nothing => {}
                Heard::Wake => wakes.push(id),
                Heard::Closed | Heard::Gone => gone.push(id),
                Heard::HostSilent => {
                    lent.refuse(Reason::HostAway);
                    gone.push(id);
                }
            }
        }
        for id in wakes {
            self.say(&FromGuest::Wake { id });
        }
        for id in gone {
            if let Some(lent) = self.lent.get_mut(&id) {
                lent.end();
            }
            self.say(&FromGuest::Close { id });
        }
    }

    /// Logs each new problem once, not for each program.
    fn note(&mut self, problem: String) {
        if problem != self.last_problem {
            eprintln!("spillway-agent: {problem}");
            self.last_problem = problem;
        }
    }
}

impl Borrower {
    /// The number of huge pages for its ring; `None` if such a ring is invalid.
    fn pages(&self) -> Option<usize> {
        let geometry = Geometry::new(self.hello.depth, self.hello.data_bytes).ok()?;
        Some(geometry.window_pages()).filter(|&pages| pages <= WINDOW_PAGES_MAX)
    }
}

#[cfg(test)]
mod tests;
