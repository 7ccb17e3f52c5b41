//! The registry: opening, configuring, adding and removing clients.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use spillway_store::{ClientConfig, Store};
use spillway_types::{ClientId, PoolId};

use crate::arrival::{self, Arrival};
use crate::block::Block;
use crate::changes;
use crate::entry::{Asked, Entry, check_name};
use crate::error::Error;
use crate::journal::{Journal, LoanRecord, ManagerRecord, Record};
use crate::program::Registry;
use crate::settings::{BlockSettings, ClientSettings, Policy, Who};
use crate::views::{ClientView, Origin, Refusals};
use crate::visits::Visits;

/// The daemon's clients by name.
#[derive(Debug)]
pub struct ClientRegistry {
    pub(crate) store: Arc<Store>,
    state: Mutex<RegistryState>,
    /// The target of a new client, in pages, until a policy sets one.
    first_target_pages: AtomicU64,
    /// The callback for changes of a client's pools or devices.
    watcher: OnceLock<Watcher>,
}

/// Called for a client whose pools or devices have changed.
struct Watcher(Box<dyn Fn(ClientId) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

#[derive(Debug)]
pub(crate) struct RegistryState {
    pub(crate) clients: Vec<Entry>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) loans: Vec<LoanRecord>,
    pub(crate) manager: Option<ManagerRecord>,
    pub(crate) policy: Policy,
    /// Disks of guests, while the daemon runs.
    pub(crate) disks: Vec<Attached>,
    /// Paged programs.
    pub(crate) programs: Registry,
    pub(crate) refusals: Refusals,
    pub(crate) visits: Visits,
    journal: Journal,
}

/// A guest's disk: its client and its pool stay.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) name: String,
    pub(crate) client: ClientId,
    pub(crate) pool: PoolId,
}

impl RegistryState {
    pub(crate) fn find(&self, name: &str) -> Result<usize, Error> {
        let found = self.clients.iter().position(|entry| entry.name == name);
        found.ok_or_else(|| match self.programs.has(name) {
            true => Error::Program(name.to_owned()),
            false => Error::NoClient(name.to_owned()),
        })
    }

    pub(crate) fn of(&mut self, id: ClientId) -> Option<&mut Entry> {
        self.clients.iter_mut().find(|entry| entry.id == id)
    }

    pub(crate) fn name_of(&self, id: ClientId) -> String {
        let entry = self.clients.iter().find(|entry| entry.id == id);
        entry.map_or_else(|| format!("#{}", id.0), |entry| entry.name.clone())
    }

    /// Fails if a disk has pages of a client.
    pub(crate) fn without_disk(&self, client: ClientId) -> Result<(), Error> {
        let disk = self.disks.iter().find(|disk| disk.client == client);
        disk.map_or(Ok(()), |disk| Err(Error::HasDisk(disk.name.clone())))
    }

    /// Fails if a client has loans.
    pub(crate) fn without_loan(&self, name: &str) -> Result<(), Error> {
        let lent = self.loans.iter().any(|loan| loan.client == name);
        if lent { Err(Error::HasLoan(name.to_owned())) } else { Ok(()) }
    }

    /// Fails if a block device of a client is open.
    pub(crate) fn without_open_block(&self, name: &str) -> Result<(), Error> {
        let mut its = self.blocks.iter().filter(|block| block.record.client == name);
        let open = its.find(|block| block.opened() > 0);
        open.map_or(Ok(()), |block| Err(Error::InUse(block.record.name.clone())))
    }

    /// Writes changes to the journal.
    pub(crate) fn remember(&mut self) -> Result<(), Error> {
        self.journal.write(Record {
            clients: self.clients.iter().map(Entry::record).collect(),
            blocks: self.blocks.iter().map(|block| block.record.clone()).collect(),
            programs: self.programs.terms.iter().map(|terms| terms.record.clone()).collect(),
            loans: self.loans.clone(),
            manager: self.manager.clone(),
            ..Record::default()
        })
    }
}

