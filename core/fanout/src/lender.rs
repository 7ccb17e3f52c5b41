//! What the device needs of whatever carries pages to a lender and back.

use core::fmt::Debug;
use std::time::Instant;

use spillway_types::Key;

use crate::page::Page;

/// Most pages of one call to a [`Lender`].
pub const BATCH_PAGES: usize = 32;

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It is there, or here.
    Done,
    /// The lender takes no more. It has reserved the loan's memory, so it should not say this.
    Refused,
    /// The lender has no such page, or has lost the loan.
    Missing,
    /// No answer came in time. The page may be there or not.
    Lost,
}

/// The way to one loan on a lender: a pool there, which is a generation of its own.
///
/// Pages have keys from the front of the pool: page `n` of the loan is object `n >> 32`, index `n & 0xffff_ffff`, the keys
/// for which a reserved pool has set room aside.
///
/// Called by several threads at once, with at most [`BATCH_PAGES`] keys. Each call fills an outcome for each key, and
/// returns by its deadline, come what may. After a put that was [`Carried::Lost`], no later get gives what was there
/// before it, nor does a late put undo a later one of the same key. Nothing is allocated on the way of a page but what
/// the connection's encryption needs.
pub trait Lender: Debug + Send + Sync {
    /// Stores pages in place of what is under their keys.
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried], deadline: Instant);

    /// Brings pages back.
    fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [Carried], deadline: Instant);

    /// Removes pages, so that they take no memory there. One that is not there is [`Carried::Done`].
    fn flush(&self, keys: &[Key], outcomes: &mut [Carried], deadline: Instant);
}
