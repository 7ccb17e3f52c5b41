//! Tests of the windows against a host that the test plays.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use spillway_wire::ring::{Hello, WAKE, Welcome, control};

use super::device::tests::{plug, word};
use super::*;

/// An agent in a folder that has lent one window without pages, and its program.
fn with_a_window(folder: &Path) -> (Windows, UnixStream) {
    let (pages, window) = Pages::pretended(folder);
    let ((_, bell), (stream, program)) = (UnixStream::pair().unwrap(), sockets());
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let held = HeldMemory::Pages(window);
    let lent = Lent::new(Borrower { user: 1000, stream, hello }, held, OPEN_TIME);
    let windows = Windows {
        shared: Arc::default(),
        bell,
        start: Instant::now(),
        port: Port::new(&folder.join("port"), folder, PORT, FromHost::decode),
        memory: Memory { pages: Some(pages), devices: Vec::new(), used: None },
        run: String::new(),
        holder: None,
        pages_max: 1,
        lent: [(0, lent)].into(),
        next: 1,
        was_up: true,
        nonce: None,
        is_clear: true,
        first: 0,
        last_problem: String::new(),
    };
    (windows, program)
}

/// The agent's socket of a program, and the program's.
fn sockets() -> (UnixStream, UnixStream) {
    let (stream, program) = UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    // A program that is told nothing fails its test.
    program.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    (stream, program)
}

/// The window that is lent has so many pages.
fn set_pages(windows: &mut Windows, count: usize) {
    let HeldMemory::Pages(window) = &mut windows.lent.get_mut(&0).unwrap().held else { panic!() };
    window.pages = vec![0; count];
}

#[test]
fn an_agent_that_ends_gives_back_what_the_host_has_let_go_of() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, mut program) = with_a_window(folder.path());
    windows.shared.is_ending.store(true, Ordering::Relaxed);
    windows.end_all();
    assert_eq!(io::Read::read(&mut program, &mut [0; 1]).unwrap(), 0, "the program has it");
    windows.hear(FromHost::Closed { id: 0 });
    assert!(windows.lent.is_empty(), "it would be waited for");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "its pages stay");
}

#[test]
fn a_window_that_the_host_refuses_comes_back_also_when_its_program_has_gone() {
    for waits in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (mut windows, program) = with_a_window(folder.path());
        let program = waits.then_some(program);
        if !waits {
            windows.hear_programs(Duration::ZERO);
        }
        windows.hear(FromHost::Refused { id: 0, reason: Reason::Limits as u16, why: None });
        assert!(windows.lent.is_empty(), "it counts");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "its pages stay: {waits}");
        if let Some(mut program) = program {
            let mut told = Vec::new();
            io::Read::read_to_end(&mut program, &mut told).unwrap();
            assert_eq!(told, Welcome::Refused(Reason::Limits).encode());
        }
    }
}

/// The reply to a program of this user that wants a window of one huge page, and the logged problem.
fn refusal(windows: &mut Windows, user: u32) -> (Vec<u8>, String) {
    let (stream, mut program) = sockets();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    windows.last_problem.clear();
    windows.lend(Duration::ZERO, Borrower { user, stream, hello });
    let mut told = Vec::new();
    io::Read::read_to_end(&mut program, &mut told).expect("a refusal");
    (told, windows.last_problem.clone())
}

#[test]
fn a_window_that_ends_counts_until_the_host_has_let_go_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, program) = with_a_window(folder.path());
    set_pages(&mut windows, PAGES_OF_USER_MAX);
    drop(program);
    windows.hear_programs(Duration::ZERO);
    assert!(windows.lent[&0].is_ending());
    // There are no pages here; the logged problem tells whether they would be allowed.
    let mut may_have = |pages_max: u64, user| {
        windows.pages_max = pages_max as usize;
        let (told, why) = refusal(&mut windows, user);
        assert_eq!(told, Welcome::Refused(Reason::NoPages).encode());
        why != "windows have as many huge pages as they may have"
    };
    assert!(!may_have(PAGES_MAX, 1000), "the user has 16");
    assert!(may_have(PAGES_MAX, 1001) && may_have(PAGES_MAX, 0));
    assert!(!may_have(16, 1001) && !may_have(16, 0), "that is all there may be");
    assert!(may_have(17, 1001));
    windows.hear(FromHost::Closed { id: 0 });
    windows.pages_max = 1;
    assert!(refusal(&mut windows, 1000).1.starts_with("no window of 1 huge pages"));
}

