//! Loans of this store's memory to other hosts: a reserved pool or a block device for each.
//!
//! The borrower's certificate identifies a loan's client. A missing client is created. It can put values only
//! into its loans, and is removed after the last of them like other unnamed clients.

use spillway_types::{PAGE_BYTES, PoolId, PoolSpec};

use crate::error::Error;
use crate::journal::LoanRecord;
use crate::registry::{ClientRegistry, RegistryState};
use crate::settings::{BlockSettings, ClientSettings, Who};
use crate::views::Origin;

/// A loan in the lender's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The host that borrows: the DNS name in its certificate, in lower case.
    pub borrower: String,
    /// The borrower's number for it, which is never reused.
    pub number: u64,
    /// Slabs in it.
    pub slabs: u32,
    /// Bytes of each, a multiple of 4096.
    pub slab_bytes: u64,
    /// Whether it is a block device for the borrower's kernel. Else it is a pool.
    pub is_block: bool,
}

/// An existing loan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanView {
    /// Its parameters.
    pub loan: Loan,
    /// Unique identity of its memory: the pool's identity, or the device's UUID.
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

/// The name of a loan's block device, and of the loan in messages.
fn name(borrower: &str, number: u64) -> String {
    format!("{borrower}:{number:016x}")
}

fn position(state: &RegistryState, borrower: &str, number: u64) -> Option<usize> {
    state.loans.iter().position(|loan| loan.borrower == borrower && loan.number == number)
}

impl ClientRegistry {
    /// Reserves the full memory of a loan.
    ///
    /// # Errors
    /// [`Error::LoanExists`]; [`Error::NoClient`] for a block device if no client has the borrower's name,
    /// because an NQN identifies its kernel, which only the operator knows; and refusals of the store.
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

    /// A pool for connections with the borrower's certificate.
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

    /// Ends a loan: discards its pages and frees its memory. A missing loan has ended already.
    ///
    /// # Errors
    /// Refusals of the store.
    pub fn destroy_loan(&self, borrower: &str, number: u64) -> Result<(), Error> {
        let mut state = self.lock();
        let Some(at) = position(&state, borrower, number) else { return Ok(()) };
        let loan = state.loans[at].clone();
        drop(state);
        self.free(loan.block, PoolId(loan.pool))?;
        state = self.lock();
        state.loans.retain(|other| other.pool != loan.pool);
        // The grace period of a client that was created for it begins now.
        if let Ok(at) = state.find(&loan.client) {
            state.clients[at].idle_since = std::time::Instant::now();
        }
        state.remember()?;
        let client = state.find(&loan.client).map(|at| state.clients[at].id);
        drop(state);
        client.into_iter().for_each(|client| self.changed(client));
        Ok(())
    }

    /// Frees a loan's memory even if it is in use: the borrower's requests miss from then on.
    fn free(&self, block: Option<String>, pool: PoolId) -> Result<(), Error> {
        if let Some(name) = block {
            return self.end_block(&name);
        }
        if self.store.has_pool(pool) { Ok(self.store.destroy_pool(pool)?) } else { Ok(()) }
    }

    /// All loans.
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

    /// Fails if a pool is lent.
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
