//! Lists of pools and keys, fetched in several commands if needed.

use spillway_types::Key;
use spillway_wire::kv::{KeyList, PoolEntry};

use crate::Error;

/// Pools in the first request.
const POOLS: usize = 1024;
/// More pools than any client can have.
const POOLS_MAX: usize = 1 << 16;
/// Keys in one command.
const KEYS: usize = 1024;

/// All pools of the client. `fetch` sends List Pools with the given buffer and returns the result.
pub fn pools(fetch: impl Fn(&mut [u8]) -> Result<u64, Error>) -> Result<Vec<PoolEntry>, Error> {
    let mut room = POOLS;
    loop {
        let mut bytes = vec![0; room * PoolEntry::BYTES];
        let count = fetch(&mut bytes)? as usize;
        if count > POOLS_MAX {
            return Err(Error::Protocol("more pools are listed than there can be"));
        }
        if count > room {
            room = count.next_power_of_two();
            continue;
        }
        let entries = bytes.chunks_exact(PoolEntry::BYTES).take(count);
        let wrong = |_| Error::Protocol("an entry of the list of pools is wrong");
        return entries.map(|entry| PoolEntry::decode(entry).map_err(wrong)).collect();
    }
}

/// At most `most` keys of a pool. `fetch` sends List with the given buffer, for the keys from the
/// given one.
pub fn keys(
    from: Option<Key>,
    most: usize,
    fetch: impl Fn(Option<Key>, &mut [u8]) -> Result<(), Error>,
) -> Result<Vec<Key>, Error> {
    let mut keys = Vec::new();
    let mut start = from;
    while keys.len() < most {
        let mut bytes = vec![0; KeyList::bytes(KEYS)];
        fetch(start, &mut bytes)?;
        let wrong = |_| Error::Protocol("a list of keys is wrong");
        let listed = KeyList::decode(&bytes).map_err(wrong)?;
        let listed: Vec<Key> = listed.collect::<Result<_, _>>().map_err(wrong)?;
        // A list begins with the key from which it continues, if that still exists.
        let again = !keys.is_empty() && listed.first() == start.as_ref();
        keys.extend(&listed[usize::from(again)..]);
        if listed.len() < KEYS {
            break;
        }
        start = listed.last().copied();
    }
    keys.truncate(most);
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_once_from_the_one_asked_for() {
        let all: Vec<Key> = (0..3000).map(|number| Key::new(number / 7, number as u32)).collect();
        let fetch = |start: Option<Key>, bytes: &mut [u8]| {
            let mut list = KeyList::new(bytes).expect("room for a count");
            let from = start.map_or(0, |start| all.partition_point(|key| *key < start));
            let _ = all[from..].iter().all(|&key| list.push(key));
            Ok(())
        };
        for (first, most) in
            [(0, 3000), (0, 9000), (0, 1024), (5, 1), (5, 2500), (1500, 9000), (2999, 2)]
        {
            let expected = &all[first..3000.min(first + most)];
            assert_eq!(keys(Some(all[first]), most, fetch).unwrap(), expected, "{first} {most}");
        }
        assert_eq!(keys(None, 9000, fetch).unwrap(), all);
        // From a key that does not exist.
        assert_eq!(keys(Some(Key::new(1, 0)), 3, fetch).unwrap(), &all[7..10]);
    }
}
