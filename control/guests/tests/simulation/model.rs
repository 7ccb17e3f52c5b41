//! A second resizer, written from the promises of docs/guests.md and the crate's documentation, to compare with the
//! real one. Both get the same events, and must return the same actions in the same order with the same texts, and the
//! same view. The model is slow and simple: each promise is in one place, sizes are recomputed, and durations are
//! summed from a diary.

use std::collections::HashMap;

use spillway_guests::agent::{FromGuest, FromHost, Profile, Status, VERSION};
use spillway_guests::{
    Action, Cause, End, Event, Facts, Order, Outcome, Settings, Times, View, Who,
};
use spillway_types::Size;

use crate::change::{Change, Stage};

/// A second, microseconds.
const SECOND: u64 = 1_000_000;
/// The host's own waits, microseconds.
const URGENT_WAIT: u64 = 3 * SECOND;
const PROGRAM_WAIT: u64 = 20 * SECOND;
const REPORT_WAIT: u64 = SECOND;
const KEPT: u64 = 60 * SECOND;
/// Limits for a guest in a second.
const MESSAGES: u32 = 200;
const WISHES: u32 = 16;
/// Most programs that wait for the end of a change.
const PROGRAMS: usize = 8;
const OUT_OF_REACH: &str = "the VM's monitor is out of reach";
const UNDER_WAY: &str = "a change of size is in progress";
/// The model's own ids start here; [`Model::compare`] maps the real ones to them.
const OWN: u64 = 1 << 60;

/// What is known from an agent.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    kernel: Option<String>,
    pub status: Option<Status>,
    /// Memory that its kernel had taken when the guest last rested.
    kernel_took: u64,
    stalled: u64,
    read_again: u64,
}

/// A request for memory, of a program of the guest or of its agent.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub id: u64,
    pub bytes: u64,
    pub cause: Cause,
    pub until: u64,
}

/// The model of one guest.
#[derive(Clone, Debug)]
pub struct Model {
    pub settings: Settings,
    pub vm: Option<Facts>,
    pub agent: Option<Agent>,
    pub change: Option<Change>,
    /// An order that waits for the agent's report: the report's id, and the deadline.
    pub held: Option<(Order, u64, u64)>,
    pub queue: Vec<Need>,
    /// The second in which messages and requests were last counted, and their numbers.
    heard: (u64, u32, u32),
    ignored: u64,
    /// When the size was last seen to change.
    pub moved: u64,
    /// Whether a device may have more reserved than plugged since the last change.
    may_have_left_over: bool,
    /// Memory that the guest kept, and until when that counts.
    pub kept: Option<(u64, u64)>,
    last_id: u64,
    /// The real machine's names for the model's ids.
    names: HashMap<u64, u64>,
    pub actions: Vec<Action>,
}

