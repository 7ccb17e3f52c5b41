//! A loan, over a session of the client library.

use std::time::Instant;

use spillway_fanout::{Carried, Lender, Page};
use spillway_types::Key;

use crate::{Error, Settings};

/// The way to a loan's pages.
#[derive(Debug)]
pub struct Loan {}

impl Loan {
    /// Connects, and finds the loan's pool.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::NoPool`], [`Error::Client`] with what keeps it from connecting.
    pub fn connect(settings: &Settings) -> Result<Self, Error> {
        Err(Error::Address(settings.address.clone()))
    }
}

impl Lender for Loan {
    fn put(&self, _keys: &[Key], _pages: &[Page], outcomes: &mut [Carried], _deadline: Instant) {
        outcomes.fill(Carried::Lost);
    }

    fn get(&self, _keys: &[Key], _pages: &mut [Page], outcomes: &mut [Carried], _deadline: Instant) {
        outcomes.fill(Carried::Lost);
    }

    fn flush(&self, _keys: &[Key], outcomes: &mut [Carried], _deadline: Instant) {
        outcomes.fill(Carried::Lost);
    }
}
