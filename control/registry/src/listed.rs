//! A static list of hosts, which are queried for their spare memory.

use std::sync::Arc;
use std::time::Duration;

use spillway_peers::Contacts;
use spillway_peers::spare::Question;
use spillway_tls::ClientSettings;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Host;

/// The hosts of a list, and how to query them.
#[derive(Clone, Debug)]
pub struct List {
    /// All of them except this one. Their spare memory is ignored.
    pub hosts: Vec<Host>,
    /// Keys for the queries.
    pub tls: ClientSettings,
    /// Time between two queries.
    pub interval: Duration,
    /// Time limit of an answer.
    pub time: Duration,
    /// Receives the result of each query.
    pub contacts: Arc<dyn Contacts>,
}

impl List {
    /// Queries forever.
    pub(crate) async fn run(self, hosts: &watch::Sender<Vec<Host>>) {
        let quiet = |host: &Host| Host { spare_bytes: 0, ..host.clone() };
        hosts.send_replace(self.hosts.iter().map(quiet).collect());
        let mut asking = JoinSet::new();
        for (at, host) in self.hosts.into_iter().enumerate() {
            let hosts = hosts.clone();
            let question = Question::new(
                host.name,
                host.address,
                self.tls.clone(),
                self.time,
                self.contacts.clone(),
            );
            asking.spawn(async move {
                follow(question, self.interval, |spare_bytes| {
                    hosts.send_if_modified(|all| {
                        let changed = all[at].spare_bytes != spare_bytes;
                        all[at].spare_bytes = spare_bytes;
                        changed
                    });
                })
                .await;
            });
        }
        while asking.join_next().await.is_some() {}
        // Without any host there is nothing to do.
        std::future::pending().await
    }
}

/// Queries one host's spare memory repeatedly.
async fn follow(mut question: Question, time_between: Duration, told: impl Fn(u64)) {
    let mut ticks = interval(time_between);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A host that does not answer counts as having no spare memory; `contacts` gets the reason.
        told(question.ask().await.unwrap_or(0));
    }
}
