//! What guests do not use is lent, until one of them needs it.

use std::sync::Arc;

use crate::borrower::Borrower;
use crate::pool::Pool;

impl Pool {
    /// Names who is asked to give back what is lent. Only the first one counts.
    pub fn set_borrower(&self, borrower: Arc<dyn Borrower>) {
        let _ = self.borrower.set(borrower);
    }

    /// Has `bytes` lent in all, or as many as are idle beyond what is lent; no more than that is taken from guests. What is lent
    /// is counted only: whoever borrows has the memory from the host. Returns what is lent then.
    pub fn lend(&self, bytes: u64) -> u64 {
        self.accounts().lend(bytes)
    }

    /// Counts what is lent already, whether or not it is idle: when the pool is opened again, guests may have got it meanwhile.
    pub fn note_lent(&self, bytes: u64) {
        self.accounts().note_lent(bytes);
    }

    /// What is lent.
    #[must_use]
    pub fn lent_bytes(&self) -> u64 {
        self.accounts().lent()
    }

    /// Has `bytes` idle, as far as that can be had of what is lent. Says whether all that had to
    /// come back did: whoever gave less has no more to give now.
    pub(crate) fn recall(&self, bytes: u64) -> bool {
        let accounts = self.accounts();
        let (missing, before) = (accounts.missing(bytes), accounts.lent());
        drop(accounts);
        let Some(borrower) = self.borrower.get().filter(|_| missing > 0) else { return false };
        borrower.give_back(missing);
        before.saturating_sub(self.lent_bytes()) >= missing
    }
}
