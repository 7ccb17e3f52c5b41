//! Who has what is lent.

use std::fmt::Debug;

/// Takes what is lent, and gives it back.
pub trait Borrower: Debug + Send + Sync {
    /// Gives up to `bytes` of what is lent back to the host, and counts them as no longer lent
    /// ([`Pool::lend`](crate::Pool::lend)). A guest waits for it meanwhile: there has to be an end to it, whether or not all has
    /// come back.
    fn give_back(&self, bytes: u64);
}
