//! Listing the keys of a database, a few at a time.

use std::sync::atomic::Ordering;

use spillway_store::{Key, Lifetime};

use crate::database::{Database, INDEXES};
use crate::record::{CHUNKS_BIT, Footer};
use crate::trouble::Trouble;

/// Keys that are listed by one call of the store.
const LISTED: usize = 256;

/// Calls `visit` with the name and footer of each key behind a cursor, until `visit` returns false. Gives the next
/// cursor, 0 at the end.
///
/// A cursor is the object up to which all keys are listed, in the store's order. The order stays the same while the store
/// exists. A key's object never changes. So a key that exists from the first call to the last is listed.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn walk(
    database: &Database,
    cursor: u64,
    mut visit: impl FnMut(&[u8], &Footer) -> bool,
) -> Result<u64, Trouble> {
    let mut keys = [Key::new(0, 0); LISTED];
    // No record has this index: the next key lies behind the object.
    let mut from = (cursor != 0).then(|| Key::new(cursor, INDEXES));
    let mut object = cursor;
    loop {
        let listed = database.store.list_keys(database.pool(), from, &mut keys)?;
        for &key in &keys[..listed] {
            if key.object == object {
                continue;
            }
            object = key.object;
            let mut goes_on = true;
            if object & CHUNKS_BIT == 0 {
                database.each_record(object, |name, footer| goes_on &= visit(name, footer))?;
            }
            if !goes_on {
                return Ok(object);
            }
        }
        if listed < keys.len() {
            return Ok(0);
        }
        from = keys.last().copied();
    }
}

/// The number of keys of a database.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn count_keys(database: &Database) -> Result<u64, Trouble> {
    if database.lifetime == Lifetime::Persistent {
        return Ok(database.keys.load(Ordering::Relaxed));
    }
    // Values may vanish without a change of the counter.
    let mut count = 0;
    walk(database, 0, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}
