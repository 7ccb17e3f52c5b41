//! Lends unused memory, until a guest needs it.

use std::sync::Arc;

use crate::borrower::Borrower;
use crate::pool::Pool;

impl Pool {
    /// Sets the borrower, which is asked to return lent memory. Only the first call counts.
    pub fn set_borrower(&self, borrower: Arc<dyn Borrower>) {
        let _ = self.borrower.set(borrower);
    }

    /// Lends `bytes` in all, or as many as are idle; takes none from guests. This is only counted: the borrower gets
    /// the memory from the host. Returns the lent amount.
    pub fn lend(&self, bytes: u64) -> u64 {
        self.accounts().lend(bytes)
    }

    /// Adopts an existing loan, whether or not it is idle: after the pool is reopened, guests may hold the memory.
    pub fn note_lent(&self, bytes: u64) {
        self.accounts().note_lent(bytes);
    }

    /// The lent amount.
    #[must_use]
    pub fn lent_bytes(&self) -> u64 {
        self.accounts().lent()
    }

    /// Makes `bytes` idle, as far as lent memory returns. Returns whether the required amount
    /// returned: a borrower that returned less has no more to return now.
    pub(crate) fn recall(&self, bytes: u64) -> bool {
        let accounts = self.accounts();
        let (missing, before) = (accounts.missing(bytes), accounts.lent());
        drop(accounts);
        let Some(borrower) = self.borrower.get().filter(|_| missing > 0) else { return false };
        borrower.give_back(missing);
        before.saturating_sub(self.lent_bytes()) >= missing
    }
}
