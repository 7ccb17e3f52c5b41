//! The transport to lenders' pools that the driver requires.

use std::fmt::Debug;
use std::sync::Arc;

use spillway_fanout::Lender;
use spillway_lending::{Access, HostId};

use crate::error::Error;

/// Connects to loans.
pub trait Transport: Debug + Send + Sync {
    /// Connects to a loan of `lender` through `access`.
    ///
    /// # Errors
    /// [`Error::Lender`] if the lender refuses this host, [`Error::Tls`].
    fn connect(&self, lender: &HostId, access: &Access) -> Result<Arc<dyn Lender>, Error>;
}
