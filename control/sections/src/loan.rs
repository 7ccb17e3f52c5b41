//! What guests do not use is lent, until one of them needs it.

use std::fmt::Debug;
use std::sync::Arc;

use crate::pool::Pool;

/// Who takes what is lent, and gives it back.
pub trait Borrower: Debug + Send + Sync {
    /// Gives up to `bytes` of what is lent back to the host, and counts them as no longer lent ([`Pool::lend`]). A guest waits
    /// for it meanwhile: there has to be an end to it, whether or not all has come back.
    fn give_back(&self, pool: &Pool, bytes: u64);
}

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

    /// Has `bytes` idle, as far as that can be had of what is lent.
    pub(crate) fn recall(&self, bytes: u64) {
        let accounts = self.accounts();
        let missing = bytes.saturating_sub(accounts.idle()).min(accounts.lent());
        drop(accounts);
        if let Some(borrower) = self.borrower.get().filter(|_| missing > 0) {
            borrower.give_back(self, missing);
        }
    }
}
