//! The paper's table of states, row by row (its algorithms 2 to 4), and what this machine adds to it.

mod asking;
mod moves;

use core::time::Duration;

use spillway_lending::{
    Access, Action, Backup, Body, CopyLocation, DeviceId, Epoch, Event, HostId, Kept, LoanId,
    LostPlace, Machine, MemBorAck, MemBorFin, MemBorRej, MemBorReq, MemLenFin, Message, Mode, Note,
    Order, Peer, PlaceFailure, PoolIdentity, Reading, Reason, Role, Roles, Settings, Shareable,
};

const SLAB: u64 = 64 << 20;
const TOTAL: u64 = 100 * SLAB;

/// A machine, and its clock.
struct Host {
    machine: Machine,
    now: Duration,
}

fn id(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn settings() -> Settings {
    Settings { backup: Backup::None, device_slabs_min: 4, ..Settings::default() }
}

fn access(pool: u128) -> Access {
    Access { address: "10.0.0.2:4420".into(), pool: PoolIdentity(pool), nqn: None }
}

impl Host {
    fn new(name: &str, settings: Settings) -> Self {
        settings.check().unwrap();
        let machine = Machine::new(id(name), Epoch(7), 1, settings, Vec::new(), Duration::ZERO);
        Self { machine, now: Duration::ZERO }
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.machine.handle(self.now, event, &mut actions);
        actions
    }

    fn pass(&mut self, ms: u64) -> Vec<Action> {
        self.now += Duration::from_millis(ms);
        self.tell(Event::Tick)
    }

    fn read(&mut self, used_slabs: u64, swapped: &[u64]) -> Vec<Action> {
        self.tell(Event::Memory(Reading {
            total_bytes: TOTAL,
            used_bytes: used_slabs * SLAB,
            lent_used_bytes: 0,
            devices: swapped
                .iter()
                .enumerate()
                .map(|(at, slabs)| (DeviceId(at as u32), slabs * SLAB))
                .collect(),
        }))
    }

    fn peers(&mut self, names: &[&str]) {
        let peer =
            |name: &&str| Peer { host: id(name), rack: (*name).into(), spare_bytes: 50 * SLAB };
        self.tell(Event::Peers(names.iter().map(peer).collect()));
    }

    fn receive(&mut self, from: &str, epoch: u64, body: Body) -> Vec<Action> {
        let (from, to) = (id(from), self.machine.view(self.now).host);
        self.tell(Event::Received(Message { from, to, epoch: Epoch(epoch), body }))
    }

    /// Above the upper threshold for the dwell time.
    fn press(&mut self) -> Vec<Action> {
        self.read(90, &[]);
        self.now += settings().dwell;
        self.read(90, &[])
    }

    /// Grants all that is asked for in `actions`, one pool after the other.
    fn grant(&mut self, actions: &[Action]) -> Vec<Action> {
        let mut then = Vec::new();
        for (pool, (to, request)) in requests(actions).into_iter().enumerate() {
            then.extend(self.receive(to.as_str(), 1, ack(&request, 100 + pool as u128)));
        }
        then
    }

    /// A borrower of one lender, in use.
    fn borrower(settings: Settings) -> (Self, MemBorReq) {
        let mut host = Self::new("b", settings);
        host.peers(&["l"]);
        let asked = host.press();
        let request = requests(&asked)[0].1.clone();
        host.grant(&asked);
        host.tell(Event::Attached { device: DeviceId(0), result: Ok(()) });
        assert_eq!(host.machine.role(), Role::Borrower);
        (host, request)
    }

    /// A lender of four slabs to `b`.
    fn lender(settings: Settings) -> (Self, LoanId) {
        let mut host = Self::new("l", settings);
        host.read(20, &[]);
        let loan = loan("b", 1);
        host.receive("b", 1, request(&loan, 1, 4, None));
        host.tell(Event::Reserved { loan: loan.clone(), result: Ok(access(9)) });
        assert_eq!(host.machine.role(), Role::Lender);
        (host, loan)
    }
}

fn loan(borrower: &str, number: u64) -> LoanId {
    LoanId { borrower: id(borrower), number }
}

fn request(loan: &LoanId, sequence: u32, slabs: u32, holds: Option<u128>) -> Body {
    let (loan, holds) = (loan.clone(), holds.map(PoolIdentity));
    Body::MemBorReq(MemBorReq {
        loan,
        sequence,
        slabs,
        slab_bytes: SLAB,
        mode: Mode::FanOut,
        holds,
    })
}

fn ack(request: &MemBorReq, pool: u128) -> Body {
    let (loan, sequence) = (request.loan.clone(), request.sequence);
    Body::MemBorAck(MemBorAck { loan, sequence, access: access(pool), lease_ms: 30_000 })
}

fn sent(actions: &[Action]) -> Vec<&Message> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Send(message) => Some(message),
            _ => None,
        })
        .collect()
}

