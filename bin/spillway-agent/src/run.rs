//! The agent's loop: one thread that polls for the host, for programs, for the worker and for the kernel's alarm, and looks at
//! memory in between.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::PollFd;
use spillway_guests::agent::{FromGuest, FromHost, INTERVALS_MS, Profile, Status, VERSION};
use spillway_guests::call::Reply;
use spillway_types::Size;

use crate::blocks::{Blocks, State, Wish};
use crate::cli::Run;
use crate::high::High;
use crate::hurry::Hurry;
use crate::mover::Mover;
use crate::notify::Manager;
use crate::overcommit;
use crate::port::{News, Port, readable, wait};
use crate::programs::{CALL_TIME, NEED_TIME, Programs, Wanted};
use crate::reclaim::{Idle, Reclaimer};
use crate::rights;
use crate::system::System;
use crate::watch::{Ask, SAMPLES_EVERY, Sample, Terms, Watch};

/// How often the slower files of /proc are read while there is plenty; else with every sample that is not a quick one.
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// How often memory blocks are counted, where nothing says that they changed.
const BLOCKS_EVERY: Duration = Duration::from_secs(5);
/// How often new memory is looked at that the host waits to hear of.
const ARRIVAL_EVERY: Duration = Duration::from_millis(4);
/// How long the host may take for what is offline, until the kernel's grace periods are as long as ever.
const TAKEN_TIME: Duration = Duration::from_secs(1);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Runs the agent.
///
/// # Errors
/// This is no guest in which an agent could do anything: the line says what is missing.
pub fn run(options: &Run) -> anyhow::Result<ExitCode> {
    let mut ends = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|it| ends.add(it));
    ends.thread_block()?;
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    rights::take(&options.root);
    let mut agent = Agent::new(options)?;
    rights::give_up();
    agent.mover.ready().context("the worker does not start")?;
    let mut manager = Manager::of_this_process();
    manager.ready();
    while !matches!(ends.read_signal(), Ok(Some(_))) {
        manager.alive(agent.start.elapsed());
        let timeout = agent.turn();
        agent.sleep(&ends, timeout);
    }
    Ok(ExitCode::SUCCESS)
}

/// Who has asked the host for something.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Watch,
    Program(u64),
}

/// Blocks that the host wants offline.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: u64,
    wanted_bytes: u64,
    since: Duration,
    until: Duration,
}

/// New memory that the host waits to hear of.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    id: u64,
    wanted_bytes: u64,
    until: Duration,
    /// When it is looked at again.
    next: Duration,
}

/// What is counted of the devices' memory blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    at: Duration,
    /// MemTotal then: it changes with every block.
    total: u64,
    offline: u64,
    movable: u64,
}

struct Agent {
    start: Instant,
    system: System,
    blocks: Blocks,
    port: Port,
    programs: Programs,
    mover: Mover,
    hurry: Hurry,
    /// None where there is no such control group yet.
    high: Option<High>,
    group: Option<Group>,
    root: PathBuf,
    keep_overcommit: bool,
    /// None where the kernel can't be told to drop page cache.
    reclaimer: Option<Reclaimer>,
    idle: Idle,
    /// Since the first hello.
    watch: Option<Watch>,
    /// The host has said hello on the connection that is open now.
    is_greeted: bool,
    profile: Option<Profile>,
    interval: Duration,
    status_at: Duration,
    sample_at: Duration,
    /// The last sample, whose slow parts are taken again after some time.
    sample: Sample,
    slow_at: Duration,
    counted: Counted,
    job: Option<Job>,
    arrival: Option<Arrival>,
    asked: HashMap<u64, (Duration, Origin, Ask)>,
    next_id: u64,
}

