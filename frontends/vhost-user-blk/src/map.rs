//! The map: the place of each block's value, in a file that outlives the daemon.
//!
//! It has one byte for each block, in memory and in the file. It is written by pwrite, so the page cache
//! keeps it when the daemon is killed. Layout, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0-7 | `SPILLDSK` |
//! | 8-15 | version, 1 |
//! | 16-23 | blocks |
//! | 24-31 | kind: 0 swap, 1 cache |
//! | 32-47 | identity of the pool; 0 for none |
//! | from 4096 | the places: 0 nowhere, 1 store, 2 file, 3 lost |

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FallocateFlags, fallocate};

use crate::config::Kind;
use crate::error::Error;
use crate::group::GROUP_BLOCKS;

const MAGIC: [u8; 8] = *b"SPILLDSK";
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 48;
const PLACES_START: u64 = 4096;

/// The place of a block's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockLocation {
    /// Nowhere: it reads as zeros.
    Nowhere,
    /// In the store.
    Store,
    /// In the backing file.
    File,
    /// Lost with a store that is gone: reading it is an error.
    Lost,
}

impl BlockLocation {
    const fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Nowhere,
            1 => Self::Store,
            2 => Self::File,
            _ => Self::Lost,
        }
    }
}

/// The places of a disk's blocks.
#[derive(Debug)]
pub struct Map {
    file: File,
    places: Box<[AtomicU8]>,
    header: Header,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    blocks: u64,
    kind: u64,
    pool: u128,
}

impl Header {
    /// The header of a new disk.
    fn new(blocks: u64, kind: Kind) -> Self {
        Self { blocks, kind: u64::from(kind == Kind::Cache), pool: 0 }
    }

    /// The pool in the header of a map's file; none if the file is new.
    fn read(self, file: &File, path: &Path) -> Result<Option<u128>, Error> {
        let wrong = |error: io::Error| Error::Open { path: path.to_owned(), error };
        let found = file.metadata().map_err(wrong)?.len();
        let mut start = [0; HEADER_BYTES];
        let known = file.read_at(&mut start, 0).map_err(wrong)?;
        // A daemon that was killed while it created the file left an empty header or one of zeros.
        if start == [0; HEADER_BYTES] && (known == HEADER_BYTES || found == 0) {
            return Ok(None);
        }
        let pool = self.decode(&start).map_err(|why| Error::Map { path: path.to_owned(), why })?;
        Ok(Some(pool))
    }

    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.kind.to_le_bytes());
        bytes[32..].copy_from_slice(&self.pool.to_le_bytes());
        bytes
    }

    /// The pool in a header. The error says why the bytes are not the header of a disk of this kind and length.
    fn decode(self, bytes: &[u8; HEADER_BYTES]) -> Result<u128, &'static str> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if bytes[..8] != MAGIC {
            return Err("is no map of a disk");
        }
        if word(8) != VERSION {
            return Err("is a map of another version");
        }
        if word(16) != self.blocks {
            return Err("is the map of a disk of another size");
        }
        if word(24) != self.kind {
            return Err("is the map of a disk of another kind");
        }
        Ok(u128::from(word(32)) | u128::from(word(40)) << 64)
    }
}

impl Map {
    /// Checks that the file at `path`, if there is one, can be opened as a map. Changes nothing.
    pub fn check(path: &Path, blocks: u64, kind: Kind) -> Result<(), Error> {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => Header::new(blocks, kind).read(&file, path).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::Open { path: path.to_owned(), error }),
        }
    }

    /// Opens the map at `path`, or creates one whose blocks are all nowhere.
    pub fn open(path: &Path, blocks: u64, kind: Kind) -> Result<Self, Error> {
        let wrong = |error: io::Error| Error::Open { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(wrong)?;
        let header = Header::new(blocks, kind);
        let listed = if kind == Kind::Swap { blocks as usize } else { 0 };
        let bytes = PLACES_START + listed as u64;
        let known = header.read(&file, path)?;
        let mut map = Self { file, places: Box::default(), header };
        map.header.pool = known.unwrap_or_default();
        // The file is allocated, so that no later change fails for lack of space.
        fallocate(&map.file, FallocateFlags::empty(), 0, bytes).map_err(|error| {
            Error::Allocate { path: path.to_owned(), bytes, error: error.into() }
        })?;
        let mut places = vec![0; listed];
        if known.is_none() {
            map.file.write_all_at(&header.encode(), 0).map_err(wrong)?;
        } else {
            map.file.read_exact_at(&mut places, PLACES_START).map_err(wrong)?;
        }
        map.places = places.into_iter().map(AtomicU8::new).collect();
        Ok(map)
    }

    /// The identity of the pool to which [`BlockLocation::Store`] refers.
    pub const fn pool(&self) -> u128 {
        self.header.pool
    }

    /// Sets the identity of the pool.
    pub fn set_pool(&mut self, pool: u128) -> io::Result<()> {
        self.header.pool = pool;
        self.file.write_all_at(&self.header.encode(), 0)
    }

    /// The location of a block's value.
    pub fn place(&self, block: u64) -> BlockLocation {
        BlockLocation::of(self.places[block as usize].load(Ordering::Acquire))
    }

    /// The blocks of a range that lie at `place`.
    pub fn at(&self, place: BlockLocation, blocks: Range<u64>) -> impl Iterator<Item = u64> {
        let places = &self.places[blocks.start as usize..blocks.end as usize];
        let here = move |known: &AtomicU8| known.load(Ordering::Relaxed) == place as u8;
        blocks.zip(places).filter(move |(_, known)| here(known)).map(|(block, _)| block)
    }

    /// Sets the place of blocks of a group. Bit `n` of `chosen` stands for block `first + n`. Does not write entries
    /// that have this place already. The caller holds the group's lock exclusively.
    pub fn set(&self, first: u64, chosen: u64, place: BlockLocation) -> io::Result<()> {
        let bits = (0..u64::BITS).filter(|bit| chosen >> bit & 1 != 0);
        let changed = |bit: &u32| self.place(first + u64::from(*bit)) != place;
        let changed = bits.filter(changed).fold(0_u64, |sum, bit| sum | 1 << bit);
        if changed == 0 {
            return Ok(());
        }
        let (low, high) = (changed.trailing_zeros(), u64::BITS - changed.leading_zeros());
        let mut bytes = [0; GROUP_BLOCKS];
        for bit in low..high {
            let chosen = changed >> bit & 1 != 0;
            let known = self.places[first as usize + bit as usize].load(Ordering::Relaxed);
            bytes[bit as usize] = if chosen { place as u8 } else { known };
        }
        let at = PLACES_START + first + u64::from(low);
        self.file.write_all_at(&bytes[low as usize..high as usize], at)?;
        for bit in (low..high).filter(|bit| changed >> bit & 1 != 0) {
            self.places[first as usize + bit as usize].store(place as u8, Ordering::Release);
        }
        Ok(())
    }
}
