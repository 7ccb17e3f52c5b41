//! Requests of guests and their programs for memory, and the answers.

use super::*;

fn answers(case: &mut Case) -> Vec<(u64, u64, Option<String>)> {
    let answer = |it| match it {
        Action::Tell(FromHost::Answer { id, granted_bytes, why }) => Some((id, granted_bytes, why)),
        _ => None,
    };
    case.seen().into_iter().filter_map(answer).collect()
}

fn program(id: u64, sections: u64, wait_ms: u32) -> FromGuest {
    FromGuest::Need { id, bytes: sections * S, urgent: false, wait_ms }
}

#[test]
fn a_program_waits_for_memory_that_others_give() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.free = S;
    case.agent(program(9, 4, 15_000));
    assert_eq!(case.view().wanted_bytes, 4 * S, "the policy sees it");
    case.pass(14_000 * MS);
    assert_eq!(answers(&mut case), []);
    case.free = 4 * S;
    case.pass(100 * MS);
    case.obey();
    case.pass(3000 * MS);
    assert_eq!(answers(&mut case), [(9, 4 * S, None)]);
}

#[test]
fn a_program_that_nobody_gives_memory_in_time_gets_what_there_is_or_a_line() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.free = 2 * S;
    case.agent(program(8, 5, 5_000));
    case.pass(5_100 * MS);
    case.obey();
    case.pass(3000 * MS);
    assert_eq!(answers(&mut case), [(8, 2 * S, None)]);
    case.free = 0;
    case.agent(program(9, 4, 5_000));
    case.pass(4_900 * MS);
    assert_eq!(answers(&mut case), []);
    case.pass(200 * MS);
    let why = "the pool is dry; no guest gave any in 5 s";
    assert_eq!(answers(&mut case), [(9, 0, Some(why.into()))]);
    assert_eq!(case.view().wanted_bytes, 0);
    // The host's own limit applies, however long a program would wait.
    case.agent(program(10, 4, u32::MAX));
    case.pass(20_100 * MS);
    assert_eq!(answers(&mut case).len(), 1);
}

#[test]
fn a_program_waits_for_the_end_of_a_change() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.order(BOOT + S);
    case.agent(program(9, 2, 15_000));
    case.agent(program(10, 2, 2_000));
    assert_eq!(answers(&mut case), []);
    case.pass(2_100 * MS);
    let why = "the guest's size was changing all that time";
    assert_eq!(answers(&mut case), [(10, 0, Some(why.into()))]);
    case.obey();
    case.pass(2_100 * MS);
    case.obey();
    case.pass(2_100 * MS);
    assert_eq!(answers(&mut case), [(9, 2 * S, None)]);
    assert_eq!(case.size(), BOOT + 3 * S);
    // Only this many may wait.
    case.order(BOOT + 4 * S);
    (0..9).for_each(|id| case.agent(program(id, 1, 15_000)));
    let why = "a change of size is in progress";
    assert_eq!(answers(&mut case), [(8, 0, Some(why.into()))]);
}

#[test]
fn what_is_urgent_goes_before_a_program_that_waits() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.free = S;
    case.agent(program(9, 4, 15_000));
    case.agent(FromGuest::Need { id: 10, bytes: S, urgent: true, wait_ms: 0 });
    case.obey();
    case.pass(100 * MS);
    assert_eq!(answers(&mut case), [(10, S, None)]);
    assert_eq!(case.view().wanted_bytes, 4 * S, "it waits again");
    case.free = 4 * S;
    case.pass(100 * MS);
    case.obey();
    case.pass(3000 * MS);
    assert_eq!(answers(&mut case), [(9, 4 * S, None)]);
}

#[test]
fn programs_of_an_agent_that_is_gone_are_forgotten() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.order(BOOT + S);
    case.agent(program(9, 2, 15_000));
    case.tell(Event::AgentGone);
    case.obey();
    case.pass(3000 * MS);
    assert_eq!(case.size(), BOOT + S);
    assert_eq!(case.guest.running(), None);
}

#[test]
fn a_size_is_reached_when_the_agent_says_that_it_is_online() {
    let mut case = Case::with_agent(settings(), 1, S);
    case.order(BOOT + 3 * S);
    case.device.size_bytes = 3 * S;
    case.pass(1000 * MS);
    assert!(case.guest.running().is_some());
    let (id, bytes) = case.seen().iter().find_map(arrive).unwrap();
    assert_eq!(bytes, 3 * S);
    case.agent(FromGuest::Arrived { id: id + 1, bytes });
    assert!(case.guest.running().is_some(), "the answer to something else");
    case.agent(FromGuest::Arrived { id, bytes });
    assert_eq!(case.end(), End::Reached);
    // The host does not wait for memory that is being returned.
    case.force(BOOT + 2 * S);
    case.device.size_bytes = 2 * S;
    case.pass(2000 * MS);
    assert_eq!(case.end(), End::Reached);
}

