//! What a child that will be killed writes down, in memory that outlives it, and the values it puts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use spillway_store::{Key, PAGE_BYTES};
use spillway_test_support::random::noise;

/// Threads that work on keys of their own.
pub const THREADS: u32 = 3;
/// Objects whose keys are shared out among the threads; each thread has one more to itself.
pub const OBJECTS: u64 = 6;
/// Keys of an object.
pub const KEYS: u32 = 192;
const NUMBERS: usize = (OBJECTS as usize + THREADS as usize) * KEYS as usize;
const OBJECT_WORDS: usize = OBJECTS as usize + THREADS as usize;

/// The object that only `thread` touches.
pub fn own_object(thread: u32) -> u64 {
    OBJECTS + u64::from(thread)
}

/// A key's place in the notes.
pub fn number_of(key: Key) -> usize {
    key.object as usize * KEYS as usize + key.index as usize
}

/// All places of an object's keys.
pub fn numbers_of(object: u64) -> std::ops::Range<usize> {
    let first = object as usize * KEYS as usize;
    first..first + KEYS as usize
}

/// The key of a place.
pub fn key_of(number: usize) -> Key {
    Key::new((number / KEYS as usize) as u64, (number % KEYS as usize) as u32)
}

/// What a value is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Absent,
    /// A page with marks.
    Page,
    /// A page that LZ4 shrinks.
    Text,
    /// A page of one word.
    Uniform,
    /// A page of which others have the same.
    Common,
    /// 1 to 1500 bytes.
    Small,
    /// A little less than a page, with marks.
    Short,
    /// Several pages, with marks.
    Large,
}

const KINDS: [Kind; 8] = [
    Kind::Absent,
    Kind::Page,
    Kind::Text,
    Kind::Uniform,
    Kind::Common,
    Kind::Small,
    Kind::Short,
    Kind::Large,
];

impl Kind {
    /// One of them for a number below 100. A reserved pool takes no value longer than a page.
    pub fn any(number: u64, reserved: bool) -> Self {
        match number {
            0..35 => Self::Page,
            35..55 => Self::Text,
            55..62 => Self::Uniform,
            62..72 => Self::Common,
            72..87 => Self::Small,
            87..93 => Self::Short,
            _ if reserved => Self::Page,
            _ => Self::Large,
        }
    }
}

/// A state of a key: which version, and of what kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note(u64);

impl Note {
    pub const ABSENT: Self = Self(0);

    pub fn new(version: u64, kind: Kind) -> Self {
        Self(version << 8 | kind as u64)
    }

    pub fn version(self) -> u64 {
        self.0 >> 8
    }

    pub fn kind(self) -> Kind {
        KINDS[self.0 as usize & 7]
    }

    pub fn is_value(self) -> bool {
        self.kind() != Kind::Absent
    }

    pub fn absent(self) -> Self {
        Self::new(self.version(), Kind::Absent)
    }

    pub fn next_absent(self) -> Self {
        Self::new(self.version() + 1, Kind::Absent)
    }
}

/// Marks stand this far apart in memory, at the beginning of a block.
const BLOCK: usize = 512;
const MARK: u64 = 0x6d61_726b_2062_7974;

/// The bytes of a key's value in some state.
pub fn value_of(key: Key, note: Note) -> Option<Vec<u8>> {
    let seed = key.object << 40 | u64::from(key.index) << 28 | note.version();
    let length = match note.kind() {
        Kind::Absent => return None,
        Kind::Text => {
            let byte = |at: usize| (seed as u8).wrapping_add((at / 50) as u8);
            return Some((0..PAGE_BYTES).map(byte).collect());
        }
        Kind::Uniform => return Some((seed as u32 >> 3).to_ne_bytes().repeat(PAGE_BYTES / 4)),
        Kind::Common => return Some(noise(seed % 5, PAGE_BYTES)),
        Kind::Small => return Some(noise(seed, 1 + seed as usize % 1500)),
        Kind::Page => PAGE_BYTES,
        Kind::Short => 3900,
        Kind::Large => PAGE_BYTES + 1 + seed as usize * 977 % (100 << 10),
    };
    let mut bytes = noise(seed, length);
    for block in bytes.chunks_exact_mut(BLOCK) {
        let words = [MARK, number_of(key) as u64, note.0];
        for (place, word) in block.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }
    Some(bytes)
}

/// The marks of values in a piece of memory. Those in cells, which begin behind a header, too.
pub fn marks(bytes: &[u8]) -> impl Iterator<Item = (Key, Note)> + '_ {
    let word = |at: usize| bytes.get(at..at + 8).map(|b| u64::from_ne_bytes(b.try_into().unwrap()));
    (0..bytes.len()).step_by(8).filter_map(move |at| {
        let mark = word(at)? == MARK;
        mark.then_some((key_of(word(at + 8)? as usize), Note(word(at + 16)?)))
    })
}

/// The notes: for each key the state that an operation was begun to reach, and the one that the
/// last answer told; for each object whether it is being flushed; and whether the child works.
pub struct Notes {
    file: OwnedFd,
    words: *const AtomicU64,
}

// SAFETY: the words are atomic, and mapped as long as the process lives.
unsafe impl Sync for Notes {}
// SAFETY: as above.
unsafe impl Send for Notes {}

const BYTES: usize = (2 * NUMBERS + OBJECT_WORDS + 1) * 8;

impl Notes {
    pub fn new() -> Self {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("notes", flags).expect("memfd");
        rustix::fs::ftruncate(&file, BYTES as u64).expect("length");
        Self::of(file)
    }

    pub fn of(file: OwnedFd) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let words = unsafe {
            mmap(std::ptr::null_mut(), BYTES, rights, MapFlags::SHARED, &file, 0).expect("map")
        };
        Self { file, words: words.cast() }
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn len(&self) -> usize {
        NUMBERS
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < BYTES / 8);
        // SAFETY: within the mapping, which stays.
        unsafe { &*self.words.add(at) }
    }

    pub fn read(&self, number: usize) -> (Note, Note) {
        let [begun, done] =
            [0, 1].map(|half| Note(self.word(2 * number + half).load(Ordering::SeqCst)));
        (begun, done)
    }

    pub fn begin(&self, number: usize, note: Note) {
        self.word(2 * number).store(note.0, Ordering::SeqCst);
    }

    pub fn settle(&self, number: usize, note: Note) {
        self.word(2 * number + 1).store(note.0, Ordering::SeqCst);
        self.word(2 * number).store(note.0, Ordering::SeqCst);
    }

    fn object(&self, object: u64) -> &AtomicU64 {
        self.word(2 * NUMBERS + object as usize)
    }

    pub fn begin_object(&self, object: u64) {
        self.object(object).store(1, Ordering::SeqCst);
    }

    pub fn end_object(&self, object: u64) {
        self.object(object).store(0, Ordering::SeqCst);
    }

    pub fn is_object_open(&self, object: u64) -> bool {
        self.object(object).load(Ordering::SeqCst) != 0
    }

    pub fn settle_objects(&self) {
        (0..OBJECT_WORDS as u64).for_each(|object| self.end_object(object));
    }

    pub fn set_ready(&self, ready: bool) {
        self.word(2 * NUMBERS + OBJECT_WORDS).store(ready.into(), Ordering::SeqCst);
    }

    pub fn is_ready(&self) -> bool {
        self.word(2 * NUMBERS + OBJECT_WORDS).load(Ordering::SeqCst) != 0
    }
}