impl ClientRegistry {
    /// Opens the registry of `store`. Restores what `journal` records and the store still has.
    ///
    /// # Errors
    /// The recorded state can't be restored.
    pub fn open(store: Arc<Store>, journal: Journal, policy: Policy) -> Result<Self, Error> {
        let record = journal.record();
        let mut clients = Vec::new();
        for client in record.clients {
            if let Ok(known) = store.statistics(client.client()) {
                // A move that the kill interrupted is over, except its last step.
                if client.moved {
                    store.freeze(client.client())?;
                } else {
                    store.thaw(client.client())?;
                }
                if client.arrival == Arrival::Begun {
                    arrival::remove_part(&store, client.client(), &client.name)?;
                }
                for &uuid in &client.shared {
                    store.authorise(client.client(), uuid)?;
                }
                clients.push(Entry::from_record(client, known.target_pages));
            }
        }
        let mut blocks = Vec::new();
        for block in record.blocks {
            let client = clients.iter().find(|entry| entry.name == block.client);
            let Some(client) = client.map(|entry| entry.id) else { continue };
            blocks.extend(Block::reopen(&store, client, block)?);
        }
        let mut loans = record.loans;
        loans.retain(|loan| store.has_pool(PoolId(loan.pool)));
        remove_unrecorded(&store, &clients, &blocks, &loans)?;
        let programs = Registry::reopened(record.programs);
        let mut state = RegistryState {
            clients,
            blocks,
            loans,
            manager: record.manager,
            policy,
            disks: Vec::new(),
            programs,
            refusals: Refusals::default(),
            visits: Visits::new(),
            journal,
        };
        state.remember()?;
        Ok(Self {
            store,
            state: Mutex::new(state),
            first_target_pages: AtomicU64::new(u64::MAX),
            watcher: OnceLock::new(),
        })
    }

    /// The store of these clients.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Sets the callback for all changes of a client's pools or devices by the operator.
    pub fn watch(&self, told: impl Fn(ClientId) + Send + Sync + 'static) {
        // Setting a second one would be a bug in the daemon; the first stays in use.
        let _ = self.watcher.set(Watcher(Box::new(told)));
    }

    pub(crate) fn changed(&self, client: ClientId) {
        if let Some(Watcher(told)) = self.watcher.get() {
            told(client);
        }
    }