impl Agent {
    fn new(options: &Run) -> anyhow::Result<Self> {
        let system = System::open(&options.root).context("the kernel's files")?;
        let blocks = Blocks::open(&options.root).context("a kernel without memory hotplug")?;
        let programs = Programs::listen(&options.socket)
            .with_context(|| format!("{}", options.socket.display()))?;
        let group = Group::of(options);
        let high = group.as_ref().and_then(|group| {
            let opened = group.open();
            if let Err(error) = &opened {
                let name = group.name.display();
                eprintln!(
                    "spillway-agent: control group {name}: {error}; until it is there, polling alone watches the reserve"
                );
            }
            opened.ok()
        });
        Ok(Self {
            start: Instant::now(),
            system,
            blocks,
            port: Port::new(&options.port, &options.root),
            programs,
            mover: Mover::new(&options.root)?,
            hurry: Hurry::open(&options.root, &options.state.path),
            high,
            group,
            root: options.root.clone(),
            keep_overcommit: options.keep_overcommit,
            reclaimer: Reclaimer::open(&options.root),
            idle: Idle::new(Duration::ZERO),
            watch: None,
            is_greeted: false,
            profile: None,
            interval: Duration::from_secs(1),
            status_at: Duration::ZERO,
            sample_at: Duration::ZERO,
            sample: Sample::default(),
            slow_at: Duration::ZERO,
            counted: Counted::default(),
            job: None,
            arrival: None,
            asked: HashMap::new(),
            next_id: 1,
        })
    }

    /// Does all that is due; gives the time until more is.
    fn turn(&mut self) -> Duration {
        let now = self.start.elapsed();
        let mut news = Vec::new();
        self.port.go_on(now, |it| news.push(it));
        for news in news {
            match news {
                News::Said(message) => self.hear(now, message),
                News::Gone => self.host_is_gone(now),
            }
        }
        self.mover.go_on(now);
        self.hurry.look(now);
        self.look_at_job(now);
        self.look_at_arrival(now);
        self.hear_programs(now);
        let alarm = self.high.as_mut().is_some_and(|high| high.alarm(now));
        if let Some(watch) = self.watch.as_mut().filter(|_| alarm) {
            watch.alarm();
        }
        if self.watch.is_some() && (alarm || now >= self.sample_at) {
            self.sample(now);
        }
        if self.is_greeted && now >= self.status_at {
            self.status_at = now + self.interval;
            if self.port.is_flushed() {
                let status = self.status(now);
                self.port.say(&FromGuest::Status(status));
            }
        }
        self.asked.retain(|_, (since, _, _)| now < *since + 2 * CALL_TIME);
        let due = [
            self.watch.as_ref().map(|_| self.sample_at),
            self.is_greeted.then_some(self.status_at),
            self.port.deadline(),
            self.mover.deadline(),
            self.hurry.deadline(),
            self.job.map(|job| job.until),
            self.arrival.map(|arrival| arrival.next),
            self.programs.deadline(),
        ];
        let next = due.into_iter().flatten().min().unwrap_or(now + SLEEP_MAX);
        next.saturating_sub(self.start.elapsed()).min(SLEEP_MAX)
    }

    fn sleep(&self, ends: &SignalFd, timeout: Duration) {
        let mut waits: Vec<PollFd<'_>> = vec![readable(ends)];
        waits.extend(self.port.interest());
        waits.extend(self.high.as_ref().map(High::interest));
        let worker = self.mover.output();
        waits.extend(worker.as_ref().map(readable));
        waits.extend(self.programs.interest());
        wait(&mut waits, timeout);
    }

    fn hear(&mut self, now: Duration, message: FromHost) {
        match message {
            FromHost::Hello { version, interval_ms, reserve_bytes, most_bytes, profile } => {
                if version != VERSION {
                    eprintln!(
                        "spillway-agent: the host speaks version {version}, this is {VERSION}"
                    );
                }
                let interval = interval_ms.clamp(*INTERVALS_MS.start(), *INTERVALS_MS.end());
                self.interval = Duration::from_millis(interval.into());
                let block = self.blocks.bytes();
                self.greet(now, Terms { reserve: reserve_bytes, most: most_bytes, block }, profile);
            }
            FromHost::Offline { id, bytes, timeout_ms } => {
                let until = now + Duration::from_millis(timeout_ms.into());
                self.start_job(now, Job { id, wanted_bytes: bytes, since: now, until });
            }
            // It has taken what it wanted.
            FromHost::Online => {
                self.end_job(now);
                self.hurry.end();
                self.bring_online(now, Wish::Movable);
            }
            FromHost::Report { id } => {
                let status = self.status(now);
                self.port.say(&FromGuest::Status(status));
                self.port.say(&FromGuest::Reported { id });
                self.status_at = now + self.interval;
            }
            FromHost::Arrive { id, bytes, timeout_ms } => {
                let until = now + Duration::from_millis(timeout_ms.into());
                self.arrival = Some(Arrival { id, wanted_bytes: bytes, until, next: now });
            }
            FromHost::Answer { id, granted_bytes, why } => {
                self.answered(now, id, granted_bytes, why)
            }
        }
    }

