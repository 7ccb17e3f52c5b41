//! Frames and cells: zeroed between owners, kept while pinned, given back when empty.

use std::time::{Duration, Instant};

use spillway_tiers::{
    Arena, Backing, Budget, CELL_BYTES_MAX, CHUNK_BYTES, Cells, Files, Large, Meta, PageBuf, Use,
    WRITE_PAGES_MAX,
};
use spillway_types::PAGE_BYTES;

const CAPACITY_BYTES: u64 = 8 << 20;
const BACKINGS: [Backing; 2] = [Backing::Anonymous, Backing::Memfd];

fn arena(backing: Backing) -> Arena {
    Arena::open(CAPACITY_BYTES, backing, false).expect("arena")
}

#[test]
fn nothing_of_a_frame_s_last_owner_is_left() {
    for backing in BACKINGS {
        let arena = arena(backing);
        let secret = arena.store(0, &[0x5e; PAGE_BYTES]).expect("frame");
        arena.release(secret);
        let next = arena.store(0, b"short").expect("frame");
        assert_eq!(next, secret, "the frame freed last comes first");
        let content = arena.content(next);
        assert_eq!(&content[..5], b"short");
        assert!(content[5..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_frame_at_hand_is_its_core_s_until_memory_is_out() {
    let arena = arena(Backing::Anonymous);
    let [first, second] = [0, 1].map(|byte| arena.store(0, &[byte; PAGE_BYTES]).expect("frame"));
    let before = (arena.frames_left(), arena.free_bytes());
    arena.release_at_hand(3, first);
    arena.release_at_hand(3, second);
    assert_eq!(arena.frames_left(), before.0 + 2, "both at hand");
    assert_eq!(arena.free_bytes(), before.1 + 2 * PAGE_BYTES as u64);
    assert_eq!(arena.store(3, b"x"), Some(first));
    arena.release_at_hand(3, first);
    let rest: Vec<u32> = std::iter::from_fn(|| arena.store(0, b"y")).collect();
    assert!(rest.contains(&first), "nobody is refused for what another core has at hand");
    assert_eq!(arena.frames_left(), 0);
    let pin = arena.pin(first).expect("pin");
    arena.release_at_hand(3, first);
    assert_eq!(arena.store(3, b"z"), None, "a pinned frame is not free");
    drop(pin);
    assert_eq!(arena.store(3, b"z"), Some(first));
}

#[test]
fn a_cell_is_zeroed_when_it_is_freed() {
    let arena = arena(Backing::Anonymous);
    let cells = Cells::default();
    let kept = cells.store(&arena, &[1; 996]).expect("cell");
    let secret = cells.store(&arena, &[0x5e; 1000]).expect("cell");
    cells.release(&arena, secret, 1000);
    let next = cells.store(&arena, &[2; 996]).expect("cell");
    assert_eq!(next, secret, "the cell freed last comes first");
    let content = cells.content(&arena, next);
    assert_eq!(content[..996], [2; 996]);
    assert!(content[996..].iter().all(|&byte| byte == 0));
    assert_eq!(cells.content(&arena, kept)[..996], [1; 996]);
}

#[test]
fn free_spans_are_free_memory() {
    let arena = arena(Backing::Anonymous);
    let cells = Cells::default();
    let cell = cells.store(&arena, &[1; 1000]).expect("cell");
    assert_eq!(arena.free_bytes(), CHUNK_BYTES as u64 * 3 / 4, "one of four spans is in use");
    cells.release(&arena, cell, 1000);
    assert_eq!(arena.free_bytes(), CHUNK_BYTES as u64);
}

#[test]
fn a_pin_keeps_bytes_until_it_is_dropped() {
    let arena = arena(Backing::Anonymous);
    let frame = arena.store(0, &[3; PAGE_BYTES]).expect("frame");
    let pin = arena.pin(frame).expect("pin");
    arena.release(frame);
    let other = arena.store(0, &[4; PAGE_BYTES]).expect("frame");
    assert_ne!(other, frame, "a pinned frame is not free");
    assert_eq!(*pin, [3; PAGE_BYTES]);
    drop(pin);
    assert_eq!(arena.store(0, &[5; PAGE_BYTES]), Some(frame));
}

/// Reads at the same time as often as that can be, tries so often beyond it that the count would go round, and ends.
fn crowd<T>(pin: impl Fn() -> Option<T>) {
    let pins: Vec<T> = std::iter::from_fn(&pin).collect();
    assert_eq!(pins.len(), 50_000 - 1, "besides the owner");
    assert!((0..=u16::MAX).all(|_| pin().is_none()));
}

#[test]
fn a_reader_that_is_one_too_many_leaves_no_trace() {
    let (arena, cells) = (arena(Backing::Anonymous), Cells::default());
    let large = Large { arena: &arena, cells: &cells };
    let frame = arena.store(0, &[3; PAGE_BYTES]).expect("frame");
    let cell = cells.store(&arena, &[3; 1000]).expect("cell");
    let map = large.store(0, None, 5000, &mut |_, part| part.fill(3)).expect("map");
    crowd(|| arena.pin(frame));
    crowd(|| cells.pin(&arena, cell, 1000));
    crowd(|| large.pin(map));
    let owners = [arena.meta(frame), cells.meta(&arena, cell), cells.meta(&arena, map)];
    assert_eq!(owners.map(Meta::references), [1; 3]);
}

#[test]
fn a_long_value_that_memory_is_out_for_gives_all_back() {
    const PAGES: usize = 1600;
    for backing in BACKINGS {
        let (arena, cells) = (arena(backing), Cells::default());
        let large = Large { arena: &arena, cells: &cells };
        let all = || std::iter::from_fn(|| arena.store(0, &[7; PAGE_BYTES])).collect::<Vec<_>>();
        let mut frames = all();
        assert!(frames.len() > PAGES, "the arena is too small for the test");
        // Every other frame, so that there is room for pages, and none for the cells of a map, which take several.
        for free in (1..200).chain([700]) {
            (0..free).for_each(|at| arena.release(frames.swap_remove(at)));
            assert_eq!(large.store(0, None, PAGES * PAGE_BYTES, &mut |_, part| part.fill(3)), None);
            let again = all();
            // The cells of a map keep the last chunk that they took.
            let kept = (free - again.len()) * PAGE_BYTES;
            assert!(kept == 0 || kept == CHUNK_BYTES, "{kept} bytes of {free} pages are lost");
            frames.extend(again);
            frames.sort_unstable();
        }
    }
}

#[test]
fn empty_chunks_go_back_to_the_host_and_read_as_zeros_later() {
    for backing in BACKINGS {
        let arena = arena(backing);
        let store_all = || {
            let frame = || arena.store(0, &[7; PAGE_BYTES]);
            std::iter::from_fn(frame).collect::<Vec<_>>()
        };
        let frames = store_all();
        assert!(frames.len() * PAGE_BYTES > CAPACITY_BYTES as usize * 9 / 10);
        assert!(arena.budget().taken() <= CAPACITY_BYTES);
        for &frame in &frames {
            arena.release(frame);
        }
        let kept = CAPACITY_BYTES / 8 + 2 * CHUNK_BYTES as u64;
        assert!(arena.budget().taken() < kept, "one chunk is kept, and an eighth of all");
        assert_eq!(arena.frames_left(), frames.len() as u64, "what is kept can be had");
        arena.trim();
        assert!(arena.budget().taken() < CHUNK_BYTES as u64, "all chunks are given back");
        let again = arena.store(0, b"x").expect("frame");
        assert!(arena.content(again)[1..].iter().all(|&byte| byte == 0));
        arena.release(again);
        assert_eq!(store_all().len(), frames.len(), "no frame is lost");
    }
}

#[test]
fn what_is_kept_for_the_next_put_goes_when_nobody_wants_it() {
    for backing in BACKINGS {
        let arena = arena(backing);
        let chunk = || (0..64).map(|_| arena.store(0, &[7; PAGE_BYTES]).expect("frame"));
        let cycle = || {
            let frames: Vec<u32> = chunk().chain(chunk()).chain(chunk()).collect();
            frames.into_iter().for_each(|frame| arena.release(frame));
        };
        cycle();
        let kept = arena.budget().taken();
        assert!(kept >= 3 * CHUNK_BYTES as u64);
        arena.cool();
        cycle();
        arena.cool();
        assert_eq!(arena.budget().taken(), kept, "it was wanted");
        let short = arena.store(0, b"short").expect("frame");
        assert!(
            arena.content(short)[5..].iter().all(|&byte| byte == 0),
            "nothing of its last owner is left"
        );
        arena.release(short);
        arena.cool();
        arena.cool();
        assert!(
            arena.budget().taken() < 2 * CHUNK_BYTES as u64,
            "nobody wanted it for an interval"
        );
    }
}

#[test]
fn kept_memory_serves_every_use() {
    let arena = arena(Backing::Anonymous);
    let fill = || std::iter::from_fn(|| arena.store(0, &[7; PAGE_BYTES])).collect::<Vec<_>>();
    let frames = fill();
    // All but one frame of each chunk but two: those two chunks are empty, and kept.
    frames.iter().take(130).for_each(|&frame| arena.release(frame));
    assert!(arena.left(Use::Frames) >= CHUNK_BYTES as u64);
    let cells = Cells::default();
    let cell = cells.store(&arena, &[1; 1000]).expect("a cell of what was kept");
    assert!(cells.content(&arena, cell)[1000..].iter().all(|&byte| byte == 0));
    assert_eq!(arena.hollow_out(8), 8, "the index has it too");
}

#[test]
fn hollow_frames_make_room_and_come_back() {
    let arena = arena(Backing::Anonymous);
    let frames: Vec<u32> = std::iter::from_fn(|| arena.store(0, &[7; PAGE_BYTES])).collect();
    let full = arena.budget().taken();
    assert_eq!(arena.hollow_out(4), 0, "no frame is free");
    for &frame in &frames[..4] {
        arena.release(frame);
    }
    assert_eq!(arena.hollow_out(8), 4);
    assert_eq!(arena.budget().taken(), full - 4 * PAGE_BYTES as u64);
    let back: Vec<u32> = std::iter::from_fn(|| arena.store(0, b"x")).collect();
    assert_eq!(back.len(), 4);
    for frame in back {
        assert!(arena.content(frame)[1..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_reserve_that_finds_no_room_leaves_the_budget_as_it_was() {
    // Of so much memory, what is to be known of all chunks is more than is kept for it.
    let arena = Arena::open(2 << 30, Backing::Anonymous, false).expect("arena");
    let frames = arena.budget().left(Use::Frames) / PAGE_BYTES as u64;
    assert_eq!(arena.open_reserve(frames - 1000), None);
    assert!(arena.budget().taken() < 8 << 20, "{} bytes", arena.budget().taken());
    assert!(arena.open_reserve(frames / 2).is_some());
}

#[test]
fn whoever_waits_for_memory_to_be_low_is_told_what_came_before() {
    let arena = arena(Backing::Anonymous);
    let waits = |most: Duration| {
        let began = Instant::now();
        arena.wait_low(most);
        began.elapsed() >= most
    };
    assert!(waits(Duration::from_millis(10)), "nothing has happened");
    arena.tell_low();
    assert!(!waits(Duration::from_secs(20)));
    assert!(waits(Duration::from_millis(10)), "it was told");
    while arena.store(0, &[7; PAGE_BYTES]).is_some() {}
    assert!(!waits(Duration::from_secs(20)));
}

#[test]
fn cells_of_all_lengths_hold_their_bytes() {
    let arena = arena(Backing::Anonymous);
    let cells = Cells::default();
    let lengths = [1, 111, 112, 113, 1000, 2048, CELL_BYTES_MAX - 1, CELL_BYTES_MAX];
    let content = |number: usize| vec![number as u8; lengths[number % lengths.len()]];
    let stored: Vec<u32> =
        (0..800).map(|number| cells.store(&arena, &content(number)).expect("cell")).collect();
    for (number, &cell) in stored.iter().enumerate() {
        let expected = content(number);
        assert_eq!(cells.content(&arena, cell)[..expected.len()], expected);
    }
    for (number, cell) in stored.into_iter().enumerate() {
        cells.release(&arena, cell, content(number).len());
    }
    arena.trim();
    assert!(arena.budget().taken() < CHUNK_BYTES as u64, "all spans are given back");
}

#[test]
fn who_waits_for_low_memory_is_woken() {
    let arena = arena(Backing::Anonymous);
    let waited = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let start = Instant::now();
            arena.wait_low(Duration::from_secs(60));
            start.elapsed()
        });
        // Time to fall asleep; one that does later finds that memory was low.
        std::thread::sleep(Duration::from_millis(100));
        arena.tell_low();
        waiter.join().unwrap()
    });
    assert!(waited < Duration::from_secs(50), "{waited:?}");
}

#[test]
fn a_budget_bounds_each_use_by_the_cap_of_now() {
    const MIB: u64 = 1 << 20;
    let budget = Budget::new(64 * MIB);
    let left = |budget: &Budget| {
        [Use::Frames, Use::Packing, Use::Index, Use::Files].map(|to| budget.left(to) >> 10)
    };
    // A 64th for the index, a quarter of that from what packs, and 32 KiB for what is known of files, which
    // may go a 64th beyond.
    let kib = 64 << 10;
    assert_eq!(left(&budget), [kib - 1024, kib - 256, kib - 32, kib + 1024]);
    assert!(budget.take(16 * MIB, Use::Frames) && !budget.take(47 * MIB + 1, Use::Frames));
    assert_eq!((budget.taken(), left(&budget)[0]), (16 * MIB, (47 << 10)));
    // What is taken beyond a lower cap stays taken, and nobody gets more.
    budget.set_cap(8 * MIB);
    assert_eq!((budget.cap(), budget.taken(), left(&budget)), (8 * MIB, 16 * MIB, [0; 4]));
    assert!(!budget.take(1, Use::Files));
    budget.give(9 * MIB);
    assert_eq!(left(&budget), [1024 - 128, 1024 - 32, 1024 - 32, 1024 + 128]);
    assert!(!budget.take(MIB, Use::Index) && budget.take(MIB + (128 << 10), Use::Files));
    assert!(!budget.take(1, Use::Files), "no further than that");
    assert!(!budget.take(u64::MAX, Use::Files), "it does not wrap");
    budget.set_cap(1024 * MIB);
    assert_eq!(left(&budget)[0], ((1016 - 4) << 10) - 128, "no more than 4 MiB for the index");
}

#[test]
fn pages_go_to_a_file_when_others_have_taken_the_budget() {
    let budget = Budget::new(8 << 20);
    for to in [Use::Frames, Use::Index] {
        assert!(budget.take(budget.left(to), to));
    }
    let files = Files::open(&std::env::temp_dir(), 1 << 30, 0).unwrap();
    let page = PageBuf([7; PAGE_BYTES]);
    let pages = [&page.0; WRITE_PAGES_MAX];
    // 96 KiB of checksums; 32 are left within the cap.
    for _ in 0..(96 << 10) / 8 / WRITE_PAGES_MAX {
        assert!(files.write(&pages, &budget).is_some(), "{:?}", files.take_error());
    }
    assert!(budget.taken() > budget.cap());
    assert_eq!([Use::Frames, Use::Packing, Use::Index].map(|to| budget.left(to)), [0; 3]);
}

#[test]
fn frames_are_as_many_as_the_cap_of_now_lets_there_be() {
    let arena = arena(Backing::Memfd);
    let all = arena.frames_max() as u64;
    assert_eq!(arena.frames_within_cap(), all);
    arena.budget().set_cap(CAPACITY_BYTES / 4);
    assert_eq!(arena.frames_within_cap(), all / 4);
    arena.budget().set_cap(2 * CAPACITY_BYTES);
    assert_eq!(arena.frames_within_cap(), all, "no more than it was opened with");
    // What is free beyond the cap goes back to the host, and is charged to nobody.
    let frames: Vec<u32> = std::iter::from_fn(|| arena.store(0, &[7; PAGE_BYTES])).collect();
    let taken = arena.budget().taken();
    frames[..frames.len() / 2].iter().for_each(|&frame| arena.release(frame));
    arena.budget().set_cap(0);
    let given = (0..10_000).map(|_| arena.hollow_out(64)).take_while(|&count| count > 0);
    assert!(given.count() > 0);
    let left = (frames.len() - frames.len() / 2) as u64 * PAGE_BYTES as u64;
    let over = arena.budget().taken() - left;
    assert!(over < taken / 8, "{over} of {taken}");
    assert!(arena.store(0, &[8; PAGE_BYTES]).is_none(), "beyond the cap there are none");
    arena.budget().set_cap(CAPACITY_BYTES);
    assert_eq!(arena.content(arena.store(0, b"again").expect("room"))[..5], *b"again");
    frames[frames.len() / 2..].iter().for_each(|&frame| {
        assert_eq!(arena.content(frame)[..], [7; PAGE_BYTES]);
    });
}

#[test]
fn frames_that_gave_their_memory_up_all_come_back_with_it() {
    let arena = arena(Backing::Memfd);
    let fill = || std::iter::from_fn(|| arena.store(0, &[7; PAGE_BYTES])).collect::<Vec<u32>>();
    let mut all = fill();
    for _ in 0..3 {
        // Every other frame is free, so that no chunk is.
        let (freed, kept): (Vec<_>, Vec<_>) = all.iter().partition(|&frame| frame % 2 == 1);
        freed.iter().for_each(|&frame| arena.release(frame));
        arena.budget().set_cap(CAPACITY_BYTES / 2);
        while arena.hollow_out(64) > 0 {}
        // Those who want one while there is no memory lose none of them.
        for _ in 0..100 {
            assert_eq!(arena.store(0, b"beyond the cap"), None);
            arena.trim();
            while arena.hollow_out(64) > 0 {}
        }
        arena.budget().set_cap(CAPACITY_BYTES);
        let again = [kept, fill()].concat();
        assert!(again.len() >= all.len(), "{} of {}", again.len(), all.len());
        all = again;
    }
}

#[test]
fn several_take_no_more_than_there_is() {
    const THREADS: usize = 4;
    let budget = Budget::new((128 << 10) + 1);
    let begin = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..2_000_000 {
                    if budget.take(1, Use::Frames) {
                        assert_eq!(budget.taken(), 1);
                        budget.give(1);
                    }
                }
            });
        }
    });
    assert_eq!(budget.taken(), 0);
}