impl Model {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            vm: None,
            agent: None,
            change: None,
            held: None,
            queue: Vec::new(),
            heard: (0, 0, 0),
            ignored: 0,
            moved: 0,
            may_have_left_over: false,
            kept: None,
            last_id: OWN,
            names: HashMap::new(),
            actions: Vec::new(),
        }
    }

    /// Processes an event. The resulting actions are in `actions`.
    pub fn handle(&mut self, now: u64, event: Event) {
        let is_read = matches!(event, Event::Read(_));
        self.hear(now, event);
        self.kept = self.kept.filter(|&(_, until)| now < until);
        if self.held.is_some_and(|(_, _, until)| now >= until || !self.has_agent()) {
            self.decide(now);
        }
        self.go_on(now);
        self.give_left_over_back();
        self.take_up(now, is_read);
    }

    fn hear(&mut self, now: u64, event: Event) {
        match event {
            Event::Tick => {}
            Event::Attached(facts) => self.attached(now, facts),
            Event::Detached(why) => {
                self.end(now, End::Lost(why));
                self.vm = None;
            }
            Event::Read(sizes) => self.read(now, &sizes),
            Event::Reset => {
                self.end(now, End::Lost("the guest was reset".into()));
                self.say("the guest was reset: its driver takes its memory again");
                for device in self.vm.iter_mut().flat_map(|vm| &mut vm.devices) {
                    device.size_bytes = 0;
                }
                self.may_have_left_over = true;
                self.queue.clear();
                self.agent = self.agent.take().map(|_| Agent::default());
            }
            Event::Reserved { device, result } => self.reserved(now, device, result),
            Event::Requested { device, result } => self.requested(now, device, result),
            Event::Released { device, set_aside_bytes } => {
                self.released(now, device, set_aside_bytes);
            }
            Event::Agent(said) => self.agent_says(now, said),
            Event::AgentConnected => {
                self.agent = Some(Agent::default());
                self.greet();
                if self.change.is_none() {
                    self.tell(FromHost::Online);
                }
            }
            Event::AgentGone => {
                self.agent = None;
                self.queue.clear();
            }
            Event::Order(order) => self.order(now, order),
            Event::Auto(auto) => self.settings.auto = auto,
            Event::Settings(settings) => {
                self.settings = settings;
                if self.agent.is_some() {
                    self.greet();
                }
            }
        }
    }

    fn greet(&mut self) {
        let Settings { interval_ms, reserve_bytes, most_bytes, profile, .. } = self.settings;
        let version = VERSION;
        self.tell(FromHost::Hello { version, interval_ms, reserve_bytes, most_bytes, profile });
    }

    fn attached(&mut self, now: u64, facts: Facts) {
        self.end(now, End::Lost("the monitor was reconnected".into()));
        let aim = facts.boot_bytes + facts.devices.iter().map(|it| it.requested_bytes).sum::<u64>();
        let has = total(&facts);
        if has != aim {
            let (has, aim) = (Size(has), Size(aim));
            self.say(&format!("a change from {has} to {aim} was in progress: continuing it"));
        }
        let is_at_rest = facts.devices.iter().all(|it| {
            it.size_bytes == it.requested_bytes && it.set_aside_bytes == it.requested_bytes
        });
        self.may_have_left_over = false;
        self.vm = Some(facts);
        if !is_at_rest {
            let order = Order {
                id: self.new_id(),
                who: Who::Daemon,
                to_bytes: aim,
                roll_back: false,
                force: true,
            };
            self.change = Some(Change::adopted(now, order, self.vm.as_ref().unwrap()));
        }
    }

    fn read(&mut self, now: u64, sizes: &[(u64, u64)]) {
        self.change.iter_mut().for_each(|change| change.is_read = true);
        let Some(vm) = &mut self.vm else { return };
        for (device, &(size, requested)) in vm.devices.iter_mut().zip(sizes) {
            if device.size_bytes != size {
                (self.moved, self.may_have_left_over) = (now, true);
            }
            (device.size_bytes, device.requested_bytes) = (size, requested);
        }
    }

    /// At rest, and without a change, releases reserved memory beyond a device's size.
    fn give_left_over_back(&mut self) {
        let (Some(vm), None) = (&self.vm, &self.change) else { return };
        let rests = vm.devices.iter().all(|it| it.size_bytes == it.requested_bytes);
        if !self.may_have_left_over || !rests {
            return;
        }
        self.may_have_left_over = false;
        for (device, it) in vm.devices.iter().enumerate() {
            if it.set_aside_bytes != it.size_bytes {
                self.actions.push(Action::Release { device, size_bytes: it.size_bytes });
            }
        }
    }

    fn agent_says(&mut self, now: u64, said: FromGuest) {
        if self.heard.0 != now / SECOND {
            self.heard = (now / SECOND, 0, 0);
        }
        self.heard.1 += 1;
        let is_wish = matches!(said, FromGuest::Need { .. } | FromGuest::Give { .. });
        let is_heard = self.heard.1 <= MESSAGES;
        self.heard.2 += u32::from(is_heard && is_wish);
        if !is_heard || (is_wish && self.heard.2 > WISHES) {
            self.ignored += 1;
            return;
        }
        match said {
            FromGuest::Hello { kernel, .. } => {
                self.agent = Some(Agent { kernel: Some(kernel), ..Agent::default() });
            }
            FromGuest::Status(status) => self.status(now, status),
            FromGuest::Need { id, bytes, urgent, wait_ms } => {
                // The agent's own requests wait for memory, but not for the end of a change.
                let (cause, wait) = match (urgent, u64::from(wait_ms) * 1000) {
                    (true, _) => (Cause::LastMoment, URGENT_WAIT),
                    (false, 0) => (Cause::Foreseen, URGENT_WAIT),
                    (false, wait) => (Cause::Program, wait.min(PROGRAM_WAIT)),
                };
                let need = Need { id, bytes, cause, until: now + wait };
                match self.why_not(self.size(), cause) {
                    None => self.grow(now, need),
                    Some(UNDER_WAY) if cause == Cause::Program && self.queue.len() < PROGRAMS => {
                        self.queue.push(need);
                    }
                    Some(why) => self.refuse(id, why),
                }
            }
            FromGuest::Give { id, bytes } => self.give(now, id, bytes),
            FromGuest::Offlined { id, bytes } => match &self.change {
                None if bytes > 0 => self.tell(FromHost::Online),
                Some(Change { stage: Stage::Offline { id: asked, .. }, .. })
                    if self.is(*asked, id) =>
                {
                    self.plug(now);
                }
                _ => {}
            },
            FromGuest::Reported { id } => {
                if self.held.is_some_and(|(_, asked, _)| self.is(asked, id)) {
                    self.decide(now);
                }
            }
            FromGuest::Arrived { id, bytes } => self.arrived(now, id, bytes),
        }
    }

    fn status(&mut self, now: u64, status: Status) {
        let Some(vm) = &self.vm else { return };
        let ever = vm.boot_bytes + vm.devices.iter().map(|it| it.max_bytes).sum::<u64>();
        if status.total_bytes > ever || status.available_bytes > status.total_bytes {
            self.ignored += 1;
            return;
        }
        // The status was sent while the guest shrank.
        let Some(took) = total(vm).checked_sub(status.total_bytes) else { return };
        let rests = self.change.is_none();
        let long = 2 * 1000 * u64::from(self.settings.interval_ms);
        let has_rested = now > self.moved + long;
        let Some(agent) = &mut self.agent else { return };
        if let Some(last) = agent.status.replace(status) {
            let reads = |it: Status| it.refaults.saturating_add(it.swap_ins);
            agent.stalled = status.stalled_us.saturating_sub(last.stalled_us);
            agent.read_again = reads(status).saturating_sub(reads(last));
        }
        if rests && (has_rested || agent.kernel_took == 0) {
            agent.kernel_took = took;
        }
    }

    /// Why a request of the guest is refused now.
    fn why_not(&self, size: u64, cause: Cause) -> Option<&'static str> {
        if !self.settings.auto {
            return Some("the guest's size does not change by itself: auto is off");
        }
        let change = self.change.as_ref()?;
        let is_forced = change.order.force && change.order.who == Who::Operator;
        let gives_way = (change.aim < size && !is_forced)
            || change.waits_with_time()
            || matches!(change.stage, Stage::Online { .. });
        if cause == Cause::LastMoment && gives_way { None } else { Some(UNDER_WAY) }
    }

    fn grow(&mut self, now: u64, need: Need) {
        let Some(vm) = &self.vm else { return self.refuse(need.id, OUT_OF_REACH) };
        let (has, section) = (total(vm), self.settings.section_bytes);
        let left = self.ceiling(vm).saturating_sub(has) / section * section;
        if left == 0 || need.bytes == 0 {
            return self.refuse(need.id, "the guest has its largest size");
        }
        let who = Who::Guest { need: need.id, cause: need.cause, until_us: need.until };
        self.wish(now, who, has + need.bytes.min(left));
    }

    fn give(&mut self, now: u64, id: u64, bytes: u64) {
        let Some(vm) = &self.vm else { return self.refuse(id, OUT_OF_REACH) };
        let (has, least) = (total(vm), self.least(vm));
        let gives = bytes.min(has.saturating_sub(least));
        if let Some(why) = self.why_not(has, Cause::Foreseen) {
            self.refuse(id, why);
        } else if gives < self.settings.section_bytes {
            self.refuse(id, "less than a section can be taken back");
        } else {
            let who = Who::Guest { need: id, cause: Cause::Foreseen, until_us: now };
            self.wish(now, who, has - gives);
        }
    }

    fn wish(&mut self, now: u64, who: Who, to_bytes: u64) {
        let id = self.new_id();
        self.order(now, Order { id, who, to_bytes, roll_back: false, force: false });
    }

    /// Refuses requests that waited too long, and starts the next one when no change is in progress.
    fn take_up(&mut self, now: u64, is_read: bool) {
        let (late, others) = self.queue.drain(..).partition(|need| now >= need.until);
        self.queue = others;
        let late: Vec<Need> = late;
        for need in late {
            self.refuse(need.id, "the guest's size was changing all that time");
        }
        while is_read && self.change.is_none() && !self.queue.is_empty() {
            let need = self.queue.remove(0);
            match self.why_not(self.size(), Cause::Program) {
                Some(why) => self.refuse(need.id, why),
                None => self.grow(now, need),
            }
        }
    }

    fn order(&mut self, now: u64, order: Order) {
        let is_operator = order.who == Who::Operator;
        if let Some((held, ..)) = self.held.take_if(|_| is_operator) {
            self.unchanged(held, End::Superseded);
        }
        let doubted = self.plan(&order).is_ok_and(|(aim, _)| self.agree(&order, aim).is_err());
        if doubted && is_operator && self.has_agent() {
            let id = self.new_id();
            self.held = Some((order, id, now + REPORT_WAIT));
            self.tell(FromHost::Report { id });
        } else {
            self.begin(now, order);
        }
    }

    fn decide(&mut self, now: u64) {
        if let Some((order, ..)) = self.held.take() {
            self.begin(now, order);
        }
    }

    fn begin(&mut self, now: u64, order: Order) {
        let planned = self.plan(&order);
        let agreed = planned.and_then(|(aim, to)| self.agree(&order, aim).map(|()| (aim, to)));
        match agreed {
            Err(why) => self.unchanged(order, End::Refused(why)),
            Ok((aim, to)) => {
                self.supersede(now, order.who);
                let vm = self.vm.as_ref().expect("a plan is made for a VM");
                self.change = Some(Change::new(now, order, vm, aim, to));
                self.set_aside(now, 0);
            }
        }
    }

    /// Ends an order without a change.
    fn unchanged(&mut self, order: Order, end: End) {
        let size = self.size();
        if let (End::Refused(why), Who::Guest { need, .. }) = (&end, order.who) {
            self.refuse(need, why);
        }
        self.actions.push(Action::Done(Outcome {
            order,
            end,
            from_bytes: size,
            aim_bytes: order.to_bytes,
            size_bytes: size,
            times: Times::default(),
        }));
    }

    /// The aim of an order in whole sections, and each device's size for it.
    fn plan(&self, order: &Order) -> Result<(u64, Vec<u64>), String> {
        let vm = self.vm.as_ref().ok_or(OUT_OF_REACH)?;
        let (has, section, to) = (total(vm), self.settings.section_bytes, order.to_bytes);
        let least = self.least(vm);
        if to < least {
            let (to, least) = (Size(to), Size(least));
            return Err(format!("{to} is less than the guest's least, {least}"));
        }
        let aim = if to > has {
            has + (to - has).div_ceil(section) * section
        } else {
            has - (has - to) / section * section
        };
        let ceiling = self.ceiling(vm);
        if aim > has && aim > ceiling {
            let (aim, ceiling) = (Size(aim), Size(ceiling));
            return Err(format!(
                "{aim} is more than the guest can have, {ceiling}: the least of `most`, 16 times the memory that it booted \
                 with (profile returns-all), and what its devices hold"
            ));
        }
        // The first devices are filled first, and emptied last.
        let mut to: Vec<u64> = vm.devices.iter().map(|it| it.size_bytes).collect();
        let mut more = aim.saturating_sub(has);
        for (to, device) in to.iter_mut().zip(&vm.devices) {
            let step = more.min(device.max_bytes.saturating_sub(*to));
            (*to, more) = (*to + step, more - step);
        }
        let mut less = has.saturating_sub(aim);
        for to in to.iter_mut().rev() {
            let step = less.min(*to);
            (*to, less) = (*to - step, less - step);
        }
        if more > 0 {
            return Err("the guest's devices do not hold so much".into());
        }
        Ok((aim, to))
    }

    /// Whether the guest's status permits a size.
    fn agree(&self, order: &Order, aim: u64) -> Result<(), String> {
        let (Some(agent), Some(vm)) = (&self.agent, &self.vm) else { return Ok(()) };
        let (Some(status), has) = (agent.status, total(vm)) else { return Ok(()) };
        if aim > has && self.settings.profile == Profile::ReturnsAll {
            // A descriptor of 64 bytes for each page of 4 KiB. In addition 8 MiB stay free, or as much as is taken.
            let (more, free) = (aim - has, status.kernel_free_bytes);
            let taken = more / 4096 * 64;
            if taken > free.saturating_sub(8 << 20) && taken > free / 2 {
                let (free, more, taken) = (Size(free), Size(more), Size(taken));
                return Err(format!(
                    "{free} is free in the zones of the guest's kernel, and {more} more would take {taken} of it for page \
                     descriptors: boot the guest with more memory, or use profile grows-far"
                ));
            }
        }
        if aim < has && !order.force {
            let (less, reserve) = (has - aim, self.settings.reserve_bytes);
            let then = i128::from(status.total_bytes) + i128::from(agent.kernel_took);
            let came = i128::from(has) - then;
            let available = (i128::from(status.available_bytes) + came).max(0) as u64;
            if available.saturating_sub(less) < reserve {
                let (available, less, reserve) = (Size(available), Size(less), Size(reserve));
                return Err(format!(
                    "{available} is available in the guest: {less} less would leave it below its reserve, {reserve} (--force \
                     shrinks it all the same)"
                ));
            }
        }
        Ok(())
    }

    fn least(&self, vm: &Facts) -> u64 {
        self.settings.least_bytes.max(vm.boot_bytes)
    }

    pub fn ceiling(&self, vm: &Facts) -> u64 {
        let held = vm.boot_bytes + vm.devices.iter().map(|it| it.max_bytes).sum::<u64>();
        self.may_have(vm).min(held)
    }

    /// The limit by its settings and profile.
    fn may_have(&self, vm: &Facts) -> u64 {
        match self.settings.profile {
            Profile::ReturnsAll => self.settings.most_bytes.min(16 * vm.boot_bytes),
            Profile::GrowsFar => self.settings.most_bytes,
        }
    }

    /// Records memory that the guest should have returned to the operator or the daemon, and kept.
    pub fn keeps(&mut self, now: u64, who: Who, bytes: u64) {
        if bytes > 0 && !matches!(who, Who::Guest { .. }) {
            self.kept = Some((bytes, now + KEPT));
        }
    }

    pub fn size(&self) -> u64 {
        self.vm.as_ref().map_or(0, total)
    }

    pub fn has_agent(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.kernel.is_some())
    }

    pub fn tell(&mut self, said: FromHost) {
        self.actions.push(Action::Tell(said));
    }

    pub fn say(&mut self, line: &str) {
        self.actions.push(Action::Say(line.into()));
    }

    pub fn refuse(&mut self, id: u64, why: &str) {
        let why = Some(why.chars().take(128).collect());
        self.tell(FromHost::Answer { id, granted_bytes: 0, why });
    }

    pub fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether the real machine's id `real` is the model's `own`.
    pub fn is(&self, own: u64, real: u64) -> bool {
        self.names.get(&own) == Some(&real)
    }

    /// The view for others.
    pub fn view(&self) -> View {
        let agent = self.agent.clone().unwrap_or_default();
        let mut view = View {
            wanted_bytes: self.change.as_ref().map_or(0, Change::waits_for),
            kernel: agent.kernel,
            status: agent.status,
            status_size_bytes: agent.status.map_or(0, |it| it.total_bytes + agent.kernel_took),
            stalled_us: agent.stalled,
            refaults: agent.read_again,
            kept_bytes: self.kept.map_or(0, |(bytes, _)| bytes),
            ignored_messages: self.ignored,
            ..View::default()
        };
        if let Some(vm) = &self.vm {
            view.size_bytes = Some(total(vm));
            view.boot_bytes = vm.boot_bytes;
            view.set_aside_bytes = vm.devices.iter().map(|it| it.set_aside_bytes).sum();
            view.ceiling_bytes = self.ceiling(vm);
            view.aim_bytes = self.change.as_ref().map(|change| change.aim);
        }
        view
    }

    /// When it must be called again.
    pub fn wakes_at(&self, now: u64) -> u64 {
        let wakes_at = now
            + match &self.change {
                None => SECOND,
                Some(Change { stage: Stage::Wait { .. }, .. }) => 20_000,
                Some(_) => 2_000,
            };
        self.held.map_or(wakes_at, |(_, _, until)| wakes_at.min(until.max(now)))
    }

    /// The size that a further device needs.
    pub fn lacks(&self) -> u64 {
        let (Some(vm), None) = (&self.vm, &self.change) else { return 0 };
        let held = vm.boot_bytes + vm.devices.iter().map(|it| it.max_bytes).sum::<u64>();
        let section = self.settings.section_bytes;
        self.may_have(vm).saturating_sub(held).div_ceil(section) * section
    }

    /// Compares the model's actions with the real machine's; the machine's new ids are mapped to the model's.
    pub fn compare(&mut self, real: &[Action], event: &Event) {
        let mut own = std::mem::take(&mut self.actions);
        for (own, real) in own.iter_mut().zip(real) {
            if let (Some(own), Some(&mut real)) = (id_of(own), id_of(&mut real.clone())) {
                let is_new = self.names.values().all(|&name| name != real);
                assert!(is_new, "{real} names two things");
                self.names.insert(*own, real);
                *own = real;
            }
        }
        assert_eq!(real, own, "after {event:?}: what the machine wants, and what the model wants");
    }
}

/// The id in an action that the machine chose itself.
fn id_of(action: &mut Action) -> Option<&mut u64> {
    match action {
        Action::Tell(
            FromHost::Offline { id, .. } | FromHost::Report { id } | FromHost::Arrive { id, .. },
        ) => Some(id),
        Action::Done(Outcome { order, .. })
            if matches!(order.who, Who::Guest { .. } | Who::Daemon) =>
        {
            Some(&mut order.id)
        }
        _ => None,
    }
}

pub fn total(vm: &Facts) -> u64 {
    vm.devices.iter().fold(vm.boot_bytes, |sum, device| sum + device.size_bytes)
}
