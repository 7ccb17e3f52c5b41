//! The transport between a borrower and a loan, a reserved pool on a lender: NVMe/TCP inside TLS.
//!
//! `core/fanout` transfers pages through a [`Loan`]. It has one association with the lender, which any number of
//! threads share and a thread of its own keeps alive. Dropping it ends the association. The pool stays until the
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
    /// The lender accepted the connection, but the loan does not exist.
    #[error(
        "{0} has no pool of the loan's identity: the loan has ended, or the lender was restarted"
    )]
    NoPool(String),
    /// The address in the acknowledgement is invalid.
    #[error("'{0}' is not host:port")]
    Address(String),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
