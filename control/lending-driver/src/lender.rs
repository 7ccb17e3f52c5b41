//! The lender's side: pools and devices of this host's store for borrowers.

use std::sync::{Arc, Mutex, PoisonError};

use spillway_directory::{ClientRegistry, Loan, LoanView};
use spillway_lending::{Access, HostId, Kept, LoanId, Mode, PoolIdentity};
use spillway_types::PAGE_BYTES;

use crate::error::Error;
use crate::settings::Settings;

/// Reserves and frees memory.
#[derive(Debug)]
pub struct Lender {
    settings: Arc<Settings>,
    client_registry: Arc<ClientRegistry>,
    /// Serializes loans, so that their sum stays below the capacity.
    reserving: Mutex<()>,
}

impl Lender {
    /// Lends from the store of `client_registry`.
    pub fn new(settings: Arc<Settings>, client_registry: Arc<ClientRegistry>) -> Self {
        Self { settings, client_registry, reserving: Mutex::new(()) }
    }

    /// Used bytes in all loans.
    pub fn used_bytes(&self) -> u64 {
        self.loans().iter().map(|loan| loan.pages * PAGE_BYTES as u64).sum()
    }

    /// The loans in the store.
    pub fn loans(&self) -> Vec<LoanView> {
        self.client_registry.loans()
    }

    /// `spare_bytes`, limited by the remaining capacities of lending and of the store.
    pub fn bounded(&self, spare_bytes: u64, lent_bytes: u64) -> u64 {
        let room =
            self.settings.store_bytes.saturating_sub(self.client_registry.store().memory_bytes());
        spare_bytes.min(self.settings.capacity_bytes.saturating_sub(lent_bytes)).min(room)
    }

    /// Loans that the store kept across a restart of the daemon. Ends those that are unreachable with the present
    /// configuration.
    pub fn kept(&self) -> Vec<Kept> {
        let kept = |view: LoanView| {
            let loan = LoanId {
                borrower: HostId::new(&view.loan.borrower).ok()?,
                number: view.loan.number,
            };
            let mode = if view.loan.is_block { Mode::Direct } else { Mode::FanOut };
            let Ok(access) = self.access(mode, view.identity) else {
                self.release(&loan);
                return None;
            };
            Some(Kept { loan, access, slabs: view.loan.slabs, slab_bytes: view.loan.slab_bytes })
        };
        self.loans().into_iter().filter_map(kept).collect()
    }

    /// Reserves the full memory of a loan.
    ///
    /// # Errors
    /// [`Error::Capacity`], [`Error::Store`]; [`Error::NoPools`] and [`Error::NoBlocks`] if borrowers could not
    /// reach it.
    pub fn reserve(
        &self,
        loan: &LoanId,
        slabs: u32,
        slab_bytes: u64,
        mode: Mode,
    ) -> Result<Access, Error> {
        let _one = self.reserving.lock().unwrap_or_else(PoisonError::into_inner);
        self.access(mode, 0)?;
        let loans = self.loans();
        let lent: u64 = loans.iter().map(|it| u64::from(it.loan.slabs) * it.loan.slab_bytes).sum();
        let bytes = u64::from(slabs) * slab_bytes;
        if lent.saturating_add(bytes) > self.settings.capacity_bytes {
            let capacity_bytes = self.settings.capacity_bytes;
            return Err(Error::Capacity { capacity_bytes, lent_bytes: lent });
        }
        let made = self.client_registry.create_loan(&Loan {
            borrower: loan.borrower.as_str().to_owned(),
            number: loan.number,
            slabs,
            slab_bytes,
            is_block: mode == Mode::Direct,
        });
        self.access(mode, made?.identity)
    }

    /// Ends a loan. Its memory is free when this returns.
    pub fn release(&self, loan: &LoanId) {
        let ended = self.client_registry.destroy_loan(loan.borrower.as_str(), loan.number);
        if let Err(error) = ended {
            tracing::error!(%loan, "can't free a loan's memory: {error}");
        }
    }

    fn access(&self, mode: Mode, identity: u128) -> Result<Access, Error> {
        let pool = PoolIdentity(identity);
        match mode {
            Mode::FanOut => {
                let address = self.settings.pools_at.ok_or(Error::NoPools)?.to_string();
                Ok(Access { address, pool, nqn: None })
            }
            Mode::Direct => {
                let (address, nqn) = self.settings.blocks_at.as_ref().ok_or(Error::NoBlocks)?;
                Ok(Access { address: address.to_string(), pool, nqn: Some(nqn.clone()) })
            }
        }
    }
}

