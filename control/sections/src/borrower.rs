//! The borrower of lent memory.

use std::fmt::Debug;

/// Borrows and returns memory.
pub trait Borrower: Debug + Send + Sync {
    /// Returns up to `bytes` of lent memory to the host, and reduces the loan ([`Pool::lend`](crate::Pool::lend)). A
    /// guest waits meanwhile, so this must end in limited time, even if not everything is returned.
    fn give_back(&self, bytes: u64);
}