#[test]
fn an_agent_that_does_not_say_so_is_not_waited_for_long() {
    let said = |case: &mut Case| -> Vec<String> {
        let line = |it| if let Action::Say(line) = it { Some(line) } else { None };
        case.seen().into_iter().filter_map(line).collect()
    };
    let mut case = Case::with_agent(settings(), 0, S);
    case.order(BOOT + S);
    case.device.size_bytes = S;
    case.pass(2100 * MS);
    assert_eq!(case.guest.running(), None);
    assert_eq!(said(&mut case), ["the agent does not report new memory online"]);
    case.order(BOOT + 2 * S);
    case.device.size_bytes = 2 * S;
    case.pass(4 * MS);
    assert!(case.guest.running().is_some());
    case.tell(Event::AgentGone);
    assert_eq!(case.guest.running(), None);
    // If the agent reports memory as not online, the host believes it, and the operator sees it.
    let mut case = Case::with_agent(settings(), 0, S);
    case.order(BOOT + 2 * S);
    case.device.size_bytes = 2 * S;
    case.pass(4 * MS);
    let (id, _) = case.seen().iter().find_map(arrive).unwrap();
    case.agent(FromGuest::Arrived { id, bytes: S });
    assert_eq!(case.guest.running(), None);
    assert_eq!(
        said(&mut case),
        ["the guest uses 128.0 MiB of 256.0 MiB that it was given: the rest stays offline"]
    );
}

#[test]
fn a_guest_in_need_does_not_wait_for_what_comes_online() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.order(BOOT + S);
    case.device.size_bytes = S;
    case.pass(4 * MS);
    case.seen();
    case.agent(FromGuest::Need { id: 1, bytes: S, urgent: true, wait_ms: 0 });
    assert_eq!(case.end(), End::Reached, "of the order");
    case.device.size_bytes = 2 * S;
    case.pass(4 * MS);
    assert_eq!(answers(&mut case), [(1, S, None)]);
}

#[test]
fn a_guest_that_was_full_is_asked_again_before_it_is_refused() {
    let mut case = Case::with_agent(settings(), 4, S);
    case.order(BOOT);
    assert_eq!(case.guest.running(), None);
    let id = case.seen().iter().find_map(report).unwrap();
    case.says(status(BOOT + 4 * S, 5 * S));
    assert_eq!(case.guest.running(), None, "what was on its way may be older");
    case.agent(FromGuest::Reported { id: id + 1 });
    assert_eq!(case.guest.running(), None);
    case.agent(FromGuest::Reported { id });
    assert!(case.guest.running().is_some());
    case.obey();
    case.seen();
    // As full as before.
    let mut case = Case::with_agent(settings(), 4, S);
    case.order(BOOT);
    case.reported();
    assert!(matches!(case.end(), End::Refused(why) if why.contains("available in the guest")));
    // No other request is delayed, and a newer order replaces it.
    case.order(BOOT);
    case.order(BOOT + S);
    assert_eq!(case.end(), End::Superseded);
}

#[test]
fn an_agent_that_does_not_report_is_not_waited_for() {
    let mut case = Case::with_agent(settings(), 4, S);
    case.order(BOOT);
    let wakes_after = case.guest.wake_at_us(case.now_us) - case.now_us;
    assert!(wakes_after <= 1_000_000, "{wakes_after}");
    case.pass(900 * MS);
    assert_eq!(case.ends(), []);
    case.pass(200 * MS);
    assert!(matches!(case.end(), End::Refused(why) if why.contains("available in the guest")));
    case.order(BOOT);
    case.tell(Event::AgentGone);
    assert_eq!(case.ends(), [], "nobody says that it is too full");
    assert!(case.guest.running().is_some());
}

#[test]
fn a_full_guest_grows_by_as_much_as_half_of_its_kernels_memory_describes() {
    let mut case = Case::with_agent(settings(), 0, S / 2);
    case.says(Status { kernel_free_bytes: 5 << 20, ..status(BOOT, S / 2) });
    case.agent(FromGuest::Need { id: 1, bytes: 2 * S, urgent: true, wait_ms: 0 });
    let refused = answers(&mut case);
    assert!(matches!(&refused[..], [(1, 0, Some(why))] if why.contains("page descriptors")));
    case.agent(FromGuest::Need { id: 2, bytes: S, urgent: true, wait_ms: 0 });
    case.obey();
    assert_eq!(answers(&mut case), [(2, S, None)]);
}

#[test]
fn what_an_agent_foresees_waits_for_memory_of_others() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.free = S;
    case.agent(program(9, 4, 0));
    assert_eq!(case.view().wanted_bytes, 4 * S, "the policy sees it");
    case.pass(2_000 * MS);
    assert_eq!(answers(&mut case), []);
    case.free = 4 * S;
    case.pass(100 * MS);
    case.obey();
    case.pass(3000 * MS);
    assert_eq!(answers(&mut case), [(9, 4 * S, None)]);
    // But it does not wait for the end of a change: the agent asks again.
    case.free = 4 * S;
    case.order(BOOT + 5 * S);
    case.agent(program(10, 1, 0));
    let why = "a change of size is in progress";
    assert_eq!(answers(&mut case), [(10, 0, Some(why.into()))]);
}

#[test]
fn the_last_moment_takes_the_place_of_what_was_foreseen() {
    let mut case = Case::with_agent(settings(), 0, S);
    case.free = S;
    case.agent(program(9, 4, 0));
    case.agent(FromGuest::Need { id: 10, bytes: S, urgent: true, wait_ms: 0 });
    let why = "a newer order took its place";
    assert_eq!(answers(&mut case), [(9, 0, Some(why.into()))]);
    case.obey();
    case.pass(100 * MS);
    assert_eq!(answers(&mut case), [(10, S, None)]);
    assert_eq!(case.guest.running(), None, "what was foreseen is asked for anew");
}
