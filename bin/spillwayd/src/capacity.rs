//! How much memory the store may take.

use spillway_host::Limits;

use crate::config::{Capacity, Error};

/// Least capacity that is served.
const LEAST_BYTES: u64 = 16 << 20;
/// Capacity is a whole number of these.
const STEP_BYTES: u64 = 1 << 20;

/// Turns the setting into bytes.
///
/// # Errors
/// It is too little, or more than there is.
pub fn bytes(capacity: Capacity, limits: &Limits) -> Result<u64, Error> {
    let all = limits.most_local();
    let bytes = match capacity {
        Capacity::Bytes(bytes) => bytes,
        Capacity::Percent(share) => all / 100 * u64::from(share),
    };
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
    }
}
