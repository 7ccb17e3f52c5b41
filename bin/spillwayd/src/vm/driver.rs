//! A VM's thread: waits for the monitor, the agent, orders and timers, passes events to the state machine, and executes
//! its actions.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_guests::{Action, Event, Order, OrderId, Outcome};
use tokio::sync::oneshot;

use crate::vm::agent::Channel;
use crate::vm::attached::Attached;
use crate::vm::shared::{Shared, Wish};

mod actions;
mod channel;
mod memory;
#[cfg(test)]
mod tests;

/// Until what is out of reach is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait, so that the end of the daemon is seen.
const LOOK: Duration = Duration::from_millis(500);
/// How soon after a change the guest is looked at again, microseconds.
const AFTER_US: u64 = 20_000;

pub struct Driver {
    shared: Arc<Shared>,
    wishes: Receiver<Wish>,
    /// Becomes readable when a wish has come.
    bell: UnixStream,
    started: Instant,
    attached: Option<Attached>,
    channel: Option<Channel>,
    /// When what is out of reach is tried again.
    try_monitor_at: Instant,
    try_agent_at: Instant,
    read_at_us: u64,
    /// The size of a further device that was tried.
    refused_bytes: u64,
    told: HashMap<OrderId, oneshot::Sender<Outcome>>,
    next_order: OrderId,
}

/// Orders of others are numbered apart from those of the state machine.
const FIRST_ORDER: OrderId = 1 << 32;

impl Driver {
    pub fn new(shared: Arc<Shared>, wishes: Receiver<Wish>, bell: UnixStream) -> Self {
        let now = Instant::now();
        Self {
            shared,
            wishes,
            bell,
            started: now,
            attached: None,
            channel: None,
            try_monitor_at: now,
            try_agent_at: now,
            read_at_us: 0,
            refused_bytes: 0,
            told: HashMap::new(),
            next_order: FIRST_ORDER,
        }
    }

