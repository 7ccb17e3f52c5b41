//! A VM's thread: it waits for the monitor, the agent, orders and time, tells the state machine, and carries out what that
//! wants.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_guests::agent::FromGuest;
use spillway_guests::{Action, End, Event, Guest, Order, OrderId, Outcome, Settings, Who};
use spillway_sections::Pool;
use tokio::sync::{Notify, oneshot};

use crate::config::Way;
use crate::vm::agent::Channel;
use crate::vm::attached::Attached;
use crate::vm::windows::Place;

/// Until what is out of reach is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait, so that the end of the daemon is seen.
const LOOK: Duration = Duration::from_millis(500);
/// How soon after a change the guest is looked at again, microseconds.
const AFTER_US: u64 = 20_000;

/// What others want of a VM.
pub enum Wish {
    /// Another size, by whoever waits to hear of it.
    Size {
        wanted: Wanted,
        who: Who,
        roll_back: bool,
        force: bool,
        told: Option<oneshot::Sender<Outcome>>,
    },
    /// Its size is to change by itself, or not.
    Auto(bool),
    /// The configuration was read again.
    Settings(Settings),
}

/// A size, or a difference from that of now; bytes.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    To(u64),
    Grow(u64),
    Shrink(u64),
}

/// What driver and status look at together.
pub struct Shared {
    pub name: String,
    pub way: Way,
    pub agent: PathBuf,
    pub pool: Arc<Pool>,
    pub guest: Mutex<Guest>,
    pub notes: Mutex<Notes>,
    pub stop: AtomicBool,
    /// Rings while a guest waits for memory that others have: it is shared out at once.
    pub hunger: Arc<Notify>,
    /// Where its programs' windows are served, if it has a client.
    pub windows: Option<Arc<Place>>,
}

/// What is counted and remembered of a VM.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Why it is out of reach, or what last went wrong.
    pub problem: Option<String>,
    /// No QEMU listens where its monitor is to be.
    pub is_absent: bool,
    pub reached: u64,
    pub failed: u64,
    pub refused: u64,
    /// Lines of its agent that were no messages.
    pub garbled: u64,
    /// It was said that its agent is not heard in all that it says.
    pub has_said_ignored: bool,
    /// What the policy would let it have, bytes.
    pub target_bytes: u64,
    /// Its weight for the policy.
    pub weight: u32,
    /// What is to lie ready for it, bytes.
    pub ready_bytes: u64,
}

impl Shared {
    pub fn guest(&self) -> MutexGuard<'_, Guest> {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        let mut longest = LOOK.min(Duration::from_micros(self.read_at_us.saturating_sub(now_us)));
        if self.attached.is_none() {
            longest = LOOK.min(self.try_monitor_at.saturating_duration_since(now));
        }
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
                    let to_bytes = match wanted {
                        Wanted::To(bytes) => bytes,
                        Wanted::Grow(bytes) => size.saturating_add(bytes),
                        Wanted::Shrink(bytes) => size.saturating_sub(bytes),
                    };
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

    /// Finds out where the memory lies that windows may be in.
    fn find_memory(&self, attached: &mut Attached, boot_bytes: u64) {
        let Some(windows) = &self.shared.windows else { return };
        let layout = attached.layout(&self.shared.name, &self.shared.pool, boot_bytes);
        if let Err(why) = &layout {
            tracing::warn!("vm {}: its programs get no windows: {why}", self.shared.name);
        }
        windows.renew(layout.ok());
    }

    /// What the VM had when the configuration named another way to it: files of the pool under QEMU, accounts under libvirt.
    fn forget_other_way(&self) -> anyhow::Result<()> {
        let (name, pool) = (&self.shared.name, &self.shared.pool);
        let Way::Libvirt { .. } = self.shared.way else { return Ok(pool.forget_counted(name)?) };
        let bytes = pool.clear_held(name).with_context(|| {
            format!("vm '{name}' is libvirt's now, and its former QEMU has to end first")
        })?;
        if bytes > 0 {
            let size = spillway_types::Size(bytes);
            tracing::info!("vm {name}: it is libvirt's now, {size} that QEMU had is free");
        }
        Ok(())
    }

