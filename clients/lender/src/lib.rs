//! The way of a borrower's pages to a loan on a lender: a reserved pool there, over NVMe/TCP inside TLS.
//!
//! A [`Loan`] is what `core/fanout` carries pages with. It has one association with the lender, kept alive by a thread
//! of its own, which any number of threads use at the same time. It ends when it is dropped; the pool stays, until the
//! lender releases the loan.

#![forbid(unsafe_code)]

mod loan;
mod settings;

pub use loan::Loan;
pub use settings::Settings;

/// Why a loan can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client library's reason.
    #[error(transparent)]
    Client(#[from] spillway_client::Error),
    /// The lender has let us in, but the loan is not there.
    #[error(
        "{0} has no pool of the loan's identity: the loan has ended, or the lender was restarted"
    )]
    NoPool(String),
    /// The address in the acknowledgement is none.
    #[error("'{0}' is no host:port")]
    Address(String),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
