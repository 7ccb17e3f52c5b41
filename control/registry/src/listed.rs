//! A list of hosts, which are asked what they can spare.

use std::sync::Arc;
use std::time::Duration;

use spillway_peers::Contacts;
use spillway_peers::spare::Question;
use spillway_tls::ClientSettings;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Host;

/// The hosts of a list, and how they are asked.
#[derive(Clone, Debug)]
pub struct List {
    /// All of them but this one. What they can spare is not looked at.
    pub hosts: Vec<Host>,
    /// Keys to ask them with.
    pub tls: ClientSettings,
    /// Time from one question to the next.
    pub interval: Duration,
    /// For one answer.
    pub time: Duration,
    /// Who hears how each question went.
    pub contacts: Arc<dyn Contacts>,
}

impl List {
    /// Asks for ever.
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

/// Asks one host again and again what it can spare.
async fn follow(mut question: Question, time_between: Duration, told: impl Fn(u64)) {
    let mut ticks = interval(time_between);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Whoever does not answer has nothing to spare; why it does not is told to `contacts`.
        told(question.ask().await.unwrap_or(0));
    }
}
