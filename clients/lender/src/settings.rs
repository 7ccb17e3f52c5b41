//! How a loan is reached.

use std::time::Duration;

use spillway_tls::ClientSettings;

/// What [`Loan::connect`](crate::Loan::connect) needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` of the lender's `listen.nvme_tls`, as the acknowledgement says it.
    pub address: String,
    /// The pool's identity, as the acknowledgement says it.
    pub pool: u128,
    /// The borrower's keys, to the name that the lender's certificate must bear. Connections that are made after the keys
    /// were renewed use the new ones.
    pub tls: ClientSettings,
    /// NVMe Qualified Name of this host. The lender goes by the certificate's name.
    pub host_nqn: String,
    /// How long a request may take at most, new connections included; as long as the device's `request_timeout`.
    pub timeout: Duration,
    /// I/O queues, each with a TCP connection of its own.
    pub queues: u16,
}
