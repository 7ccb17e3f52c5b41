//! The journal: the registry's state that survives the daemon's death.
//!
//! A memory file holds the record twice. A new record overwrites the older copy; then its header,
//! which fits in one sector, makes it valid. After a kill at any moment, the file contains the new
//! or the previous record, complete. Layout, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0-7 | `SPILLDIR` |
//! | 8-15 | version, 1 |
//! | 64-87, 128-151 | for each copy: sequence number, length, XXH3-64 of the record |
//! | from 1 MiB, from 9 MiB | the copies: JSON |

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use spillway_types::{ClientId, Limits};
use twox_hash::XxHash3_64;

use crate::arrival::Arrival;
use crate::error::Error;
use crate::settings::{ManagerSettings, Secret, Who};
use crate::views::Origin;

const MAGIC: [u8; 8] = *b"SPILLDIR";
const VERSION: u64 = 1;
/// Bytes between the headers of copies.
const HEADER_STEP: u64 = 64;
/// Longest record in bytes: enough for 4095 clients with a device each.
const RECORD_BYTES_MAX: usize = 8 << 20;
const RECORDS_START: u64 = 1 << 20;

/// The recorded state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// How often a daemon reopened this.
    pub(crate) restarts: u64,
    /// Capacity of the store, which does not change while the store is kept.
    pub(crate) capacity_bytes: u64,
    pub(crate) clients: Vec<ClientRecord>,
    pub(crate) blocks: Vec<BlockRecord>,
    /// A record from before there were programs has none.
    #[serde(default)]
    pub(crate) programs: Vec<ProgramRecord>,
    /// A record from before there was lending has none.
    #[serde(default)]
    pub(crate) loans: Vec<LoanRecord>,
    /// A record from before policies were kept has none.
    #[serde(default)]
    pub(crate) manager: Option<ManagerRecord>,
}

/// How targets are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManagerRecord {
    /// The last settings of the configuration.
    pub(crate) configured: ManagerSettings,
    /// The effective settings: the operator may have changed them since.
    pub(crate) current: ManagerSettings,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientRecord {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) who: Who,
    pub(crate) origin: Origin,
    pub(crate) secret: Option<Secret>,
    /// The last cap from the source that named it; the store has the present target.
    pub(crate) target_pages: u64,
    /// Its cap.
    pub(crate) cap_pages: Option<u64>,
    /// Its floor.
    pub(crate) floor_pages: Option<u64>,
    pub(crate) weight: Option<u32>,
    /// The last values of these two from the source that named it.
    pub(crate) asked_floor_pages: Option<u64>,
    pub(crate) asked_weight: Option<u32>,
    pub(crate) connections_max: u32,
    pub(crate) operations_max: u32,
    pub(crate) bytes_max: u64,
    pub(crate) domain: Option<u32>,
    pub(crate) shared: Vec<u128>,
    /// A record from before imports could be repeated has none.
    #[serde(default)]
    pub(crate) arrival: Arrival,
    /// A record from before moves were kept has none.
    #[serde(default)]
    pub(crate) moved: bool,
}

impl ClientRecord {
    pub(crate) const fn client(&self) -> ClientId {
        ClientId(self.id)
    }

    pub(crate) const fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            operations_max: self.operations_max,
            bytes_max: self.bytes_max,
        }
    }
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockRecord {
    pub(crate) name: String,
    pub(crate) client: String,
    /// The store's id of its pool.
    pub(crate) pool: u64,
    pub(crate) number: u32,
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) uuid: u128,
}

/// An operator's settings of a paged program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProgramRecord {
    pub(crate) name: String,
    pub(crate) cap_pages: Option<u64>,
    pub(crate) floor_pages: u64,
    pub(crate) weight: u32,
}

/// Memory that is lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoanRecord {
    pub(crate) borrower: String,
    pub(crate) number: u64,
    pub(crate) client: String,
    /// The store's id of its pool.
    pub(crate) pool: u64,
    pub(crate) slabs: u32,
    pub(crate) slab_bytes: u64,
    /// Its block device, in direct mode.
    pub(crate) block: Option<String>,
}

/// The file that outlives the daemon.
#[derive(Debug)]
pub struct Journal {
    file: File,
    sequence: u64,
    written: Option<Record>,
    restarts: u64,
    capacity_bytes: u64,
}

