//! I/O queues of pools, and the admin commands of pools.

use std::collections::HashMap;
use std::sync::Arc;

use spillway_store::{Begun, Found, PageBuf, Store};
use spillway_types::{Get, Key, PoolId, PoolSpec, Sharing};
use spillway_wire::kv::{self, CreatePool, KeyList, KeyValueDwords, PoolEntry, io, store_option};
use spillway_wire::nvme::{Command, Status};

use crate::context::Context;
use crate::controller::ProvenClient;
use crate::namespaces;
use crate::outcome::{Failure, Outcome, refused, store_failure, stored};
use crate::reply::{PDU_DATA_BYTES_MAX, Reply};
use crate::sink::Sink;
use crate::source::Source;
use crate::target::Target;

/// Most bytes of keys in the answer to one List. The host gets more keys by another List.
const LIST_BYTES_MAX: usize = PDU_DATA_BYTES_MAX;

/// An I/O queue of a client's pools.
#[derive(Debug)]
pub(crate) struct PoolQueue {
    /// The pools that commands have used, by namespace id. The store uses no pool id twice, so it reports a destroyed
    /// pool as missing.
    pools: HashMap<u32, PoolId>,
    scratch: Box<PageBuf>,
}

impl Default for PoolQueue {
    fn default() -> Self {
        Self { pools: HashMap::new(), scratch: Box::new(PageBuf::ZERO) }
    }
}

impl PoolQueue {
    pub(crate) fn execute(
        &mut self,
        context: &Context<'_>,
        command: &Command,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) {
        let store = &context.target.store;
        let pool = match self.pool(context, command.namespace) {
            Ok(pool) => pool,
            Err(failure) => return reply.complete(Err(failure)),
        };
        let outcome = match command.opcode {
            io::STORE => put(store, pool, command, data),
            io::RETRIEVE | io::TAKE => return self.get(store, pool, command, reply),
            io::DELETE => on_key(command, |key| store.flush(pool, key)),
            io::EXIST => on_key(command, |key| store.exists(pool, key)),
            io::LIST => return list(store, pool, command, reply),
            io::FLUSH_OBJECT => {
                let pages = store.flush_object(pool, kv::object(command));
                Ok(pages.min(u32::MAX.into()))
            }
            _ => Err(Status::INVALID_OPCODE.finally().into()),
        };
        reply.complete(outcome);
    }

    /// The pool of a namespace id.
    fn pool(&mut self, context: &Context<'_>, number: u32) -> Result<PoolId, Failure> {
        if let Some(&pool) = self.pools.get(&number)
            && context.target.store.has_pool(pool)
        {
            return Ok(pool);
        }
        let client = context.controller.client();
        let pool = client.and_then(|its| namespaces::pool(context.target, its.id, number));
        let Some(pool) = pool else {
            self.pools.remove(&number);
            return Err(Status::INVALID_NAMESPACE.finally().into());
        };
        self.pools.insert(number, pool.id);
        Ok(pool.id)
    }

    /// Gets a value that fits into one PDU.
    fn get(&mut self, store: &Store, pool: PoolId, command: &Command, reply: &mut Reply<'_>) {
        let key = match kv::key(command) {
            Ok(key) => key,
            Err(status) => return reply.complete(Err(status.into())),
        };
        let room = room_of(command).min(PDU_DATA_BYTES_MAX);
        let exclusive = command.opcode == io::TAKE;
        let scratch = &mut self.scratch;
        reply.fill(room, |value| {
            if exclusive {
                let length = take(store, pool, key, value, scratch)?;
                return Ok((length, length as u64));
            }
            retrieve(store, pool, key, value, scratch)
        });
    }

    /// Gets a value that may be longer than one PDU. Gives its source if the answer is to be sent in parts; otherwise
    /// the answer is already written.
    pub(crate) fn get_long(
        &mut self,
        context: &Context<'_>,
        command: &Command,
        reply: &mut Reply<'_>,
    ) -> Option<Source> {
        let place = self.pool(context, command.namespace);
        let place = place.and_then(|pool| Ok((pool, kv::key(command)?)));
        let (pool, key) = match place {
            Ok(place) => place,
            Err(failure) => {
                reply.complete(Err(failure));
                return None;
            }
        };
        let room = room_of(command);
        let (store, scratch) = (&context.target.store, &mut self.scratch);
        let mut long = None;
        let written = reply.part(0, room.min(PDU_DATA_BYTES_MAX), |value| {
            let copy = |at: usize, part: &[u8]| value[at..at + part.len()].copy_from_slice(part);
            let found = if command.opcode == io::TAKE {
                store.take_long(pool, key, (room, PDU_DATA_BYTES_MAX), scratch, copy)
            } else {
                store.get_long(pool, key, (room, PDU_DATA_BYTES_MAX), scratch, copy)
            };
            long = Some(match found.map_err(|error| store_failure(&error))? {
                Found::Other(Get::Short(_)) if command.opcode == io::RETRIEVE => {
                    long_start(store, pool, key, room)?
                }
                Found::Other(got) => {
                    return length_of(got).map(|length| (length, length as u64, true));
                }
                Found::Long(get) => Source::Value { bytes: get.length() as u64, get },
            });
            // An error, so that `part` writes nothing.
            Err(Status::SUCCESS.into())
        });
        if let (None, Err(failure)) = (&long, written) {
            reply.complete(Err(failure));
        }
        long
    }