#[test]
fn pages_come_back_with_the_answer_to_the_last_hello_and_to_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, mut program) = with_a_window(folder.path());
    windows.greet();
    let early = windows.nonce.unwrap();
    windows.greet();
    let last = windows.nonce.unwrap();
    assert_eq!(io::Read::read(&mut program, &mut [0; 1]).unwrap(), 0, "the program has it");
    // Messages that the host sent before it read the last hello.
    for said in [FromHost::Cleared { nonce: early, device: None }, FromHost::Closed { id: 0 }] {
        windows.hear(said);
        assert!(windows.lent.contains_key(&0) && folder.path().join("window").exists());
        assert_eq!(refusal(&mut windows, 1000).0, Welcome::Refused(Reason::HostAway).encode());
    }
    windows.hear(FromHost::Cleared { nonce: last, device: None });
    assert!(windows.lent.is_empty() && !folder.path().join("window").exists());
    assert_eq!(refusal(&mut windows, 1000).0, Welcome::Refused(Reason::NoPages).encode());
}

#[test]
fn a_ring_that_the_window_does_not_hold_is_handed_to_no_program() {
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let large = Geometry::filling(64, 2).unwrap();
    for (depth, data_bytes, is_good) in [
        (64, hello.data_bytes, true),
        (64, large.data_bytes(), false),
        (3, hello.data_bytes, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (mut windows, mut program) = with_a_window(folder.path());
        set_pages(&mut windows, 1);
        windows.hear(FromHost::Opened { id: 0, depth, data_bytes, instance: 7 });
        assert_eq!(windows.lent[&0].is_ending(), !is_good, "{depth} {data_bytes}");
        let count = io::Read::read(&mut program, &mut [0; 64]).unwrap();
        assert_eq!(count > 0, is_good, "{depth} {data_bytes}");
    }
}

#[test]
fn a_program_hears_that_the_host_has_not_answered_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, mut program) = with_a_window(folder.path());
    windows.hear_programs(OPEN_TIME - Duration::from_nanos(1));
    assert!(!windows.lent[&0].is_ending());
    windows.hear_programs(OPEN_TIME);
    let mut told = Vec::new();
    io::Read::read_to_end(&mut program, &mut told).unwrap();
    assert_eq!(told, Welcome::Refused(Reason::HostAway).encode());
    assert!(windows.lent[&0].is_ending(), "the host may have its pages");
}

/// An agent of a guest whose device has 4 pages, as the host knows, and the device's memory.
fn with_a_device(folder: &Path) -> (Windows, File) {
    let memory = plug(folder, 4 * PAGE_BYTES);
    let (mut windows, _) = with_a_window(folder);
    windows.memory.devices = Device::find_all(folder, 1000).unwrap();
    answer(&mut windows, &memory);
    (windows, memory)
}

/// The host answers a hello, and has written its number to the device's file.
fn answer(windows: &mut Windows, memory: &File) {
    windows.greet();
    let nonce = windows.nonce.unwrap();
    memory.write_all_at(&(nonce | 1).to_le_bytes(), control::PROOF as u64).unwrap();
    windows.hear(FromHost::Cleared { nonce, device: Some(nonce | 1) });
}

/// The first page of the next part of the device that would be lent.
fn next_part(windows: &mut Windows, count: usize) -> u32 {
    windows.memory.devices[0].lend(0, count).unwrap().first
}

/// A program that wants a window of one huge page: its socket.
fn program(windows: &mut Windows, user: u32, version: u16) -> UnixStream {
    let (stream, program) = sockets();
    let hello = Hello { version, depth: 64, data_bytes: 4096 };
    windows.lend(Duration::ZERO, Borrower { user, stream, hello });
    program
}

/// What a program has been told.
fn told(program: &mut UnixStream) -> Welcome {
    let mut bytes = [0; Welcome::BYTES];
    io::Read::read_exact(program, &mut bytes).expect("an answer");
    Welcome::decode(&bytes).unwrap()
}

#[test]
fn only_programs_of_the_device_s_user_that_find_their_part_get_one() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, memory) = with_a_device(folder.path());
    // There are no huge pages here.
    for (user, version) in [(0, PART_VERSION), (1001, PART_VERSION), (1000, 1)] {
        let mut program = program(&mut windows, user, version);
        assert_eq!(told(&mut program), Welcome::Refused(Reason::NoPages), "{user} {version}");
    }
    let (mut first, mut second) =
        (program(&mut windows, 1000, PART_VERSION), program(&mut windows, 1000, PART_VERSION));
    assert!(word(&memory, 1, control::PROOF) != 0, "the host has nothing to look for");
    let geometry = Geometry::new(64, 4096).unwrap();
    for id in [1, 2] {
        windows.hear(FromHost::Opened { id, depth: 64, data_bytes: 4096, instance: 7 });
    }
    let at = |first| Welcome::Part { geometry, instance: 7, first };
    assert_eq!(told(&mut first), Welcome::Granted { geometry, instance: 7 });
    assert_eq!(told(&mut second), at(1.try_into().unwrap()));
    assert_eq!(word(&memory, 1, control::PROOF), 0, "the program would find it");
    // It is killed. Its page is free when the host has released it, and clean.
    memory.write_all_at(&[7; 8], 0).unwrap();
    drop(first);
    windows.hear_programs(Duration::ZERO);
    assert_eq!(next_part(&mut windows, 1), 2);
    windows.hear(FromHost::Closed { id: 1 });
    assert_eq!(word(&memory, 0, 0), 0);
    assert_eq!(next_part(&mut windows, 1), 0);
}

