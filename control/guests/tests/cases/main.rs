//! Single cases of a guest's state machine. Each has a pool that grants every request, unless the case says otherwise,
//! and a guest that changes its size when the test tells it to.

mod needs;

use spillway_guests::agent::{FromGuest, FromHost, Profile, Status};
use spillway_guests::{
    Action, Device, End, Event, Facts, Guest, Order, Outcome, Settings, View, Who,
};

const S: u64 = 128 << 20;
const BOOT: u64 = 4 * S;
const MS: u64 = 1000;

struct Case {
    guest: Guest,
    device: Device,
    free: u64,
    now_us: u64,
    /// The machine's actions since the last look.
    seen: Vec<Action>,
    next_order: u64,
}

fn settings() -> Settings {
    Settings {
        section_bytes: S,
        least_bytes: BOOT,
        most_bytes: 16 * S,
        reserve_bytes: S / 2,
        profile: Profile::ReturnsAll,
        auto: true,
        resize_timeout_us: 5000 * MS,
        offline_timeout_us: 1000 * MS,
        interval_ms: 500,
    }
}

impl Case {
    /// A guest with this many sections beside its boot memory.
    fn new(settings: Settings, sections: u64) -> Self {
        let bytes = sections * S;
        let device = Device {
            max_bytes: 28 * S,
            size_bytes: bytes,
            requested_bytes: bytes,
            set_aside_bytes: bytes,
        };
        Self::attached(settings, device)
    }

    fn attached(settings: Settings, device: Device) -> Self {
        let guest = Guest::new(settings);
        let mut case =
            Self { guest, device, free: 64 * S, now_us: MS, seen: Vec::new(), next_order: 1 << 32 };
        case.tell(Event::Attached(Facts { boot_bytes: BOOT, devices: vec![device] }));
        case
    }

    /// The same with an agent that has sent its hello and a status with this much available memory.
    fn with_agent(settings: Settings, sections: u64, available_bytes: u64) -> Self {
        let mut case = Self::new(settings, sections);
        case.tell(Event::AgentConnected);
        case.hello();
        case.says(status(case.size(), available_bytes));
        case.seen.clear();
        case
    }

    fn hello(&mut self) {
        let (kernel, boot) = ("6.12".into(), "1".into());
        self.agent(FromGuest::Hello { version: 1, kernel, boot, block_bytes: S });
    }

    fn says(&mut self, status: Status) {
        self.agent(FromGuest::Status(status));
    }

    fn agent(&mut self, said: FromGuest) {
        self.tell(Event::Agent(said));
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.guest.handle(self.now_us, event, &mut actions);
        let mut next = 0;
        while let Some(action) = actions.get(next).cloned() {
            next += 1;
            assert!(next < 1000, "actions without an end: {:?}", &actions[next - 8..]);
            if let Some(answer) = self.carry_out(action) {
                self.guest.handle(self.now_us, answer, &mut actions);
            }
        }
        self.seen.extend(actions);
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Reserve { device, more_bytes } => {
                let result = if more_bytes <= self.free {
                    self.free -= more_bytes;
                    self.device.set_aside_bytes += more_bytes;
                    Ok(self.device.set_aside_bytes)
                } else {
                    Err("the pool is dry".into())
                };
                Some(Event::Reserved { device, result })
            }
            Action::Request { device, bytes } => {
                self.device.requested_bytes = bytes;
                Some(Event::Requested { device, result: Ok(bytes) })
            }
            Action::Release { device, size_bytes } => {
                self.free += self.device.set_aside_bytes - size_bytes;
                self.device.set_aside_bytes = size_bytes;
                Some(Event::Released { device, set_aside_bytes: size_bytes })
            }
            Action::Tell(_) | Action::Done(_) | Action::Say(_) => None,
        }
    }

    /// The operator orders a total size.
    fn order(&mut self, to_bytes: u64) {
        self.give_order(to_bytes, false);
    }

    /// The same with force, whatever the guest's status is.
    fn force(&mut self, to_bytes: u64) {
        self.give_order(to_bytes, true);
    }

    fn give_order(&mut self, to_bytes: u64, force: bool) {
        self.next_order += 1;
        let (id, who) = (self.next_order, Who::Operator);
        self.tell(Event::Order(Order { id, who, to_bytes, roll_back: false, force }));
    }

    /// Lets this much time pass in steps of 2 ms, reading the devices in each.
    fn pass(&mut self, us: u64) {
        let until_us = self.now_us + us;
        while self.now_us < until_us {
            self.now_us += 2 * MS;
            self.tell(Event::Read(vec![(self.device.size_bytes, self.device.requested_bytes)]));
        }
    }

    /// The guest does what it is asked, and its agent reports it.
    fn obey(&mut self) {
        self.device.size_bytes = self.device.requested_bytes;
        self.pass(2 * MS);
        if let Some((id, bytes)) = self.seen.iter().rev().find_map(arrive) {
            self.agent(FromGuest::Arrived { id, bytes });
        }
    }

    /// The agent confirms its last status.
    fn reported(&mut self) {
        let id = self.seen().iter().find_map(report).expect("the agent is asked");
        self.agent(FromGuest::Reported { id });
    }

    fn size(&self) -> u64 {
        BOOT + self.device.size_bytes
    }

    fn view(&self) -> View {
        self.guest.view()
    }

    /// The machine's actions since the last call.
    fn seen(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.seen)
    }

    fn ends(&mut self) -> Vec<Outcome> {
        let done = |action| match action {
            Action::Done(outcome) => Some(outcome),
            _ => None,
        };
        self.seen().into_iter().filter_map(done).collect()
    }

    fn end(&mut self) -> End {
        let mut ends = self.ends();
        assert_eq!(ends.len(), 1, "{ends:?}");
        ends.remove(0).end
    }
}