    /// Begins to store a value that is longer than a page and follows its command. `None` while other values of the
    /// client are being stored and use up its target.
    pub(crate) fn begin_store(
        &mut self,
        context: &Context<'_>,
        command: &Command,
    ) -> Result<Option<Sink>, Failure> {
        let pool = self.pool(context, command.namespace)?;
        let key = checked_store(command, command.data.bytes as usize)?;
        match context.target.store.begin_put(pool, key, command.data.bytes as usize) {
            Begun::Put(put) => Ok(Some(Sink::Value(put))),
            Begun::Later => Ok(None),
            Begun::Refused(refusal) => Err(refused(refusal)),
        }
    }
}

/// Executes a command on one key that succeeds if the key is found.
fn on_key(command: &Command, find: impl FnOnce(Key) -> bool) -> Outcome {
    let key = kv::key(command)?;
    if find(key) { Ok(0) } else { Err(Status::KEY_NOT_FOUND.finally().into()) }
}

/// Copies a value, or as much of its beginning as there is room for, into `value`. Gives the number of bytes and the
/// length of the value.
fn retrieve(
    store: &Store,
    pool: PoolId,
    key: Key,
    value: &mut [u8],
    scratch: &mut PageBuf,
) -> Result<(usize, u64), Failure> {
    let got = store.get(pool, key, value).map_err(|error| store_failure(&error))?;
    if !matches!(got, Get::Short(_)) {
        return length_of(got).map(|length| (length, length as u64));
    }
    let whole = store.inspect_kept(pool, key).map_err(|error| store_failure(&error))?;
    let shown = whole.show(scratch, |at, part| {
        if let Some(room) = value.get_mut(at..) {
            let bytes = room.len().min(part.len());
            room[..bytes].copy_from_slice(&part[..bytes]);
        }
    });
    let (got, _pin) = shown.map_err(|error| store_failure(&error))?;
    let length = length_of(got)?;
    Ok((length.min(value.len()), length as u64))
}

/// The beginning of a value that is longer than `room`, which is more than one PDU.
fn long_start(store: &Arc<Store>, pool: PoolId, key: Key, room: usize) -> Result<Source, Failure> {
    let value = store.inspect_kept(pool, key).map_err(|error| store_failure(&error))?;
    // A shorter value took its place meanwhile: the host tries again.
    let mut get = store.leave_in_parts(value, PDU_DATA_BYTES_MAX).map_err(|_| Status::NOT_READY)?;
    let bytes = room.min(get.length());
    get.cut(get.length() - bytes);
    Ok(Source::Value { get, bytes: bytes as u64 })
}

/// Removes a value that fits, copies it into `value` and gives its length.
fn take(
    store: &Store,
    pool: PoolId,
    key: Key,
    value: &mut [u8],
    scratch: &mut PageBuf,
) -> Result<usize, Failure> {
    let room = value.len();
    let got = store.take(pool, key, room, scratch, |at, part| {
        value[at..at + part.len()].copy_from_slice(part);
    });
    length_of(got.map_err(|error| store_failure(&error))?)
}

/// The length of the value, if it was found and fits.
fn length_of(got: Get) -> Result<usize, Failure> {
    match got {
        Get::Hit(length) => Ok(length),
        Get::Miss => Err(Status::KEY_NOT_FOUND.finally().into()),
        // The value stays in the store. The result tells the host the length that it needs.
        Get::Short(length) => {
            Err(Failure { status: Status::VALUE_SIZE.finally(), result: length as u64 })
        }
    }
}

/// Bytes of the host's buffer for the answer.
fn room_of(command: &Command) -> usize {
    KeyValueDwords::of(command).value_size.get().min(command.data.bytes) as usize
}

/// Checks a command that stores a value of `bytes`, and gives its key.
fn checked_store(command: &Command, bytes: usize) -> Result<Key, Failure> {
    let key = kv::key(command)?;
    let dwords = KeyValueDwords::of(command);
    if dwords.store_options & !store_option::NO_COMPRESSION != 0 {
        return Err(Status::INVALID_FIELD.finally().into());
    }
    if dwords.value_size.get() as usize != bytes {
        return Err(Status::DATA_LENGTH.finally().into());
    }
    Ok(key)
}

fn put(store: &Store, pool: PoolId, command: &Command, data: &[u8]) -> Outcome {
    stored(store.put(pool, checked_store(command, data.len())?, data))
}

