//! How much memory the store may take.

use spillway_directory::BlockSettings;
use spillway_host::Limits;
use spillway_types::{PAGE_BYTES, PROGRAM_PAGES_MIN};

use crate::config::{Capacity, Error};

/// Smallest capacity.
const LEAST_BYTES: u64 = 16 << 20;
/// Capacity is a multiple of this.
const STEP_BYTES: u64 = 1 << 20;
/// The most that may be lent to the store, as a multiple of its own capacity. The store's index entries for pages that
/// had to leave stay in memory, which sets this limit.
pub const LENT_TIMES_MAX: u64 = 16;

/// Turns the setting of programs' local frames into pages; 0 for none.
///
/// # Errors
/// It is too little for one program, or more than the machine has.
pub fn program_pages(programs: Option<Capacity>, limits: &Limits) -> Result<u64, Error> {
    let Some(capacity) = programs else { return Ok(0) };
    let pages = wanted(capacity, limits) / PAGE_BYTES as u64;
    let (least, most) = (PROGRAM_PAGES_MIN, limits.most_local() / PAGE_BYTES as u64);
    if !(least..=most).contains(&pages) {
        let shown = |pages| spillway_types::Size(pages * PAGE_BYTES as u64);
        return Err(Error::new(format!(
            "memory.programs {} is not from {} to {}, what this machine or cgroup has; or give \"none\"",
            shown(pages),
            shown(least),
            shown(most)
        )));
    }
    Ok(pages)
}

fn wanted(capacity: Capacity, limits: &Limits) -> u64 {
    match capacity {
        Capacity::Bytes(bytes) => bytes,
        Capacity::Percent(share) => limits.most_local() / 100 * u64::from(share),
    }
}

/// Turns the setting into bytes.
///
/// # Errors
/// It is too little, or more than the machine has.
pub fn bytes(capacity: Capacity, limits: &Limits) -> Result<u64, Error> {
    let all = limits.most_local();
    let bytes = wanted(capacity, limits);
    let shown = |bytes| spillway_types::Size(bytes);
    if bytes < LEAST_BYTES {
        return Err(Error::new(format!(
            "store.capacity {} is too little: give at least {}",
            shown(bytes),
            shown(LEAST_BYTES)
        )));
    }
    if bytes > all {
        return Err(Error::new(format!(
            "store.capacity {} is more than this machine or cgroup has: give at most {}",
            shown(bytes),
            shown(all)
        )));
    }
    Ok(bytes / STEP_BYTES * STEP_BYTES)
}

/// Checks that the reserved devices and their indexes fit in the store.
///
/// # Errors
/// The first device that does not fit.
pub fn check_reserved(blocks: &[BlockSettings], own_bytes: u64) -> Result<(), Error> {
    let mut sum = 0_u64;
    for block in blocks.iter().filter(|block| block.reserve) {
        sum = sum.saturating_add(block.bytes);
        if sum >= own_bytes {
            let shown = spillway_types::Size;
            return Err(Error::new(format!(
                "block '{}': it does not fit: store.capacity {} must be more than the {} that are reserved for \
                 blocks; give more, or set reserve = false",
                block.name,
                shown(own_bytes),
                shown(sum)
            )));
        }
    }
    Ok(())
}

/// Checks how much may be lent to the store.
///
/// # Errors
/// It is too much beside its own capacity.
pub fn check_lent(lent_bytes: u64, own_bytes: u64) -> Result<(), Error> {
    let most_bytes = own_bytes.saturating_mul(LENT_TIMES_MAX);
    if lent_bytes > most_bytes {
        let most = spillway_types::Size(most_bytes);
        return Err(Error::new(format!(
            "sections.lend is more than {LENT_TIMES_MAX} times store.capacity: give at most {most}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_between_what_serves_and_what_there_is() {
        let limits = Limits { total: Some(1 << 30), cgroup: Some(400 << 20), ..Limits::default() };
        assert_eq!(bytes(Capacity::Percent(25), &limits).unwrap(), 100 << 20);
        assert_eq!(bytes(Capacity::Bytes(64 << 20), &limits).unwrap(), 64 << 20);
        for bad in [Capacity::Bytes(1 << 20), Capacity::Bytes(500 << 20), Capacity::Percent(1)] {
            assert!(bytes(bad, &limits).is_err(), "{bad:?}");
        }
        assert_eq!(program_pages(None, &limits).unwrap(), 0);
        assert_eq!(program_pages(Some(Capacity::Percent(50)), &limits).unwrap(), 200 << 8);
        for bad in [Capacity::Bytes(0), Capacity::Bytes(1 << 19), Capacity::Bytes(500 << 20)] {
            assert!(program_pages(Some(bad), &limits).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_reserved_leaves_room_for_its_index() {
        let block = |name: &str, bytes, reserve| BlockSettings {
            name: name.into(),
            client: "a".into(),
            bytes,
            block_bytes: 4096,
            reserve,
        };
        let blocks = [block("a", 8 << 20, true), block("b", 1 << 40, false)];
        assert!(check_reserved(&blocks, 16 << 20).is_ok());
        let blocks = [block("a", 8 << 20, true), block("b", 8 << 20, true)];
        assert!(check_reserved(&blocks, 17 << 20).is_ok());
        let line = check_reserved(&blocks, 16 << 20).unwrap_err().to_string();
        assert!(line.starts_with("block 'b': ") && line.contains("16"), "{line}");
    }

    #[test]
    fn what_is_lent_is_little_enough_to_be_known_of_when_it_has_left() {
        assert!(check_lent(0, 16 << 20).is_ok());
        assert!(check_lent(256 << 20, 16 << 20).is_ok());
        let line = check_lent((256 << 20) + 1, 16 << 20).unwrap_err().to_string();
        assert!(line.contains("at most 256"), "{line}");
    }
}
