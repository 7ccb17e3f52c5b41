//! The lender's side: pools and devices of the own store for those who borrow.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use spillway_directory::{ClientRegistry, Loan, LoanView};
use spillway_lending::{Access, HostId, Kept, LoanId, Mode, PoolIdentity};
use spillway_types::{PAGE_BYTES, Size};

use crate::config::Config;
use crate::memory::Room;

/// Sets memory aside and frees it.
#[derive(Debug)]
pub struct Lender {
    client_registry: Arc<ClientRegistry>,
    /// Where borrowers reach pools.
    pools_at: Option<SocketAddr>,
    /// Where kernels reach devices, and the subsystem there.
    blocks_at: Option<(SocketAddr, String)>,
    capacity_bytes: u64,
    /// Most that the store takes.
    store_bytes: u64,
    /// One at a time, so that what is lent stays below the capacity.
    reserving: Mutex<()>,
}

impl Lender {
    /// Lends from the store of `client_registry`.
    pub fn new(
        config: &Config,
        client_registry: Arc<ClientRegistry>,
        room: Room,
        blocks_nqn: String,
    ) -> Self {
        let (listen, lend) = (&config.listen, &config.lend);
        let at =
            |listening: Option<SocketAddr>| listening.map(|its| lend.data_address.unwrap_or(its));
        // One address for others can't be that of two listeners: it is that of pools, where there are.
        let blocks = if listen.nvme_tls.is_some() { listen.nvme_tcp } else { at(listen.nvme_tcp) };
        Self {
            client_registry,
            pools_at: at(listen.nvme_tls),
            blocks_at: blocks.map(|address| (address, blocks_nqn)),
            capacity_bytes: lend.capacity_bytes.unwrap_or(u64::MAX),
            store_bytes: room.own_bytes,
            reserving: Mutex::new(()),
        }
    }

    /// What lies in all loans together, bytes.
    pub fn used_bytes(&self) -> u64 {
        self.loans().iter().map(|loan| loan.pages * PAGE_BYTES as u64).sum()
    }

    /// The loans in the store.
    pub fn loans(&self) -> Vec<LoanView> {
        self.client_registry.loans()
    }

    /// Of `spare_bytes`, what the capacities of lending and of the store leave.
    pub fn bounded(&self, spare_bytes: u64, lent_bytes: u64) -> u64 {
        let room = self.store_bytes.saturating_sub(self.client_registry.store().memory_bytes());
        spare_bytes.min(self.capacity_bytes.saturating_sub(lent_bytes)).min(room)
    }

    /// Loans that the store kept over a restart of the daemon. Those that nobody can reach any more, by the configuration
    /// of now, end here.
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

    /// Sets memory aside for a loan, in full.
    ///
    /// # Errors
    /// One line that says why not.
    pub fn reserve(
        &self,
        loan: &LoanId,
        slabs: u32,
        slab_bytes: u64,
        mode: Mode,
    ) -> Result<Access, String> {
        let _one = self.reserving.lock().unwrap_or_else(PoisonError::into_inner);
        self.access(mode, 0)?;
        let loans = self.loans();
        let lent: u64 = loans.iter().map(|it| u64::from(it.loan.slabs) * it.loan.slab_bytes).sum();
        let bytes = u64::from(slabs) * slab_bytes;
        if lent.saturating_add(bytes) > self.capacity_bytes {
            return Err(format!(
                "lend.capacity is {}, and {} are lent",
                Size(self.capacity_bytes),
                Size(lent)
            ));
        }
        let made = self.client_registry.create_loan(&Loan {
            borrower: loan.borrower.as_str().to_owned(),
            number: loan.number,
            slabs,
            slab_bytes,
            is_block: mode == Mode::Direct,
        });
        self.access(mode, made.map_err(|error| error.to_string())?.identity)
    }

    /// Ends a loan. Its memory is free when this returns.
    pub fn release(&self, loan: &LoanId) {
        let ended = self.client_registry.destroy_loan(loan.borrower.as_str(), loan.number);
        if let Err(error) = ended {
            tracing::error!(%loan, "can't free a loan's memory: {error}");
        }
    }

    fn access(&self, mode: Mode, identity: u128) -> Result<Access, String> {
        let pool = PoolIdentity(identity);
        match mode {
            Mode::FanOut => {
                let address = self.pools_at.ok_or("it has no listen.nvme_tls")?.to_string();
                Ok(Access { address, pool, nqn: None })
            }
            Mode::Direct => {
                let (address, nqn) = self.blocks_at.as_ref().ok_or("it has no listen.nvme_tcp")?;
                Ok(Access { address: address.to_string(), pool, nqn: Some(nqn.clone()) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_directory::Journal;

    use super::*;
    use crate::config::{Clients, read};

    #[test]
    fn what_the_section_pool_lends_is_not_offered_to_other_hosts() {
        let room = Room { own_bytes: 32 << 20, lent_bytes: 32 << 20 };
        let all_bytes = room.own_bytes + room.lent_bytes;
        let store = Arc::new(
            spillway_store::Store::open(spillway_store::Config::embedded(all_bytes)).unwrap(),
        );
        let config = read(None, &[]).unwrap();
        let policy = Clients::new(&config).unwrap().policy;
        let journal = Journal::create(all_bytes).unwrap();
        let registry = Arc::new(ClientRegistry::open(store.clone(), journal, policy).unwrap());
        let lender = Lender::new(&config, registry, room, "nqn".into());
        let spare_bytes = 1 << 40;
        let bounded = lender.bounded(spare_bytes, 0);
        assert!(bounded <= room.own_bytes && bounded > room.own_bytes / 2, "{bounded}");
        // It is the same when the store has it.
        store.set_capacity(room.own_bytes, room.lent_bytes);
        assert_eq!(lender.bounded(spare_bytes, 0), bounded);
        assert_eq!(lender.bounded(1 << 20, 0), 1 << 20);
    }
}
