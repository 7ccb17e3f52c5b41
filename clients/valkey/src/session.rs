//! A connection to the store, and this server's pool there.

use std::time::Duration;

use spillway_client::{
    Get, Key, Operation, Outcome, Peer, Pool, PoolSpec, Put, Ring, RingOptions, Store,
};
use twox_hash::XxHash3_64;

use crate::deadline::Deadline;
use crate::error::Error;

/// Bytes of a chunk. A value lies in the store as chunks; the ring carries one at a time.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Most bytes and most values that are read together. A longer value is read alone.
const GROUP_BYTES: u64 = 4 << 20;
const GROUP_VALUES: usize = 256;
/// Bits of a chunk's number that are its index under the object.
const INDEX_BITS: u32 = 20;

/// Chunks of one value: consecutive numbers that are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of the first chunk.
    pub first: u64,
    /// Bytes of the value, at least 1.
    pub bytes: u64,
}

impl Extent {
    /// The number of chunks.
    pub const fn chunks(self) -> u64 {
        self.bytes.div_ceil(CHUNK_BYTES as u64)
    }

    /// New memory of the server for the value.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn buffer(self) -> Result<Vec<u8>, Error> {
        let mut buffer = Vec::new();
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        buffer.try_reserve_exact(bytes).map_err(|_| Error::Memory(self.bytes))?;
        buffer.resize(bytes, 0);
        Ok(buffer)
    }

    fn keys(self) -> impl Iterator<Item = Key> {
        (self.first..self.first + self.chunks()).map(key)
    }
}

/// The key of a chunk.
const fn key(number: u64) -> Key {
    Key::new(number >> INDEX_BITS, (number & ((1 << INDEX_BITS) - 1)) as u32)
}

/// The running checksum of a value, extended by its next chunk.
fn checksum(before: u64, chunk: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(before, chunk)
}

/// A connection and a pool.
pub struct Session {
    store: Box<dyn Store>,
    pool: Pool,
    identity: u128,
}

impl Session {
    /// Connects, and opens the pool with this identity. If it does not exist and `make` is true, creates a new one. The
    /// daemon destroys the pool after the last process that holds it has ended. `deadline` limits the wait for the
    /// connection, and for each answer.
    pub fn connect(
        peer: &Peer,
        deadline: Duration,
        wanted: Option<u128>,
        make: bool,
    ) -> Result<Self, Error> {
        let options = RingOptions { timeout: deadline, ..RingOptions::of(peer) };
        let ring = Ring::connect_to(peer.clone(), options).map_err(Error::Connect)?;
        let pools = ring.pools().map_err(Error::Store)?;
        let (pool, identity) = match pools.iter().find(|pool| Some(pool.identity) == wanted) {
            Some(info) => (info.pool, info.identity),
            None if make => {
                let pool = ring.open_pool(PoolSpec::PERSISTENT).map_err(Error::Store)?;
                let pools = ring.pools().map_err(Error::Store)?;
                let info = pools.iter().find(|info| info.pool == pool).ok_or(Error::Lost)?;
                (pool, info.identity)
            }
            None => return Err(Error::Lost),
        };
        ring.bind_pool(pool).map_err(Error::Store)?;
        Ok(Self { store: Box::new(ring), pool, identity })
    }

    /// The identity of the pool.
    pub const fn identity(&self) -> u128 {
        self.identity
    }

    /// Whether the store answers.
    pub fn is_there(&self) -> bool {
        self.store.statistics().is_ok()
    }

    /// Puts a value, and returns its checksum. `None` when the store refuses a part of it: then flush the extent.
    pub fn put(&self, extent: Extent, value: &[u8]) -> Result<Option<u64>, Error> {
        let mut sum = extent.first;
        for (key, chunk) in extent.keys().zip(value.chunks(CHUNK_BYTES)) {
            match self.store.put(self.pool, key, chunk).map_err(away)? {
                Put::Stored => sum = checksum(sum, chunk),
                Put::Refused(_) => return Ok(None),
            }
        }
        Ok(Some(sum))
    }

    /// Reads a value into `value`, whose length is the value's.
    pub fn read(
        &self,
        extent: Extent,
        sum: u64,
        value: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut found = extent.first;
        for (key, chunk) in extent.keys().zip(value.chunks_mut(CHUNK_BYTES)) {
            if deadline.has_passed() {
                return Err(Error::Slow);
            }
            self.read_chunk(key, chunk)?;
            found = checksum(found, chunk);
        }
        if found == sum { Ok(()) } else { Err(Error::Checksum) }
    }

    /// Reads a value chunk by chunk. The chunks are verified only when this returns without an error.
    pub fn read_each(
        &self,
        extent: Extent,
        sum: u64,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut buffer = vec![0; CHUNK_BYTES.min(extent.bytes as usize)];
        let (mut found, mut left) = (extent.first, extent.bytes as usize);
        for key in extent.keys() {
            let chunk = &mut buffer[..left.min(CHUNK_BYTES)];
            self.read_chunk(key, chunk)?;
            found = checksum(found, chunk);
            take(chunk);
            left -= chunk.len();
        }
        if found == sum { Ok(()) } else { Err(Error::Checksum) }
    }

