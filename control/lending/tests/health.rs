//! What is said of a host's health, by what happens to messages and pages, in simulated time.

use std::time::Duration;

use spillway_lending::{Contact, Fault, Health, HealthChange, HealthWatch, HostId};

const TIMEOUT: Duration = Duration::from_secs(1);

/// A watch over one host, and a clock.
struct Case {
    watch: HealthWatch,
    host: HostId,
    now: Duration,
}

impl Case {
    fn new() -> Self {
        let host = HostId::new("b.test").unwrap();
        Self { watch: HealthWatch::new(TIMEOUT), host, now: Duration::from_secs(100) }
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    fn answer(&mut self, ms: u64) -> Option<HealthChange> {
        let contact = Contact::Answered(Duration::from_millis(ms));
        self.watch.contact(self.now, &self.host, contact)
    }

    fn fail(&mut self, fault: Fault, reason: &str) -> Option<HealthChange> {
        let contact = Contact::Failed { fault, reason: reason.to_owned() };
        self.watch.contact(self.now, &self.host, contact)
    }

    #[track_caller]
    fn expect(&self, health: Health, reason: &str, lasted_ms: u64) {
        let standing = self.watch.standing(self.now, &self.host);
        assert_eq!((standing.health, standing.reason.as_str()), (health, reason));
        assert_eq!(standing.lasted, Duration::from_millis(lasted_ms));
    }
}

#[test]
fn a_host_that_is_killed_is_unreachable_at_once_and_well_with_its_first_answer() {
    let mut case = Case::new();
    case.expect(Health::Unknown, "", 0);
    let change = case.answer(2).unwrap();
    assert_eq!((change.from, change.to), (Health::Unknown, Health::Ok));
    case.pass(6000);
    assert_eq!(case.answer(2), None);
    case.expect(Health::Ok, "", 6000);
    let change = case.fail(Fault::Unreachable, "connection refused").unwrap();
    assert_eq!(change.host, case.host);
    assert_eq!((change.from, change.lasted), (Health::Ok, Duration::from_secs(6)));
    assert_eq!((change.to, change.reason.as_str()), (Health::Unreachable, "connection refused"));
    case.pass(3000);
    // Another reason is shown, and is no other health.
    assert_eq!(case.fail(Fault::Unreachable, "no route to the host"), None);
    case.expect(Health::Unreachable, "no route to the host", 3000);
    let change = case.answer(2).unwrap();
    assert_eq!((change.to, change.lasted), (Health::Ok, Duration::from_secs(3)));
    case.expect(Health::Ok, "", 0);
}

#[test]
fn a_host_without_a_network_is_slow_first_and_unreachable_when_it_lasts() {
    let mut case = Case::new();
    case.answer(2);
    assert_eq!(case.fail(Fault::Late, "no answer within 1 s").unwrap().to, Health::Slow);
    // Requests that were under way at the same time say nothing more.
    case.pass(900);
    assert_eq!(case.fail(Fault::Late, "no answer within 1 s"), None);
    case.expect(Health::Slow, "no answer within 1 s", 900);
    case.pass(100);
    assert_eq!(case.fail(Fault::Late, "no answer within 1 s").unwrap().to, Health::Unreachable);
}

#[test]
fn time_outs_with_answers_in_between_are_slow() {
    let mut case = Case::new();
    case.answer(2);
    for _ in 0..20 {
        case.fail(Fault::Late, "no answer within 1 s");
        case.pass(1000);
        assert_eq!(case.answer(2), None);
        case.pass(1000);
    }
    case.expect(Health::Slow, "no answer within 1 s", 40_000);
}

#[test]
fn slow_answers_count_in_a_row_and_so_do_prompt_ones() {
    let mut case = Case::new();
    case.answer(2);
    for _ in 0..10 {
        assert_eq!((case.answer(700), case.answer(700), case.answer(2)), (None, None, None));
    }
    case.answer(700);
    case.answer(700);
    let change = case.answer(800).unwrap();
    assert_eq!((change.to, change.reason.as_str()), (Health::Slow, "an answer took 800 ms"));
    for _ in 0..10 {
        assert_eq!((case.answer(2), case.answer(2), case.answer(900)), (None, None, None));
    }
    case.expect(Health::Slow, "an answer took 900 ms", 0);
    assert_eq!((case.answer(2), case.answer(2)), (None, None));
    assert_eq!(case.answer(500).unwrap().to, Health::Ok, "half of the time is prompt");
}

#[test]
fn a_late_answer_of_a_host_that_was_out_of_reach_is_an_answer() {
    let mut case = Case::new();
    case.fail(Fault::Unreachable, "connection refused");
    assert_eq!(case.answer(900).unwrap().to, Health::Ok);
}

#[test]
fn a_wrong_certificate_is_refused_until_an_answer_or_until_nothing_is_heard() {
    let mut case = Case::new();
    let reason = "its certificate is for another name";
    assert!(!case.watch.standing(case.now, &case.host).health.is_bad());
    let change = case.fail(Fault::Refused, reason).unwrap();
    assert!(change.to.is_bad());
    assert_eq!((change.to, change.reason.as_str()), (Health::Refused, reason));
    case.pass(5000);
    case.fail(Fault::Late, "no answer within 1 s");
    case.expect(Health::Refused, reason, 5000);
    case.pass(1000);
    let change = case.fail(Fault::Late, "no answer within 1 s").unwrap();
    assert_eq!(change.to, Health::Unreachable);
    case.fail(Fault::Refused, reason);
    assert_eq!(case.answer(2).unwrap().to, Health::Ok);
}

#[test]
fn a_host_that_nobody_asks_any_more_is_unknown_and_a_bad_one_stays_bad() {
    let mut case = Case::new();
    case.answer(2);
    case.pass(59_000);
    case.expect(Health::Ok, "", 59_000);
    case.pass(2000);
    case.expect(Health::Unknown, "not asked any more", 1000);
    assert_eq!(case.answer(2), None);
    case.expect(Health::Ok, "", 61_000);
    case.fail(Fault::Unreachable, "connection refused");
    case.pass(100_000);
    case.expect(Health::Unreachable, "connection refused", 100_000);
}

#[test]
fn who_is_asked_anyway_is_not_due() {
    let mut case = Case::new();
    let every = Duration::from_secs(2);
    assert!(case.watch.is_due(case.now, &case.host, every));
    case.answer(2);
    case.pass(1999);
    assert!(!case.watch.is_due(case.now, &case.host, every));
    case.pass(1);
    assert!(case.watch.is_due(case.now, &case.host, every));
}

#[test]
fn pages_that_fail_count_although_messages_are_answered() {
    let mut case = Case::new();
    case.answer(2);
    case.watch.loan_opened(7, case.host.clone());
    let late = "no answer about a page";
    let change = case.watch.page_failed(case.now, 7, Fault::Late, late.into(), false).unwrap();
    assert_eq!((change.to, change.reason.as_str()), (Health::Slow, late));
    for _ in 0..5 {
        case.pass(1000);
        assert_eq!(case.answer(2), None);
    }
    case.expect(Health::Slow, late, 5000);
    // Worse is what counts, whichever it is.
    case.fail(Fault::Unreachable, "connection refused");
    case.expect(Health::Unreachable, "connection refused", 0);
    case.answer(2);
    case.expect(Health::Slow, late, 0);
    assert_eq!(case.watch.loan_works(case.now, 7).unwrap().to, Health::Ok);
}

#[test]
fn pages_that_failed_are_forgotten_with_their_loan_and_after_a_while() {
    let mut case = Case::new();
    case.answer(2);
    for number in [7, 8] {
        case.watch.loan_opened(number, case.host.clone());
        let reason = "it has lost a page".into();
        case.watch.page_failed(case.now, number, Fault::Refused, reason, false);
    }
    assert_eq!(case.watch.loan_ended(case.now, 7), None, "the other one failed too");
    case.expect(Health::Refused, "it has lost a page", 0);
    assert_eq!(case.watch.loan_ended(case.now, 8).unwrap().to, Health::Ok);
    // Of no loan that is held.
    assert_eq!(case.watch.page_failed(case.now, 7, Fault::Refused, String::new(), false), None);
    case.watch.loan_opened(9, case.host.clone());
    case.watch.page_failed(case.now, 9, Fault::Late, "no answer about a page".into(), false);
    case.pass(59_000);
    assert_eq!(case.answer(2), None);
    case.pass(1000);
    assert_eq!(case.answer(2).unwrap().to, Health::Ok);
}

#[test]
fn a_lender_that_requests_wait_for_is_not_ok_before_it_answers_about_pages() {
    let mut case = Case::new();
    case.answer(2);
    case.watch.loan_opened(7, case.host.clone());
    let late = "no answer about a page";
    case.watch.page_failed(case.now, 7, Fault::Late, late.into(), true);
    // The time to wait is over, and requests fail: the lender answers no better for that.
    case.pass(30_000);
    assert_eq!(case.watch.page_failed(case.now, 7, Fault::Late, late.into(), false), None);
    case.pass(70_000);
    assert_eq!(case.answer(2), None);
    case.expect(Health::Slow, late, 100_000);
    assert_eq!(case.watch.loan_works(case.now, 7).unwrap().to, Health::Ok);
    // The next fault is a new one.
    case.watch.page_failed(case.now, 7, Fault::Late, late.into(), false);
    case.pass(60_000);
    assert_eq!(case.answer(2).unwrap().to, Health::Ok);
}
