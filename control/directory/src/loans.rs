//! Memory of this store that is lent to other hosts: a reserved pool, or a block device, for each loan.
//!
//! A loan's client is known by the borrower's certificate. One that is not there is made, may put nothing but
//! into its loans, and goes with the last of them as others that nobody named do.

use spillway_types::{PAGE_BYTES, PoolId, PoolSpec};

use crate::error::Error;
use crate::journal::LoanRecord;
use crate::registry::{ClientRegistry, RegistryState};
use crate::settings::{BlockSettings, ClientSettings, Who};
use crate::views::Origin;

/// A loan, as whoever lends it names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The host that borrows: the DNS name in its certificate, in lower case.
    pub borrower: String,
    /// The borrower's number for it, which it never uses again.
    pub number: u64,
    /// Slabs in it.
    pub slabs: u32,
    /// Bytes of each, a multiple of 4096.
    pub slab_bytes: u64,
    /// Whether it is a block device for the borrower's kernel. Else it is a pool.
    pub is_block: bool,
}

/// A loan that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanView {
    /// What was lent.
    pub loan: Loan,
    /// What tells its memory from any other that there was or will be: the pool's identity, or the device's UUID.
    pub identity: u128,
    /// Pages that the borrower has in it.
    pub pages: u64,
}

impl Loan {
    const fn bytes(&self) -> u64 {
        self.slabs as u64 * self.slab_bytes
    }

    fn name(&self) -> String {
        name(&self.borrower, self.number)
    }
}

/// What a loan's block device is called, and the loan in messages.
fn name(borrower: &str, number: u64) -> String {
    format!("{borrower}:{number:016x}")
}

fn position(state: &RegistryState, borrower: &str, number: u64) -> Option<usize> {
    state.loans.iter().position(|loan| loan.borrower == borrower && loan.number == number)
}

impl ClientRegistry {
    /// Sets memory aside for a loan, in full.
    ///
    /// # Errors
    /// [`Error::LoanExists`]; [`Error::NoClient`] for a block device when no client has the borrower's name: its
    /// kernel is known by an NQN, which nobody but the operator can tell; and what the store refuses.
    pub fn create_loan(&self, loan: &Loan) -> Result<LoanView, Error> {
        if position(&self.lock(), &loan.borrower, loan.number).is_some() {
            return Err(Error::LoanExists(loan.name()));
        }
        let (client, pool) =
            if loan.is_block { self.lend_block(loan)? } else { self.lend_pool(loan)? };
        let mut state = self.lock();
        let id = state.clients[state.find(&client)?].id;
        state.loans.push(LoanRecord {
            borrower: loan.borrower.clone(),
            number: loan.number,
            client,
            pool: pool.0,
            slabs: loan.slabs,
            slab_bytes: loan.slab_bytes,
            block: loan.is_block.then(|| loan.name()),
        });
        if let Err(error) = state.remember() {
            state.loans.pop();
            drop(state);
            self.free(loan.is_block.then(|| loan.name()), pool)?;
            return Err(error);
        }
        drop(state);
        self.changed(id);
        Ok(LoanView { loan: loan.clone(), identity: self.identity_of(loan, pool), pages: 0 })
    }

    /// A block device for the client that has the borrower's name.
    fn lend_block(&self, loan: &Loan) -> Result<(String, PoolId), Error> {
        let settings = BlockSettings {
            name: loan.name(),
            client: loan.borrower.clone(),
            bytes: loan.bytes(),
            block_bytes: PAGE_BYTES as u32,
            reserve: true,
        };
        let pool = self.create_block_as(&settings, spillway_block::fresh_uuid()?)?;
        Ok((settings.client, pool))
    }

