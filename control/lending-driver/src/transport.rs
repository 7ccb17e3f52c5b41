//! What the driver requires of the way to a lender's pools.

use std::fmt::Debug;
use std::sync::Arc;

use spillway_fanout::Lender;
use spillway_lending::{Access, HostId};

use crate::error::Error;

/// Connects to loans.
pub trait Transport: Debug + Send + Sync {
    /// Connects to a loan of `lender` that is reached by `access`.
    ///
    /// # Errors
    /// [`Error::Lender`] when the lender does not let this host reach it, [`Error::Tls`].
    fn connect(&self, lender: &HostId, access: &Access) -> Result<Arc<dyn Lender>, Error>;
}
