//! The manager: answers the guest's faults, and keeps its memory within its target.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use spillway_platform::uffd::Message;
use spillway_tiers::PageBuf;

use crate::busy::Busy;
use crate::guest::{Fatal, Guest};
use crate::map::{Counter, Mark, PageLocation};
use crate::regions::Run;
use crate::steps::{self, Answered, World};

/// Most pages that leave together.
const WINDOW: u64 = 64;
/// While an event is unread, no page can leave. A fault retries this many times, with this pause, before it exceeds
/// the target.
const TRIES: u32 = 100;
const TRY_PAUSE: Duration = Duration::from_micros(200);
/// Pause of all evictions after one that freed nothing.
const STUCK_PAUSE: Duration = Duration::from_millis(20);
/// Part of the target that is kept free ahead of need, and its minimum in windows.
const FREE_PART: u64 = 32;
const FREE_WINDOWS: u64 = 2;
/// Interval of checks for the manager's end, and of memory measurements.
const TICK: Duration = Duration::from_millis(50);
/// Interval at which the tiers are tended.
const TEND: Duration = Duration::from_secs(1);
/// Longest time that the removal of a range waits for its pages in progress.
const REMOVE_WAIT: Duration = Duration::from_secs(60);

/// Settings of a manager.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most bytes that the guest's memory may take.
    pub local_bytes: u64,
    /// Threads that answer faults.
    pub handlers: usize,
}

/// The reason why a manager ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest's process ended.
    Monitor,
    /// All pages were brought back on request.
    Left,
    /// Its supervisor is gone.
    Orphaned,
    /// It can't continue with this guest.
    Fatal(Fatal),
}

/// Prints a line for the user.
type Say = dyn Fn(&str) + Send + Sync;

/// The manager of a guest.
pub struct Manager {
    guest: Guest,
    settings: Settings,
    say: Box<Say>,
    /// Held while a message is read and, if it is an event, until it is processed.
    event_lock: Mutex<()>,
    busy: Busy,
    eviction_buffers: Mutex<EvictionBuffers>,
    low: Condvar,
    low_lock: Mutex<()>,
    stop: AtomicBool,
    leaving: AtomicBool,
    stuck_until_ns: AtomicU64,
    refused: AtomicBool,
    fatal: Mutex<Option<Fatal>>,
}