fn requests(actions: &[Action]) -> Vec<(HostId, MemBorReq)> {
    let request = |message: &&Message| match &message.body {
        Body::MemBorReq(request) => Some((message.to.clone(), request.clone())),
        _ => None,
    };
    sent(actions).iter().filter_map(request).collect()
}

fn reason(actions: &[Action]) -> Option<Reason> {
    sent(actions).iter().find_map(|message| match &message.body {
        Body::MemBorRej(rej) => Some(rej.reason),
        _ => None,
    })
}

fn says(actions: &[Action], name: &str) -> bool {
    sent(actions).iter().any(|message| message.body.name() == name)
}

#[test]
fn neutral_above_the_upper_threshold_asks() {
    let mut host = Host::new("b", settings());
    host.peers(&["l"]);
    assert!(sent(&host.read(90, &[])).is_empty(), "not before it has been so for a while");
    host.now += settings().dwell;
    assert_eq!(host.machine.wake_at(), Some(host.now), "and no later");
    let asked = host.read(90, &[]);
    assert_ne!(host.machine.wake_at(), Some(host.now), "nor again and again");
    let [(lender, request)] = &requests(&asked)[..] else { panic!("{asked:?}") };
    assert_eq!((lender.as_str(), request.slabs), ("l", 30), "down to the lower threshold");
    assert!(host.machine.is_waiting() && host.machine.role() == Role::Neutral);
}

#[test]
fn a_peak_shorter_than_the_dwell_does_nothing() {
    let mut host = Host::new("b", settings());
    host.peers(&["l"]);
    host.read(90, &[]);
    host.now += settings().dwell / 2;
    host.read(70, &[]);
    host.now += settings().dwell;
    assert!(sent(&host.read(90, &[])).is_empty());
}

#[test]
fn neutral_with_an_ack_attaches_and_is_borrower() {
    let mut host = Host::new("b", settings());
    host.peers(&["l"]);
    let asked = host.press();
    let then = host.grant(&asked);
    let at = |wanted: fn(&Action) -> bool| then.iter().position(wanted).unwrap();
    let open = at(|action| matches!(action, Action::Open { .. }));
    let attach = at(|action| matches!(action, Action::Attach { slabs, .. } if slabs.len() == 30));
    assert!(open < attach);
    assert_eq!(host.machine.role(), Role::Borrower);
}

