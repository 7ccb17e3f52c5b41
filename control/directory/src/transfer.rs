//! Moves a client to another daemon (rule P10 of transcendent memory).
//!
//! [`ClientRegistry::export`] freezes the client: its puts are refused; gets and flushes continue. It streams the
//! client's cap, floor and weight, the persistent private pools, and the flushes made meanwhile. The client stays
//! frozen. Later flushes are recorded, and [`ClientRegistry::export_rest`] streams them. Then the operator removes the
//! client here, or thaws it. Shared pools stay with their other members.

use std::io::{Read, Write};

use spillway_store::{Flushed, PoolInfo};
use spillway_types::{ClientId, PoolId, PoolSpec, Put, Refusal};

use crate::arrival::{Arrival, moves};
use crate::entry::{Entry, Move};
use crate::error::Error;
use crate::registry::{ClientRegistry, RegistryState};
use crate::settings::BlockSettings;
use crate::stream::{BlockHead, Frame, PoolHead, Share, StreamReader, StreamWriter};

/// Most recorded flushes of a frozen client for [`ClientRegistry::export_rest`].
const REST_MAX: usize = 1 << 20;

/// Pools, each with its announcement in the stream.
type PoolHeads = Vec<(PoolInfo, PoolHead)>;

/// A client that was frozen for an export.
struct Frozen {
    client: ClientId,
    share: Share,
    pools: PoolHeads,
    /// Whether it was before.
    was_frozen: bool,
}

/// The amount of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pools.
    pub pools: u64,
    /// Values.
    pub values: u64,
    /// Flushes.
    pub flushes: u64,
}

impl ClientRegistry {
    /// Freezes a client and writes its persistent private pools to `sink`. On failure, the client is thawed, unless it
    /// was frozen before; then only a new export can continue.
    ///
    /// # Errors
    /// [`Error::NoClient`]; [`Error::Moving`] if another export or import has not ended; [`Error::HasMoved`];
    /// [`Error::InUse`] if one of its block devices is open, because kernels handle refused writes badly;
    /// [`Error::HasDisk`]; [`Error::HasLoan`]; [`Error::Io`] of the sink; a value that is corrupt.
    pub fn export(&self, name: &str, sink: &mut dyn Write) -> Result<Moved, Error> {
        self.export_from(name, false, sink)
    }

    /// The same, also of a client that has moved: it has no longer.
    ///
    /// # Errors
    /// As [`Self::export`], without [`Error::HasMoved`]; [`Error::JournalFull`].
    pub fn export_again(&self, name: &str, sink: &mut dyn Write) -> Result<Moved, Error> {
        self.export_from(name, true, sink)
    }

    fn export_from(&self, name: &str, again: bool, sink: &mut dyn Write) -> Result<Moved, Error> {
        let Frozen { client, share, pools, was_frozen } = self.freeze(name, again)?;
        let exported = self.export_frames(client, share, &pools, sink);
        let mut state = self.lock();
        if let Some(entry) = state.of(client) {
            entry.exporting = false;
            if exported.is_err() {
                entry.frozen = was_frozen;
                // What was recorded before is gone.
                entry.moving = Move { overflown: was_frozen, ..Move::default() };
            }
        }
        if exported.is_err() && !was_frozen {
            self.store.thaw(client)?;
        }
        exported
    }

