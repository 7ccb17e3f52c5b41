//! Freezes a client, and exports its persistent values.
//!
//! To move a client: [`Store::freeze`] it, [`Store::export`] each persistent pool and put the values
//! into the target, then take the log ([`Store::take_flush_log`]) and repeat its flushes there.
//! Meanwhile puts are refused; gets and flushes continue.

use spillway_tiers::sync::Ordering;
use spillway_types::{ClientId, Get, Key, PoolId, VALUE_BYTES_MAX};

use crate::client::client_number;
use crate::error::Error;
use crate::flushed::Flushed;
use crate::index::{LEAF_SHIFT, LEAF_SLOTS};
use crate::position::SHARDS;
use crate::store::Store;

impl Store {
    /// Refuses the client's puts from now on, and logs flushes. When this returns, no put is in
    /// progress any more.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn freeze(&self, client: ClientId) -> Result<(), Error> {
        self.client(client)?.1.frozen.store(1, Ordering::Release);
        for shard in &self.shards {
            // A put that is being published holds the lock and has seen the client thawed.
            drop(shard.lock());
        }
        Ok(())
    }

    /// Accepts puts again, and drops the log.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn thaw(&self, client: ClientId) -> Result<(), Error> {
        self.client(client)?.1.frozen.store(0, Ordering::Release);
        self.flush_log.lock().retain(|(number, _)| *number != client_number(client));
        Ok(())
    }

    /// The removals since the client was frozen or the log was last taken, in order.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn take_flush_log(&self, client: ClientId) -> Result<Vec<Flushed>, Error> {
        let (number, _) = self.client(client)?;
        let mut log = self.flush_log.lock();
        let taken = log.iter().filter(|entry| entry.0 == number).map(|entry| entry.1).collect();
        log.retain(|entry| entry.0 != number);
        Ok(taken)
    }

    /// Logs a removal made on behalf of a client, if it is frozen.
    pub(crate) fn log_flush(&self, client: u16, flushed: Flushed) {
        let number = usize::from(client);
        if self.clients[number].frozen.load(Ordering::Acquire) != 0 {
            self.flush_log.lock().push((number, flushed));
        }
    }

    /// Calls `visit` with every value of a persistent pool, in no particular order; an ephemeral
    /// pool has nothing to keep. Returns the number of values.
    ///
    /// # Errors
    /// [`Error::NoPool`], and errors of [`Store::get`]: an unreadable value ends the export.
    pub fn export(&self, pool: PoolId, mut visit: impl FnMut(Key, &[u8])) -> Result<u64, Error> {
        let access = self.access(pool).ok_or(Error::NoPool)?;
        if access.ephemeral {
            return Ok(0);
        }
        let mut value = Vec::new();
        let mut shown = 0;
        for shard in 0..SHARDS {
            let mut leaf = 0;
            loop {
                let index = self.shards[shard].lock();
                if leaf >= index.leaf_high() {
                    break;
                }
                let mut keys = [const { None }; LEAF_SLOTS];
                if index.is_of(leaf, access.pool) {
                    let name = index.key(leaf);
                    for (place, key) in keys.iter_mut().enumerate() {
                        if !index.slot(leaf, place as u32).is_empty() {
                            let place = name.chunk << LEAF_SHIFT | place as u32;
                            *key = Some(Key::new(name.object, place));
                        }
                    }
                }
                drop(index);
                leaf += 1;
                for key in keys.into_iter().flatten() {
                    // A value that was flushed since is in the log.
                    if let Some(length) = self.get_whole(pool, key, &mut value)? {
                        visit(key, &value[..length]);
                        shown += 1;
                    }
                }
            }
        }
        Ok(shown)
    }

    /// Gets a value of any length; `value` grows to it.
    fn get_whole(
        &self,
        pool: PoolId,
        key: Key,
        value: &mut Vec<u8>,
    ) -> Result<Option<usize>, Error> {
        loop {
            match self.get(pool, key, value)? {
                Get::Hit(length) => return Ok(Some(length)),
                Get::Miss => return Ok(None),
                Get::Short(length) => value.resize(length.min(VALUE_BYTES_MAX), 0),
            }
        }
    }
}
