//! Slabs that move: how many at a time, where to, and what is said of those that take long.

use super::*;

/// A borrower of 30 slabs whose only lender wants them back, with others; the moves that begin then.
fn recalled(settings: Settings, others: &[(&str, u64)]) -> (Host, Vec<Action>) {
    let (mut host, request) = Host::borrower(settings);
    let peer = |(name, slabs): &(&str, u64)| Peer {
        host: id(name),
        rack: (*name).into(),
        spare_bytes: slabs * SLAB,
    };
    host.tell(Event::Peers([("l", 50)].iter().chain(others).map(peer).collect()));
    let recall = MemLenFin { loan: request.loan, deadline_ms: 60_000 };
    let asked = host.receive("l", 1, Body::MemLenFin(recall));
    let mut then = host.grant(&asked);
    then.extend(asked);
    (host, then)
}

fn slow_after_2_s() -> Settings {
    Settings { slow_move: Duration::from_secs(2), ..settings() }
}

impl Host {
    /// A move has come to its end; the moves that begin then.
    fn finish(&mut self, action: &Action) -> Vec<Action> {
        let Action::Place { device, slab, copy, place } = action.clone() else {
            panic!("{action:?} is no move")
        };
        begun(&self.tell(Event::Placed { device, slab, copy, place, result: Ok(()) }))
    }
}

/// The moves that begin in `actions`.
fn begun(actions: &[Action]) -> Vec<Action> {
    actions.iter().filter(|action| matches!(action, Action::Place { .. })).cloned().collect()
}

fn loan_of(action: &Action) -> u64 {
    match action {
        Action::Place { place: CopyLocation::Lender { loan, .. }, .. } => loan.number,
        other => panic!("{other:?} goes to no lender"),
    }
}

/// The slabs whose moves are noted as slow in `actions`, with the seconds that they took.
fn slow_moves(actions: &[Action]) -> Vec<(u32, u64)> {
    let slow = |action: &Action| match action {
        Action::Note(Note::MoveSlow { slab, took, .. }) => Some((*slab, took.as_secs())),
        _ => None,
    };
    actions.iter().filter_map(slow).collect()
}

#[test]
fn moves_that_take_long_hold_up_no_others_until_they_are_four_times_as_many() {
    let (mut host, then) = recalled(slow_after_2_s(), &[("m", 50)]);
    let mut moves = begun(&then);
    assert_eq!((moves.len(), slow_moves(&then).len()), (4, 0));
    // The first slab has moved: others than the first ones are noted.
    moves.extend(host.finish(&moves[0].clone()));
    for more in 1..=3 {
        let slow_at = host.now + Duration::from_secs(2);
        assert_eq!(host.machine.wake_at(), Some(slow_at), "it comes back in time");
        let then = host.pass(1_999);
        assert_eq!((begun(&then).len(), slow_moves(&then).len()), (0, 0), "not yet slow");
        let then = host.pass(1);
        let noted = (4 * more - 3..=4 * more).map(|slab| (slab, 2)).collect::<Vec<_>>();
        assert_eq!((begun(&then).len(), slow_moves(&then)), (4, noted), "each once");
        moves.extend(begun(&then));
    }
    let then = host.pass(2_000);
    assert_eq!((begun(&then).len(), slow_moves(&then).len()), (0, 4), "16 are under way");
    // Each that comes to its end after all makes room for one, though few of the others are quick.
    for slow in &moves[1..4] {
        assert_eq!(host.finish(slow).len(), 1);
    }
}

#[test]
fn the_machine_wakes_for_the_move_that_is_slow_next() {
    let (mut host, then) = recalled(slow_after_2_s(), &[("m", 50)]);
    let slow_at = host.now + Duration::from_secs(2);
    host.pass(1_500);
    assert_eq!(host.finish(&begun(&then)[0]).len(), 1, "one begins later than the others");
    assert_eq!(host.machine.wake_at(), Some(slow_at));
    assert_eq!(slow_moves(&host.pass(500)).len(), 3);
    assert_eq!(host.machine.wake_at(), Some(slow_at + Duration::from_millis(1_500)));
}

#[test]
fn moves_go_to_lenders_to_which_none_takes_long_while_these_have_room() {
    let (mut host, then) = recalled(slow_after_2_s(), &[("m", 20), ("n", 20)]);
    let slow = loan_of(&begun(&then)[0]);
    assert!(begun(&then).iter().all(|action| loan_of(action) == slow), "one after the other");
    let then = host.pass(2_000);
    let mut quick = begun(&then);
    assert_eq!(quick.len(), 4);
    let (mut to_quick, mut to_slow) = (0, 0);
    while let Some(action) = quick.pop() {
        assert_ne!(loan_of(&action), slow);
        to_quick += 1;
        for next in host.finish(&action) {
            if loan_of(&next) == slow { to_slow += 1 } else { quick.push(next) }
        }
    }
    // What the quick one has no room for goes to the other all the same, as much as may.
    assert!(to_quick < 26, "one lender has room for all");
    assert_eq!(to_slow, 4, "after {to_quick}");
}

#[test]
fn no_more_slabs_move_into_the_file_than_it_has_room_for_and_as_many_at_a_time_as_elsewhere() {
    let (mut host, then) = recalled(Settings { file_slabs: 6, ..settings() }, &[]);
    let mut moves = begun(&then);
    assert_eq!(moves.len(), 4);
    let mut all = 0;
    while let Some(action) = moves.pop() {
        assert!(matches!(action, Action::Place { place: CopyLocation::File, .. }));
        all += 1;
        moves.extend(host.finish(&action));
    }
    assert_eq!(all, 6);
}

#[test]
fn a_recalled_copy_beside_one_in_the_file_waits_for_its_turn_too() {
    let with_file = Settings { backup: Backup::File, file_slabs: 100, ..settings() };
    let (mut host, then) = recalled(with_file, &[]);
    let mut moves = begun(&then);
    assert_eq!(moves.len(), 4);
    let mut all = 4;
    while let Some(action) = moves.pop() {
        let more = host.finish(&action);
        assert!(more.len() <= 1, "more than four at a time");
        all += more.len();
        moves.extend(more);
    }
    assert_eq!(all, 30);
}

#[test]
fn a_place_whose_move_failed_is_used_again_if_nothing_was_sent_to_it() {
    for is_untouched in [true, false] {
        let (mut host, then) = recalled(settings(), &[("m", 50)]);
        let mut moves = begun(&then);
        let Action::Place { device, slab, copy, place } = moves.remove(0) else { unreachable!() };
        let result = Err(PlaceFailure { why: "can't connect".into(), is_untouched });
        let asked = host.tell(Event::Placed { device, slab, copy, place: place.clone(), result });
        // The lender still has the loan, so its places are used again.
        moves.extend(begun(&host.grant(&asked)));
        moves.extend(begun(&host.pass(1_000)));
        let mut places = Vec::new();
        while let Some(next) = moves.pop() {
            let Action::Place { place, .. } = &next else { unreachable!() };
            places.push(place.clone());
            moves.extend(host.finish(&next));
        }
        assert_eq!(places.len(), if is_untouched { 30 } else { 29 }, "the loan has 30");
        assert_eq!(places.contains(&place), is_untouched);
    }
}
