use serde_json::json;
use spillway_api::types::{Health, StoreStatus, Version};

use super::*;

fn client(name: &str, used_pages: u64) -> Client {
    serde_json::from_value(json!({
        "name": name, "identity": {"uid": 1}, "origin": "added", "connections": 1, "connections_max": 9,
        "operations_max": 9, "bytes_max": 9, "in_flight_bytes": 0, "cap_pages": null, "floor_pages": 0, "weight": 1,
        "domain": null, "shared": [], "frozen": false,
        "statistics": {
            "puts": 0, "puts_stored": 0, "puts_refused_at_target": 0, "puts_refused_node_full": 0,
            "puts_refused_other": 0, "gets": 0, "hits": 0, "misses": 0, "flushed_pages": 0, "evicted_pages": 0,
            "used_pages": used_pages, "target_pages": 1_000_000, "reserved_pages": 0
        }
    }))
    .unwrap()
}

fn moment(clients: Vec<Client>) -> Moment {
    Moment {
        version: Version { version: "0.1.0".into(), commit: None, api: 1, pid: 12_345 },
        health: Health {
            serving: true,
            uptime_seconds: 90_000,
            restarts: 3,
            memory_locked: false,
            kept_by: "systemd".into(),
        },
        store: StoreStatus {
            capacity_bytes: 1 << 40,
            memory_bytes: 1 << 39,
            ..StoreStatus::default()
        },
        clients,
        lending: None,
        guests: None,
    }
}

/// The names in the first column.
fn order(view: View, rates: &HashMap<String, Rates>) -> Vec<String> {
    let moment = moment(vec![client("a", 1), client("b", 3), client("c", 2)]);
    let page = view.page(&moment, rates, 80);
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    page.body[1..].iter().map(name).collect()
}

#[test]
fn clients_are_sorted_by_any_column_either_way() {
    let gets = |gets| Rates { gets, ..Rates::default() };
    let rates =
        [("a", 5), ("b", 7), ("c", 9)].map(|(name, count)| (name.to_owned(), gets(count))).into();
    for (column, reverse, expected) in [
        (Column::Used, false, ["b", "c", "a"]),
        (Column::Used, true, ["a", "c", "b"]),
        (Column::Client, false, ["a", "b", "c"]),
        (Column::Client, true, ["c", "b", "a"]),
        (Column::Gets, false, ["c", "b", "a"]),
        // Equal ones by their names.
        (Column::Target, false, ["a", "b", "c"]),
    ] {
        assert_eq!(order(View::new(column, reverse), &rates), expected, "{column:?} {reverse}");
    }
}

#[test]
fn keys_choose_the_column_and_turn_the_order_round() {
    let mut view = View::default();
    view.press(Key::Char(b'>'), 9);
    assert_eq!(view.sort, Column::Target);
    for _ in 0..20 {
        view.press(Key::Left, 9);
    }
    assert_eq!(view.sort, Column::Client, "there is no column before the first");
    for _ in 0..20 {
        view.press(Key::Right, 9);
    }
    assert_eq!(view.sort, Column::Conns);
    view.press(Key::Char(b'R'), 9);
    assert!(view.reverse);
    view.press(Key::Char(b'R'), 9);
    assert!(!view.reverse);
}

#[test]
fn the_tables_scroll_under_the_head() {
    let clients = (0..100).map(|n| client(&format!("client-{n:02}"), 1000 - n)).collect();
    let moment = moment(clients);
    let mut view = View::default();
    let page = view.page(&moment, &HashMap::new(), 80);
    let room = view.room(&page, 24);
    let first = |view: &mut View| view.screen(&page, 24)[page.head.len()].clone();
    assert!(first(&mut view).starts_with("client "));
    view.press(Key::Down, room);
    assert!(first(&mut view).starts_with("client-00"));
    view.press(Key::PageDown, room);
    assert!(first(&mut view).starts_with(&format!("client-{:02}", room - 1)));
    view.press(Key::PageUp, room);
    view.press(Key::Up, room);
    assert!(first(&mut view).starts_with("client "));
    view.press(Key::End, room);
    let lines = view.screen(&page, 24);
    assert_eq!(lines.len(), 24);
    assert!(lines[22].starts_with("client-99"), "{lines:?}");
    assert!(lines[23].contains("to 101 of 101, sorted by used"), "{lines:?}");
    // One line up is one line up, however far beyond the end the key would have gone.
    view.press(Key::Up, room);
    assert!(view.screen(&page, 24)[22].starts_with("client-98"));
}

#[test]
fn eighty_columns_hold_every_line() {
    let mut large =
        client("a-client-whose-name-is-much-longer-than-any-screen-would-want-it", 1 << 38);
    large.statistics.target_pages = Some(1 << 39);
    large.in_flight_bytes = 1023 << 20;
    let rates = Rates {
        puts: 1_234_567,
        refused: 123_456,
        gets: 12_345_678,
        hits: Some(100),
        ..Rates::default()
    };
    let rates = [(large.name.clone(), rates)].into();
    let page = View::default().page(&moment(vec![large]), &rates, 80);
    for line in page.head.iter().chain(&page.body) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let text = page.body.join("\n");
    for shown in ["a-client", "+", "refused/s", "12345678", "100%"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert!(page.head.join("\n").contains("on disk"), "the head is broken, not cut");
}

#[test]
fn what_is_printed_to_a_file_is_not_cut() {
    let name = "a-client-whose-name-is-much-longer-than-any-screen-would-want-it-to-be-in-one-line";
    let page = View::default().page(&moment(vec![client(name, 1)]), &HashMap::new(), usize::MAX);
    assert!(page.body[1].starts_with(name) && page.body[0].contains("in flight"));
}

#[test]
fn help_is_left_by_any_key() {
    let mut view = View::default();
    let moment = moment(vec![client("a", 1)]);
    let page = view.page(&moment, &HashMap::new(), 80);
    view.press(Key::Char(b'?'), 9);
    let help = view.screen(&page, 24);
    assert!(help.iter().any(|line| line.contains("Page Down")), "{help:?}");
    assert!(help.iter().all(|line| line.chars().count() <= 80));
    view.press(Key::Char(b'R'), 9);
    assert!(!view.reverse, "the key only leaves the help");
    assert!(view.screen(&page, 24)[0].starts_with("spillwayd"));
}