    fn read_chunk(&self, key: Key, chunk: &mut [u8]) -> Result<(), Error> {
        whole(self.store.get(self.pool, key, chunk).map_err(away)?, chunk)
    }

    /// Reads values, each with its checksum, in groups: the store works on all chunks of a group at the same time.
    pub fn read_many(
        &self,
        values: &[(Extent, u64)],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut read = Vec::with_capacity(values.len());
        while let Some(left) = values.get(read.len()..).filter(|left| !left.is_empty()) {
            let group = &left[..group(left)];
            let mut buffers: Vec<Vec<u8>> =
                group.iter().map(|(extent, _)| extent.buffer()).collect::<Result<_, _>>()?;
            self.read_group(group, &mut buffers, deadline)?;
            read.append(&mut buffers);
        }
        Ok(read)
    }

    /// Reads values into `buffers`, whose lengths are those of the values.
    fn read_group(
        &self,
        values: &[(Extent, u64)],
        buffers: &mut [Vec<u8>],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let pool = self.pool;
        let chunks = values
            .iter()
            .zip(buffers.iter_mut())
            .flat_map(|((extent, _), buffer)| extent.keys().zip(buffer.chunks_mut(CHUNK_BYTES)));
        let mut operations: Vec<_> =
            chunks.map(|(key, value)| Operation::Get { pool, key, value }).collect();
        let mut outcomes = Vec::new();
        let sent_all = match deadline.at() {
            Some(until) => self.store.batch_until(&mut operations, &mut outcomes, until),
            None => {
                self.store.batch(&mut operations, &mut outcomes);
                true
            }
        };
        if !sent_all {
            return Err(Error::Slow);
        }
        for (operation, outcome) in operations.iter().zip(outcomes) {
            match (operation, outcome.map_err(away)?) {
                (Operation::Get { value, .. }, Outcome::Get(get)) => whole(get, value)?,
                _ => return Err(Error::Away),
            }
        }
        let is_right = |((extent, sum), buffer): (&(Extent, u64), &Vec<u8>)| {
            buffer.chunks(CHUNK_BYTES).fold(extent.first, checksum) == *sum
        };
        if values.iter().zip(buffers.iter()).all(is_right) { Ok(()) } else { Err(Error::Checksum) }
    }

    /// Removes values.
    pub fn flush(&self, extents: &[Extent]) -> Result<(), Error> {
        let pool = self.pool;
        let mut operations: Vec<Operation<'_>> = extents
            .iter()
            .flat_map(|extent| extent.keys())
            .map(|key| Operation::Flush { pool, key })
            .collect();
        let mut outcomes = Vec::new();
        self.store.batch(&mut operations, &mut outcomes);
        outcomes.into_iter().try_for_each(|outcome| outcome.map(|_| ()).map_err(away))
    }
}

/// How many of the first values are read together, at least one.
fn group(values: &[(Extent, u64)]) -> usize {
    let mut bytes = 0;
    let fits = |(extent, _): &&(Extent, u64)| {
        bytes += extent.bytes;
        bytes <= GROUP_BYTES
    };
    values.iter().take(GROUP_VALUES).take_while(fits).count().max(1)
}

/// Whether a get has filled a chunk.
const fn whole(get: Get, chunk: &[u8]) -> Result<(), Error> {
    match get {
        Get::Hit(bytes) if bytes == chunk.len() => Ok(()),
        Get::Hit(_) | Get::Short(_) => Err(Error::Checksum),
        Get::Miss => Err(Error::Lost),
    }
}