#[test]
fn neutral_asked_for_what_it_has_reserves_then_acks_and_is_lender() {
    let mut host = Host::new("l", settings());
    host.read(20, &[]);
    let loan = loan("b", 1);
    let then = host.receive("b", 1, request(&loan, 1, 10, None));
    assert!(matches!(&then[0], Action::Reserve { slabs: 10, slab_bytes: SLAB, .. }));
    assert!(sent(&then).is_empty(), "no ack before the memory is set aside");
    // Asked again meanwhile: nothing more is set aside.
    assert!(host.receive("b", 1, request(&loan, 2, 10, None)).is_empty());
    let then = host.tell(Event::Reserved { loan: loan.clone(), result: Ok(access(9)) });
    assert!(says(&then, "mem_bor_ack"));
    assert_eq!(host.machine.role(), Role::Lender);
    // And again after: the same answer.
    let again = host.receive("b", 1, request(&loan, 2, 10, None));
    assert_eq!(sent(&then)[0], sent(&again)[0]);
    assert_eq!(host.machine.view(host.now).lent_bytes, 10 * SLAB);
}

#[test]
fn neutral_asked_for_more_than_it_has_refuses_and_says_what_it_has() {
    let mut host = Host::new("l", settings());
    host.read(20, &[]);
    let then = host.receive("b", 1, request(&loan("b", 1), 1, 61, None));
    let Body::MemBorRej(rej) = &sent(&then)[0].body else { panic!("{then:?}") };
    // 80 %, an eighth of the way down to 60 %, less what it uses.
    assert_eq!((rej.reason, rej.spare_slabs), (Reason::NoRoom, 57));
    assert_eq!(host.machine.role(), Role::Neutral);
}

#[test]
fn what_was_granted_is_not_recalled_for_what_lending_takes_itself() {
    let mut host = Host::new("l", settings());
    host.read(20, &[]);
    let (loan, slabs) = (loan("b", 1), host.machine.spare_bytes() / SLAB);
    host.receive("b", 1, request(&loan, 1, slabs as u32, None));
    host.tell(Event::Reserved { loan, result: Ok(access(9)) });
    let full = Reading {
        total_bytes: TOTAL,
        used_bytes: (22 + slabs) * SLAB,
        lent_used_bytes: slabs * SLAB,
        devices: Vec::new(),
    };
    for _ in 0..3 {
        host.now += settings().dwell;
        assert!(!says(&host.tell(Event::Memory(full.clone())), "mem_len_fin"));
    }
}

#[test]
fn grants_count_in_full_from_when_they_are_reserved() {
    for (shareable, most) in [(Shareable::Dynamic, 57), (Shareable::Reserve(70 * SLAB), 30)] {
        let mut host = Host::new("l", Settings { shareable, ..settings() });
        host.read(20, &[]);
        assert_eq!(host.machine.spare_bytes() / SLAB, most);
        host.receive("b", 1, request(&loan("b", 1), 1, 25, None));
        let refused = host.receive("c", 1, request(&loan("c", 1), 1, most as u32 - 24, None));
        assert_eq!(reason(&refused), Some(Reason::NoRoom));
        let granted = host.receive("c", 1, request(&loan("c", 2), 1, most as u32 - 25, None));
        assert!(matches!(granted[0], Action::Reserve { .. }), "many borrowers");
    }
}

#[test]
fn borrower_stays_while_used_and_swapped_are_above_the_lower_threshold() {
    let (mut host, _) = Host::borrower(settings());
    for _ in 0..10 {
        host.now += settings().dwell;
        let then = host.read(50, &[10]);
        assert!(!then.iter().any(|action| matches!(action, Action::Detach { .. })), "{then:?}");
    }
}

#[test]
fn borrower_below_it_detaches_forgets_says_so_and_is_neutral() {
    let (mut host, _) = Host::borrower(settings());
    host.read(40, &[10]);
    host.now += settings().dwell;
    let then = host.read(40, &[10]);
    assert!(then.contains(&Action::Detach { device: DeviceId(0) }));
    assert!(!says(&then, "mem_bor_fin"), "not before swapoff is done");
    let then = host.tell(Event::Detached { device: DeviceId(0), result: Ok(()) });
    let forget = then.iter().position(|action| matches!(action, Action::Forget { .. }));
    let fin = then.iter().position(|action| {
        matches!(action, Action::Send(Message { body: Body::MemBorFin(_), .. }))
    });
    assert!(forget.unwrap() < fin.unwrap());
    assert_eq!(host.machine.role(), Role::Neutral);
    // The end is said again until the lender has heard it.
    assert!(says(&host.pass(1_000), "mem_bor_fin"));
}

