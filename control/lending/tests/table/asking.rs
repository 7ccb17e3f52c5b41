//! Whom a borrower asks, for how much, and when again.

use super::*;

impl Host {
    /// Refuses the only request of `actions`.
    fn refuse(&mut self, actions: &[Action], reason: Reason, spare_slabs: u32) -> Vec<Action> {
        let [(to, request)] = &requests(actions)[..] else { panic!("{actions:?}") };
        let MemBorReq { loan, sequence, .. } = request.clone();
        let rej = MemBorRej { loan, sequence, reason, spare_slabs };
        self.receive(to.as_str(), 1, Body::MemBorRej(rej))
    }
}

fn asked_for(actions: &[Action]) -> Vec<(String, u32)> {
    requests(actions).into_iter().map(|(to, it)| (to.to_string(), it.slabs)).collect()
}

#[test]
fn a_lender_that_has_less_is_asked_for_what_it_has() {
    let mut host = Host::new("b", settings());
    host.peers(&["l"]);
    let asked = host.press();
    assert_eq!(asked_for(&asked), [("l".into(), 30)]);
    let asked = host.refuse(&asked, Reason::NoRoom, 12);
    assert_eq!(asked_for(&asked), [("l".into(), 12)]);
    // Below a slab there is nothing to ask for.
    assert!(requests(&host.refuse(&asked, Reason::NoRoom, 0)).is_empty());
}

#[test]
fn a_lender_that_refuses_is_not_asked_again_before_a_pause() {
    let mut host = Host::new("b", settings());
    host.peers(&["l"]);
    let asked = host.press();
    let then = host.refuse(&asked, Reason::Draining, 20);
    let is_short = |action: &Action| matches!(action, Action::Note(Note::Short { got: 0, .. }));
    assert!(requests(&then).is_empty() && then.iter().any(is_short), "{then:?}");
    host.peers(&["l"]);
    let pause = settings().retry;
    for _ in 0..9 {
        host.now += pause / 10;
        assert!(requests(&host.read(90, &[])).is_empty(), "{:?}", host.now);
    }
    host.now += pause;
    assert_eq!(asked_for(&host.read(90, &[])), [("l".into(), 30)]);
}

#[test]
fn a_grant_that_came_late_is_not_renewed_before_an_answer_has_had_time() {
    let mut host = Host::new("b", settings());
    host.peers(&["l"]);
    let asked = host.press();
    let (_, request) = &requests(&asked)[0];
    host.now += Duration::from_millis(900);
    let Body::MemBorAck(ack) = ack(request, 100) else { panic!("an ack") };
    // A lease of the lender's, of which a third has passed already.
    host.receive("l", 1, Body::MemBorAck(MemBorAck { lease_ms: 2_000, ..ack }));
    let half = settings().answer_timeout.as_millis() as u64 / 2;
    assert!(requests(&host.pass(half - 1)).is_empty());
    assert_eq!(requests(&host.pass(1)).len(), 1, "half of the time of an answer later");
}

#[test]
fn times_and_counts_may_be_at_their_bounds() {
    let usual = settings();
    let fits = |settings: Settings| settings.check().is_ok();
    let ms = Duration::from_millis(1);
    let least = usual.lease + usual.lease_margin;
    assert!(fits(Settings { recall_deadline: least, ..usual.clone() }));
    assert!(!fits(Settings { recall_deadline: least - ms, ..usual.clone() }));
    let week = Duration::from_secs(7 * 86_400);
    assert!(fits(Settings { recall_deadline: week, ..usual.clone() }));
    assert!(!fits(Settings { recall_deadline: week + ms, ..usual.clone() }));
    assert!(fits(Settings { answer_timeout: usual.lease / 3, ..usual.clone() }));
    assert!(!fits(Settings { answer_timeout: usual.lease / 3 + ms, ..usual }));
}