    /// What a VM that has ended had beyond its boot memory goes back to the pool.
    fn take_back(&self) {
        let (name, pool) = (&self.shared.name, &self.shared.pool);
        // What libvirt's domains have is nobody's to take: it says itself when one has ended.
        let Way::Monitor(_) = self.shared.way else { return };
        let usage = pool.usage();
        let devices = usage.guests.get(name).map(|guest| guest.devices.values());
        if devices.into_iter().flatten().all(|it| it.set_aside_bytes + it.ready_bytes == 0) {
            return;
        }
        match pool.empty_devices(name) {
            Ok(bytes) => {
                let size = spillway_types::Size(bytes);
                tracing::info!("vm {name}: it has ended, {size} of it is free");
            }
            // It runs, and only its monitor is out of reach.
            Err(spillway_sections::Error::InUse { .. }) => {}
            Err(error) => tracing::error!("vm {name}: can't take its memory back: {error}"),
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

    fn look_at_agent(&mut self) {
        if self.channel.is_none() && Instant::now() >= self.try_agent_at {
            self.try_agent_at = Instant::now() + RETRY;
            // A guest without an agent is served as well.
            self.channel = Channel::connect(&self.shared.agent).ok();
            if self.channel.is_some() {
                self.tell(Event::AgentConnected);
            }
        }
        let interval = Duration::from_millis(self.shared.guest().settings().interval_ms.into());
        let Some(channel) = &mut self.channel else { return };
        let said = channel.flush().and_then(|()| channel.read());
        let (garbled, is_silent) = (channel.garbled, channel.is_silent(interval));
        self.note_garbled(garbled);
        match said {
            Ok(said) => {
                let wishes =
                    |it: &FromGuest| matches!(it, FromGuest::Need { .. } | FromGuest::Give { .. });
                if said.iter().any(wishes) {
                    self.read_sizes();
                }
                for said in said {
                    self.tell(Event::Agent(said));
                }
                self.note_ignored();
                if is_silent {
                    self.tell(Event::AgentConnected);
                }
            }
            Err(_) => self.hang_up(),
        }
    }

    fn note_garbled(&mut self, garbled: u64) {
        let mut notes = self.shared.notes();
        if garbled > 0 && notes.garbled == 0 {
            tracing::warn!(
                "vm {}: its agent's channel bears lines that are no messages",
                self.shared.name
            );
        }
        notes.garbled += garbled;
        if let Some(channel) = &mut self.channel {
            channel.garbled = 0;
        }
    }

    /// A line for the first message that is not heard; the others are counted.
    fn note_ignored(&self) {
        let ignored = self.shared.guest().view().ignored_messages;
        let mut notes = self.shared.notes();
        if ignored > 0 && !notes.has_said_ignored {
            notes.has_said_ignored = true;
            tracing::warn!(
                "vm {}: its agent says more than it may, or what can't be true: that is not heard, and counted as \
                 ignored messages",
                self.shared.name
            );
        }
    }

    fn hang_up(&mut self) {
        if self.channel.take().is_some_and(|channel| channel.has_spoken) {
            tracing::info!("vm {}: its agent's channel is closed", self.shared.name);
        }
        self.try_agent_at = Instant::now() + RETRY;
        self.tell(Event::AgentGone);
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

    /// A guest that may have more than its devices hold gets a further device, while it rests. What QEMU has refused is
    /// not tried again until another size is wanted.
    fn widen(&mut self) {
        let lacks = self.shared.guest().lacks_bytes();
        let Some(attached) = &mut self.attached else { return };
        if lacks == 0 || self.refused_bytes == lacks {
            return;
        }
        self.refused_bytes = lacks;
        let name = &self.shared.name;
        match attached.add_device(name, &self.shared.pool, lacks) {
            Ok(None) => {}
            Ok(Some(facts)) => {
                let more = spillway_types::Size(lacks);
                tracing::info!("vm {name}: it has a further device, of {more}");
                self.tell(Event::Attached(facts));
                // As much more may be wanted once again.
                if self.shared.guest().lacks_bytes() == 0 {
                    self.refused_bytes = 0;
                }
            }
            Err(error) => self.note_problem(format!(
                "it can't become larger while it runs: {error}; start it with what `spillway vm args {name}` prints now"
            )),
        }
    }

    /// While the guest rests, what it may be given next is made ready for it, in the first device that has room.
    fn keep_ready(&mut self, sizes: &[(u64, u64)]) {
        // What libvirt's domains have lies elsewhere.
        let Some(Attached::Monitor(attached)) = &self.attached else { return };
        let guest = self.shared.guest();
        let is_still = sizes.iter().all(|(size, requested)| size == requested);
        if guest.running().is_some() || !is_still {
            return;
        }
        let view = guest.view();
        drop(guest);
        let growth = view.ceiling_bytes.saturating_sub(view.size_bytes.unwrap_or_default());
        let mut wanted = self.shared.notes().ready_bytes.min(growth);
        for (device, &(size, _)) in sizes.iter().enumerate() {
            let bytes = if size < attached.max_bytes(device) { wanted } else { 0 };
            wanted -= bytes;
            let kept =
                self.shared.pool.keep_ready(&self.shared.name, attached.file(device), size, bytes);
            match kept {
                // Orders that have come meanwhile are heard in between.
                Ok(true) => self.read_at_us = 0,
                Ok(false) => {}
                Err(error) => return self.note_problem(error.to_string()),
            }
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
        // What it may be given next is made ready before it asks.
        let wake_at_us = if has_ended { now_us + AFTER_US } else { guest.wake_at_us(now_us) };
        // A guest that says something all the while does not put the reading off.
        self.read_at_us = self.read_at_us.min(wake_at_us);
        if guest.wanted_bytes() > 0 {
            self.shared.hunger.notify_one();
        }
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        let (name, pool) = (&self.shared.name, &self.shared.pool);
        match action {
            Action::Reserve { device, more_bytes } => {
                let result = match &self.attached {
                    None => Err("the VM's monitor is out of reach".to_owned()),
                    Some(attached) => {
                        let reserved = attached.reserve(name, pool, device, more_bytes);
                        reserved.map_err(|error| error.to_string())
                    }
                };
                Some(Event::Reserved { device, result })
            }
            Action::Request { device, bytes } => {
                let result = match &mut self.attached {
                    None => Err("the VM's monitor is out of reach".to_owned()),
                    Some(attached) => attached.request(device, bytes).map(|()| bytes),
                };
                Some(Event::Requested { device, result })
            }
            Action::Release { device, size_bytes } => {
                let attached = self.attached.as_ref()?;
                match attached.settle(name, pool, device, size_bytes) {
                    Ok(set_aside_bytes) => Some(Event::Released { device, set_aside_bytes }),
                    Err(error) => {
                        tracing::error!("vm {name}: can't release memory: {error}");
                        let usage = pool.usage();
                        let devices = usage.guests.get(name).map(|guest| &guest.devices);
                        let set_aside =
                            devices.and_then(|devices| devices.get(&attached.file(device)));
                        let set_aside_bytes = set_aside.map_or(size_bytes, |it| it.set_aside_bytes);
                        Some(Event::Released { device, set_aside_bytes })
                    }
                }
            }
            Action::Tell(said) => {
                if let Some(channel) = &mut self.channel
                    && channel.tell(&said).is_err()
                {
                    // The next look finds it closed.
                    tracing::debug!("vm {name}: its agent's channel is closed");
                }
                None
            }
            Action::Done(outcome) => {
                self.done(outcome);
                None
            }
            Action::Say(line) => {
                tracing::info!("vm {name}: {line}");
                None
            }
        }
    }

    fn done(&mut self, mut outcome: Outcome) {
        let name = &self.shared.name;
        if let (End::Refused(why), None) = (&mut outcome.end, &self.attached) {
            let problem = self.shared.notes().problem.clone().unwrap_or_default();
            *why = match self.shared.way {
                Way::Monitor(_) => format!(
                    "{why}: {problem}; start the VM with what `spillway vm args {name}` prints"
                ),
                Way::Libvirt { .. } => format!("{why}: {problem}"),
            };
        }
        let size = spillway_types::Size;
        let (from, aim, now) =
            (size(outcome.from_bytes), size(outcome.aim_bytes), size(outcome.size_bytes));
        let who = match outcome.order.who {
            Who::Operator => "operator",
            Who::Manager => "memory manager",
            Who::Guest { .. } => "guest",
            Who::Daemon => "daemon",
        };
        let ms = outcome.times.total_us / 1000;
        let mut notes = self.shared.notes();
        match &outcome.end {
            End::Reached => {
                notes.reached += 1;
                tracing::info!("vm {name}: {from} to {now} in {ms} ms ({who})");
            }
            End::Refused(why) => {
                notes.refused += 1;
                // A guest that asks again and again is told so itself.
                if matches!(outcome.order.who, Who::Guest { .. }) {
                    tracing::debug!("vm {name}: refused ({who}): {why}");
                } else {
                    tracing::warn!("vm {name}: refused ({who}): {why}");
                }
            }
            End::Superseded => {
                notes.failed += 1;
                tracing::info!(
                    "vm {name}: {from} to {aim} broken off at {now}: a newer order ({who})"
                );
            }
            End::Partial => {
                notes.failed += 1;
                tracing::warn!("vm {name}: {from} to {aim} got as far as {now} in {ms} ms ({who})");
            }
            End::RolledBack => {
                notes.failed += 1;
                tracing::warn!(
                    "vm {name}: {from} to {aim} rolled back to {now} after {ms} ms ({who})"
                );
            }
            End::Lost(why) => {
                notes.failed += 1;
                tracing::warn!("vm {name}: {from} to {aim} broken off: {why} ({who})");
            }
        }
        drop(notes);
        if let Some(told) = self.told.remove(&outcome.order.id) {
            // Whoever asked may have gone.
            let _ = told.send(outcome);
        }
    }
}