#[test]
fn a_detach_that_fails_is_tried_again_later() {
    let (mut host, _) = Host::borrower(settings());
    host.tell(Event::Operator(Order::Return));
    let failed = Err("no headroom".to_owned());
    host.tell(Event::Detached { device: DeviceId(0), result: failed });
    assert_eq!(host.machine.role(), Role::Borrower);
    let is_detach = |action: &Action| matches!(action, Action::Detach { .. });
    assert!(!host.pass(1_000).iter().any(is_detach));
    // The lease runs on: renew it, or it would be lost before.
    assert!(host.pass(7_000).iter().any(is_detach));
}

#[test]
fn borrower_recalled_moves_its_slabs_before_it_says_fin() {
    let (mut host, request) = Host::borrower(settings());
    host.peers(&["l", "m"]);
    let recall = MemLenFin { loan: request.loan.clone(), deadline_ms: 60_000 };
    let asked = host.receive("l", 1, Body::MemLenFin(recall.clone()));
    assert!(
        requests(&asked).iter().all(|(to, _)| to.as_str() == "m") && !requests(&asked).is_empty()
    );
    let mut actions = host.grant(&asked);
    let mut moved = 0;
    while let Some(at) = actions.iter().position(|action| matches!(action, Action::Place { .. })) {
        let Action::Place { device, slab, copy, place } = actions.remove(at) else {
            unreachable!()
        };
        assert!(!says(&actions, "mem_bor_fin"), "after {moved} moves");
        moved += 1;
        actions.extend(host.tell(Event::Placed { device, slab, copy, place, result: Ok(()) }));
    }
    assert_eq!(moved, 30);
    let fins: Vec<_> =
        sent(&actions).into_iter().filter(|its| its.body.name() == "mem_bor_fin").collect();
    assert!(fins.iter().any(|fin| fin.to.as_str() == "l" && *fin.body.loan() == request.loan));
    assert_eq!(host.machine.role(), Role::Borrower, "of another lender");
}

#[test]
fn borrower_recalled_without_another_lender_moves_into_the_file_or_out_of_swap() {
    for file_slabs in [0, 100] {
        let (mut host, request) = Host::borrower(Settings { file_slabs, ..settings() });
        let recall = MemLenFin { loan: request.loan, deadline_ms: 60_000 };
        let then = host.receive("l", 1, Body::MemLenFin(recall));
        let into_file = then
            .iter()
            .any(|action| matches!(action, Action::Place { place: CopyLocation::File, .. }));
        let out = then.contains(&Action::Detach { device: DeviceId(0) });
        assert_eq!((into_file, out), (file_slabs != 0, file_slabs == 0));
    }
}

#[test]
fn a_local_file_that_failed_takes_no_copy_any_more() {
    let with_file = Settings { backup: Backup::File, file_slabs: 100, ..settings() };
    let answer_ms = with_file.answer_timeout.as_millis() as u64;
    let (mut host, request) = Host::borrower(with_file);
    let device = DeviceId(0);
    let is_place = |action: &Action| matches!(action, Action::Place { .. });
    let is_loss = |action: &Action| matches!(action, Action::Note(Note::SlabLost { .. }));
    for slab in 0..4 {
        // It is told until it is dealt with.
        for _ in 0..2 {
            let lost = vec![LostPlace { slab, place: CopyLocation::File }];
            let then = host.tell(Event::LostPlaces { device, lost });
            assert!(!then.iter().any(is_place), "there is no other lender");
            assert!(!then.iter().any(is_loss), "the lender has the other copy");
        }
    }
    assert!(!host.pass(answer_ms).iter().any(is_place));
    // Nor when the lender wants its memory back: then the device goes.
    let recall = MemLenFin { loan: request.loan, deadline_ms: 60_000 };
    let then = host.receive("l", 1, Body::MemLenFin(recall));
    assert!(then.contains(&Action::Detach { device }));
    assert!(!then.iter().any(|it| matches!(it, Action::Place { slab: 0..4, .. })));
}

