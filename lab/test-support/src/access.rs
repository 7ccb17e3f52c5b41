//! A client registry with one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

/// Limits that no test reaches by accident.
pub const WIDE: Limits = Limits { connections_max: 64, operations_max: 4096, bytes_max: 512 << 20 };

/// Finds the secret of a host, and its length, by the host's NQN.
type FindSecret = Box<dyn Fn(&str) -> Option<([u8; 64], usize)> + Send + Sync>;

/// Admits every connection as one client, unless configured otherwise. It does not count connections.
pub struct OneClient {
    client: ClientId,
    limits: Limits,
    is_known: Box<dyn Fn(Identity<'_>) -> bool + Send + Sync>,
    secret: FindSecret,
    failures: AtomicU64,
    late: Arc<AtomicU32>,
}

impl OneClient {
    /// Every connection is this client, with the limits [`WIDE`]; no host must authenticate.
    pub fn new(client: ClientId) -> Self {
        Self {
            client,
            limits: WIDE,
            is_known: Box::new(|_| true),
            secret: Box::new(|_| None),
            failures: AtomicU64::new(0),
            late: Arc::default(),
        }
    }

    /// Failed authentications that were reported.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Sets the client's limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Admits only identities for which `is_known` returns true.
    pub fn only(self, is_known: impl Fn(Identity<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { is_known: Box::new(is_known), ..self }
    }

    /// Hosts with a secret must authenticate.
    pub fn with_secret(
        self,
        secret: impl Fn(&str) -> Option<([u8; 64], usize)> + Send + Sync + 'static,
    ) -> Self {
        Self { secret: Box::new(secret), ..self }
    }

    /// Where it counts peers that did not complete the handshake in time.
    pub fn late(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.late)
    }
}

impl Access for OneClient {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        let admitted = Admitted { client: self.client, limits: self.limits };
        (self.is_known)(who).then_some(admitted).ok_or(Denied::Unknown)
    }

    fn authentication_failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self, _: ClientId) {}

    fn handshake_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    fn host_secret(&self, nqn: &str, secret: &mut [u8; 64]) -> Option<usize> {
        let (key, bytes) = (self.secret)(nqn)?;
        *secret = key;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lets_in_whom_it_knows() {
        let client = ClientId(3);
        let everybody = OneClient::new(client);
        assert_eq!(everybody.admit(Identity::Name("a")).unwrap().client, client);
        assert_eq!(everybody.host_secret("nqn", &mut [0; 64]), None);
        let one = OneClient::new(client)
            .only(|who| who == Identity::Name("a"))
            .with_secret(|nqn| (nqn == "nqn").then_some(([7; 64], 32)));
        assert!(one.admit(Identity::Name("a")).is_ok());
        assert_eq!(one.admit(Identity::Name("b")), Err(Denied::Unknown));
        let mut secret = [0; 64];
        assert_eq!(one.host_secret("nqn", &mut secret), Some(32));
        assert_eq!(secret, [7; 64]);
        assert_eq!(one.host_secret("other", &mut secret), None);
    }
}
