//! Checks and executes commands that were copied from the region. The data to which a command refers may
//! still change at any time.

use spillway_serving::PoolLog;
use spillway_store::{
    ClientId, Error, Filled, Get, Key, PageBuf, PoolId, Put, Refusal, Shown, Store, Value,
};
use spillway_types::{PAGE_BYTES, PoolInfo, Sharing, VALUE_BYTES_MAX};
use spillway_wire::kv::{
    self, CreatePool, KeyList, KeyValueDwords, PoolEntry, admin, io, store_option,
};
use spillway_wire::nvme::{Command, DataPointer, Direction, Status};

use crate::bound::HeldPools;
use crate::pools::PoolTable;
use crate::region::Region;

/// Most keys of one List.
const KEYS_MAX: usize = 4096;

/// State of a connection between its commands.
#[derive(Debug)]
pub struct Session<'a> {
    store: &'a Store,
    client: ClientId,
    pools: PoolTable,
    bound: HeldPools<'a>,
    log: &'a PoolLog,
    /// Buffer for values of up to a page, copied from the region before they are examined, and for
    /// unpacked pages before they are copied to it.
    page: Box<PageBuf>,
}

/// The status and result of a command.
type Outcome = Result<u64, Failed>;

/// A started command.
#[derive(Debug)]
pub enum Begun<'a> {
    /// It is complete, with this status and result.
    Done(Status, u64),
    /// A page was copied to its frame, and must be published.
    Filled(Filled<'a>),
    /// A value was found, and must be copied to this offset of the data area.
    Found(Value<'a>, usize),
}

/// A status other than success, with its result.
#[derive(Clone, Copy, Debug)]
struct Failed(Status, u64);

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self(status, 0)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::from(match error {
            Error::NoPool | Error::NoClient => Status::INVALID_NAMESPACE.finally(),
            Error::Busy => Status::NOT_READY,
            Error::Corrupt | Error::Disk(_) | Error::NotAPage(_) => Status::UNRECOVERED.finally(),
            Error::Unauthorised(_) | Error::NoSharedPool(_) => Status::ACCESS_DENIED.finally(),
            Error::TableFull | Error::NoRoom(_) => Status::CAPACITY.finally(),
            Error::Lifetime(_) | Error::WrongSharing | Error::Unreservable | Error::Spec(_) => {
                Status::INVALID_FIELD.finally()
            }
            error => {
                tracing::warn!(%error, "a command of a ring failed");
                Status::INTERNAL
            }
        })
    }
}

impl<'a> Session<'a> {
    /// A new session for `client`, which holds the pools that it binds.
    pub fn new(store: &'a Store, client: ClientId, bound: HeldPools<'a>, log: &'a PoolLog) -> Self {
        let (pools, page) = (PoolTable::default(), Box::new(PageBuf::ZERO));
        Self { store, client, pools, bound, log, page }
    }

