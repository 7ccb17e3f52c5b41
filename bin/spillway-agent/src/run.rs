//! The agent's loop: one thread that polls the host, programs, the worker and the kernel's alarm, and samples memory in
//! between. [`Agent::turn`] does the work that is due at a given time; it reads no clock.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::PollFd;
use spillway_guests::agent::{FromGuest, FromHost, INTERVALS_MS, PORT, Profile, VERSION};
use spillway_types::Size;

use crate::blocks::{Blocks, Wish};
use crate::high::High;
use crate::hurry::Hurry;
use crate::mover::Mover;
use crate::notify::Manager;
use crate::options::Run;
use crate::port::{News, Port, readable, wait};
use crate::programs::{CALL_TIME, Programs};
use crate::reclaim::{Idle, Reclaimer};
use crate::rights;
use crate::system::System;
use crate::watch::{Ask, Sample, Terms, Watch};
use crate::window::{Handle, Windows};

mod changes;
mod group;
mod looks;
mod requests;
#[cfg(test)]
mod tests;

use changes::{Arrival, Counted, Job};
use group::{Group, allow_large_mappings};
use requests::Origin;

/// How long an unanswered request to the host is remembered.
const ASKED_TIME: Duration = Duration::from_secs(2 * CALL_TIME.as_secs());
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Runs the agent.
///
/// # Errors
/// The agent can't work in this guest; the error says what is missing.
pub fn run(options: &Run) -> anyhow::Result<ExitCode> {
    let mut ends = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|it| ends.add(it));
    ends.thread_block()?;
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    rights::take(&options.root);
    let start = Instant::now();
    let mut agent = Agent::new(options)?;
    let windows = Windows::open(options);
    rights::give_up();
    agent.mover.ready().context("the worker does not start")?;
    agent.windows = windows.and_then(Windows::start);
    let mut manager = Manager::of_this_process();
    manager.ready();
    while !matches!(ends.read_signal(), Ok(Some(_))) {
        manager.alive(start.elapsed());
        let due = agent.turn(start.elapsed());
        manager.host(agent.is_greeted);
        agent.sleep(&ends, due.saturating_sub(start.elapsed()).min(SLEEP_MAX));
    }
    if let Some(windows) = agent.windows.take() {
        windows.end();
    }
    Ok(ExitCode::SUCCESS)
}

struct Agent {
    system: System,
    blocks: Blocks,
    port: Port<FromHost>,
    programs: Programs,
    /// `None` without windows.
    windows: Option<Handle>,
    mover: Mover,
    hurry: Hurry,
    /// `None` while there is no such control group.
    high: Option<High>,
    group: Option<Group>,
    root: PathBuf,
    keep_overcommit: bool,
    /// `None` if the kernel can't drop page cache on request.
    reclaimer: Option<Reclaimer>,
    idle: Idle,
    /// `None` before the first hello.
    watch: Option<Watch>,
    /// Whether the host has sent a hello on the present connection.
    is_greeted: bool,
    profile: Option<Profile>,
    interval: Duration,
    status_at: Duration,
    sample_at: Duration,
    /// The last sample. Its slower parts are read less often.
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
                    "spillway-agent: control group {name}: {error}; until it exists, only polling watches the reserve"
                );
            }
            opened.ok()
        });
        Ok(Self {
            system,
            blocks,
            port: Port::new(&options.port, &options.root, PORT, FromHost::decode),
            programs,
            windows: None,
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

    /// Does all work that is due at this time. Returns when more is due, unless an event comes first.
    fn turn(&mut self, now: Duration) -> Duration {
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
        self.asked.retain(|_, (since, _, _)| now < *since + ASKED_TIME);
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
        due.into_iter().flatten().min().unwrap_or(now + SLEEP_MAX)
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
            // The host has taken all that it wanted.
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
            // A busy host sends its hello repeatedly: the samples so far remain valid.
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
}