/// Maps an error of the client: the connection has ended, or only this value can't be read.
fn away(error: spillway_client::Error) -> Error {
    use spillway_client::Error as Client;
    match error {
        Client::NoPool => Error::NoPool,
        Client::Corrupt => Error::Checksum,
        Client::Length { .. } | Client::Failed(_) => Error::Store(error),
        _ => Error::Away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let store = spillway_client::open("embed:?capacity=64M").unwrap();
        let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
        Session { store, pool, identity: 1 }
    }

    fn value(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn values_of_any_length_come_back() {
        let session = session();
        let mut first = (1 << INDEX_BITS) - 1;
        for bytes in [1, 4095, 4096, 4097, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1] {
            let extent = Extent { first, bytes: bytes as u64 };
            let put = value(bytes);
            let sum = session.put(extent, &put).unwrap().unwrap();
            let mut read = vec![0; bytes];
            session.read(extent, sum, &mut read, Deadline::NONE).unwrap();
            assert_eq!(read, put);
            let mut pieces = Vec::new();
            session.read_each(extent, sum, &mut |chunk| pieces.extend_from_slice(chunk)).unwrap();
            assert_eq!(pieces, put);
            first += extent.chunks();
        }
    }

    #[test]
    fn many_values_come_back_each_under_its_own_number() {
        let session = session();
        let lengths = (0..600).map(|at| 1 + at * 13 % 5000);
        let lengths = lengths.chain([3 * CHUNK_BYTES + 7, 1, 5 * CHUNK_BYTES, CHUNK_BYTES]);
        let (mut first, mut values, mut put) = (0, Vec::new(), Vec::new());
        for bytes in lengths {
            let extent = Extent { first, bytes: bytes as u64 };
            let mut bytes = value(bytes);
            bytes[0] = first as u8;
            values.push((extent, session.put(extent, &bytes).unwrap().unwrap()));
            put.push(bytes);
            first += extent.chunks();
        }
        let read_many = |values: &[_]| session.read_many(values, Deadline::NONE);
        assert_eq!(read_many(&values).unwrap(), put);
        assert_eq!(read_many(&[]).unwrap(), Vec::<Vec<u8>>::new());
        // One that is wrong or missing fails all.
        let mut wrong = values.clone();
        wrong[301].1 ^= 1;
        assert!(matches!(read_many(&wrong), Err(Error::Checksum)));
        wrong = values.clone();
        wrong[10].0.bytes += 1;
        assert!(matches!(read_many(&wrong), Err(Error::Checksum)));
        session.flush(&[values[599].0]).unwrap();
        assert!(matches!(read_many(&values), Err(Error::Lost)));
    }

    #[test]
    fn what_does_not_arrive_in_a_commands_time_is_too_late() {
        let session = session();
        let extent = Extent { first: 0, bytes: 2 * CHUNK_BYTES as u64 };
        let put = value(2 * CHUNK_BYTES);
        let sum = session.put(extent, &put).unwrap().unwrap();
        let mut read = vec![0; put.len()];
        let passed = Deadline::after(Duration::ZERO);
        assert!(matches!(session.read(extent, sum, &mut read, passed), Err(Error::Slow)));
        assert!(matches!(session.read_many(&[(extent, sum)], passed), Err(Error::Slow)));
        let far = Deadline::after(Duration::from_secs(3600));
        session.read(extent, sum, &mut read, far).unwrap();
        assert_eq!(session.read_many(&[(extent, sum)], far).unwrap(), [read]);
    }

    #[test]
    fn a_group_is_bounded_and_a_longer_value_is_alone() {
        let of = |bytes| (Extent { first: 0, bytes }, 0);
        assert_eq!(group(&[of(1); 1000]), GROUP_VALUES);
        assert_eq!(group(&[of(GROUP_BYTES / 2), of(GROUP_BYTES / 2), of(1)]), 2);
        assert_eq!(group(&[of(1), of(GROUP_BYTES), of(1)]), 1);
        assert_eq!(group(&[of(GROUP_BYTES + 1), of(1)]), 1);
        assert_eq!(group(&[of(7)]), 1);
    }

    #[test]
    fn another_value_under_its_key_is_a_wrong_checksum() {
        let session = session();
        let extent = Extent { first: 9, bytes: 5000 };
        let sum = session.put(extent, &value(5000)).unwrap().unwrap();
        let mut read = vec![0; 5000];
        let overwrite = |value: &[u8]| {
            assert_eq!(session.store.put(session.pool, key(9), value).unwrap(), Put::Stored);
        };
        let mut other = value(5000);
        other[4999] ^= 1;
        overwrite(&other);
        assert!(matches!(
            session.read(extent, sum, &mut read, Deadline::NONE),
            Err(Error::Checksum)
        ));
        assert!(matches!(session.read_each(extent, sum, &mut |_| ()), Err(Error::Checksum)));
        overwrite(&other[..100]);
        assert!(matches!(
            session.read(extent, sum, &mut read, Deadline::NONE),
            Err(Error::Checksum)
        ));
        overwrite(&value(5001));
        assert!(matches!(
            session.read(extent, sum, &mut read, Deadline::NONE),
            Err(Error::Checksum)
        ));
    }

    #[test]
    fn what_is_flushed_is_lost() {
        let session = session();
        let extent = Extent { first: 0, bytes: 2 * CHUNK_BYTES as u64 + 1 };
        let put = value(extent.bytes as usize);
        let sum = session.put(extent, &put).unwrap().unwrap();
        session.flush(&[extent]).unwrap();
        let mut read = vec![0; put.len()];
        assert!(matches!(session.read(extent, sum, &mut read, Deadline::NONE), Err(Error::Lost)));
        assert_eq!(session.store.pools().unwrap()[0].pages, 0);
    }

    #[test]
    fn a_store_that_is_full_refuses() {
        let session = session();
        let bytes = 128 << 20;
        let extent = Extent { first: 0, bytes };
        let noise: Vec<u8> = (0..bytes / 8)
            .flat_map(|at: u64| XxHash3_64::oneshot(&at.to_le_bytes()).to_le_bytes())
            .collect();
        assert!(session.put(extent, &noise).unwrap().is_none());
    }
}