    /// For a command that stores a page: copies the page to a frame that can be published later. `None` for any other
    /// command, or if that is impossible.
    #[inline]
    pub fn fill(&mut self, region: &Region, command: &Command) -> Option<Begun<'a>> {
        let dwords = KeyValueDwords::of(command);
        let bytes = dwords.value_size.get();
        let is_page = bytes as usize == PAGE_BYTES && dwords.has_only(0);
        if command.opcode != io::STORE || !is_page || command.data.bytes != bytes {
            return None;
        }
        Self::check(region, command).ok()?;
        let (pool, key) = self.place(command).ok()?;
        let offset = command.data.address as usize;
        let filled = self.store.fill_page(pool, key, |page| region.read(offset, page))?;
        Some(Begun::Filled(filled))
    }

    /// Publishes the copied pages, in order.
    #[inline]
    pub fn publish(begun: &mut [Option<(u16, Begun<'a>)>]) {
        for (_, begun) in begun.iter_mut().flatten() {
            let place = core::mem::replace(begun, Begun::Done(Status::SUCCESS, 0));
            *begun = match place {
                Begun::Filled(filled) => {
                    let (status, result) = ended(stored(filled.publish()));
                    Begun::Done(status, result)
                }
                other => other,
            };
        }
    }

    /// Executes a command, except for copying a value to the data area. So the atomic instructions of several commands
    /// come before all their copies; after a copy, each would stall on it.
    #[inline]
    pub fn begin(&mut self, region: &Region, command: &Command) -> Begun<'a> {
        let outcome = match command.opcode {
            io::RETRIEVE => match self.look_up(region, command) {
                Ok(value) => return Begun::Found(value, command.data.address as usize),
                Err(failed) => Err(failed),
            },
            _ => self.dispatch(region, command),
        };
        let (status, result) = ended(outcome);
        Begun::Done(status, result)
    }

    /// Copies a found value. Returns the status and result of its command, and the value's pin.
    #[inline]
    pub fn finish(
        &mut self,
        region: &Region,
        begun: Begun<'a>,
    ) -> (Status, u64, Option<Shown<'a>>) {
        let (value, offset) = match begun {
            Begun::Done(status, result) => return (status, result, None),
            Begun::Filled(filled) => {
                let (status, result) = ended(stored(filled.publish()));
                return (status, result, None);
            }
            Begun::Found(value, offset) => (value, offset),
        };
        match value.show(&mut self.page, |at, part| region.write(offset + at, part)) {
            // A value that is too long is not copied. The returned length tells the client.
            Ok((Get::Hit(bytes) | Get::Short(bytes), shown)) => {
                (Status::SUCCESS, bytes as u64, Some(shown))
            }
            Ok((Get::Miss, shown)) => (Status::KEY_NOT_FOUND.finally(), 0, Some(shown)),
            Err(error) => {
                let Failed(status, result) = error.into();
                (status, result, None)
            }
        }
    }

    /// Prepares for the next command while the connection is idle.
    #[inline]
    pub fn rest(&self) {
        self.store.expect_put();
    }

    /// Checks the fields common to all commands.
    #[inline]
    fn check(region: &Region, command: &Command) -> Result<(), Status> {
        if command.flags != Command::SGL {
            return Err(Status::INVALID_FIELD.finally());
        }
        match Direction::of(command.opcode) {
            Some(Direction::None) => Ok(()),
            _ => check_data(region, &command.data),
        }
    }

    /// The value that a command requests.
    #[inline]
    fn look_up(&mut self, region: &Region, command: &Command) -> Result<Value<'a>, Failed> {
        Self::check(region, command)?;
        let (pool, key) = self.place(command)?;
        if KeyValueDwords::of(command).value_size != command.data.bytes {
            return Err(Status::DATA_LENGTH.finally().into());
        }
        Ok(self.store.look_up(pool, key, command.data.bytes as usize)?)
    }

    fn dispatch(&mut self, region: &Region, command: &Command) -> Outcome {
        Self::check(region, command)?;
        match command.opcode {
            io::STORE => self.put(region, command),
            io::DELETE => {
                let (pool, key) = self.place(command)?;
                if self.store.flush(pool, key) { Ok(0) } else { missing() }
            }
            io::EXIST => {
                let (pool, key) = self.place(command)?;
                if self.store.exists(pool, key) { Ok(0) } else { missing() }
            }
            io::TAKE => self.take(region, command),
            io::LIST => self.list(region, command),
            io::FLUSH_OBJECT => {
                let pool = self.pool(command.namespace)?;
                let pages = self.store.flush_object(pool, kv::object(command));
                Ok(pages.min(u64::from(u32::MAX)))
            }
            admin::CREATE_POOL => self.create_pool(region, command),
            admin::JOIN_POOL => {
                let uuid = u128::from_be_bytes(self.sent(region, command)?);
                let pool = self.store.join_pool(self.client, uuid)?;
                self.number(pool)
            }
            admin::DESTROY_POOL => self.destroy_pool(command),
            admin::BIND_POOL => {
                let pool = self.private_pool(command.namespace)?;
                self.store.mark_bound(pool)?;
                self.bound.add(pool);
                Ok(0)
            }
            admin::STATISTICS => {
                let statistics = self.store.statistics(self.client)?;
                answer(region, command, &kv::encode_statistics(&statistics)).map(|()| 0)
            }
            admin::LIST_POOLS => self.list_pools(region, command),
            _ => Err(Status::INVALID_OPCODE.finally().into()),
        }
    }

    /// This client's pool with a number.
    #[inline]
    fn pool(&mut self, number: u32) -> Result<PoolId, Failed> {
        let found = self.pools.find(self.store, self.client, number);
        found.ok_or(Failed(Status::INVALID_NAMESPACE.finally(), 0))
    }

    /// This client's private pool with a number.
    fn private_pool(&mut self, number: u32) -> Result<PoolId, Failed> {
        let id = self.pool(number)?;
        let pools = self.store.pools(self.client)?;
        let private = |pool: &PoolInfo| pool.id == id && pool.spec.sharing == Sharing::Private;
        let found = pools.iter().find(|pool| private(pool));
        found.map(|_| id).ok_or(Failed(Status::INVALID_FIELD.finally(), 0))
    }

    #[inline]
    fn place(&mut self, command: &Command) -> Result<(PoolId, Key), Failed> {
        Ok((self.pool(command.namespace)?, kv::key(command)?))
    }

    fn take(&mut self, region: &Region, command: &Command) -> Outcome {
        let (pool, key) = self.place(command)?;
        let (offset, room) = (command.data.address as usize, command.data.bytes);
        if KeyValueDwords::of(command).value_size != room {
            return Err(Status::DATA_LENGTH.finally().into());
        }
        let take = |at: usize, part: &[u8]| region.write(offset + at, part);
        match self.store.take(pool, key, room as usize, &mut self.page, take)? {
            Get::Hit(bytes) | Get::Short(bytes) => Ok(bytes as u64),
            Get::Miss => missing(),
        }
    }

    fn put(&mut self, region: &Region, command: &Command) -> Outcome {
        let (pool, key) = self.place(command)?;
        if !KeyValueDwords::of(command).has_only(store_option::NO_COMPRESSION) {
            return Err(Status::INVALID_FIELD.finally().into());
        }
        let (offset, bytes) = (command.data.address as usize, command.data.bytes as usize);
        if KeyValueDwords::of(command).value_size != command.data.bytes {
            return Err(Status::DATA_LENGTH.finally().into());
        }
        if !(1..=VALUE_BYTES_MAX).contains(&bytes) {
            // A refused put leaves nothing under its key.
            self.store.flush(pool, key);
            return Err(Status::VALUE_SIZE.finally().into());
        }
        stored(if bytes > PAGE_BYTES {
            let read = |at, part: &mut [u8]| region.read(offset + at, part);
            self.store.put_long(pool, key, bytes, read)
        } else if bytes == PAGE_BYTES {
            self.store.put_page(pool, key, &mut self.page, |page| region.read(offset, page))
        } else {
            let value = &mut self.page.0[..bytes];
            region.read(offset, value);
            self.store.put(pool, key, value)
        })
    }

    fn list(&mut self, region: &Region, command: &Command) -> Outcome {
        let pool = self.pool(command.namespace)?;
        let start = kv::list_start(command)?;
        let room = KeyValueDwords::of(command).value_size.get();
        let bytes = command.data.bytes.min(room) as usize;
        let mut keys = vec![Key::new(0, 0); KeyList::room(bytes).min(KEYS_MAX)];
        let listed = self.store.list_keys(pool, start, &mut keys)?;
        let mut buffer = vec![0; KeyList::bytes(listed)];
        let mut list = KeyList::new(&mut buffer).map_err(|_| Status::DATA_LENGTH.finally())?;
        for &key in &keys[..listed] {
            list.push(key);
        }
        answer(region, command, &buffer).map(|()| 0)
    }

    fn create_pool(&mut self, region: &Region, command: &Command) -> Outcome {
        let sent = self.sent::<{ CreatePool::BYTES }>(region, command)?;
        let CreatePool(spec) = CreatePool::decode(&sent).map_err(Error::from)?;
        let pool = self.store.create_pool(self.client, spec)?;
        let number = self.number(pool)?;
        self.log.line_of(self.client, format_args!("pool {number} is made"));
        Ok(number)
    }

    fn destroy_pool(&mut self, command: &Command) -> Outcome {
        let pool = self.pool(command.namespace)?;
        match self.store.destroy_pool(pool) {
            Err(Error::WrongSharing) => self.store.leave_pool(pool)?,
            done => done?,
        }
        let number = command.namespace;
        self.log.line_of(self.client, format_args!("pool {number} is given up"));
        Ok(0)
    }

    fn list_pools(&mut self, region: &Region, command: &Command) -> Outcome {
        let mut pools = self.store.pools(self.client)?;
        pools.retain(|pool| pool.reserved_pages == 0);
        let room = command.data.bytes as usize / PoolEntry::BYTES;
        let mut bytes = Vec::new();
        for pool in pools.iter().take(room) {
            let entry = PoolEntry {
                number: pool.number,
                spec: pool.spec,
                pages: pool.pages,
                identity: self.store.identity(pool.id),
            };
            bytes.extend_from_slice(&entry.encode());
        }
        answer(region, command, &bytes)?;
        Ok(pools.len() as u64)
    }

    /// The number of a pool that was just created or joined.
    fn number(&self, id: PoolId) -> Outcome {
        let pools = self.store.pools(self.client)?;
        let found = pools.iter().find(|pool| pool.id == id);
        Ok(u64::from(found.ok_or(Error::NoPool)?.number))
    }

    /// The data of a command, which must have exactly `N` bytes.
    fn sent<const N: usize>(&self, region: &Region, command: &Command) -> Result<[u8; N], Failed> {
        if command.data.bytes as usize != N {
            return Err(Status::DATA_LENGTH.finally().into());
        }
        let mut bytes = [0; N];
        region.read(command.data.address as usize, &mut bytes);
        Ok(bytes)
    }
}