/// Frees all loans that the store kept, if this host no longer lends.
pub fn free_kept(client_registry: &ClientRegistry) {
    for view in client_registry.loans() {
        let (borrower, number) = (view.loan.borrower, view.loan.number);
        if let Err(error) = client_registry.destroy_loan(&borrower, number) {
            tracing::error!(borrower, "can't free the loans' memory: {error}");
        }
    }
}

#[cfg(test)]
pub mod tests {
    use spillway_directory::{Journal, Policy, Users};
    use spillway_store::{Config, Store};
    use spillway_types::Limits;

    use super::*;
    use crate::settings::tests::settings;

    /// The registry of a store in memory.
    pub fn client_registry(bytes: u64) -> Arc<ClientRegistry> {
        let store = Arc::new(Store::open(Config::embedded(bytes)).unwrap());
        let policy = Policy {
            users: Users::All,
            hosts: false,
            exposed: false,
            target_pages: 0,
            limits: Limits { connections_max: 8, operations_max: 8, bytes_max: 1 << 20 },
            grace_s: 0,
        };
        Arc::new(ClientRegistry::open(store, Journal::create(bytes).unwrap(), policy).unwrap())
    }

    pub fn host(name: &str) -> HostId {
        HostId::new(name).unwrap()
    }

    pub fn loan(borrower: &str, number: u64) -> LoanId {
        LoanId { borrower: host(borrower), number }
    }

    #[test]
    fn what_the_section_pool_lends_is_not_offered_to_other_hosts() {
        let (own_bytes, lent_bytes) = (32 << 20, 32 << 20);
        let registry = client_registry(own_bytes + lent_bytes);
        let settings = Settings { store_bytes: own_bytes, ..settings() };
        let lender = Lender::new(Arc::new(settings), registry.clone());
        let spare_bytes = 1 << 40;
        let bounded = lender.bounded(spare_bytes, 0);
        assert!(bounded <= own_bytes && bounded > own_bytes / 2, "{bounded}");
        // It is the same when the store has it.
        registry.store().set_capacity(own_bytes, lent_bytes);
        assert_eq!(lender.bounded(spare_bytes, 0), bounded);
        assert_eq!(lender.bounded(1 << 20, 0), 1 << 20);
    }

    #[test]
    fn what_is_lent_stays_below_the_capacity() {
        let settings = Settings { capacity_bytes: 3 << 20, ..settings() };
        let lender = Lender::new(Arc::new(settings), client_registry(32 << 20));
        lender.reserve(&loan("b.test", 1), 2, 1 << 20, Mode::FanOut).unwrap();
        let refused = lender.reserve(&loan("c.test", 1), 2, 1 << 20, Mode::FanOut);
        let line = refused.unwrap_err().to_string();
        assert_eq!(line, "lend.capacity is 3.0 MiB, and 2.0 MiB are lent");
        assert_eq!(lender.bounded(u64::MAX, 2 << 20), 1 << 20);
        lender.release(&loan("b.test", 1));
        lender.reserve(&loan("c.test", 1), 2, 1 << 20, Mode::FanOut).unwrap();
    }

    #[test]
    fn nothing_is_set_aside_that_nobody_could_reach() {
        let settings = Settings { pools_at: None, blocks_at: None, ..settings() };
        let lender = Lender::new(Arc::new(settings), client_registry(32 << 20));
        for (mode, line) in [
            (Mode::FanOut, "it has no listen.nvme_tls"),
            (Mode::Direct, "it has no listen.nvme_tcp"),
        ] {
            let refused = lender.reserve(&loan("b.test", 1), 1, 1 << 20, mode);
            assert_eq!(refused.unwrap_err().to_string(), line);
        }
        assert!(lender.loans().is_empty());
    }

    #[test]
    fn kept_loans_go_on_where_borrowers_reach_them_and_else_end() {
        let registry = client_registry(32 << 20);
        let before = Lender::new(Arc::new(settings()), registry.clone());
        let access = before.reserve(&loan("b.test", 1), 2, 1 << 20, Mode::FanOut).unwrap();
        let kept = Lender::new(Arc::new(settings()), registry.clone()).kept();
        assert_eq!(kept, [Kept { loan: loan("b.test", 1), access, slabs: 2, slab_bytes: 1 << 20 }]);
        let settings = Settings { pools_at: None, ..settings() };
        assert!(Lender::new(Arc::new(settings), registry.clone()).kept().is_empty());
        assert!(registry.loans().is_empty());
    }
}