impl Journal {
    /// Creates an empty journal, for a new store.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel can't create a memory file.
    pub fn create(capacity_bytes: u64) -> Result<Self, Error> {
        let fd =
            memfd_create("spillway-directory", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let file = File::from(fd);
        file.set_len(RECORDS_START + 2 * RECORD_BYTES_MAX as u64)?;
        file.write_all_at(&VERSION.to_le_bytes(), 8)?;
        // Written last, so that a file without it was never in use.
        file.write_all_at(&MAGIC, 0)?;
        let mut journal = Self { file, sequence: 0, written: None, restarts: 0, capacity_bytes };
        journal.write(Record::default())?;
        Ok(journal)
    }

    /// Opens one that another process wrote.
    ///
    /// # Errors
    /// [`Error::Journal`] if it is not a journal, or has another version.
    pub fn reopen(fd: OwnedFd) -> Result<Self, Error> {
        let file = File::from(fd);
        let mut start = [0; 16];
        file.read_exact_at(&mut start, 0).map_err(|_| Error::Journal("it is too short"))?;
        if start[..8] != MAGIC {
            return Err(Error::Journal("it is of another kind"));
        }
        if start[8..] != VERSION.to_le_bytes() {
            return Err(Error::Journal("it is of another version"));
        }
        let mut newest = Self { file, sequence: 0, written: None, restarts: 0, capacity_bytes: 0 };
        for copy in 0..2 {
            let Some((sequence, record)) = newest.read_copy(copy)? else { continue };
            if sequence > newest.sequence {
                (newest.sequence, newest.written) = (sequence, Some(record));
            }
        }
        let Some(record) = &newest.written else {
            return Err(Error::Journal("nothing whole was written"));
        };
        newest.restarts = 1 + record.restarts;
        newest.capacity_bytes = record.capacity_bytes;
        Ok(newest)
    }

    /// Capacity of its store, bytes.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// How often it was reopened.
    pub const fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The file, for the fd store.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What was written last.
    pub(crate) fn record(&self) -> Record {
        self.written.clone().unwrap_or_default()
    }

    /// Replaces the last record by `record`, except restarts and capacity, which the journal itself maintains.
    pub(crate) fn write(&mut self, record: Record) -> Result<(), Error> {
        let Self { restarts, capacity_bytes, .. } = *self;
        let record = Record { restarts, capacity_bytes, ..record };
        if self.written.as_ref() == Some(&record) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&record).map_err(io::Error::from)?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(Error::JournalFull(bytes.len()));
        }
        let sequence = self.sequence + 1;
        let copy = sequence % 2;
        self.file.write_all_at(&bytes, record_start(copy))?;
        let mut header = [0; 24];
        header[..8].copy_from_slice(&sequence.to_le_bytes());
        header[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[16..].copy_from_slice(&checksum(sequence, &bytes).to_le_bytes());
        self.file.write_all_at(&header, HEADER_STEP * (copy + 1))?;
        (self.sequence, self.written) = (sequence, Some(record));
        Ok(())
    }

    /// A copy, if it is complete.
    fn read_copy(&self, copy: u64) -> Result<Option<(u64, Record)>, Error> {
        let mut header = [[0; 8]; 3];
        self.file.read_exact_at(header.as_flattened_mut(), HEADER_STEP * (copy + 1))?;
        let [sequence, length, sum] = header.map(u64::from_le_bytes);
        let Some(length) = usize::try_from(length).ok().filter(|&it| it <= RECORD_BYTES_MAX) else {
            return Ok(None);
        };
        let mut bytes = vec![0; length];
        if self.file.read_exact_at(&mut bytes, record_start(copy)).is_err()
            || sum != checksum(sequence, &bytes)
        {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&bytes).ok().map(|record| (sequence, record)))
    }
}

const fn record_start(copy: u64) -> u64 {
    RECORDS_START + copy * RECORD_BYTES_MAX as u64
}

fn checksum(sequence: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(sequence, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(name: &str) -> Vec<ClientRecord> {
        vec![ClientRecord {
            name: name.into(),
            id: 4097,
            who: Who::User(1000),
            origin: Origin::Added,
            secret: None,
            target_pages: 7,
            cap_pages: Some(8),
            floor_pages: None,
            weight: Some(3),
            asked_floor_pages: None,
            asked_weight: Some(2),
            connections_max: 1,
            operations_max: 2,
            bytes_max: 3,
            domain: Some(1),
            shared: vec![u128::MAX],
            arrival: Arrival::None,
            moved: false,
        }]
    }

    fn of(clients: Vec<ClientRecord>) -> Record {
        Record { clients, ..Record::default() }
    }

    fn reopened(journal: &Journal) -> Journal {
        Journal::reopen(journal.file.try_clone().unwrap().into()).unwrap()
    }

    #[test]
    fn the_last_record_is_found_again() {
        let mut journal = Journal::create(7).unwrap();
        assert_eq!(reopened(&journal).record().clients, []);
        for name in ["a", "b", "c"] {
            journal.write(of(clients(name))).unwrap();
            let again = reopened(&journal);
            assert_eq!(again.record().clients, clients(name));
            assert_eq!((again.restarts(), again.capacity_bytes()), (1, 7));
        }
    }

    #[test]
    fn a_record_from_before_there_were_caps_is_read() {
        let record = serde_json::to_string(&clients("a")[0]).unwrap();
        let read: ClientRecord =
            serde_json::from_str(&record.replace("\"cap_pages\":8,", "")).unwrap();
        assert_eq!((read.target_pages, read.cap_pages), (7, None));
    }

    #[test]
    fn a_record_from_before_there_was_lending_is_read() {
        let record = Record { restarts: 3, ..Record::default() };
        let text = serde_json::to_string(&record).unwrap().replace(",\"loans\":[]", "");
        assert!(!text.contains("loans"));
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn a_record_from_before_policies_were_kept_is_read() {
        let record = Record { restarts: 3, ..Record::default() };
        let text = serde_json::to_string(&record).unwrap().replace(",\"manager\":null", "");
        assert!(!text.contains("manager"));
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn a_write_cut_short_leaves_the_record_before() {
        let mut journal = Journal::create(7).unwrap();
        journal.write(of(clients("kept"))).unwrap();
        journal.write(of(clients("torn"))).unwrap();
        let torn = journal.sequence % 2;
        let header = HEADER_STEP * (torn + 1);
        for at in [record_start(torn), header, header + 8, header + 16] {
            let mut byte = [0];
            journal.file.read_exact_at(&mut byte, at).unwrap();
            journal.file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
            assert_eq!(reopened(&journal).record().clients, clients("kept"), "{at}");
            journal.file.write_all_at(&byte, at).unwrap();
        }
    }

    #[test]
    fn what_is_no_journal_is_refused() {
        let fd = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Journal::reopen(fd), Err(Error::Journal(_))));
    }
}