    /// Runs until the daemon ends.
    pub fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.wait();
            self.hear_wishes();
            self.look_at_monitor();
            self.look_at_agent();
            if self.now_us() >= self.read_at_us {
                self.read_sizes();
            }
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Waits until something comes, or something is due.
    fn wait(&self) {
        let now = Instant::now();
        let now_us = self.now_us();
        let until_read = Duration::from_micros(self.read_at_us.saturating_sub(now_us));
        let until_try = self.try_monitor_at.saturating_duration_since(now);
        let longest = longest_wait(self.attached.is_none().then_some(until_try), until_read);
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        let monitor = self.attached.as_ref().map(AsFd::as_fd);
        fds.extend(monitor.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if let Some(channel) = &self.channel {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, channel.has_waiting());
            flags.set(PollFlags::IN, !channel.is_over());
            // One that is closed would wake at once, whatever it is asked for.
            if !flags.is_empty() {
                fds.push(PollFd::from_borrowed_fd(channel.as_fd(), flags));
            }
        }
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&longest));
    }

    fn hear_wishes(&mut self) {
        let mut rings = [0; 64];
        // Its bytes say nothing; what counts is in the channel.
        while matches!(std::io::Read::read(&mut self.bell, &mut rings), Ok(count) if count > 0) {}
        while let Ok(wish) = self.wishes.try_recv() {
            match wish {
                Wish::Auto(auto) => self.tell(Event::Auto(auto)),
                Wish::Settings(settings) => {
                    self.tell(Event::Settings(settings));
                    self.read_sizes();
                }
                Wish::Size { wanted, who, roll_back, force, told } => {
                    self.read_sizes();
                    self.next_order += 1;
                    let id = self.next_order;
                    let size = self.shared.guest().view().size_bytes.unwrap_or_default();
                    let to_bytes = wanted.from(size);
                    self.told.extend(told.map(|told| (id, told)));
                    self.tell(Event::Order(Order { id, who, to_bytes, roll_back, force }));
                }
            }
        }
    }

    fn look_at_monitor(&mut self) {
        match &mut self.attached {
            None if Instant::now() >= self.try_monitor_at => self.attach(),
            None => {}
            Some(attached) => match attached.look() {
                Err(why) => self.detach(why),
                Ok(seen) => {
                    if let Some(windows) = &self.shared.windows {
                        windows.look(seen.resets > 0, seen.is_migrating);
                    }
                    for _ in 0..seen.resets {
                        self.tell(Event::Reset);
                    }
                    if seen.has_changed {
                        self.read_at_us = 0;
                    }
                }
            },
        }
    }

    fn attach(&mut self) {
        self.try_monitor_at = Instant::now() + RETRY;
        if let Err(error) = self.forget_other_way() {
            return self.note_problem(format!("{error:#}"));
        }
        match Attached::connect(&self.shared.name, &self.shared.way, &self.shared.pool) {
            Ok((mut attached, facts)) => {
                self.find_memory(&mut attached, facts.boot_bytes);
                let (size, name) = (facts.size_bytes(), &self.shared.name);
                tracing::info!("vm {name}: attached, {}", spillway_types::Size(size));
                self.note_absent(false);
                self.shared.notes().problem = None;
                self.attached = Some(attached);
                self.refused_bytes = 0;
                self.tell(Event::Attached(facts));
                self.read_at_us = 0;
            }
            Err(error) => {
                let seen = error.downcast_ref::<spillway_qmp::Error>();
                self.note_absent(matches!(seen, Some(spillway_qmp::Error::Absent { .. })));
                self.note_problem(error.to_string());
                self.take_back();
            }
        }
    }

    fn detach(&mut self, why: String) {
        self.attached = None;
        if let Some(windows) = &self.shared.windows {
            windows.renew(None);
        }
        self.try_monitor_at = Instant::now() + RETRY;
        self.tell(Event::Detached(why.clone()));
        self.note_problem(why);
    }

    fn note_absent(&self, is_absent: bool) {
        self.shared.notes().is_absent = is_absent;
    }

    /// A line for each new problem, not for each try.
    fn note_problem(&self, problem: String) {
        let mut notes = self.shared.notes();
        if notes.problem.as_ref() != Some(&problem) {
            tracing::warn!("vm {}: {problem}", self.shared.name);
            notes.problem = Some(problem);
        }
    }

    fn read_sizes(&mut self) {
        self.read_at_us = u64::MAX;
        let read = self.attached.as_mut().map(Attached::sizes);
        match read {
            None => self.tell(Event::Tick),
            Some(Ok(sizes)) => {
                self.tell(Event::Read(sizes.clone()));
                self.widen();
                self.keep_ready(&sizes);
            }
            Some(Err(why)) => self.detach(why),
        }
    }

    /// Tells the state machine, and carries out what it wants, in order.
    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.shared.guest().handle(self.now_us(), event, &mut actions);
        let mut next = 0;
        while next < actions.len() {
            let answer = self.carry_out(actions[next].clone());
            next += 1;
            if let Some(answer) = answer {
                self.shared.guest().handle(self.now_us(), answer, &mut actions);
            }
        }
        let now_us = self.now_us();
        let has_ended = actions.iter().any(|action| matches!(action, Action::Done(_)));
        let guest = self.shared.guest();
        let wake_at_us = guest.wake_at_us(now_us);
        self.read_at_us = next_reading(self.read_at_us, now_us, has_ended, wake_at_us);
        if guest.wanted_bytes() > 0 {
            self.shared.hunger.notify_one();
        }
    }
}

/// How long the driver waits for what comes by itself: at most until it tries a VM that is out of reach again, or else until sizes
/// are to be read.
fn longest_wait(until_try: Option<Duration>, until_read: Duration) -> Duration {
    LOOK.min(until_try.unwrap_or(until_read))
}

/// When sizes are read next, microseconds. After a change that is soon: what the guest may be given next is made ready before it
/// asks. A guest that says something all the while does not put the reading off.
fn next_reading(read_at_us: u64, now_us: u64, has_ended: bool, wake_at_us: u64) -> u64 {
    read_at_us.min(if has_ended { now_us + AFTER_US } else { wake_at_us })
}
