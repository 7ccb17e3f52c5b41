//! Going through all keys of a database, a few at a time.

use std::sync::atomic::Ordering;

use spillway_store::{Key, Lifetime};

use crate::database::{Database, INDEXES};
use crate::record::{CHUNKS_BIT, Footer};
use crate::trouble::Trouble;

/// Keys that are listed at a time.
const LISTED: usize = 256;

/// Shows the names of keys behind a cursor to `visit`, until it says that it does not go on. Gives the next cursor, 0
/// at the end.
///
/// A cursor is the object up to which all keys have been shown, in the store's order, which stays the same as long as
/// the store. A key's object never changes. So a key that is there from the first call to the last is shown.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn walk(
    database: &Database,
    cursor: u64,
    mut visit: impl FnMut(&[u8], &Footer) -> bool,
) -> Result<u64, Trouble> {
    let mut keys = [Key::new(0, 0); LISTED];
    // No record has this index: what comes next lies behind the object.
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

/// Keys of a database.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn count_keys(database: &Database) -> Result<u64, Trouble> {
    if database.lifetime == Lifetime::Persistent {
        return Ok(database.keys.load(Ordering::Relaxed));
    }
    // Values that vanish are counted by nobody.
    let mut count = 0;
    walk(database, 0, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}