#[test]
fn pages_of_the_device_do_not_count_as_pages_of_the_guest() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, _) = with_a_device(folder.path());
    let _on_device = program(&mut windows, 1000, PART_VERSION);
    assert!(windows.lent[&1].held.is_on_device());
    windows.pages_max = 1;
    // There are no huge pages here; the logged problem tells that they would be allowed.
    let why = refusal(&mut windows, 1001).1;
    assert!(why.starts_with("no window of 1 huge pages"), "{why}");
}

/// A program that has not noticed that its window ended may write to it.
#[test]
fn a_part_is_lent_again_once_its_program_has_closed_its_socket_too() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, memory) = with_a_device(folder.path());
    let opened = |id| FromHost::Opened { id, depth: 64, data_bytes: 4096, instance: 7 };
    let mut idle = program(&mut windows, 1000, PART_VERSION);
    windows.hear(opened(1));
    told(&mut idle);
    // The daemon is started again: the program's socket ends, and nothing of it is left but its mapping.
    answer(&mut windows, &memory);
    assert_eq!(io::Read::read(&mut idle, &mut [0; 1]).unwrap(), 0);
    idle.write_all(&[WAKE]).unwrap();
    windows.hear_programs(Duration::ZERO);
    assert_eq!(next_part(&mut windows, 1), 1, "the program may write to the first page");
    assert_eq!(windows.memory.interest().count(), 1);
    memory.write_all_at(&[7; 8], 0).unwrap();
    drop(idle);
    windows.hear_programs(Duration::ZERO);
    assert_eq!(word(&memory, 0, 0), 0);
    assert_eq!(next_part(&mut windows, 1), 0);
    assert_eq!(windows.memory.interest().count(), 0);
    // The host ends a window whose program is there.
    let mut other = program(&mut windows, 1000, PART_VERSION);
    windows.hear(opened(2));
    told(&mut other);
    windows.hear(FromHost::Closed { id: 2 });
    assert_eq!(next_part(&mut windows, 1), 3);
}

/// The first half of the windows is for users other than root at most.
#[test]
fn the_device_s_user_leaves_windows_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let memory = plug(folder.path(), PAGES_MAX * PAGE_BYTES);
    let (mut windows, _) = with_a_window(folder.path());
    windows.memory.devices = Device::find_all(folder.path(), 1000).unwrap();
    answer(&mut windows, &memory);
    let programs: Vec<_> =
        (0..WINDOWS_MAX).map(|_| program(&mut windows, 1000, PART_VERSION)).collect();
    assert_eq!(windows.lent.len(), WINDOWS_MAX / 2);
    drop(programs);
}

#[test]
fn a_device_that_the_host_can_not_map_is_no_reason_to_have_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, _) = with_a_device(folder.path());
    let mut waits = program(&mut windows, 1000, PART_VERSION);
    assert!(windows.lent[&1].held.is_on_device());
    let refused = |reason: Reason| FromHost::Refused { id: 1, reason: reason as u16, why: None };
    windows.hear(refused(Reason::NoWindows));
    // It was tried: there are no huge pages here.
    assert_eq!(told(&mut waits), Welcome::Refused(Reason::NoPages));
    assert!(windows.lent.is_empty());
    assert_eq!(next_part(&mut windows, 4), 0);
    let (mut windows, _) = with_a_device(folder.path());
    let mut waits = program(&mut windows, 1000, PART_VERSION);
    windows.hear(refused(Reason::Limits));
    assert_eq!(told(&mut waits), Welcome::Refused(Reason::Limits));
}

#[test]
fn a_device_of_one_side_alone_is_said_and_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (mut windows, memory) = with_a_device(folder.path());
    assert_eq!(windows.last_problem, "");
    let said = |windows: &mut Windows, device| {
        windows.last_problem.clear();
        windows.greet();
        let nonce = windows.nonce.unwrap();
        windows.hear(FromHost::Cleared { nonce, device });
        assert!(windows.find_part(&borrower(), 1).is_none());
        windows.last_problem.clone()
    };
    // Another's memory is not touched.
    memory.write_all_at(&[7; 1024], 0).unwrap();
    let seven = u64::from_le_bytes([7; 8]);
    assert!(said(&mut windows, Some(seven - 1)).contains("is not the memory of this guest's"));
    assert!(said(&mut windows, None).contains("the host uses no file for it"));
    assert_eq!(word(&memory, 0, control::PROOF), seven);
    windows.memory.devices.clear();
    assert!(said(&mut windows, Some(seven)).contains("no such device"));
    assert_eq!(said(&mut windows, None), "");
}

fn borrower() -> Borrower {
    let hello = Hello { version: PART_VERSION, depth: 64, data_bytes: 4096 };
    Borrower { user: 1000, stream: UnixStream::pair().unwrap().0, hello }
}
