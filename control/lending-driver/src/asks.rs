//! Queries hosts with loans, and unhealthy hosts, so that their health is known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_lending::HostId;
use spillway_peers::Contacts;
use spillway_peers::spare::Question;
use spillway_tls::ClientSettings;
use tokio::time::{MissedTickBehavior, interval};

use crate::shared::Shared;

/// A host with loans is queried after this time without contact.
const ASK: Duration = Duration::from_secs(2);

/// Queries hosts with loans and unhealthy hosts, unless there was recent contact. Hosts of a static list are queried
/// anyway; etcd does not report whether this host can reach another. Runs forever.
pub async fn ask_hosts(shared: Arc<Shared>, tls: ClientSettings) {
    let time = shared.settings.machine.answer_timeout;
    let mut period = interval(ASK);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut questions = BTreeMap::<(HostId, SocketAddr), Arc<tokio::sync::Mutex<Question>>>::new();
    loop {
        period.tick().await;
        let health = &shared.health;
        let place = |host| shared.peers.address(&host).map(|address| (host, address));
        let hosts: BTreeSet<_> = hosts_to_ask(&shared).into_iter().filter_map(place).collect();
        questions.retain(|host, _| hosts.contains(host));
        for (host, address) in hosts {
            if !health.is_due(&host, ASK) {
                continue;
            }
            let ask = || {
                let contacts: Arc<dyn Contacts> = health.clone();
                let name = host.as_str().to_owned();
                let question = Question::new(name, address, tls.clone(), time, contacts);
                Arc::new(tokio::sync::Mutex::new(question))
            };
            let question = questions.entry((host.clone(), address)).or_insert_with(ask).clone();
            tokio::spawn(async move {
                // A query in progress is enough.
                let Ok(mut question) = question.try_lock() else { return };
                // The watch got the result; spare memory is the registry's concern.
                let _ = question.ask().await;
            });
        }
    }
}

/// Hosts with loans, and unhealthy hosts of the registry: only an answer shows that they are back.
fn hosts_to_ask(shared: &Shared) -> BTreeSet<HostId> {
    let mut hosts = hosts_with_loans(shared);
    let listed = shared.peers.hosts();
    let listed = listed.iter().filter_map(|host| HostId::new(&host.name).ok());
    hosts.extend(listed.filter(|host| shared.health.standing(host).health.is_bad()));
    hosts
}

/// The hosts that lend to this one or borrow from it.
pub fn hosts_with_loans(shared: &Shared) -> BTreeSet<HostId> {
    let view = shared.machine().view(shared.now());
    let lenders = view.borrowed.into_iter().map(|loan| loan.lender);
    let borrowers = view.lent.into_iter().map(|loan| loan.loan.borrower);
    lenders.chain(borrowers).collect()
}
