//! What the device requires of the transport to a lender.

use core::fmt::Debug;
use std::time::Instant;

use spillway_types::Key;

use crate::page::Page;

/// Most pages of one call to a [`Lender`].
pub const BATCH_PAGES: usize = 32;

/// The outcome of a request for one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOutcome {
    /// The page was stored, fetched or removed.
    Done,
    /// The lender is full. It has reserved the loan's memory, so it should not answer this.
    Refused,
    /// The lender has no such page, or has lost the loan.
    Missing,
    /// No answer came in time. The page may be there or not.
    Lost,
}

/// The transport to one loan on a lender: a pool there, which is a generation of its own.
///
/// Pages have keys from the front of the pool: page `n` of the loan is object `n >> 32`, index `n &
/// 0xffff_ffff`. The reserved pool has memory for these keys.
///
/// Several threads call it at once, with at most [`BATCH_PAGES`] keys. Each call sets an outcome
/// for each key, and always returns by its deadline. After a put that was [`PageOutcome::Lost`], no
/// later get returns the bytes from before it, and a late put never undoes a later one of the same
/// key. Only the connection's encryption allocates on the path of a page.
pub trait Lender: Debug + Send + Sync {
    /// Stores pages, in place of the values under their keys.
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], deadline: Instant);

    /// Fetches pages.
    fn get(
        &self,
        keys: &[Key],
        pages: &mut [Page],
        outcomes: &mut [PageOutcome],
        deadline: Instant,
    );

    /// Removes pages, which frees their memory. The outcome for a missing page is
    /// [`PageOutcome::Done`].
    fn flush(&self, keys: &[Key], outcomes: &mut [PageOutcome], deadline: Instant);
}
