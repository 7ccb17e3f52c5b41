//! The settings of a loan's transport.

use std::time::Duration;

use spillway_tls::ClientSettings;

/// Input of [`Loan::connect`](crate::Loan::connect).
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` of the lender's `listen.nvme_tls`, from the acknowledgement.
    pub address: String,
    /// The pool's identity, from the acknowledgement.
    pub pool: u128,
    /// The borrower's keys, and the name that the lender's certificate must have. After a renewal, new connections use
    /// the new keys.
    pub tls: ClientSettings,
    /// NVMe Qualified Name of this host. The lender uses the certificate's name.
    pub host_nqn: String,
    /// Time limit of a request, new connections included; equal to the device's `request_timeout`.
    pub timeout: Duration,
    /// I/O queues, each with a TCP connection of its own.
    pub queues: u16,
}