#[test]
fn lender_told_fin_frees_and_is_neutral() {
    let (mut host, loan) = Host::lender(settings());
    let then = host.receive("b", 1, Body::MemBorFin(MemBorFin { loan: loan.clone() }));
    assert!(then.contains(&Action::Release { loan: loan.clone() }));
    assert_eq!(reason(&then), Some(Reason::Unknown), "the borrower need not say it again");
    assert_eq!(host.machine.role(), Role::Lender, "until the memory is free");
    host.tell(Event::Released { loan });
    assert_eq!(host.machine.role(), Role::Neutral);
}

#[test]
fn lender_above_the_upper_threshold_recalls_and_frees_at_the_deadline_at_the_latest() {
    let (mut host, loan) = Host::lender(settings());
    host.read(90, &[]);
    host.now += settings().dwell;
    let then = host.read(90, &[]);
    assert!(says(&then, "mem_len_fin"));
    assert!(says(&host.pass(1_000), "mem_len_fin"), "again while nothing is heard");
    // The borrower renews to the last, and still the lease ends before the deadline.
    let mut is_released = false;
    for sequence in 2..60 {
        let renewal = request(&loan, sequence, 4, Some(9));
        let mut then = host.pass(1_000);
        then.extend(host.receive("b", 1, renewal));
        is_released |= then.contains(&Action::Release { loan: loan.clone() });
        let lease_ms = sent(&then).iter().find_map(|message| match &message.body {
            Body::MemBorAck(ack) => Some(ack.lease_ms),
            _ => None,
        });
        let left_ms = 60_000 - u64::from(sequence) * 1_000;
        assert!(lease_ms.is_none_or(|lease_ms| lease_ms + 2_000 <= left_ms.max(2_000)));
    }
    assert!(!is_released, "the borrower has until the deadline");
    assert!(host.pass(1_000).contains(&Action::Release { loan }));
}

#[test]
fn lender_above_the_upper_threshold_recalls_the_newest_loans_and_no_more_than_it_must() {
    let (mut host, _) = Host::lender(settings());
    host.now += Duration::from_secs(1);
    let newer = loan("a", 1);
    host.receive("a", 1, request(&newer, 1, 4, None));
    host.tell(Event::Reserved { loan: newer, result: Ok(access(10)) });
    // The loans, fully used, exceed the threshold of 80 by 4 slabs.
    let (total_bytes, used_bytes, lent_used_bytes) = (TOTAL, 82 * SLAB, 6 * SLAB);
    let full = Reading { total_bytes, used_bytes, lent_used_bytes, devices: Vec::new() };
    let mut recalled = Vec::new();
    for _ in 0..3 {
        let then = host.tell(Event::Memory(full.clone()));
        recalled.extend(sent(&then).iter().filter_map(|message| match &message.body {
            Body::MemLenFin(fin) => Some(fin.loan.borrower.as_str().to_owned()),
            _ => None,
        }));
        host.now += settings().dwell;
    }
    recalled.dedup();
    assert_eq!(recalled, ["a"]);
}

#[test]
fn a_lease_ends_first_with_the_borrower() {
    let (mut host, _) = Host::borrower(settings());
    host.now += Duration::from_millis(29_999);
    assert!(!host.tell(Event::Tick).iter().any(|action| matches!(action, Action::Forget { .. })));
    let then = host.pass(1);
    assert!(then.iter().any(|action| matches!(action, Action::Forget { .. })));
    assert!(then.contains(&Action::Note(Note::SlabLost { device: DeviceId(0), slab: 0 })));

    let (mut host, loan) = Host::lender(settings());
    assert!(host.pass(31_999).is_empty());
    assert!(host.pass(1).contains(&Action::Release { loan }));
}

