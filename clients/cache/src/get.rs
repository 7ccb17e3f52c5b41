//! Getting values.

use spillway_client::{Get as Got, Operation, Outcome};

use crate::cache::Cache;
use crate::error::Error;
use crate::record::{Body, Parts};

/// A value to get.
#[derive(Debug)]
pub struct Get<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its buffer.
    pub room: &'a mut [u8],
}

/// The location of a value that was found. The value may be gone when it is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    object: u64,
    place: FoundValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FoundValue {
    Here(Vec<u8>),
    Parts(Parts),
}

impl Found {
    /// Bytes of the value.
    pub const fn length(&self) -> u64 {
        match &self.place {
            FoundValue::Here(value) => value.len() as u64,
            FoundValue::Parts(parts) => parts.length,
        }
    }
}

impl Cache {
    /// Looks values up, so that the caller can allocate buffers for [`Self::fetch`]. `None` is a miss. Uses
    /// one batch.
    pub fn look_up(&self, keys: &[&[u8]]) -> Vec<Result<Option<Found>, Error>> {
        let mut found = Vec::with_capacity(keys.len());
        self.records(keys, &mut |number, object, record| {
            found.push(record.map(|record| {
                let record = record.filter(|record| record.is_of(keys[number]))?;
                let place = match record.body {
                    Body::Inline(value) => FoundValue::Here(value.to_vec()),
                    Body::Parts(parts) | Body::Pending(parts) => FoundValue::Parts(parts),
                };
                Some(Found { object, place })
            }));
        });
        found
    }

    /// Copies found values, each into a buffer of at least its length. False for a value that was removed or replaced
    /// since: the buffer's content is then undefined.
    pub fn fetch(&self, wanted: &mut [(&Found, &mut [u8])]) -> Vec<Result<bool, Error>> {
        let mut fetched = Vec::with_capacity(wanted.len());
        let mut operations = Vec::new();
        let mut counts = Vec::with_capacity(wanted.len());
        for (found, room) in wanted {
            let before = operations.len();
            let length = found.length();
            fetched.push(if length > room.len() as u64 {
                Err(Error::Short { value_bytes: length, room_bytes: room.len() })
            } else {
                let room = &mut room[..length as usize];
                match &found.place {
                    FoundValue::Here(value) => room.copy_from_slice(value),
                    FoundValue::Parts(parts) => {
                        let rooms = room.chunks_mut(parts.part_bytes as usize).enumerate();
                        operations.extend(rooms.map(|(number, value)| {
                            let key = parts.key(found.object, number);
                            Operation::Get { pool: self.pool, key, value }
                        }));
                    }
                }
                Ok(true)
            });
            counts.push(operations.len() - before);
        }
        let outcomes = self.batch(&mut operations);
        let mut parts = operations.iter().zip(outcomes);
        for (fetched, count) in fetched.iter_mut().zip(counts) {
            for (operation, outcome) in parts.by_ref().take(count) {
                let whole = match (operation, outcome) {
                    (Operation::Get { value, .. }, Ok(Outcome::Get(Got::Hit(bytes)))) => {
                        Ok(bytes == value.len())
                    }
                    (_, Ok(_)) => Ok(false),
                    (_, Err(error)) => Err(Error::from(error)),
                };
                match whole {
                    Ok(true) => {}
                    Ok(false) if fetched.is_ok() => *fetched = Ok(false),
                    // The first error is the most useful one.
                    Err(_) if fetched.is_err() => {}
                    other => *fetched = other,
                }
            }
        }
        fetched
    }

    /// Copies values out: returns the length of each, or `None` for a miss.
    ///
    /// A value that changes meanwhile is looked up once more, and then counts as a miss, because it is being
    /// put or deleted. [`Error::Short`] if a buffer is too short.
    pub fn get(&self, gets: &mut [Get<'_>]) -> Vec<Result<Option<usize>, Error>> {
        let mut outcomes: Vec<_> = gets.iter().map(|_| Ok(None)).collect();
        let mut left: Vec<usize> = (0..gets.len()).collect();
        for _ in 0..2 {
            if left.is_empty() {
                break;
            }
            left = self.try_get(gets, &left, &mut outcomes);
        }
        outcomes
    }

    /// Gets the values with these numbers. Returns the numbers of those that have changed
    /// meanwhile.
    fn try_get(
        &self,
        gets: &mut [Get<'_>],
        numbers: &[usize],
        outcomes: &mut [Result<Option<usize>, Error>],
    ) -> Vec<usize> {
        let keys: Vec<&[u8]> = numbers.iter().map(|&number| gets[number].key).collect();
        let mut found = Vec::with_capacity(keys.len());
        for (&number, looked_up) in numbers.iter().zip(self.look_up(&keys)) {
            match looked_up {
                Ok(Some(one)) => found.push((number, one)),
                Ok(None) => outcomes[number] = Ok(None),
                Err(error) => outcomes[number] = Err(error),
            }
        }
        let mut next = found.iter().peekable();
        let mut wanted = Vec::with_capacity(found.len());
        for (number, get) in gets.iter_mut().enumerate() {
            // Both are in the order of the numbers.
            if let Some((_, found)) = next.next_if(|(wanted, _)| *wanted == number) {
                wanted.push((found, &mut *get.room));
            }
        }
        let fetched = self.fetch(&mut wanted);
        let mut changed = Vec::new();
        for ((number, found), fetched) in found.iter().zip(fetched) {
            outcomes[*number] = match fetched {
                Ok(true) => Ok(Some(found.length() as usize)),
                Ok(false) => {
                    changed.push(*number);
                    Ok(None)
                }
                Err(error) => Err(error),
            };
        }
        changed
    }
}