/// A status. The guest's kernel took 64 MiB for itself.
fn status(size_bytes: u64, available_bytes: u64) -> Status {
    let total_bytes = size_bytes - (64 << 20);
    Status { total_bytes, available_bytes, kernel_free_bytes: BOOT / 2, ..Status::default() }
}

fn arrive(action: &Action) -> Option<(u64, u64)> {
    match action {
        Action::Tell(FromHost::Arrive { id, bytes, .. }) => Some((*id, *bytes)),
        _ => None,
    }
}

fn report(action: &Action) -> Option<u64> {
    if let Action::Tell(FromHost::Report { id }) = action { Some(*id) } else { None }
}

fn requests(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Request { .. })).count()
}

fn offline_ids(actions: &[Action]) -> Vec<u64> {
    let id = |action: &Action| match action {
        Action::Tell(FromHost::Offline { id, .. }) => Some(*id),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

#[test]
fn no_size_is_rounded_up_beyond_what_the_guest_may_have() {
    let most_bytes = BOOT + 2 * S + S / 2;
    let mut case = Case::new(Settings { most_bytes, ..settings() }, 0);
    case.order(BOOT + 2 * S + S / 4);
    assert!(
        matches!(case.end(), End::Refused(why) if why.contains("more than the guest can have"))
    );
    // It gets all whole sections that there are, even if it asks for more.
    case.agent(FromGuest::Need { id: 1, bytes: 2 * S + S / 2, urgent: true, wait_ms: 0 });
    case.obey();
    assert_eq!(case.end(), End::Reached);
    assert_eq!(case.size(), BOOT + 2 * S);
    case.agent(FromGuest::Need { id: 2, bytes: S, urgent: true, wait_ms: 0 });
    let why = Some("the guest has its largest size".into());
    let refused = FromHost::Answer { id: 2, granted_bytes: 0, why };
    assert_eq!(case.seen(), [Action::Tell(refused)]);
}

#[test]
fn an_order_that_is_refused_leaves_the_one_under_way() {
    let mut case = Case::new(settings(), 0);
    case.order(BOOT + 2 * S);
    let running = case.guest.running();
    case.seen();
    case.order(S);
    assert!(matches!(case.end(), End::Refused(_)));
    assert_eq!(case.guest.running(), running);
    case.obey();
    assert_eq!(case.end(), End::Reached);
}

#[test]
fn an_answer_to_an_earlier_request_is_not_that_to_this_one() {
    let mut case = Case::with_agent(settings(), 8, 8 * S);
    case.order(BOOT + 6 * S);
    case.order(BOOT + 4 * S);
    let seen = case.seen();
    let ids = offline_ids(&seen);
    let asked = FromHost::Offline { id: ids[1], bytes: 4 * S, timeout_ms: 1000 };
    assert!(seen.contains(&Action::Tell(asked)), "{seen:?}");
    let [first, second] = ids[..] else { panic!("{ids:?}") };
    case.agent(FromGuest::Offlined { id: first, bytes: 2 * S });
    assert_eq!(requests(&case.seen()), 0, "the device is asked before the agent is done");
    case.agent(FromGuest::Offlined { id: second, bytes: 4 * S });
    assert_eq!(requests(&case.seen()), 1);
}

#[test]
fn a_guest_that_is_not_there_is_asked_again_only_now_and_then() {
    let mut case = Case::new(settings(), 8);
    case.order(BOOT);
    case.seen();
    case.pass(4000 * MS);
    let asked = requests(&case.seen());
    assert!((3..=5).contains(&asked), "asked {asked} times in 4 s");
}

#[test]
fn what_the_boot_before_a_reset_said_does_not_count() {
    let mut case = Case::with_agent(settings(), 4, 4 * S);
    assert!(case.view().status.is_some() && case.view().kernel.is_some());
    case.device.size_bytes = 0;
    case.tell(Event::Reset);
    let view = case.view();
    assert_eq!((view.status, view.kernel, view.status_size_bytes), (None, None, 0));
    // Statuses of the old boot do not count for a new boot without a status.
    case.obey();
    case.order(BOOT);
    assert!(offline_ids(&case.seen()).is_empty());
}

#[test]
fn what_is_offline_meanwhile_is_not_the_kernels() {
    let mut case = Case::with_agent(settings(), 8, 8 * S);
    let size = case.size();
    case.order(size - 4 * S);
    let ids = offline_ids(&case.seen());
    case.agent(FromGuest::Offlined { id: ids[0], bytes: 4 * S });
    // The agent has set all of it offline, and the device is slow.
    case.pass(1500 * MS);
    case.says(status(size - 4 * S, 4 * S));
    assert_eq!(case.view().status_size_bytes, size - 4 * S);
    case.obey();
    assert_eq!(case.end(), End::Reached);
}

#[test]
fn what_was_taken_since_the_last_status_is_not_available() {
    let mut case = Case::with_agent(settings(), 8, 4 * S);
    let shrink = |case: &mut Case| {
        case.order(case.size() - 2 * S);
        for id in offline_ids(&case.seen) {
            case.agent(FromGuest::Offlined { id, bytes: 2 * S });
        }
        if case.seen.iter().any(|it| report(it).is_some()) {
            case.reported();
        }
        case.obey();
        case.end()
    };
    assert_eq!(shrink(&mut case), End::Reached);
    let End::Refused(why) = shrink(&mut case) else { panic!("nothing more is available") };
    assert!(why.starts_with("256.0 MiB is available"), "{why}");
    // Memory that it was given since counts.
    case.order(case.size() + S);
    case.obey();
    case.seen();
    assert_eq!(shrink(&mut case), End::Reached);
}

#[test]
fn messages_that_are_not_heard_are_counted_for_good() {
    let mut case = Case::with_agent(settings(), 0, S);
    let untrue = status(64 * S, S);
    for second in 1..=3 {
        case.says(untrue);
        case.says(Status { available_bytes: u64::MAX, ..status(BOOT, S) });
        assert_eq!(case.view().ignored_messages, 2 * second);
        case.now_us += 1_000_000;
    }
    // A second allows this many messages, but fewer requests.
    let before = case.view().ignored_messages;
    for _ in 0..200 {
        case.now_us += MS;
        case.says(status(BOOT, S));
    }
    assert_eq!(case.view().ignored_messages, before);
    case.says(status(BOOT, S / 4));
    assert_eq!(case.view().ignored_messages, before + 1);
    assert_eq!(case.view().status.map(|status| status.available_bytes), Some(S));
    case.now_us += 1_000_000;
    case.seen();
    for id in 0..20 {
        case.now_us += MS;
        case.agent(FromGuest::Give { id, bytes: S });
    }
    assert_eq!(case.view().ignored_messages, before + 5);
    assert_eq!(case.seen().len(), 16);
}

#[test]
fn a_guest_in_need_breaks_off_what_shrinks_it_and_not_what_makes_it_grow() {
    let mut case = Case::with_agent(settings(), 4, 4 * S);
    case.order(case.size() + S);
    let running = case.guest.running();
    case.seen();
    case.agent(FromGuest::Need { id: 1, bytes: 4 * S, urgent: true, wait_ms: 0 });
    let why = Some("a change of size is in progress".into());
    assert_eq!(case.seen(), [Action::Tell(FromHost::Answer { id: 1, granted_bytes: 0, why })]);
    assert_eq!(case.guest.running(), running);
    case.obey();
    case.seen();
    case.order(case.size() - 2 * S);
    case.agent(FromGuest::Need { id: 2, bytes: S, urgent: false, wait_ms: 0 });
    assert_eq!(case.ends(), []);
    case.agent(FromGuest::Need { id: 3, bytes: S, urgent: true, wait_ms: 0 });
    assert_eq!(case.end(), End::Superseded);
    // It keeps the memory that it should have given, and the view shows it.
    assert_eq!(case.view().kept_bytes, 2 * S);
    case.obey();
    case.seen();
    case.pass(61_000 * MS);
    assert_eq!(case.view().kept_bytes, 0);
    // But it does not stop a forced order.
    case.force(case.size() - 2 * S);
    case.agent(FromGuest::Need { id: 4, bytes: S, urgent: true, wait_ms: 0 });
    assert_eq!(case.ends(), []);
}

#[test]
fn what_is_broken_off_is_held_before_more_is_set_aside() {
    let mut case = Case::new(settings(), 0);
    case.order(BOOT + 2 * S);
    case.device.size_bytes = S;
    case.seen();
    // The guest plugs one more section while the devices are read, and another while it is held.
    case.order(BOOT + 4 * S);
    case.device.size_bytes = 2 * S;
    let held = |bytes| Action::Request { device: 0, bytes };
    let seen = case.seen();
    assert!(seen.contains(&held(0)), "asked for what it had when it was read last: {seen:?}");
    let reserves = |it: &Action| matches!(it, Action::Reserve { .. });
    assert!(!seen.iter().any(reserves), "before it is read again: {seen:?}");
    case.pass(2 * MS);
    assert_eq!(case.seen(), [held(2 * S)], "it may keep what it has plugged");
    case.pass(2 * MS);
    let seen = case.seen();
    let reserve = Action::Reserve { device: 0, more_bytes: 2 * S };
    assert!(seen.contains(&reserve) && seen.contains(&held(4 * S)), "{seen:?}");
    case.obey();
    assert_eq!(case.end(), End::Reached);
}

#[test]
fn a_status_from_before_a_change_says_nothing_of_what_came_after() {
    let mut case = Case::with_agent(settings(), 4, 4 * S);
    let before = case.size();
    case.order(before + S);
    case.obey();
    case.seen();
    // The last section is plugged but not online yet: the kernel has not taken it.
    case.says(status(before, 4 * S));
    assert_eq!(case.view().status_size_bytes, before);
    case.order(before);
    for id in offline_ids(&case.seen()) {
        case.agent(FromGuest::Offlined { id, bytes: S });
    }
    case.obey();
    // A status that was in flight while the guest shrank.
    case.says(status(before + S, 5 * S));
    assert_eq!(case.view().status_size_bytes, before);
    // After a while at rest it is computed again: the kernel has taken 32 MiB more.
    case.pass(1100 * MS);
    case.says(status(before - (32 << 20), 4 * S));
    assert_eq!(case.view().status_size_bytes, before);
}

#[test]
fn what_is_found_under_way_is_said() {
    let device = Device { max_bytes: 28 * S, ..Device::default() };
    let said = |case: &mut Case| case.seen().iter().any(|it| matches!(it, Action::Say(_)));
    let mut case = Case::attached(settings(), device);
    assert_eq!(case.seen(), [], "all of it is at rest");
    let device = Device { requested_bytes: S, set_aside_bytes: S, ..device };
    let mut case = Case::attached(settings(), device);
    assert!(said(&mut case));
    // The guest is brought to rest first; then the order continues.
    case.obey();
    case.obey();
    assert_eq!(case.end(), End::Reached);
}

#[test]
fn what_is_set_aside_already_may_lie_elsewhere_than_where_the_guest_plugs() {
    // Left by a killed daemon.
    let device = Device {
        max_bytes: 28 * S,
        size_bytes: 2 * S,
        requested_bytes: 4 * S,
        set_aside_bytes: 6 * S,
    };
    let mut case = Case::attached(settings(), device);
    assert!(case.seen().contains(&Action::Request { device: 0, bytes: 2 * S }), "it is held");
    case.pass(2 * MS);
    let expected = [
        Action::Release { device: 0, size_bytes: 2 * S },
        Action::Reserve { device: 0, more_bytes: 2 * S },
        Action::Request { device: 0, bytes: 4 * S },
    ];
    assert_eq!(case.seen(), expected);
    case.obey();
    assert_eq!((case.end(), case.device.set_aside_bytes), (End::Reached, 4 * S));
    // Left by an order that was superseded by a shrink, which was superseded by a growth.
    case.order(BOOT + 8 * S);
    case.order(BOOT + 2 * S);
    case.device.size_bytes = 3 * S;
    case.pass(2 * MS);
    case.seen();
    case.order(BOOT + 6 * S);
    case.pass(4 * MS);
    let seen = case.seen();
    let place = |action| seen.iter().position(|it| *it == action);
    let release = place(Action::Release { device: 0, size_bytes: 3 * S });
    let reserve = place(Action::Reserve { device: 0, more_bytes: 3 * S });
    assert!(release.is_some() && release < reserve, "{seen:?}");
}

#[test]
fn what_an_agent_set_offline_for_a_daemon_that_is_gone_comes_online_again() {
    let device = Device {
        max_bytes: 28 * S,
        size_bytes: 4 * S,
        requested_bytes: 2 * S,
        set_aside_bytes: 4 * S,
    };
    let mut case = Case::attached(settings(), device);
    case.tell(Event::AgentConnected);
    case.hello();
    // The guest keeps it: the adopted change ends where it is.
    case.pass(12_000 * MS);
    let seen = case.seen();
    assert!(seen.contains(&Action::Tell(FromHost::Online)), "{seen:?}");
    assert_eq!(case.guest.running(), None);
}

#[test]
fn a_guest_in_need_is_answered_though_the_pool_stays_dry() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.free = 0;
    case.agent(FromGuest::Need { id: 9, bytes: S, urgent: true, wait_ms: 0 });
    assert_eq!(case.view().wanted_bytes, S);
    case.pass(2500 * MS);
    assert_eq!(case.seen().iter().filter(|it| matches!(it, Action::Done(_))).count(), 0);
    case.pass(1000 * MS);
    let seen = case.seen();
    let refused =
        |it: &Action| matches!(it, Action::Tell(FromHost::Answer { id: 9, granted_bytes: 0, .. }));
    assert!(seen.iter().any(refused), "{seen:?}");
    assert_eq!(case.view().wanted_bytes, 0);
    assert_eq!(case.guest.running(), None);
}

#[test]
fn a_guest_is_looked_at_each_second_and_more_often_while_it_changes() {
    let mut case = Case::new(settings(), 0);
    let wakes_after = |case: &Case| case.guest.wake_at_us(case.now_us) - case.now_us;
    assert_eq!(wakes_after(&case), 1_000_000);
    case.order(BOOT + S);
    assert_eq!(wakes_after(&case), 2_000);
    case.obey();
    case.free = 0;
    case.agent(FromGuest::Need { id: 1, bytes: S, urgent: true, wait_ms: 0 });
    assert_eq!(wakes_after(&case), 20_000, "the pool is asked again");
}

#[test]
fn a_size_that_is_there_takes_nothing_of_the_kernel() {
    let mut case = Case::with_agent(settings(), 4, S);
    case.says(Status { kernel_free_bytes: 0, ..status(BOOT + 4 * S, S) });
    case.order(BOOT + 4 * S);
    assert_eq!(case.end(), End::Reached);
    case.order(BOOT + 5 * S);
    case.reported();
    assert!(matches!(case.end(), End::Refused(why) if why.contains("page descriptors")));
}

#[test]
fn a_further_device_is_wanted_where_the_first_is_too_small_and_the_guest_rests() {
    let mut case = Case::new(settings(), 0);
    assert_eq!(case.guest.lacks_bytes(), 0, "28 sections of device are enough");
    case.tell(Event::Settings(Settings { most_bytes: 40 * S + 1, ..settings() }));
    assert_eq!(case.guest.lacks_bytes(), 9 * S, "in whole sections");
    case.order(BOOT + S);
    assert_eq!(case.guest.lacks_bytes(), 0, "not while it changes");
    case.obey();
    assert_eq!(case.guest.lacks_bytes(), 9 * S);
    // All new memory is movable, so the limit is 16 times the boot memory.
    case.tell(Event::Settings(Settings { most_bytes: 100 * S, ..settings() }));
    assert_eq!(case.guest.lacks_bytes(), 32 * S);
    case.tell(Event::Detached("gone".into()));
    assert_eq!(case.guest.lacks_bytes(), 0);
}