    fn greet(&mut self, now: Duration, terms: Terms, profile: Profile) {
        let is_new = self.watch.as_ref().is_none_or(|watch| watch.terms() != terms);
        if !self.is_greeted || is_new {
            let (reserve, most) = (Size(terms.reserve), Size(terms.most));
            eprintln!(
                "spillway-agent: the host says hello: keep {reserve} free, take {most} at most"
            );
        }
        match &mut self.watch {
            // A busy host says hello again and again: what was seen so far still holds.
            Some(watch) if !is_new => watch.greeted(now, self.is_greeted),
            _ => {
                self.watch = Some(Watch::new(terms, now));
                self.sample = Sample::default();
            }
        }
        (self.is_greeted, self.status_at, self.sample_at) = (true, now, now);
        let (kernel, boot) = self.system.identity();
        self.port.say_nothing();
        let block_bytes = terms.block;
        self.port.say(&FromGuest::Hello { version: VERSION, kernel, boot, block_bytes });
        if self.profile == Some(profile) {
            return;
        }
        if !self.keep_overcommit {
            allow_large_mappings(&self.root);
        }
        match self.blocks.go_online(profile) {
            Ok((said, stayed_offline)) => {
                eprintln!("spillway-agent: {said}");
                self.profile = Some(profile);
                if stayed_offline {
                    let returns_all = profile == Profile::ReturnsAll;
                    self.bring_online(now, if returns_all { Wish::Movable } else { Wish::Online });
                }
            }
            Err(error) => {
                eprintln!("spillway-agent: new memory does not go online by itself: {error}")
            }
        }
    }

    fn host_is_gone(&mut self, now: Duration) {
        if std::mem::take(&mut self.is_greeted) {
            eprintln!("spillway-agent: the host is gone; waits for it");
        }
        for (_, (_, origin, _)) in self.asked.drain() {
            if let Origin::Program(client) = origin {
                self.programs.answer(now, client, 0, Some("the host is gone".into()));
            }
        }
        (self.job, self.arrival) = (None, None);
        self.mover.stop();
        self.hurry.end();
        if let Some(high) = &mut self.high {
            high.raise();
        }
    }

    /// Sets blocks offline, as far as the reserve allows.
    fn start_job(&mut self, now: Duration, job: Job) {
        self.end_job(now);
        let list = self.count(now);
        let block = self.blocks.bytes();
        let missing = job.wanted_bytes.saturating_sub(self.counted.offline).div_ceil(block);
        let reserve = self.watch.as_ref().map_or(0, |watch| watch.terms().reserve);
        let spare = self.system.meminfo().available.saturating_sub(reserve) / block;
        let wanted = usize::try_from(missing.min(spare)).unwrap_or(usize::MAX);
        let movable = list.into_iter().filter(|(_, state)| *state == State::Movable);
        self.hurry.begin(job.until + TAKEN_TIME);
        self.mover.start(now, wanted, movable.map(|(number, _)| (number, Wish::Offline)));
        self.job = Some(job);
        self.look_at_job(now);
    }

    /// Answers the host once it is done, or its time is over.
    fn look_at_job(&mut self, now: Duration) {
        let Some(job) = self.job else { return };
        if self.watch.as_ref().is_some_and(Watch::is_short) {
            self.mover.stop();
        }
        if self.mover.is_idle() || now >= job.until {
            self.end_job(now);
        }
    }

    /// Tells the host once its new memory is online, or that it does not get there.
    fn look_at_arrival(&mut self, now: Duration) {
        let Some(arrival) = self.arrival.filter(|it| now >= it.next) else { return };
        let bytes = self.blocks.online_within(&self.system.virtio_mem());
        if bytes < arrival.wanted_bytes && now < arrival.until {
            // Where there are many blocks, the look itself takes its time.
            let took = self.start.elapsed().saturating_sub(now);
            let next = (now + ARRIVAL_EVERY.max(4 * took)).min(arrival.until);
            self.arrival = Some(Arrival { next, ..arrival });
            return;
        }
        self.arrival = None;
        self.port.say(&FromGuest::Arrived { id: arrival.id, bytes });
    }

    fn end_job(&mut self, now: Duration) {
        self.mover.stop();
        let Some(job) = self.job.take() else { return };
        self.count(now);
        let bytes = self.counted.offline;
        self.port.say(&FromGuest::Offlined { id: job.id, bytes });
        let (wanted, ms) = (Size(job.wanted_bytes), (self.start.elapsed() - job.since).as_millis());
        let busy = match self.mover.failed() {
            0 => String::new(),
            count => format!(", {count} blocks are in use"),
        };
        eprintln!("spillway-agent: offline: {} of {wanted}, after {ms} ms{busy}", Size(bytes));
    }