/// The buffers of the thread that evicts.
struct EvictionBuffers {
    pages: Vec<PageBuf>,
    places: Vec<PageLocation>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The monotonic clock, which all processes share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Manager {
    /// A manager, which does nothing yet.
    pub fn new(
        guest: Guest,
        settings: Settings,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let pages = vec![PageBuf::ZERO; WINDOW as usize];
        let eviction_buffers =
            EvictionBuffers { pages, places: vec![PageLocation::Near; WINDOW as usize] };
        Self {
            guest,
            settings,
            say: Box::new(say),
            event_lock: Mutex::default(),
            busy: Busy::default(),
            eviction_buffers: Mutex::new(eviction_buffers),
            low: Condvar::new(),
            low_lock: Mutex::default(),
            stop: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            stuck_until_ns: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            fatal: Mutex::new(None),
        }
    }

    /// Continues from where another manager stopped, until the guest ends (`monitor` becomes readable), the
    /// supervisor ends (`supervisor` becomes readable), or the map requests the end.
    pub fn run(&self, monitor: &OwnedFd, supervisor: &OwnedFd) -> Ending {
        if let Err(fatal) = steps::recover(&self.guest) {
            return Ending::Fatal(fatal);
        }
        self.is_ready();
        thread::scope(|scope| {
            for _ in 0..self.settings.handlers {
                scope.spawn(|| self.answer_faults());
            }
            if self.guest.pages_out() {
                scope.spawn(|| self.evict_ahead());
            }
            let ending = self.watch(monitor, supervisor);
            self.stop.store(true, Ordering::Relaxed);
            self.guest.far().stop_waiting();
            ending
        })
    }

    fn is_ready(&self) {
        let map = self.guest.map();
        let died = map.mark(Mark::DiedNs);
        if died != 0 {
            let took = now_ns().saturating_sub(died);
            map.count_max(Counter::TakeOverMax, took);
            map.set_mark(Mark::DiedNs, 0);
            self.say(&format!("a successor took over after {:.1} ms", took as f64 / 1e6));
        }
        map.set_mark(Mark::Ready, map.mark(Mark::Ready) + 1);
    }

    fn say(&self, line: &str) {
        (self.say)(line);
    }

    /// The main thread.
    fn watch(&self, monitor: &OwnedFd, supervisor: &OwnedFd) -> Ending {
        let mut tended = Instant::now();
        let mut down = false;
        loop {
            if let Some(fatal) = lock(&self.fatal).take() {
                return if fatal == Fatal::Gone { Ending::Monitor } else { Ending::Fatal(fatal) };
            }
            if is_readable(monitor) {
                return Ending::Monitor;
            }
            if is_readable(supervisor) {
                return Ending::Orphaned;
            }
            if self.guest.map().mark(Mark::Leave) != 0 && self.leave() {
                return Ending::Left;
            }
            if tended.elapsed() >= TEND {
                tended = Instant::now();
                self.guest.far().tend();
                self.tell_of_tiers(&mut down);
            }
            self.measure();
            thread::sleep(TICK);
        }
    }

    fn tell_of_tiers(&self, down: &mut bool) {
        let is_down = self.guest.far().is_down();
        if is_down != *down {
            self.say(if is_down {
                "the blade does not answer: the guest waits for pages on it, for --blade-loss-timeout"
            } else {
                "the blade answers again"
            });
            *down = is_down;
        }
        if let Some(why) = self.guest.far().take_disk_error() {
            self.say(&format!("the disk tier takes no more ({why}): free space in --disk"));
        }
    }

    fn measure(&self) -> u64 {
        let resident = self.guest.resident();
        self.guest.map().count_max(Counter::ResidentMax, resident);
        resident
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records why the manager can't continue. The main thread then ends it.
    fn give_up(&self, fatal: Fatal) {
        lock(&self.fatal).get_or_insert(fatal);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The main function of a handler.
    fn answer_faults(&self) {
        let mut page = vec![0; self.guest.layout().unit_bytes() as usize];
        while !self.stops() {
            let claimed = {
                let _event_lock = lock(&self.event_lock);
                match self.next_fault() {
                    Ok(claimed) => claimed,
                    Err(fatal) => return self.give_up(fatal),
                }
            };
            let Some((unit, protected)) = claimed else { continue };
            if let Err(fatal) = self.answer(unit, protected, &mut page) {
                return self.give_up(fatal);
            }
            let run = Run::one(unit);
            if self.busy.release(run)
                && let Err(fatal) = self.guest.wake(run)
            {
                return self.give_up(fatal);
            }
        }
    }

    /// Waits for a message, while the caller holds the event lock. Processes an event before it returns. Returns the
    /// unit of a fault that this handler must answer, and whether the unit is write-protected.
    fn next_fault(&self) -> Result<Option<(u64, bool)>, Fatal> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        let mut polled = [PollFd::from_borrowed_fd(self.guest.events(), PollFlags::IN)];
        if !poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return Ok(None);
        }
        let message = match self.guest.receive() {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => {
                thread::sleep(TICK);
                return Ok(None);
            }
        };
        match message {
            Message::Fault { address, protected, .. } => {
                let Some(unit) = self.guest.layout().unit_of(address as u64) else {
                    self.say(&format!("a fault at {address:#x}, outside all regions: SIGBUS"));
                    self.guest.refuse(address);
                    return Ok(None);
                };
                // If the unit is busy, the thread that works on it wakes the faulting one, which faults again.
                Ok(self.busy.claim(unit).then_some((unit, protected)))
            }
            event => {
                self.follow(event)?;
                Ok(None)
            }
        }
    }

    fn follow(&self, event: Message) -> Result<(), Fatal> {
        let (start, end) = match event {
            Message::Remove { .. } => {
                return steps::follow_removal(&self.guest, |run| {
                    // Pages in progress are placed before the contents are discarded.
                    self.busy.wait_free(run, REMOVE_WAIT);
                    self.guest.map().count(Counter::Removed, run.count);
                });
            }
            Message::Unmap { start, end } => (start, end),
            Message::Remap { from, bytes, .. } => (from, from + bytes),
            _ => return Ok(()),
        };
        self.guest.leave(start as u64, end as u64);
        self.say(&format!(
            "the monitor unmapped or moved guest memory at {start:#x}: that region's pages stay where they are"
        ));
        Ok(())
    }

    fn answer(&self, unit: u64, protected: bool, page: &mut [u8]) -> Result<(), Fatal> {
        let map = self.guest.map();
        if protected {
            map.count(Counter::WriteFaults, 1);
            return self.guest.release(Run::one(unit));
        }
        self.make_room()?;
        match steps::bring_in(&self.guest, unit, page)? {
            Answered::Fetched => map.count(Counter::Fetches, 1),
            Answered::First => map.count(Counter::FirstTouches, 1),
            Answered::Lost => {
                map.count(Counter::Lost, 1);
                self.say(&format!("page {unit} of the guest is lost: touching it is a SIGBUS"));
            }
            Answered::There | Answered::Later => {}
        }
        Ok(())
    }

    /// Makes room for one more page, unless no page can leave.
    fn make_room(&self) -> Result<(), Fatal> {
        if !self.guest.pages_out() {
            return Ok(());
        }
        // Each handler may be about to place a page.
        let slack = self.settings.handlers as u64 * self.guest.layout().unit_bytes();
        let most = self.settings.local_bytes.saturating_sub(slack);
        let mut tries = 0;
        loop {
            let resident = self.measure();
            if resident + slack > self.goal() {
                self.low.notify_one();
            }
            if resident <= most || !self.evicts() || tries == TRIES {
                return Ok(());
            }
            if !self.evict_window(most)? {
                tries += 1;
                thread::sleep(TRY_PAUSE);
            }
        }
    }

    /// The size to which eviction ahead of need reduces the guest's memory.
    fn goal(&self) -> u64 {
        let local = self.settings.local_bytes;
        let free =
            (local / FREE_PART).max(FREE_WINDOWS * WINDOW * self.guest.layout().unit_bytes());
        local.saturating_sub(free)
    }

    /// Whether an eviction is worth trying now.
    fn evicts(&self) -> bool {
        !self.leaving.load(Ordering::Relaxed)
            && now_ns() >= self.stuck_until_ns.load(Ordering::Relaxed)
    }

    /// The evictor: makes room ahead of need.
    fn evict_ahead(&self) {
        while !self.stops() {
            while !self.stops() && self.evicts() && self.measure() > self.goal() {
                match self.evict_window(self.goal()) {
                    Ok(true) => {}
                    Ok(false) => thread::sleep(TRY_PAUSE),
                    Err(fatal) => return self.give_up(fatal),
                }
            }
            let waited = self.low.wait_timeout(lock(&self.low_lock), TICK);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Evicts the next window of pages if the guest's memory takes more than `most` bytes; false if no page of the
    /// window left. If all tiers are full, or no page can leave, evictions pause for [`STUCK_PAUSE`].
    fn evict_window(&self, most: u64) -> Result<bool, Fatal> {
        let mut buffers = lock(&self.eviction_buffers);
        // Another thread may have evicted every page meanwhile: then there is no reason to pause.
        if self.measure() <= most {
            return Ok(true);
        }
        let Some(run) = self.next_victims()? else {
            self.pause();
            return Ok(false);
        };
        let EvictionBuffers { pages, places } = &mut *buffers;
        let evicted = steps::evict(&self.guest, run, pages, places)?;
        if self.busy.release(run) {
            self.guest.wake(run)?;
        }
        let Some((left, refused)) = evicted else { return Ok(false) };
        let map = self.guest.map();
        map.count(Counter::Evictions, left);
        map.count(Counter::Refusals, refused);
        if left == 0 && refused > 0 {
            self.tell_refusal();
            self.pause();
        } else if refused == 0 && self.refused.swap(false, Ordering::Relaxed) {
            self.say("pages leave again");
        }
        Ok(left > 0)
    }

    fn pause(&self) {
        let pause = STUCK_PAUSE.as_nanos() as u64;
        self.stuck_until_ns.store(now_ns() + pause, Ordering::Relaxed);
    }

    fn tell_refusal(&self) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            let above = self.guest.resident().saturating_sub(self.goal());
            self.say(&format!(
                "the store takes no more: {} stay above --local; raise --store or give --disk",
                spillway_types::Size(above)
            ));
        }
    }

    /// Claims the next window of pages in the guest's memory, cyclically.
    fn next_victims(&self) -> Result<Option<Run>, Fatal> {
        let map = self.guest.map();
        let mut from = map.mark(Mark::Hand);
        let mut turned = false;
        loop {
            let Some(run) = self.guest.present(from)? else {
                if turned {
                    return Ok(None);
                }
                (turned, from) = (true, 0);
                continue;
            };
            let run = Run { count: run.count.min(WINDOW), ..run };
            match self.busy.claim_run(run) {
                Some(claimed) => {
                    map.set_mark(Mark::Hand, claimed.end());
                    return Ok(Some(claimed));
                }
                None => from = run.first + 1,
            }
        }
    }

    /// Brings every page in and releases the guest; false if it must be retried.
    fn leave(&self) -> bool {
        self.leaving.store(true, Ordering::Relaxed);
        // Waits until the thread that evicts has finished its window.
        drop(lock(&self.eviction_buffers));
        let mut page = vec![0; self.guest.layout().unit_bytes() as usize];
        for unit in 0..self.guest.layout().units() {
            if let Err(fatal) = self.bring_back(unit, &mut page) {
                self.give_up(fatal);
                return false;
            }
        }
        match self.guest.unregister() {
            Ok(()) => true,
            Err(errno) => {
                self.say(&format!("can't release the guest's memory ({errno})"));
                self.guest.map().set_mark(Mark::Leave, 0);
                self.leaving.store(false, Ordering::Relaxed);
                false
            }
        }
    }

    /// Brings one page in, if the guest would miss it without a manager.
    fn bring_back(&self, unit: u64, page: &mut [u8]) -> Result<(), Fatal> {
        let missed = || match self.guest.place(unit) {
            PageLocation::Near => !self.guest.pages_out(),
            PageLocation::Emptied => false,
            PageLocation::Store | PageLocation::Blade { .. } => true,
        };
        while missed() {
            if !self.busy.claim(unit) {
                self.busy.wait_free(Run::one(unit), TICK);
                continue;
            }
            let answered = steps::bring_in(&self.guest, unit, page);
            if self.busy.release(Run::one(unit)) {
                self.guest.wake(Run::one(unit))?;
            }
            match answered? {
                Answered::Later => thread::sleep(STUCK_PAUSE),
                Answered::Fetched => self.guest.map().count(Counter::Fetches, 1),
                // The map does not record whether a page with its initial contents is present.
                Answered::Lost | Answered::First | Answered::There => return Ok(()),
            }
        }
        Ok(())
    }
}

impl core::fmt::Debug for Manager {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Manager").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Whether a descriptor is readable, or its other end is closed.
fn is_readable(file: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}