    /// How often a daemon reopened a kept store.
    pub fn restarts(&self) -> u64 {
        self.lock().journal.restarts()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the configuration file. A client that it no longer names becomes unnamed. A device
    /// that it no longer names stays until it is destroyed. Gives a line for each client and device that
    /// this added or changed, and each client that it left out.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::FloorAboveCap`], [`Error::ClientExists`], [`Error::IdentityTaken`],
    /// [`Error::NoClient`], [`Error::BlockExists`], and refusals of the store: then nothing has changed.
    pub fn configure(
        &self,
        clients: &[ClientSettings],
        blocks: &[BlockSettings],
        policy: Policy,
    ) -> Result<Vec<String>, Error> {
        check(clients, blocks)?;
        let mut state = self.lock();
        // Changes that the store may refuse come first.
        let before = (state.clients.len(), state.blocks.len());
        if let Err(error) = self.make(&mut state, clients, blocks) {
            self.unmake(&mut state, before);
            return Err(error);
        }
        let mut changes = Vec::new();
        changes.extend(changes::unnamed(&state.policy, &policy));
        state.policy = policy;
        for entry in &mut state.clients {
            let named = clients.iter().any(|client| client.name == entry.name);
            if entry.origin == Origin::Configured && !named {
                let name = &entry.name;
                changes.push(format!("client {name} is no longer in the configuration file"));
                entry.origin = Origin::Unnamed;
                entry.idle_since = Instant::now();
            }
        }
        for client in clients {
            changes.extend(self.configure_client(&mut state, client)?);
        }
        changes.extend(state.clients[before.0..].iter().map(changes::added));
        changes.extend(state.blocks[before.1..].iter().map(|block| {
            format!("block device {} of client {} is added", block.record.name, block.record.client)
        }));
        state.remember()?;
        Ok(changes)
    }

    /// Creates missing clients and devices.
    fn make(
        &self,
        state: &mut RegistryState,
        clients: &[ClientSettings],
        blocks: &[BlockSettings],
    ) -> Result<(), Error> {
        for client in clients {
            if state.find(&client.name).is_err() {
                self.insert(state, client, Origin::Configured)?;
            }
        }
        blocks.iter().try_for_each(|block| self.configure_block(state, block))
    }

    /// Removes the clients and devices that were just created.
    fn unmake(&self, state: &mut RegistryState, (clients, blocks): (usize, usize)) {
        for block in state.blocks.drain(blocks..) {
            let _ = self.store.destroy_pool(PoolId(block.record.pool));
        }
        for client in state.clients.drain(clients..) {
            let _ = self.store.remove_client(client.id);
        }
    }

    /// Applies the file's settings to an existing client. Gives a line if that changes it.
    fn configure_client(
        &self,
        state: &mut RegistryState,
        settings: &ClientSettings,
    ) -> Result<Option<String>, Error> {
        let at = state.find(&settings.name)?;
        let entry = &mut state.clients[at];
        if entry.domain != settings.domain {
            tracing::warn!(
                client = entry.name,
                "a sharing domain can't change while its client exists: remove the client first"
            );
        }
        // An operator's settings stay, unless the file's have changed.
        let asked = Asked::of(settings);
        let mut cap_pages = entry.cap_pages;
        if entry.asked.target_pages != asked.target_pages {
            cap_pages = asked.target_pages;
            self.cap(entry.id, cap_pages)?;
        }
        let stays = |was: u64, now: u64, set: u64| if was == now { set } else { now };
        let floor_pages = stays(entry.asked.floor_pages, asked.floor_pages, entry.floor_pages);
        let weight =
            stays(entry.asked.weight.into(), asked.weight.into(), entry.weight.into()) as u32;
        for &uuid in entry.shared.iter().filter(|uuid| !settings.shared.contains(uuid)) {
            self.store.revoke(entry.id, uuid);
        }
        let new = Entry {
            cap_pages,
            floor_pages,
            weight,
            domain: entry.domain,
            connections: entry.connections,
            idle_since: entry.idle_since,
            importing: entry.importing,
            exporting: entry.exporting,
            arrival: entry.arrival,
            frozen: entry.frozen,
            moved: entry.moved,
            moving: std::mem::take(&mut entry.moving),
            ..Entry::new(entry.id, Origin::Configured, settings)
        };
        let before = std::mem::replace(entry, new);
        for &uuid in &entry.shared {
            self.store.authorise(entry.id, uuid)?;
        }
        Ok(changes::changed(&before, entry))
    }

    /// Adds a client while the daemon runs. It stays until it is removed.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NeedsSecret`], [`Error::ClientExists`], [`Error::IdentityTaken`],
    /// [`Error::JournalFull`], and refusals of the store.
    pub fn add_client(&self, settings: &ClientSettings) -> Result<(), Error> {
        check_name(&settings.name)?;
        let mut state = self.lock();
        let host = matches!(settings.who, Who::Host(_));
        if host && settings.secret.is_none() && state.policy.exposed {
            return Err(Error::NeedsSecret(settings.name.clone()));
        }
        if state.find(&settings.name).is_ok() || state.programs.has(&settings.name) {
            return Err(Error::ClientExists(settings.name.clone()));
        }
        let same = |entry: &&Entry| entry.who == settings.who && entry.origin != Origin::Unnamed;
        if let Some(other) = state.clients.iter().find(same) {
            return Err(Error::IdentityTaken(other.name.clone()));
        }
        self.insert(&mut state, settings, Origin::Added)?;
        state.remember()
    }

    /// Creates a client in the store.
    pub(crate) fn insert(
        &self,
        state: &mut RegistryState,
        settings: &ClientSettings,
        origin: Origin,
    ) -> Result<ClientId, Error> {
        let config = ClientConfig {
            target_pages: self.first_target_pages().min(settings.target_pages),
            domain: settings.domain,
            ..ClientConfig::default()
        };
        let id = self.store.add_client(config)?;
        state.clients.push(Entry::new(id, origin, settings));
        for &uuid in &settings.shared {
            self.store.authorise(id, uuid)?;
        }
        Ok(id)
    }

    /// Keeps a client and its pool as long as the daemon runs, because a guest's disk lies there.
    pub fn attach_disk(&self, name: &str, client: ClientId, pool: PoolId) {
        self.lock().disks.push(Attached { name: name.to_owned(), client, pool });
    }

    /// Lowers a client's target to its cap. A policy may raise it again; without a policy the cap is its target from
    /// now on.
    pub(crate) fn cap(&self, client: ClientId, cap_pages: u64) -> Result<(), Error> {
        let policies_give = self.first_target_pages() != u64::MAX;
        let target_pages = match self.store.statistics(client)?.target_pages {
            current if policies_give => current.min(cap_pages),
            _ => cap_pages,
        };
        Ok(self.store.set_target(client, target_pages)?)
    }

    /// Sets the target of new clients, in pages, until a policy sets one; `u64::MAX`, the initial
    /// value, if no policy does.
    pub fn set_first_target(&self, pages: u64) {
        self.first_target_pages.store(pages, Ordering::Relaxed);
    }

    fn first_target_pages(&self) -> u64 {
        self.first_target_pages.load(Ordering::Relaxed)
    }

    /// All clients, by name.
    ///
    /// # Errors
    /// Only the store's own.
    pub fn clients(&self) -> Result<Vec<ClientView>, Error> {
        let state = self.lock();
        let views = state.clients.iter().map(|entry| self.view(entry));
        let mut views = views.collect::<Result<Vec<_>, _>>()?;
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    /// One client or program.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn client(&self, name: &str) -> Result<ClientView, Error> {
        let state = self.lock();
        match (state.find(name), state.programs.view_of(name)) {
            (Err(_), Some(program)) => Ok(program),
            (at, _) => self.view(&state.clients[at?]),
        }
    }

    fn view(&self, entry: &Entry) -> Result<ClientView, Error> {
        Ok(ClientView {
            name: entry.name.clone(),
            id: entry.id,
            who: entry.who.clone(),
            origin: entry.origin,
            connections: entry.connections,
            in_flight_bytes: self.store.in_flight_bytes_of(entry.id)?,
            limits: entry.limits,
            cap_pages: entry.cap_pages,
            floor_pages: entry.floor_pages,
            weight: entry.weight,
            domain: entry.domain,
            shared: entry.shared.clone(),
            importing: entry.importing,
            arrived: entry.arrival == Arrival::Complete,
            frozen: entry.frozen,
            moved: entry.moved,
            statistics: self.store.statistics(entry.id)?,
            reserve_pages: 0,
            series: None,
        })
    }
}

/// Removes what a kill left in the store but not in the journal: clients without a name, which were
/// never used, and pools that were reserved for a device or loan that was never announced.
fn remove_unrecorded(
    store: &Store,
    clients: &[Entry],
    blocks: &[Block],
    loans: &[LoanRecord],
) -> Result<(), Error> {
    for known in store.clients() {
        if !clients.iter().any(|entry| entry.id == known.id) {
            store.remove_client(known.id)?;
            continue;
        }
        for pool in store.pools(known.id)? {
            let announced = blocks.iter().any(|block| block.record.pool == pool.id.0)
                || loans.iter().any(|loan| loan.pool == pool.id.0);
            if pool.reserved_pages > 0 && !announced {
                store.destroy_pool(pool.id)?;
            }
        }
    }
    Ok(())
}

/// Checks for errors that do not depend on the present state.
///
/// # Errors
/// [`Error::Name`], [`Error::FloorAboveCap`], [`Error::ClientExists`], [`Error::IdentityTaken`],
/// [`Error::NoClient`], [`Error::BlockExists`].
pub fn check(clients: &[ClientSettings], blocks: &[BlockSettings]) -> Result<(), Error> {
    for (at, client) in clients.iter().enumerate() {
        check_name(&client.name)?;
        client.bounds().check(&client.name)?;
        for other in &clients[..at] {
            if other.name == client.name {
                return Err(Error::ClientExists(client.name.clone()));
            }
            if other.who == client.who {
                return Err(Error::IdentityTaken(other.name.clone()));
            }
        }
    }
    for (at, block) in blocks.iter().enumerate() {
        check_name(&block.name)?;
        if !clients.iter().any(|client| client.name == block.client) {
            return Err(Error::NoClient(block.client.clone()));
        }
        if blocks[..at].iter().any(|other| other.name == block.name) {
            return Err(Error::BlockExists(block.name.clone()));
        }
    }
    Ok(())
}