    fn freeze(&self, name: &str, again: bool) -> Result<Frozen, Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        let id = state.clients[at].id;
        // Another export that fails thaws the client.
        state.is_not_moving(at)?;
        state.without_disk(id)?;
        state.without_loan(name)?;
        state.without_open_block(name)?;
        if state.clients[at].moved {
            if !again {
                return Err(Error::HasMoved(name.to_owned()));
            }
            state.set_moved(at, false)?;
        }
        self.store.freeze(id)?;
        // This export includes the flushes recorded by an earlier one.
        self.store.take_flush_log(id)?;
        let pools: Vec<_> = self.store.pools(id)?.into_iter().filter(moves).collect();
        let entry = &mut state.clients[at];
        let was_frozen = std::mem::replace(&mut entry.frozen, true);
        entry.exporting = true;
        let numbers = pools.iter().map(|pool| (pool.number, pool.id)).collect();
        entry.moving = Move { numbers, ..Move::default() };
        let share = share_of(entry);
        let heads = pools.iter().map(|pool| head(&state, pool)).collect::<Vec<_>>();
        Ok(Frozen { client: id, share, pools: pools.into_iter().zip(heads).collect(), was_frozen })
    }

    fn export_frames(
        &self,
        client: ClientId,
        share: Share,
        pools: &[(PoolInfo, PoolHead)],
        sink: &mut dyn Write,
    ) -> Result<Moved, Error> {
        let mut moved = Moved { pools: pools.len() as u64, ..Moved::default() };
        let mut stream = StreamWriter::new(sink)?;
        stream.write(&Frame::Share(share))?;
        for (pool, head) in pools {
            stream.write(&Frame::Pool(head.clone()))?;
            let mut failed = None;
            let shown = self.store.export(pool.id, |key, value| {
                if failed.is_none() {
                    failed = stream.write(&Frame::Value(pool.number, key, value)).err();
                }
            });
            failed.map_or(Ok(()), Err)?;
            moved.values += match shown {
                // It was destroyed meanwhile, which is in the log.
                Err(spillway_store::Error::NoPool) => 0,
                shown => shown?,
            };
            moved.flushes += self.write_flushes(client, pools, &mut stream)?;
        }
        moved.flushes += self.write_flushes(client, pools, &mut stream)?;
        stream.write(&Frame::End)?;
        Ok(moved)
    }

    fn write_flushes(
        &self,
        client: ClientId,
        pools: &[(PoolInfo, PoolHead)],
        stream: &mut StreamWriter<'_>,
    ) -> Result<u64, Error> {
        let number_of =
            |id: PoolId| pools.iter().find(|(pool, _)| pool.id == id).map(|(pool, _)| pool.number);
        write_flushes(self.store.take_flush_log(client)?, number_of, stream)
    }

    /// Writes the flushes since [`Self::export`] to `sink`: each time all of them, because only the other daemon knows
    /// which have arrived.
    ///
    /// # Errors
    /// [`Error::Moving`] if an export has not ended; [`Error::NotFrozen`] if the client was not exported;
    /// [`Error::TooManyFlushes`] if there were more than can be recorded: export again.
    pub fn export_rest(&self, name: &str, sink: &mut dyn Write) -> Result<Moved, Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        state.is_not_moving(at)?;
        self.note_flushes(&mut state, at)?;
        let entry = &mut state.clients[at];
        if !entry.frozen {
            return Err(Error::NotFrozen(name.to_owned()));
        }
        if entry.moving.overflown {
            return Err(Error::TooManyFlushes(name.to_owned()));
        }
        let flushed = entry.moving.rest.clone();
        let known = entry.moving.numbers.clone();
        drop(state);
        let mut stream = StreamWriter::new(sink)?;
        let number_of = |id: PoolId| known.iter().find(|known| known.1 == id).map(|known| known.0);
        let flushes = write_flushes(flushed, number_of, &mut stream)?;
        stream.write(&Frame::End)?;
        Ok(Moved { flushes, ..Moved::default() })
    }

    /// Notes that another daemon has all that an exported client stores: it stays frozen, also over a restart, until it
    /// is removed or thawed.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Moving`], [`Error::NotFrozen`], [`Error::JournalFull`].
    pub fn set_moved(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        state.is_not_moving(at)?;
        if !state.clients[at].frozen {
            return Err(Error::NotFrozen(name.to_owned()));
        }
        state.set_moved(at, true)
    }

    /// Moves recorded flushes of frozen clients out of the store, where their number is not
    /// limited.
    pub fn note_all_flushes(&self) {
        let mut state = self.lock();
        for at in 0..state.clients.len() {
            if state.clients[at].frozen
                && let Err(error) = self.note_flushes(&mut state, at)
            {
                tracing::error!("{error}");
            }
        }
    }

    fn note_flushes(&self, state: &mut RegistryState, at: usize) -> Result<(), Error> {
        let entry = &mut state.clients[at];
        let flushed = self.store.take_flush_log(entry.id)?;
        entry.moving.overflown |= entry.moving.rest.len() + flushed.len() > REST_MAX;
        if !entry.moving.overflown {
            entry.moving.rest.extend(flushed);
        }
        Ok(())
    }

    /// Accepts the puts of an exported client again.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Moving`], [`Error::JournalFull`].
    pub fn thaw(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        // An import may replace values meanwhile; it needs what it has noted.
        state.is_not_moving(at)?;
        if state.clients[at].moved {
            state.set_moved(at, false)?;
        }
        self.store.thaw(state.clients[at].id)?;
        let entry = &mut state.clients[at];
        if std::mem::take(&mut entry.frozen) {
            entry.moving = Move::default();
        }
        Ok(())
    }
}

impl RegistryState {
    /// Changes it only if the journal has room to say so.
    fn set_moved(&mut self, at: usize, moved: bool) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.clients[at].moved, moved);
        self.remember().inspect_err(|_| self.clients[at].moved = before)
    }
}

