use super::*;

/// A client that uses so many pages, with a get a second for each of `gets`.
fn client(name: &str, used: u64, gets: u64) -> Row {
    let cells = [name, "1.0 MiB", "none", "0 B", "0", "0", "0", "-", "1"].map(str::to_owned);
    let mut row = Row { cells, ..Row::default() };
    row.weights[Column::Used as usize] = used;
    row.weights[Column::Gets as usize] = gets;
    row
}

fn tables(clients: Vec<Row>) -> Tables {
    let head = "spillwayd 0.1.0 (process 12345), up 1 d 1 h, memory not locked, kept by systemd, restarts 3\n\
                store 512.0 GiB of 1.0 TiB (50%), free in it 1.0 GiB, in flight 0 B, packed 1.0 GiB, on disk 0 B\n";
    Tables { head: head.into(), clients, others: String::new() }
}

/// The names in the first column.
fn order(view: View) -> Vec<String> {
    let clients = vec![client("a", 1, 5), client("b", 3, 7), client("c", 2, 9)];
    let page = view.page(&tables(clients), 80);
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    page.body[1..].iter().map(name).collect()
}

#[test]
fn clients_are_sorted_by_any_column_either_way() {
    for (column, reverse, expected) in [
        (Column::Used, false, ["b", "c", "a"]),
        (Column::Used, true, ["a", "c", "b"]),
        (Column::Client, false, ["a", "b", "c"]),
        (Column::Client, true, ["c", "b", "a"]),
        (Column::Gets, false, ["c", "b", "a"]),
        // Equal ones by their names.
        (Column::Target, false, ["a", "b", "c"]),
    ] {
        assert_eq!(order(View::new(column, reverse)), expected, "{column:?} {reverse}");
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
    let clients = (0..100).map(|n| client(&format!("client-{n:02}"), 1000 - n, 0)).collect();
    let mut view = View::default();
    let page = view.page(&tables(clients), 80);
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
        client("a-client-whose-name-is-much-longer-than-any-screen-would-want-it", 1, 1);
    let cells =
        ["1023.9 GiB", "1023.9 GiB", "1023.9 MiB", "1234567", "123456", "12345678", "100%", "64"];
    large.cells[1..].clone_from_slice(&cells.map(str::to_owned));
    let page = View::default().page(&tables(vec![large]), 80);
    for line in page.head.iter().chain(&page.body) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let text = page.body.join("\n");
    for shown in ["a-clie+ant-it", "refused/s", "12345678", "100%"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert!(page.head.join("\n").contains("on disk"), "the head is broken, not cut");
}

#[test]
fn what_is_printed_to_a_file_is_not_cut() {
    let name = "a-client-whose-name-is-much-longer-than-any-screen-would-want-it-to-be-in-one-line";
    let page = View::default().page(&tables(vec![client(name, 1, 0)]), usize::MAX);
    assert!(page.body[1].starts_with(name) && page.body[0].contains("in flight"));
}

#[test]
fn help_is_left_by_any_key() {
    let mut view = View::default();
    let page = view.page(&tables(vec![client("a", 1, 0)]), 80);
    view.press(Key::Char(b'?'), 9);
    let help = view.screen(&page, 24);
    assert!(help.iter().any(|line| line.contains("Page Down")), "{help:?}");
    assert!(help.iter().all(|line| line.chars().count() <= 80));
    view.press(Key::Char(b'R'), 9);
    assert!(!view.reverse, "the key only leaves the help");
    assert!(view.screen(&page, 24)[0].starts_with("spillwayd"));
}
