//! Compares a history with a model that keeps everything.

use std::collections::HashMap;

use proptest::prelude::*;
use spillway_history::{Bounds, ClientSample, History, ObservedClient, Sample, StoreLevels};
use spillway_types::{ClientId, Statistics};

const BOUNDS: Bounds = Bounds { samples: 8, client_samples: 20 };

fn statistics(puts: u64) -> Statistics {
    Statistics { puts, hits: 2 * puts, used_pages: puts, target_pages: 7, ..Statistics::default() }
}

fn record(history: &mut History, clients: &[(u64, u64)]) {
    let number = history.newest() + 1;
    let store = StoreLevels { total_pages: number, ..StoreLevels::default() };
    let names: Vec<_> = clients.iter().map(|(id, _)| format!("client-{id}")).collect();
    let clients = clients.iter().zip(&names).map(|(&(id, puts), name)| ObservedClient {
        id: ClientId(id),
        name,
        statistics: statistics(puts),
    });
    history.record(1000 * number, store, clients);
}

fn all(history: &History, since: u64) -> (Vec<Sample>, Vec<ClientSample>) {
    let (samples, clients) = history.after(since, usize::MAX);
    (samples, clients.copied().collect())
}

#[test]
fn nothing_has_happened_at_first() {
    let history = History::new(BOUNDS);
    assert_eq!((history.newest(), history.oldest()), (0, 1));
    assert_eq!(all(&history, 0), (vec![], vec![]));
    assert_eq!(all(&history, u64::MAX), (vec![], vec![]));
}

#[test]
fn counts_are_those_of_the_interval() {
    let mut history = History::new(BOUNDS);
    record(&mut history, &[(1, 100)]);
    record(&mut history, &[(1, 130), (2, 5)]);
    // A counter that decreases counts as no activity.
    record(&mut history, &[(1, 10), (2, 5)]);
    let puts: Vec<_> = all(&history, 0).1.iter().map(|client| (client.id.0, client.puts)).collect();
    assert_eq!(puts, [(1, 0), (1, 30), (2, 5), (1, 0), (2, 0)]);
    let elapsed: Vec<_> = all(&history, 0).0.iter().map(|sample| sample.elapsed_ms).collect();
    assert_eq!(elapsed, [0, 1000, 1000]);
    let mut history = History::new(BOUNDS);
    record(&mut history, &[]);
    record(&mut history, &[(1, u64::MAX / 2)]);
    assert_eq!(all(&history, 0).1[0].puts, u32::MAX);
}

#[test]
fn the_oldest_goes_when_there_are_too_many() {
    let mut history = History::new(BOUNDS);
    for _ in 0..11 {
        record(&mut history, &[(1, 1)]);
    }
    assert_eq!((history.newest(), history.oldest()), (11, 4));
    let numbers =
        |since| -> Vec<u64> { all(&history, since).0.iter().map(|sample| sample.number).collect() };
    assert_eq!(numbers(0), [4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(numbers(9), [10, 11]);
    assert!(numbers(11).is_empty() && numbers(12).is_empty());
    // More clients leave room for fewer samples. Clients beyond the limit are omitted.
    record(&mut history, &(0..15).map(|id| (id, 0)).collect::<Vec<_>>());
    assert_eq!(history.oldest(), 7);
    record(&mut history, &(0..30).map(|id| (id, 0)).collect::<Vec<_>>());
    assert_eq!((history.oldest(), all(&history, 0).1.len()), (13, 20));
}

#[test]
fn a_client_is_forgotten_with_its_last_sample() {
    let mut history = History::new(BOUNDS);
    record(&mut history, &[(1, 1), (2, 1)]);
    for _ in 0..7 {
        record(&mut history, &[(2, 1)]);
    }
    assert_eq!(history.name(ClientId(1)).map(|name| &**name), Some("client-1"));
    record(&mut history, &[(2, 1)]);
    assert_eq!(history.name(ClientId(1)), None);
    assert!(history.name(ClientId(2)).is_some());
}

#[test]
fn an_answer_is_bounded_but_never_empty() {
    let mut history = History::new(BOUNDS);
    for _ in 0..5 {
        record(&mut history, &[(1, 1), (2, 1), (3, 1)]);
    }
    for (most, expected) in [(0, 1), (3, 1), (5, 1), (6, 2), (100, 5)] {
        let (samples, clients) = history.after(0, most);
        assert_eq!((samples.len(), clients.count()), (expected, 3 * expected));
    }
}

proptest! {
    #[test]
    fn what_is_kept_is_what_was(
        intervals in prop::collection::vec(prop::collection::btree_map(0..9_u64, 0..50_u64, 0..9), 1..40),
        since in 0..45_u64,
    ) {
        let mut history = History::new(BOUNDS);
        let mut before = HashMap::new();
        let mut everything = Vec::new();
        for (number, interval) in (1..).zip(&intervals) {
            let clients: Vec<_> = interval.iter().map(|(&id, &puts)| (id, puts)).collect();
            record(&mut history, &clients);
            prop_assert!(history.newest() + 1 - history.oldest() <= BOUNDS.samples as u64);
            for &(id, puts) in &clients {
                let known = before.insert(id, (puts, number));
                // A client that was absent for the whole history counts as new.
                let known = known.filter(|&(_, last)| last >= history.oldest());
                let was = known.map_or(if number == 1 { puts } else { 0 }, |(was, _)| was);
                everything.push((number, id, puts, puts.saturating_sub(was)));
            }
        }
        let (samples, clients) = all(&history, since);
        prop_assert!(clients.len() <= BOUNDS.client_samples);
        let first = history.oldest().max(since + 1);
        let numbers: Vec<_> = samples.iter().map(|sample| sample.number).collect();
        prop_assert_eq!(&numbers, &(first..=history.newest()).collect::<Vec<_>>());
        let owners = samples.iter().flat_map(|s| std::iter::repeat_n(s.number, s.clients));
        let found: Vec<_> = owners
            .zip(&clients)
            .map(|(number, it)| (number, it.id.0, it.used_pages, u64::from(it.puts)))
            .collect();
        let expected: Vec<_> = everything.into_iter().filter(|entry| entry.0 >= first).collect();
        prop_assert_eq!(found, expected);
    }
}