fn share_of(entry: &Entry) -> Share {
    let cap_pages = Some(entry.cap_pages).filter(|&pages| pages != u64::MAX);
    Share { cap_pages, floor_pages: entry.floor_pages, weight: entry.weight }
}

fn head(state: &RegistryState, pool: &PoolInfo) -> PoolHead {
    let block = state.blocks.iter().find(|block| block.record.pool == pool.id.0);
    let block = block.map(|block| BlockHead {
        name: block.record.name.clone(),
        bytes: block.record.bytes,
        block_bytes: block.record.block_bytes,
        uuid: block.record.uuid,
        reserve: pool.reserved_pages != 0,
    });
    PoolHead { number: pool.number, block }
}

fn write_flushes(
    flushed: Vec<Flushed>,
    number_of: impl Fn(PoolId) -> Option<u32>,
    stream: &mut StreamWriter<'_>,
) -> Result<u64, Error> {
    let mut written = 0;
    for flush in flushed {
        let (Flushed::Page(pool, _) | Flushed::Object(pool, _) | Flushed::Pool(pool)) = flush;
        // Other pools do not move.
        let Some(number) = number_of(pool) else { continue };
        stream.write(&match flush {
            Flushed::Page(_, key) => Frame::FlushPage(number, key),
            Flushed::Object(_, object) => Frame::FlushObject(number, object),
            Flushed::Pool(_) => Frame::FlushPool(number),
        })?;
        written += 1;
    }
    Ok(written)
}

impl ClientRegistry {
    /// Reads a stream of [`Self::export`] into a client that has no pools. Also applies cap, floor and weight, except
    /// those that the client already has here. On failure, destroys what had arrived.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::NotEmpty`], [`Error::Moving`]; [`Error::Stream`] for a stream that is damaged,
    /// ends early or is of another version; [`Error::NoRoom`]; [`Error::BlockExists`]; [`Error::JournalFull`].
    pub fn import(&self, name: &str, source: &mut dyn Read) -> Result<Moved, Error> {
        self.import_into(name, false, source)
    }

    /// The same into a client that can have what an earlier import has brought, if nobody has connected since: it is
    /// replaced.
    ///
    /// # Errors
    /// As [`Self::import`]; [`Error::Connected`]; [`Error::HasLoan`].
    pub fn import_again(&self, name: &str, source: &mut dyn Read) -> Result<Moved, Error> {
        self.import_into(name, true, source)
    }

    fn import_into(&self, name: &str, again: bool, source: &mut dyn Read) -> Result<Moved, Error> {
        let replaced = self.begin_import(name, again)?;
        let (mut numbers, mut share) = (Vec::new(), None);
        let arrived = self
            .undo(&replaced)
            .and_then(|()| self.import_frames(name, source, &mut numbers, &mut share));
        let imported = arrived.and_then(|moved| {
            share.map_or(Ok(()), |share| self.import_share(name, share))?;
            Ok(moved)
        });
        let undone = if imported.is_err() { self.undo(&numbers) } else { Ok(()) };
        let mut state = self.lock();
        let at = state.find(name)?;
        let entry = &mut state.clients[at];
        entry.importing = false;
        if imported.is_ok() {
            entry.moving = Move { numbers, ..Move::default() };
        }
        entry.arrival = match (&imported, entry.arrival) {
            (Ok(_), Arrival::Begun) => Arrival::Complete,
            _ => Arrival::None,
        };
        state.remember()?;
        undone.and(imported)
    }