    fn bring_online(&mut self, now: Duration, wish: Wish) {
        let mut offline = self.list();
        // One that was broken off may still change.
        offline.retain(|(_, state)| matches!(state, State::Offline | State::Changing));
        if offline.is_empty() {
            return;
        }
        let bytes = Size(offline.len() as u64 * self.blocks.bytes());
        eprintln!("spillway-agent: brings {bytes} online again");
        // The lowest first: virtio-mem unplugs from the top.
        self.mover.start(now, offline.len(), offline.into_iter().rev().map(|(it, _)| (it, wish)));
    }

    fn answered(&mut self, now: Duration, id: u64, granted: u64, why: Option<String>) {
        let (Some((since, origin, ask)), Some(watch)) = (self.asked.remove(&id), &mut self.watch)
        else {
            return;
        };
        let (Ask::Need { bytes, .. } | Ask::Give { bytes }) = ask;
        // Growing rounds up to blocks, so it may be a little more.
        let granted = granted.min(bytes.saturating_add(self.blocks.bytes()));
        match origin {
            Origin::Watch => {
                watch.answered(now, ask, granted);
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                let what = match ask {
                    Ask::Need { urgent: true, .. } => "needs at once",
                    Ask::Need { .. } => "needs soon",
                    Ask::Give { .. } => "can give back",
                };
                let (bytes, granted) = (Size(bytes), Size(granted));
                let ms = (now - since).as_millis();
                eprintln!("spillway-agent: {what} {bytes}, granted {granted} after {ms} ms{why}");
            }
            Origin::Program(client) => {
                self.programs.answer(now, client, granted, why);
            }
        }
    }

    fn hear_programs(&mut self, now: Duration) {
        let Self { programs, system, watch, is_greeted, counted, .. } = self;
        let wanted = programs.go_on(now, || {
            let mut status = system.status();
            status.offline_bytes = counted.offline;
            let reserve_bytes = watch.as_ref().map_or(0, |watch| watch.terms().reserve);
            Reply::Status { host: *is_greeted, reserve_bytes, status }
        });
        for Wanted { client, ask } in wanted {
            let possible = self.watch.as_ref().map_or(0, Watch::possible_now);
            let why = match ask {
                _ if !self.is_greeted => "the host is not there",
                Ask::Need { .. } if possible == 0 => {
                    "the guest holds as much as the host allows, or as its kernel can describe"
                }
                Ask::Need { bytes, urgent } => {
                    let bytes = bytes.min(possible);
                    self.ask(now, Ask::Need { bytes, urgent }, Origin::Program(client));
                    continue;
                }
                Ask::Give { .. } => {
                    self.ask(now, ask, Origin::Program(client));
                    continue;
                }
            };
            self.programs.answer(now, client, 0, Some(why.into()));
        }
    }

    fn ask(&mut self, now: Duration, ask: Ask, origin: Origin) {
        let id = self.next_id;
        self.next_id += 1;
        self.asked.insert(id, (now, origin, ask));
        self.port.say(&match ask {
            Ask::Need { bytes, urgent } => {
                let wait = if let Origin::Program(_) = origin { NEED_TIME } else { Duration::ZERO };
                FromGuest::Need { id, bytes, urgent, wait_ms: wait.as_millis() as u32 }
            }
            Ask::Give { bytes } => FromGuest::Give { id, bytes },
        });
    }