/// Checks that a command's data lies in the data area.
#[inline]
fn check_data(region: &Region, data: &DataPointer) -> Result<(), Status> {
    if data.kind != DataPointer::IN_CAPSULE {
        return Err(Status::DESCRIPTOR_TYPE.finally());
    }
    if !region.geometry().holds(data) {
        return Err(Status::DESCRIPTOR_OFFSET.finally());
    }
    Ok(())
}

/// Writes an answer other than a value to the command's data.
fn answer(region: &Region, command: &Command, bytes: &[u8]) -> Result<(), Failed> {
    if bytes.len() > command.data.bytes as usize {
        return Err(Status::DATA_LENGTH.finally().into());
    }
    region.write(command.data.address as usize, bytes);
    Ok(())
}

/// The status of a command that stores a value.
fn stored(put: Put) -> Outcome {
    match put {
        Put::Stored => Ok(0),
        Put::Refused(Refusal::NoPool) => Err(Status::INVALID_NAMESPACE.finally().into()),
        Put::Refused(Refusal::Length) => Err(Status::VALUE_SIZE.finally().into()),
        Put::Refused(why) => Err(Failed(Status::CAPACITY.finally(), kv::refusal_result(why))),
    }
}

const fn ended(outcome: Outcome) -> (Status, u64) {
    match outcome {
        Ok(result) => (Status::SUCCESS, result),
        Err(Failed(status, result)) => (status, result),
    }
}

fn missing() -> Outcome {
    Err(Status::KEY_NOT_FOUND.finally().into())
}