    /// Applies the client's settings from the source daemon, unless there are settings here. This comes last, because a
    /// client may hold more than a lowered cap.
    fn import_share(&self, name: &str, share: Share) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        let entry = &mut state.clients[at];
        if entry.cap_pages == u64::MAX
            && let Some(cap_pages) = share.cap_pages
        {
            self.cap(entry.id, cap_pages)?;
            entry.cap_pages = cap_pages;
        }
        if entry.floor_pages == 0 {
            entry.floor_pages = share.floor_pages;
        }
        if entry.weight == 1 {
            entry.weight = share.weight;
        }
        state.remember()
    }

    /// Gives the pools to replace. Arriving values must fit under the client's cap, whatever its present target.
    fn begin_import(&self, name: &str, again: bool) -> Result<Vec<(u32, PoolId)>, Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        state.is_not_moving(at)?;
        let entry = &state.clients[at];
        if again && entry.connections > 0 {
            return Err(Error::Connected(name.to_owned()));
        }
        let present = self.store.pools(entry.id)?;
        let replaces = again && entry.arrival == Arrival::Complete;
        if !(present.is_empty() || replaces) {
            return Err(Error::NotEmpty(name.to_owned()));
        }
        if replaces {
            state.without_loan(name)?;
        }
        self.store.set_target(entry.id, entry.cap_pages)?;
        let begun = if entry.connections == 0 { Arrival::Begun } else { Arrival::None };
        let before = std::mem::replace(&mut state.clients[at].arrival, begun);
        // From here on, a kill leaves a part.
        state.remember().inspect_err(|_| state.clients[at].arrival = before)?;
        state.clients[at].importing = true;
        Ok(present.iter().map(|pool| (pool.number, pool.id)).collect())
    }

    /// Reads a stream of [`Self::export_rest`] into a client that was imported, and that nobody has used since.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Moving`], [`Error::Used`]; [`Error::Stream`], also for flushes of an import before
    /// the daemon was restarted. Flushes before the error are executed.
    pub fn import_rest(&self, name: &str, source: &mut dyn Read) -> Result<Moved, Error> {
        let state = self.lock();
        let at = state.find(name)?;
        state.is_not_moving(at)?;
        if state.clients[at].arrival != Arrival::Complete {
            return Err(Error::Used(name.to_owned()));
        }
        let mut numbers = state.clients[at].moving.numbers.clone();
        drop(state);
        let imported = self.import_frames(name, source, &mut numbers, &mut None);
        let mut state = self.lock();
        let at = state.find(name)?;
        state.clients[at].moving.numbers = numbers;
        imported
    }

    fn import_frames(
        &self,
        name: &str,
        source: &mut dyn Read,
        numbers: &mut Vec<(u32, PoolId)>,
        share: &mut Option<Share>,
    ) -> Result<Moved, Error> {
        let mut moved = Moved::default();
        let mut stream = StreamReader::new(source)?;
        loop {
            let frame = stream.read()?;
            let pool_of = |number: u32| {
                let found = numbers.iter().find(|known| known.0 == number).map(|known| known.1);
                found.ok_or(Error::Stream("names a pool that it did not bring"))
            };
            match frame {
                Frame::End => return Ok(moved),
                Frame::Share(sent) => *share = Some(sent),
                Frame::Pool(head) => {
                    if pool_of(head.number).is_ok() {
                        return Err(Error::Stream("brings a pool twice"));
                    }
                    numbers.push((head.number, self.import_pool(name, &head)?));
                    moved.pools += 1;
                }
                Frame::Value(number, key, value) => {
                    match self.store.put(pool_of(number)?, key, value) {
                        Put::Stored => moved.values += 1,
                        Put::Refused(refusal) => return Err(refused(refusal)),
                    }
                }
                Frame::FlushPage(number, key) => {
                    self.store.flush(pool_of(number)?, key);
                    moved.flushes += 1;
                }
                Frame::FlushObject(number, object) => {
                    self.store.flush_object(pool_of(number)?, object);
                    moved.flushes += 1;
                }
                Frame::FlushPool(number) => {
                    // Its number stays known: the flushes since an export can come twice.
                    self.undo(&[(number, pool_of(number)?)])?;
                    moved.flushes += 1;
                }
            }
        }
    }

    fn import_pool(&self, name: &str, head: &PoolHead) -> Result<PoolId, Error> {
        let Some(block) = &head.block else {
            let client = self.client(name)?.id;
            return Ok(self.store.create_pool(client, PoolSpec::PERSISTENT)?);
        };
        let settings = BlockSettings {
            name: block.name.clone(),
            client: name.to_owned(),
            bytes: block.bytes,
            block_bytes: block.block_bytes,
            reserve: block.reserve,
        };
        // The contents move too, so for a kernel it is the same device.
        self.create_block_as(&settings, block.uuid)
    }

    /// Destroys what has arrived.
    fn undo(&self, numbers: &[(u32, PoolId)]) -> Result<(), Error> {
        let mut state = self.lock();
        for &(_, pool) in numbers {
            state.blocks.retain(|block| block.record.pool != pool.0);
            match self.store.destroy_pool(pool) {
                Ok(()) | Err(spillway_store::Error::NoPool) => {}
                Err(error) => return Err(error.into()),
            }
        }
        state.remember()
    }
}

const fn refused(refusal: Refusal) -> Error {
    Error::NoRoom(match refusal {
        Refusal::AtTarget => "the client is at its target",
        Refusal::NodeFull => "the store is full",
        Refusal::Frozen => "the client is frozen",
        Refusal::Length => "a value has an invalid length",
        Refusal::NoPool => "the pool was destroyed meanwhile",
    })
}