    /// A pool for whoever shows the borrower's certificate.
    fn lend_pool(&self, loan: &Loan) -> Result<(String, PoolId), Error> {
        let mut state = self.lock();
        let who = Who::Name(loan.borrower.clone());
        let known = state.clients.iter().find(|entry| entry.who == who);
        let (client, id) = match known {
            Some(entry) => (entry.name.clone(), entry.id),
            None => {
                let settings = ClientSettings {
                    name: loan.borrower.clone(),
                    who,
                    secret: None,
                    target_pages: 0,
                    floor_pages: 0,
                    weight: 1,
                    limits: state.policy.limits,
                    domain: None,
                    shared: Vec::new(),
                };
                if state.find(&settings.name).is_ok() {
                    return Err(Error::ClientExists(settings.name));
                }
                (settings.name.clone(), self.insert(&mut state, &settings, Origin::Unnamed)?)
            }
        };
        let pages = loan.bytes() / PAGE_BYTES as u64;
        Ok((client, self.store.create_reserved_pool(id, PoolSpec::PERSISTENT, pages)?))
    }

    /// Ends a loan: its pages are gone, and its memory is free. One that is not there is ended already.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn destroy_loan(&self, borrower: &str, number: u64) -> Result<(), Error> {
        let mut state = self.lock();
        let Some(at) = position(&state, borrower, number) else { return Ok(()) };
        let loan = state.loans[at].clone();
        drop(state);
        self.free(loan.block, PoolId(loan.pool))?;
        state = self.lock();
        state.loans.retain(|other| other.pool != loan.pool);
        // A client that was made for it has its grace from now.
        if let Ok(at) = state.find(&loan.client) {
            state.clients[at].idle_since = std::time::Instant::now();
        }
        state.remember()?;
        let client = state.find(&loan.client).map(|at| state.clients[at].id);
        drop(state);
        client.into_iter().for_each(|client| self.changed(client));
        Ok(())
    }

    /// Frees a loan's memory, whoever uses it: requests of the borrower find nothing from then on.
    fn free(&self, block: Option<String>, pool: PoolId) -> Result<(), Error> {
        if let Some(name) = block {
            return self.end_block(&name);
        }
        if self.store.has_pool(pool) { Ok(self.store.destroy_pool(pool)?) } else { Ok(()) }
    }

    /// The loans that there are.
    pub fn loans(&self) -> Vec<LoanView> {
        let state = self.lock();
        let view = |record: &LoanRecord| {
            let loan = Loan {
                borrower: record.borrower.clone(),
                number: record.number,
                slabs: record.slabs,
                slab_bytes: record.slab_bytes,
                is_block: record.block.is_some(),
            };
            let block = record.block.as_ref();
            let block = state.blocks.iter().find(|it| Some(&it.record.name) == block);
            let pool = PoolId(record.pool);
            let client = state.find(&record.client).map(|at| state.clients[at].id);
            let pools = client.ok().and_then(|id| self.store.pools(id).ok()).unwrap_or_default();
            LoanView {
                loan,
                identity: block.map_or_else(|| self.store.identity(pool), |it| it.record.uuid),
                pages: pools.iter().find(|it| it.id == pool).map_or(0, |it| it.pages),
            }
        };
        state.loans.iter().map(view).collect()
    }

    fn identity_of(&self, loan: &Loan, pool: PoolId) -> u128 {
        let name = loan.name();
        let state = self.lock();
        let block = state.blocks.iter().find(|it| loan.is_block && it.record.name == name);
        block.map_or_else(|| self.store.identity(pool), |it| it.record.uuid)
    }

    /// Sees to it that a pool is not lent.
    pub(crate) fn is_not_lent(&self, number: u32) -> Result<(), Error> {
        let state = self.lock();
        for loan in &state.loans {
            let Ok(at) = state.find(&loan.client) else { continue };
            let pools = self.store.pools(state.clients[at].id)?;
            if pools.iter().any(|pool| pool.number == number && pool.id.0 == loan.pool) {
                return Err(Error::HasLoan(loan.borrower.clone()));
            }
        }
        Ok(())
    }
}
