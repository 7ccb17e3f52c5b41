//! A list of hosts, which are asked what they can spare.

use std::time::Duration;

use hyper::Method;
use spillway_peers::http::Connection;
use spillway_peers::{SPARE_PATH, Spare};
use spillway_tls::ClientSettings;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::{Error, Host};

/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 4096;

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
}

impl List {
    /// Asks for ever.
    pub(crate) async fn run(self, hosts: &watch::Sender<Vec<Host>>) {
        let quiet = |host: &Host| Host { spare_bytes: 0, ..host.clone() };
        hosts.send_replace(self.hosts.iter().map(quiet).collect());
        let mut asking = JoinSet::new();
        for (at, host) in self.hosts.into_iter().enumerate() {
            let (tls, hosts) = (self.tls.clone(), hosts.clone());
            asking.spawn(async move {
                follow(&host, &tls, self.interval, self.time, |spare_bytes| {
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
async fn follow(
    host: &Host,
    tls: &ClientSettings,
    time_between: Duration,
    time: Duration,
    told: impl Fn(u64),
) {
    let mut ticks = interval(time_between);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = None;
    let mut answering = true;
    loop {
        ticks.tick().await;
        match ask(&mut connection, host, tls, time).await {
            Ok(spare_bytes) => {
                answering = true;
                told(spare_bytes);
            }
            Err(error) => {
                connection = None;
                if answering {
                    tracing::warn!(peer = host.name, address = %host.address, "does not say what it can spare: {error}");
                }
                answering = false;
                told(0);
            }
        }
    }
}

async fn ask(
    connection: &mut Option<Connection>,
    host: &Host,
    tls: &ClientSettings,
    time: Duration,
) -> Result<u64, Error> {
    if connection.as_ref().is_none_or(Connection::is_closed) {
        let tls = tls.to(&host.name).map_err(spillway_peers::Error::from)?;
        *connection = Some(Connection::open(host.address, Some(&tls), time).await?);
    }
    let Some(connection) = connection else { return Ok(0) };
    let body = Default::default();
    let answer = connection.ask(Method::GET, SPARE_PATH, body, time, ANSWER_BYTES_MAX).await?;
    Ok(serde_json::from_slice::<Spare>(&answer)?.spare_bytes)
}