#[test]
fn an_ack_of_an_earlier_request_lengthens_nothing() {
    let (mut host, request) = Host::borrower(settings());
    host.now += Duration::from_millis(20_000);
    host.tell(Event::Tick);
    host.receive("l", 1, ack(&request, 100));
    let view = host.machine.view(host.now);
    assert_eq!(view.borrowed[0].lease_ms, 10_000);
    // Nor does one that answers no request at all: the question of a lender.
    let probe = MemBorReq { sequence: 0, ..request };
    assert!(!says(&host.receive("l", 1, ack(&probe, 100)), "mem_bor_fin"));
    assert_eq!(host.machine.view(host.now).borrowed[0].lease_ms, 10_000);
}

#[test]
fn what_this_boot_never_asked_for_is_ended() {
    let mut host = Host::new("b", settings());
    let old = MemBorReq {
        loan: loan("b", 77),
        sequence: 1,
        slabs: 1,
        slab_bytes: SLAB,
        mode: Mode::FanOut,
        holds: None,
    };
    assert!(says(&host.receive("l", 1, ack(&old, 5)), "mem_bor_fin"));
    let recall = MemLenFin { loan: old.loan, deadline_ms: 1 };
    assert!(says(&host.receive("l", 1, Body::MemLenFin(recall)), "mem_bor_fin"));
}

#[test]
fn a_lender_asks_a_borrower_that_has_started_again_about_the_loans_of_before() {
    let (mut host, _) = Host::lender(settings());
    let then = host.receive("b", 2, request(&loan("b", 1 << 32), 1, 1, None));
    let Body::MemBorAck(probe) = &sent(&then)[0].body else { panic!("{then:?}") };
    assert_eq!((probe.sequence, probe.lease_ms), (0, 0));
    let then = host.receive("b", 2, request(&loan("b", 1 << 32), 2, 1, None));
    assert!(!says(&then, "mem_bor_ack"), "once");
}

#[test]
fn a_lender_that_has_started_again_goes_on_with_what_it_kept_and_never_grants_a_renewal_anew() {
    let kept = Kept { loan: loan("b", 1), access: access(9), slabs: 4, slab_bytes: SLAB };
    let machine = Machine::new(id("l"), Epoch(8), 2, settings(), vec![kept], Duration::ZERO);
    let mut host = Host { machine, now: Duration::ZERO };
    assert_eq!(host.machine.role(), Role::Lender);
    assert!(says(&host.receive("b", 1, request(&loan("b", 1), 40, 4, Some(9))), "mem_bor_ack"));
    for (number, pool) in [(1, 8), (2, 9)] {
        let then = host.receive("b", 1, request(&loan("b", number), 41, 4, Some(pool)));
        assert_eq!(reason(&then), Some(Reason::Unknown));
    }
}

#[test]
fn a_loan_that_the_lender_has_no_more_is_lost_and_made_again_from_the_other_copy() {
    let mut host = Host::new("b", Settings { backup: Backup::Mirror, ..settings() });
    host.peers(&["l", "m"]);
    let asked = host.press();
    host.grant(&asked);
    host.tell(Event::Attached { device: DeviceId(0), result: Ok(()) });
    for slab in host.machine.view(host.now).devices[0].slabs.clone() {
        let [
            Some(CopyLocation::Lender { loan: one, .. }),
            Some(CopyLocation::Lender { loan: other, .. }),
        ] = slab
        else {
            panic!("{slab:?}")
        };
        assert_ne!(one, other);
    }
    host.peers(&["l", "m", "n"]);
    let renewals = requests(&host.pass(11_000));
    let (lender, renewal) = &renewals[0];
    let (loan, sequence) = (renewal.loan.clone(), renewal.sequence);
    let rej = MemBorRej { loan, sequence, reason: Reason::Unknown, spare_slabs: 50 };
    let then = host.receive(lender.as_str(), 2, Body::MemBorRej(rej));
    assert!(then.iter().any(|action| matches!(action, Action::Forget { .. })));
    assert!(!then.iter().any(|action| matches!(action, Action::Note(Note::SlabLost { .. }))));
    assert!(!requests(&then).is_empty(), "another copy is wanted");
}