fn list(store: &Store, pool: PoolId, command: &Command, reply: &mut Reply<'_>) {
    let start = match kv::list_start(command) {
        Ok(start) => start,
        Err(status) => return reply.complete(Err(status.into())),
    };
    let room = room_of(command).min(LIST_BYTES_MAX);
    reply.fill(room, |bytes| {
        let mut keys = vec![Key::new(0, 0); KeyList::room(bytes.len())];
        let found =
            store.list_keys(pool, start, &mut keys).map_err(|error| store_failure(&error))?;
        let length = bytes.len();
        let mut list = KeyList::new(bytes).map_err(|_| Status::DATA_LENGTH.finally())?;
        for &key in &keys[..found] {
            list.push(key);
        }
        Ok((length, 0))
    });
}

/// Executes an admin command of pools. `None` if the answer is already written.
pub(crate) fn admin(
    context: &Context<'_>,
    command: &Command,
    data: &[u8],
    reply: &mut Reply<'_>,
) -> Option<Outcome> {
    let client = context.controller.client()?;
    let store = &context.target.store;
    let room = command.data.bytes as usize;
    let outcome = match command.opcode {
        kv::admin::CREATE_POOL => create(context.target, client, data),
        kv::admin::JOIN_POOL => join(store, client, data),
        kv::admin::DESTROY_POOL => destroy(context.target, client, command.namespace),
        kv::admin::STATISTICS => match store.statistics(client.id) {
            Ok(_) if room < kv::STATISTICS_BYTES => Err(Status::DATA_LENGTH.finally().into()),
            Ok(statistics) => {
                reply.data(&kv::encode_statistics(&statistics), 0);
                return None;
            }
            Err(error) => Err(store_failure(&error)),
        },
        kv::admin::LIST_POOLS => {
            let pools: Vec<PoolEntry> = entries(context, client).collect();
            let bytes: Vec<u8> = pools.iter().flat_map(PoolEntry::encode).collect();
            let fit = room / PoolEntry::BYTES * PoolEntry::BYTES;
            reply.data(&bytes[..bytes.len().min(fit)], pools.len() as u64);
            return None;
        }
        _ => return Some(Err(Status::INVALID_OPCODE.finally().into())),
    };
    let changes = [kv::admin::CREATE_POOL, kv::admin::JOIN_POOL, kv::admin::DESTROY_POOL];
    if outcome.is_ok() && changes.contains(&command.opcode) {
        context.target.namespaces_changed(client.id);
    }
    Some(outcome)
}

/// The client's pools, as entries of List Pools.
fn entries(context: &Context<'_>, client: &ProvenClient) -> impl Iterator<Item = PoolEntry> {
    let store = &context.target.store;
    namespaces::pools(context.target, client.id).map(|pool| PoolEntry {
        number: pool.number,
        spec: pool.spec,
        pages: pool.pages,
        identity: store.identity(pool.id),
    })
}

fn create(target: &Target, client: &ProvenClient, data: &[u8]) -> Outcome {
    let store = &target.store;
    let data = data.first_chunk().ok_or(Status::DATA_LENGTH.finally())?;
    let CreatePool(spec) = CreatePool::decode(data).map_err(|_| Status::INVALID_FIELD.finally())?;
    let pool = store.create_pool(client.id, spec).map_err(|error| store_failure(&error))?;
    let number = number(store, client, pool)?;
    target.pool_log.line_of(client.id, format_args!("pool {number} is made"));
    Ok(number)
}

fn join(store: &Store, client: &ProvenClient, data: &[u8]) -> Outcome {
    let uuid: &[u8; 16] = data.first_chunk().ok_or(Status::DATA_LENGTH.finally())?;
    let uuid = u128::from_be_bytes(*uuid);
    let pool = store.join_pool(client.id, uuid).map_err(|error| store_failure(&error))?;
    number(store, client, pool)
}

/// The number of a pool that was created or joined.
fn number(store: &Store, client: &ProvenClient, pool: PoolId) -> Outcome {
    let pools = store.pools(client.id).unwrap_or_default();
    let made = pools.into_iter().find(|its| its.id == pool);
    made.map(|its| its.number.into()).ok_or(Status::INTERNAL.into())
}

fn destroy(target: &Target, client: &ProvenClient, number: u32) -> Outcome {
    let store = &target.store;
    let pool = namespaces::pool(target, client.id, number);
    let pool = pool.ok_or(Status::INVALID_NAMESPACE.finally())?;
    // A reserved pool is lent to another host. The part of the daemon that lent it ends the loan.
    if pool.reserved_pages > 0 {
        return Err(Status::INVALID_FIELD.finally().into());
    }
    let PoolSpec { sharing, .. } = pool.spec;
    let done = match sharing {
        Sharing::Private => store.destroy_pool(pool.id),
        Sharing::Shared { .. } => store.leave_pool(pool.id),
    };
    done.map_err(|error| store_failure(&error))?;
    target.pool_log.line_of(client.id, format_args!("pool {number} is given up"));
    Ok(0)
}
