//! The data of vendor-specific commands: pools and counters.

use spillway_types::{PoolSpec, PoolSpecError, Statistics};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian, transmute, transmute_ref,
};

use crate::Error;
use crate::bytes::prefix;

/// The data of Create Pool.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreatePoolData {
    /// Flags of the pool, as in tmem.
    pub flags: U32,
    /// Reserved.
    pub reserved: [u8; 4],
    /// UUID of a shared pool, in the order of its text form; otherwise 0.
    pub uuid: big_endian::U128,
}

const _: () = assert!(size_of::<CreatePoolData>() == 24);

/// A pool in the data of List Pools.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PoolEntryData {
    /// Number: the namespace id.
    pub number: U32,
    /// Flags of the pool, as in tmem.
    pub flags: U32,
    /// UUID of a shared pool, in the order of its text form; otherwise 0.
    pub uuid: big_endian::U128,
    /// Pages that the pool holds.
    pub pages: U64,
    /// A number that no other pool has or gets.
    pub identity: U128,
}

const _: () = assert!(size_of::<PoolEntryData>() == 48);

/// The data of Create Pool, a [`CreatePoolData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatePool(pub PoolSpec);

impl CreatePool {
    /// The length of the encoded structure, bytes.
    pub const BYTES: usize = size_of::<CreatePoolData>();

    /// Decodes the structure.
    ///
    /// # Errors
    /// [`PoolSpecError`] for invalid flags.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, PoolSpecError> {
        let data: &CreatePoolData = transmute_ref!(bytes);
        PoolSpec::from_flags(data.flags.get(), data.uuid.get()).map(Self)
    }

    /// Encodes the structure.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        transmute!(CreatePoolData {
            flags: self.0.flags().into(),
            reserved: [0; _],
            uuid: self.0.uuid().unwrap_or(0).into(),
        })
    }
}

/// A pool in the data of List Pools, a [`PoolEntryData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// The number of the pool: its namespace id.
    pub number: u32,
    /// The kind of the pool.
    pub spec: PoolSpec,
    /// Pages that the pool holds.
    pub pages: u64,
    /// A number that no other pool has or gets, also in a store that was restarted empty: the store's
    /// random number in the high half, its name of the pool in the low one. A client that reconnects
    /// compares it, because the numbers of pools are reused.
    pub identity: u128,
}

impl PoolEntry {
    /// The length of the encoded structure, bytes.
    pub const BYTES: usize = size_of::<PoolEntryData>();

    /// Decodes the structure.
    ///
    /// # Errors
    /// [`Error::Short`], [`Error::Field`] for invalid flags.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let data: &PoolEntryData = prefix(bytes)?;
        Ok(Self {
            number: data.number.get(),
            spec: PoolSpec::from_flags(data.flags.get(), data.uuid.get())
                .map_err(|_| Error::Field("pool flags"))?,
            pages: data.pages.get(),
            identity: data.identity.get(),
        })
    }

    /// Encodes the structure.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        transmute!(PoolEntryData {
            number: self.number.into(),
            flags: self.spec.flags().into(),
            uuid: self.spec.uuid().unwrap_or(0).into(),
            pages: self.pages.into(),
            identity: self.identity.into(),
        })
    }
}

/// A client's counters: the fields of [`Statistics`] in their order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StatisticsData {
    /// Puts requested.
    pub puts: U64,
    /// Puts that stored their value.
    pub puts_stored: U64,
    /// Puts refused at the target.
    pub puts_refused_at_target: U64,
    /// Puts refused by a full store.
    pub puts_refused_node_full: U64,
    /// Puts refused for another reason.
    pub puts_refused_other: U64,
    /// Gets requested.
    pub gets: U64,
    /// Gets that found a value.
    pub hits: U64,
    /// Gets that found none.
    pub misses: U64,
    /// Pages freed by flushes.
    pub flushed_pages: U64,
    /// Ephemeral pages dropped.
    pub evicted_pages: U64,
    /// Pages held.
    pub used_pages: U64,
    /// Pages that may be held.
    pub target_pages: U64,
    /// Pages reserved.
    pub reserved_pages: U64,
}

const _: () = assert!(size_of::<StatisticsData>() == 104);

/// Bytes of a client's counters.
pub const STATISTICS_BYTES: usize = size_of::<StatisticsData>();

/// Encodes a client's counters.
pub fn encode_statistics(statistics: &Statistics) -> [u8; STATISTICS_BYTES] {
    transmute!(StatisticsData {
        puts: statistics.puts.into(),
        puts_stored: statistics.puts_stored.into(),
        puts_refused_at_target: statistics.puts_refused_at_target.into(),
        puts_refused_node_full: statistics.puts_refused_node_full.into(),
        puts_refused_other: statistics.puts_refused_other.into(),
        gets: statistics.gets.into(),
        hits: statistics.hits.into(),
        misses: statistics.misses.into(),
        flushed_pages: statistics.flushed_pages.into(),
        evicted_pages: statistics.evicted_pages.into(),
        used_pages: statistics.used_pages.into(),
        target_pages: statistics.target_pages.into(),
        reserved_pages: statistics.reserved_pages.into(),
    })
}

/// Decodes a client's counters.
///
/// # Errors
/// [`Error::Short`].
pub fn decode_statistics(bytes: &[u8]) -> Result<Statistics, Error> {
    let data: &StatisticsData = prefix(bytes)?;
    Ok(Statistics {
        puts: data.puts.get(),
        puts_stored: data.puts_stored.get(),
        puts_refused_at_target: data.puts_refused_at_target.get(),
        puts_refused_node_full: data.puts_refused_node_full.get(),
        puts_refused_other: data.puts_refused_other.get(),
        gets: data.gets.get(),
        hits: data.hits.get(),
        misses: data.misses.get(),
        flushed_pages: data.flushed_pages.get(),
        evicted_pages: data.evicted_pages.get(),
        used_pages: data.used_pages.get(),
        target_pages: data.target_pages.get(),
        reserved_pages: data.reserved_pages.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_counters_come_back() {
        let spec = PoolSpec::shared_ephemeral(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let bytes = CreatePool(spec).encode();
        assert_eq!(bytes[..12], [2, 0, 0, 1, 0, 0, 0, 0, 0x00, 0x11, 0x22, 0x33]);
        assert_eq!(CreatePool::decode(&bytes), Ok(CreatePool(spec)));
        let entry = PoolEntry { number: 7, spec, pages: 9, identity: 1 << 100 | 5 };
        assert_eq!(PoolEntry::decode(&entry.encode()), Ok(entry));
        let counters = Statistics { puts: 1, misses: 8, reserved_pages: 12, ..Default::default() };
        assert_eq!(decode_statistics(&encode_statistics(&counters)), Ok(counters));
        assert!(decode_statistics(&[0; 103]).is_err());
    }

    #[test]
    fn entries_and_counters_keep_their_bytes() {
        let spec = PoolSpec::shared_ephemeral(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        let entry = PoolEntry {
            number: 0x0403_0201,
            spec,
            pages: 0x1817_1615_1413_1211,
            identity: 0x302f_2e2d_2c2b_2a29_2827_2625_2423_2221,
        };
        let bytes = entry.encode();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 2, 0, 0, 1]);
        let rest = [1..=16, 0x11..=0x18, 0x21..=0x30].into_iter().flatten();
        assert!(bytes[8..].iter().copied().eq(rest));
        let counters = Statistics { puts: 1, hits: 7, reserved_pages: 13, ..Default::default() };
        let bytes = encode_statistics(&counters);
        assert_eq!((bytes[0], bytes[48], bytes[96]), (1, 7, 13));
    }
}
