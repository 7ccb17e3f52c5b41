//! The health of the other hosts: collects contacts with them, and logs each change.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_fanout::{Cause, Effect, Holder, Loss};
use spillway_lending::{Contact, Fault, Health, HealthChange, HealthWatch, HostId, Standing};
use spillway_peers::Contacts;
use tokio::time::Instant;

use crate::peers::Peers;

/// Ended loans whose lender is still recorded, because pages in flight may fail later.
const ENDED_MAX: usize = 256;

/// The health of each host.
#[derive(Debug)]
pub struct PeerHealth {
    started: Instant,
    peers: Arc<Peers>,
    watch: Mutex<HealthWatch>,
    /// The loans that ended last, by number, and their lenders.
    ended: Mutex<VecDeque<(u64, HostId)>>,
}

impl PeerHealth {
    /// No contact yet. `answer_timeout` is the time within which a host must answer a message.
    pub fn new(peers: Arc<Peers>, answer_timeout: Duration) -> Self {
        let watch = Mutex::new(HealthWatch::new(answer_timeout));
        Self { started: Instant::now(), peers, watch, ended: Mutex::default() }
    }

    fn watch(&self) -> MutexGuard<'_, HealthWatch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The status of a host.
    pub fn standing(&self, host: &HostId) -> Standing {
        self.watch().standing(self.now(), host)
    }

    /// Whether there was no contact with a host for `time` or longer.
    pub fn is_due(&self, host: &HostId, time: Duration) -> bool {
        self.watch().is_due(self.now(), host, time)
    }

    /// This host holds a loan of a lender.
    pub fn loan_opened(&self, number: u64, lender: HostId) {
        self.watch().loan_opened(number, lender);
    }

    /// A loan is no longer held.
    pub fn loan_ended(&self, number: u64) {
        let mut watch = self.watch();
        if let Some(lender) = watch.lender(number).cloned() {
            let mut ended = self.ended();
            ended.truncate(ENDED_MAX - 1);
            ended.push_front((number, lender));
        }
        let change = watch.loan_ended(self.now(), number);
        drop(watch);
        self.log(change);
    }

    fn ended(&self) -> MutexGuard<'_, VecDeque<(u64, HostId)>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lender of a loan that is held, or that ended recently.
    pub fn lender(&self, number: u64) -> Option<HostId> {
        let held = self.watch().lender(number).cloned();
        let ended = || {
            let ended = self.ended();
            ended.iter().find(|(its, _)| *its == number).map(|(_, lender)| lender.clone())
        };
        held.or_else(ended)
    }

    /// The address of a host, for the log.
    fn address(&self, host: &HostId) -> String {
        let address = self.peers.address(host);
        address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
    }

    /// Pages were copied to a loan, or its lender answers again after requests have waited for it.
    pub fn loan_works(&self, number: u64) {
        let change = self.watch().loan_works(self.now(), number);
        self.log(change);
    }

    /// Pages of a loan failed. The loss of the local file does not concern a host.
    pub fn pages_failed(&self, loss: &Loss) {
        match self.lender(loss.holder) {
            Some(lender) if loss.holder != Holder::FILE => {
                let (address, loan) = (self.address(&lender), format!("{:016x}", loss.holder));
                let Loss { slab, cause, effect, .. } = *loss;
                let what = if effect == Effect::Wait { "wait" } else { "fail" };
                tracing::error!(%lender, address, loan, slab, "pages {what}: it {cause}; {effect}");
            }
            _ => tracing::error!("{loss}"),
        }
        let fault = match loss.cause {
            Cause::NoAnswer | Cause::Away => Fault::Late,
            Cause::Refused | Cause::Missing | Cause::Forged => Fault::Refused,
        };
        let reason = format!("for a page it {}", loss.cause);
        let waits = matches!(loss.effect, Effect::Wait | Effect::Behind);
        let change = self.watch().page_failed(self.now(), loss.holder, fault, reason, waits);
        self.log(change);
    }

    /// A holder answers again after requests have waited for it, or after it has missed some.
    pub fn pages_answered(&self, holder: u64, after: Duration) {
        let loan = format!("{holder:016x}");
        match self.lender(holder) {
            Some(lender) => {
                let address = self.address(&lender);
                tracing::warn!(%lender, address, loan, "pages continue: it answers again after {after:.1?}");
            }
            None => tracing::warn!(loan, "pages continue: it answers again after {after:.1?}"),
        }
        self.loan_works(holder);
    }

    fn log(&self, change: Option<HealthChange>) {
        let Some(change) = change else { return };
        log(&change, &self.address(&change.host));
    }
}

impl Contacts for PeerHealth {
    fn contact(&self, peer: &str, address: SocketAddr, contact: Contact) {
        let Ok(host) = HostId::new(peer) else { return };
        let change = self.watch().contact(self.now(), &host, contact);
        if let Some(change) = change {
            log(&change, &address.to_string());
        }
    }
}

fn log(change: &HealthChange, address: &str) {
    let HealthChange { host, from, lasted, to, reason } = change;
    let lasted_s = lasted.as_secs();
    match (from, to) {
        (Health::Unknown, Health::Ok) => tracing::info!(peer = %host, address, "the host answers"),
        (_, Health::Ok) => {
            tracing::info!(peer = %host, address, "the host is ok, after {lasted_s} s {from}");
        }
        _ => tracing::warn!(peer = %host, address, "the host is {to}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lender_of_a_loan_is_known_for_a_while_after_its_end() {
        let host = |name: &str| HostId::new(name).unwrap();
        let (peers, _messages) = Peers::new(host("a.test"));
        let health = PeerHealth::new(Arc::new(peers), Duration::from_secs(1));
        health.loan_opened(7, host("b.test"));
        assert_eq!(health.lender(7), Some(host("b.test")));
        health.loan_ended(7);
        assert_eq!((health.lender(7), health.lender(8)), (Some(host("b.test")), None));
        for number in 100..100 + ENDED_MAX as u64 {
            health.loan_opened(number, host("c.test"));
            health.loan_ended(number);
        }
        assert_eq!((health.lender(7), health.lender(100)), (None, Some(host("c.test"))));
        // A page of a loan that nobody knows is logged by its number.
        health.pages_failed(&Loss {
            holder: 7,
            slab: 0,
            cause: Cause::NoAnswer,
            effect: Effect::FailOver,
        });
        assert_eq!(health.standing(&host("b.test")).health, Health::Unknown);
    }
}
