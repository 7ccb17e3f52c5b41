//! The transport to lenders' pools: NVMe/TCP inside TLS.

use std::sync::Arc;
use std::time::Duration;

use spillway_fanout::Lender;
use spillway_lender::{Loan, Settings};
use spillway_lending::{Access, HostId};
use spillway_lending_driver::{Error, Transport};
use spillway_tls::ClientSettings;

/// TCP connections to a lender for pages.
const QUEUES: u16 = 2;

/// Connects to loans as this host.
#[derive(Debug)]
pub struct NvmeTransport {
    /// Keys for connections to lenders.
    pub tls: ClientSettings,
    /// NVMe Qualified Name of this host.
    pub host_nqn: String,
    /// Time limit of a request.
    pub request_timeout: Duration,
}

impl Transport for NvmeTransport {
    fn connect(&self, lender: &HostId, access: &Access) -> Result<Arc<dyn Lender>, Error> {
        let settings = Settings {
            address: access.address.clone(),
            pool: access.pool.0,
            tls: self.tls.to(lender.as_str())?,
            host_nqn: self.host_nqn.clone(),
            timeout: self.request_timeout,
            queues: QUEUES,
        };
        let loan = Loan::connect(&settings).map_err(|error| Error::Lender {
            lender: lender.clone(),
            address: access.address.clone(),
            error: error.into(),
        })?;
        Ok(Arc::new(loan))
    }
}