    fn sample(&mut self, now: Duration) {
        let memory = self.system.meminfo();
        let reserve = self.watch.as_ref().map_or(0, |watch| watch.terms().reserve);
        let has_plenty = memory.available > 4 * reserve;
        let every = if has_plenty { SLOW_EVERY } else { *SAMPLES_EVERY.end() };
        // With its size, its limits change.
        let is_slow = memory.total != self.sample.total || now >= self.slow_at + every;
        (self.sample.total, self.sample.available) = (memory.total, memory.available);
        self.sample.cached = memory.cached.saturating_sub(memory.shared);
        // Where idle cache is dropped, the rest is in use; else that is not known.
        let part = if self.reclaimer.is_some() { 1 } else { 2 };
        self.sample.used_cache = self.sample.cached / part;
        if is_slow {
            self.slow_at = now;
            if memory.total != self.counted.total || now >= self.counted.at + BLOCKS_EVERY {
                self.count(now);
            }
            let counters = self.system.vmstat();
            self.sample = Sample {
                kernel_free: self.system.zones().free,
                returnable: self.counted.movable,
                stalled_us: self.system.stalled_us(),
                refaults: counters.refaults,
                swap_ins: counters.swap_ins,
                ..self.sample
            };
        }
        if is_slow {
            self.drop_idle(now, memory.swap_total > 0);
        }
        let Some(watch) = &mut self.watch else { return };
        let ask = watch.sample(now, self.sample);
        self.sample_at = now + watch.next();
        match ask {
            Some(ask) if self.is_greeted => self.ask(now, ask, Origin::Watch),
            // Nobody takes what is offline: it is used again.
            Some(Ask::Need { .. }) if self.mover.is_idle() => self.bring_online(now, Wish::Movable),
            _ => {}
        }
        if self.high.is_none() && is_slow {
            // systemd makes user.slice when the first user comes.
            self.high = self.group.as_ref().and_then(|group| group.open().ok());
        }
        if let Some(high) = self.high.as_mut().filter(|_| is_slow && self.is_greeted) {
            high.follow(now, memory.available, reserve);
        }
    }

    /// Drops page cache that nobody reads, so that the memory can be given back.
    fn drop_idle(&mut self, now: Duration, has_swap: bool) {
        let (Some(reclaimer), Some(watch)) = (&mut self.reclaimer, &self.watch) else { return };
        match reclaimer.ended() {
            Some(Ok(bytes)) => self.idle.dropped(bytes),
            // It found no more, or was interrupted.
            Some(Err(_)) => said(self.idle.pause(now)),
            None => {}
        }
        let (step, dropped) = self.idle.step(now, &self.sample, &watch.terms());
        said(dropped);
        let is_free = self.is_greeted && self.mover.is_idle() && self.asked.is_empty();
        let Some(bytes) = step.filter(|_| is_free && reclaimer.is_idle()) else { return };
        if let Err(error) = reclaimer.start(bytes, has_swap) {
            eprintln!("spillway-agent: idle page cache is not dropped: {error}");
            self.reclaimer = None;
        }
    }

    fn status(&mut self, now: Duration) -> Status {
        let mut status = self.system.status();
        if status.total_bytes != self.counted.total {
            self.count(now);
        }
        status.offline_bytes = self.counted.offline;
        status
    }

    fn list(&mut self) -> Vec<(u64, State)> {
        self.blocks.within(&self.system.virtio_mem())
    }

    /// Counts the blocks, and lists them.
    fn count(&mut self, now: Duration) -> Vec<(u64, State)> {
        let total = self.system.meminfo().total;
        let list = self.list();
        let bytes = |wanted| {
            let count = list.iter().filter(|(_, state)| *state == wanted).count();
            count as u64 * self.blocks.bytes()
        };
        let (offline, movable) = (bytes(State::Offline), bytes(State::Movable));
        self.counted = Counted { at: now, total, offline, movable };
        list
    }
}

/// The control group that must not use up the reserve.
#[derive(Debug)]
struct Group {
    root: PathBuf,
    name: PathBuf,
    kept: PathBuf,
}

impl Group {
    /// None where the agent is to watch no group.
    fn of(options: &Run) -> Option<Self> {
        let (root, name) = (options.root.clone(), options.cgroup.clone());
        (name.as_os_str() != "none").then(|| Self { root, name, kept: options.state.path.clone() })
    }

    fn open(&self) -> std::io::Result<High> {
        High::open(&self.root, &self.name, &self.kept)
    }
}

/// A program may map more than the guest has now: the memory comes when it is touched.
fn allow_large_mappings(root: &Path) {
    match overcommit::allow(root) {
        Ok(true) => eprintln!(
            "spillway-agent: vm.overcommit_memory is 1 now: at 0 a mapping larger than the guest is refused, though the guest can grow"
        ),
        Ok(false) => {}
        Err(error) => eprintln!("spillway-agent: vm.overcommit_memory stays as it is: {error}"),
    }
}

/// A line about page cache that was dropped, before a pause.
fn said(dropped: u64) {
    if dropped > 0 {
        let size = Size(dropped);
        eprintln!("spillway-agent: dropped {size} of page cache that was not read; pauses");
    }
}