#[test]
fn who_waits_refuses_but_gives_way_to_the_first_in_the_alphabet() {
    for (other, has_room, gives_way) in [("a", true, true), ("a", false, false), ("z", true, false)]
    {
        let mut host = Host::new("m", settings());
        host.peers(&[other]);
        host.read(20, &[]);
        let asked = host.tell(Event::Operator(Order::Borrow(4)));
        assert_eq!(requests(&asked).len(), 1);
        let slabs = if has_room { 4 } else { 70 };
        let then = host.receive(other, 1, request(&loan(other, 1), 1, slabs, None));
        assert_eq!(then.iter().any(|action| matches!(action, Action::Reserve { .. })), gives_way);
        assert_eq!(reason(&then), (!gives_way).then_some(Reason::Busy));
        assert_eq!(says(&then, "mem_bor_fin"), gives_way, "what it had asked for is over");
    }
}

#[test]
fn a_borrower_lends_only_where_both_roles_are_allowed() {
    for (roles, lends) in [(Roles::Single, false), (Roles::Both, true)] {
        let (mut host, _) = Host::borrower(Settings { roles, ..settings() });
        host.read(50, &[20]);
        let then = host.receive("c", 1, request(&loan("c", 1), 1, 4, None));
        assert_eq!(then.iter().any(|action| matches!(action, Action::Reserve { .. })), lends);
        assert_eq!(reason(&then), (!lends).then_some(Reason::Busy));
    }
}

#[test]
fn drained_it_gives_back_recalls_and_refuses_until_resumed() {
    let (mut host, _) = Host::lender(settings());
    assert!(says(&host.tell(Event::Operator(Order::Drain)), "mem_len_fin"));
    let ask =
        |host: &mut Host, number| host.receive("c", 1, request(&loan("c", number), 1, 1, None));
    let refused = ask(&mut host, 1);
    let Body::MemBorRej(rej) = &sent(&refused)[0].body else { panic!("{refused:?}") };
    assert_eq!((rej.reason, rej.spare_slabs), (Reason::Draining, 0));
    host.tell(Event::Operator(Order::Resume));
    assert!(matches!(ask(&mut host, 2)[0], Action::Reserve { .. }));

    let (mut host, _) = Host::borrower(settings());
    let then = host.tell(Event::Operator(Order::Drain));
    assert!(then.contains(&Action::Detach { device: DeviceId(0) }));
}

#[test]
fn a_request_that_nobody_answers_is_given_up() {
    let mut host = Host::new("b", settings());
    host.peers(&["l", "m"]);
    assert!(!requests(&host.press()).is_empty());
    for _ in 0..8 {
        host.pass(500);
    }
    let view = host.machine.view(host.now);
    assert!(!view.is_waiting && view.devices.is_empty(), "{view:?}");
}

#[test]
fn a_borrower_asks_a_lender_that_has_started_again_about_a_loan_once() {
    let (mut host, request) = Host::borrower(settings());
    host.now += Duration::from_millis(1);
    // Its answer may be to a request that is too long ago to be known.
    let late = || {
        let loan = request.loan.clone();
        let (sequence, reason) = (request.sequence + 1000, Reason::Unknown);
        Body::MemBorRej(MemBorRej { loan, sequence, reason, spare_slabs: 0 })
    };
    assert_eq!(requests(&host.receive("l", 2, late())).len(), 1);
    assert!(sent(&host.receive("l", 2, late())).is_empty());
}
