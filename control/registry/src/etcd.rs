//! etcd as the registry, through its JSON gateway (`/v3/...`, etcd 3.4 and later).
//!
//! Each host writes one key under a lease that it keeps alive, and watches the keys of all others. When a
//! lease ends, the host is no longer chosen. While etcd does not answer, the known hosts stay. The gateway
//! is used instead of gRPC, whose crates need protoc at build time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use hyper::body::{Body, Bytes, Incoming};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_peers::http::Connection;
use spillway_tls::ClientSettings;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::{Error, HOSTS_MAX, Host, is_name};

/// Most bytes of an answer, and of one event.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Pause before another endpoint is tried.
const PAUSE: Duration = Duration::from_secs(1);
/// Least time between two announcements.
const ANNOUNCE: Duration = Duration::from_secs(1);

/// One member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    address: SocketAddr,
    tls: bool,
}

impl std::str::FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = text.trim_end_matches('/').split_once("://");
        let (scheme, address) = parts.ok_or_else(|| Error::Endpoint(text.to_owned()))?;
        let address = address.parse().ok();
        match (scheme, address) {
            ("http", Some(address)) => Ok(Self { address, tls: false }),
            ("https", Some(address)) => Ok(Self { address, tls: true }),
            _ => Err(Error::Endpoint(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.address)
    }
}

/// The settings of etcd.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Members of the cluster, tried in turn. At least one.
    pub endpoints: Vec<Endpoint>,
    /// Prefix of keys; a host's name follows.
    pub prefix: String,
    /// How long a host that is gone stays listed, seconds.
    pub lease_s: u64,
    /// Keys for endpoints with https.
    pub tls: ClientSettings,
    /// Time limit of an answer.
    pub time: Duration,
}

/// What a host writes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    address: SocketAddr,
    rack: String,
    spare_bytes: u64,
}

/// Announces `own` and watches the others, forever.
pub(crate) async fn run(
    settings: &Settings,
    mut own: watch::Receiver<Host>,
    hosts: &watch::Sender<Vec<Host>>,
) {
    let mut lease = None;
    let mut lost = false;
    for endpoint in settings.endpoints.iter().cycle() {
        let mut session = Session { settings, endpoint, hosts, lease, well: false };
        let Err(error) = session.run(&mut own).await;
        lease = session.lease;
        // One line when the connection is lost, not one for each attempt.
        if session.well || !lost {
            tracing::warn!(%endpoint, "the registry is unreachable, the known hosts stay: {error}");
        }
        lost = true;
        sleep(PAUSE).await;
    }
}

/// Connections to one member.
struct Session<'a> {
    settings: &'a Settings,
    endpoint: &'a Endpoint,
    hosts: &'a watch::Sender<Vec<Host>>,
    /// This host's lease; it outlives the session.
    lease: Option<String>,
    /// Whether the member has answered all of it once.
    well: bool,
}

/// Never returns: a session ends only with an error.
enum Never {}

impl Session<'_> {
    async fn run(&mut self, own: &mut watch::Receiver<Host>) -> Result<Never, Error> {
        let mut connection = self.connect().await?;
        self.take_lease(&mut connection).await?;
        let mut said = own.borrow_and_update().clone();
        self.announce(&mut connection, &said).await?;
        let (mut known, mut seen) = self.list(&mut connection).await?;
        self.publish(&known, &said.name);
        let mut watching = self.connect().await?;
        let mut events = self.watch(&mut watching, seen.revision + 1).await?;
        tracing::info!(endpoint = %self.endpoint, hosts = known.len(), "found in the registry");
        self.well = true;
        let mut alive = interval(Duration::from_secs(self.settings.lease_s) / 3);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut announced = Instant::now();
        // What the watch had reported when it was found to be behind.
        let mut behind = None;
        loop {
            tokio::select! {
                _ = alive.tick() => {
                    let kept = self.keep_alive(&mut connection).await?;
                    if !kept {
                        self.lease = None;
                        return Err(Error::Etcd("the lease has ended".into()));
                    }
                    self.say(&mut connection, own, &mut said, &mut announced).await?;
                    let missed = self.misses(&mut connection, &seen).await?.then(|| seen.clone());
                    if missed.is_some() && missed == behind {
                        return Err(Error::Silent);
                    }
                    behind = missed;
                }
                changed = own.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    self.say(&mut connection, own, &mut said, &mut announced).await?;
                }
                line = events.next() => {
                    if self.follow(&line?, &mut known, &mut seen)? {
                        self.publish(&known, &said.name);
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let tls = if self.endpoint.tls {
            let name = self.endpoint.address.ip().to_string();
            Some(self.settings.tls.to(&name).map_err(spillway_peers::Error::from)?)
        } else {
            None
        };
        Ok(Connection::open(self.endpoint.address, tls.as_ref(), self.settings.time).await?)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        path: &str,
        body: &Value,
    ) -> Result<T, Error> {
        let body = Bytes::from(body.to_string());
        let time = self.settings.time;
        let answer = connection.ask(Method::POST, path, body, time, ANSWER_BYTES_MAX).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Keeps the lease of the previous session if it still exists, or gets a new one.
    async fn take_lease(&mut self, connection: &mut Connection) -> Result<(), Error> {
        if self.lease.is_some() && self.keep_alive(connection).await? {
            return Ok(());
        }
        #[derive(Deserialize)]
        struct Granted {
            #[serde(rename = "ID")]
            id: String,
        }
        let body = json!({ "TTL": self.settings.lease_s.to_string() });
        let granted: Granted = self.ask(connection, "/v3/lease/grant", &body).await?;
        self.lease = Some(granted.id);
        Ok(())
    }

    /// Whether the lease still exists; if so, extends it by `lease_s`.
    async fn keep_alive(&self, connection: &mut Connection) -> Result<bool, Error> {
        #[derive(Deserialize)]
        struct Kept {
            result: Life,
        }
        #[derive(Deserialize)]
        struct Life {
            #[serde(rename = "TTL", default)]
            ttl: String,
        }
        let body = json!({ "ID": self.lease });
        let kept: Kept = self.ask(connection, "/v3/lease/keepalive", &body).await?;
        Ok(kept.result.ttl.parse().is_ok_and(|ttl: i64| ttl > 0))
    }

    /// Announces this host if it has changed enough, and the last announcement is not too recent.
    async fn say(
        &self,
        connection: &mut Connection,
        own: &mut watch::Receiver<Host>,
        said: &mut Host,
        announced: &mut Instant,
    ) -> Result<(), Error> {
        let now = own.borrow_and_update().clone();
        let moved = now.spare_bytes.abs_diff(said.spare_bytes);
        let much = moved > now.spare_bytes.max(said.spare_bytes) / 16;
        if !much || announced.elapsed() < ANNOUNCE {
            return Ok(());
        }
        self.announce(connection, &now).await?;
        *said = now;
        *announced = Instant::now();
        Ok(())
    }

    async fn announce(&self, connection: &mut Connection, own: &Host) -> Result<(), Error> {
        let record =
            Record { address: own.address, rack: own.rack.clone(), spare_bytes: own.spare_bytes };
        let body = json!({
            "key": STANDARD.encode(format!("{}{}", self.settings.prefix, own.name)),
            "value": STANDARD.encode(serde_json::to_vec(&record)?),
            "lease": self.lease,
        });
        self.ask::<Value>(connection, "/v3/kv/put", &body).await.map(|_| ())
    }

    /// First key after those of the prefix.
    fn end(&self) -> String {
        let mut end = self.settings.prefix.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        STANDARD.encode(end)
    }

    /// All hosts, and what the registry is at.
    async fn list(&self, connection: &mut Connection) -> Result<(Known, Seen), Error> {
        let key = STANDARD.encode(&self.settings.prefix);
        let body = json!({ "key": key, "range_end": self.end(), "limit": HOSTS_MAX.to_string() });
        let found: Found = self.ask(connection, "/v3/kv/range", &body).await?;
        let mut known = Known::new();
        for pair in &found.kvs {
            self.put(&mut known, pair);
        }
        Ok((known, Seen { revision: number(&found.header.revision)?, keys: number(&found.count)? }))
    }

    /// Whether keys have changed since what the watch reported last. Its own connection can end without a sign, and
    /// the watch is silent while nothing changes.
    async fn misses(&self, connection: &mut Connection, seen: &Seen) -> Result<bool, Error> {
        let key = STANDARD.encode(&self.settings.prefix);
        let body = json!({
            "key": key, "range_end": self.end(), "keys_only": true, "limit": "1",
            "min_mod_revision": (seen.revision + 1).to_string(),
        });
        let found: Found = self.ask(connection, "/v3/kv/range", &body).await?;
        Ok(!found.kvs.is_empty() || number(&found.count)? != seen.keys)
    }

    async fn watch(&self, connection: &mut Connection, from: i64) -> Result<Lines, Error> {
        let key = STANDARD.encode(&self.settings.prefix);
        let request = json!({
            "key": key, "range_end": self.end(), "start_revision": from.to_string(),
        });
        let body = Bytes::from(json!({ "create_request": request }).to_string());
        let answer = connection.stream(Method::POST, "/v3/watch", body, self.settings.time).await?;
        Ok(Lines { body: answer.into_body(), text: Vec::new() })
    }

    /// Processes a line of the watch; returns whether hosts have changed.
    fn follow(&self, line: &[u8], known: &mut Known, seen: &mut Seen) -> Result<bool, Error> {
        #[derive(Deserialize)]
        struct Told {
            result: Change,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Change {
            canceled: bool,
            events: Vec<Event>,
        }
        #[derive(Deserialize)]
        struct Event {
            /// Left out for a put.
            #[serde(default, rename = "type")]
            kind: String,
            kv: Pair,
        }
        let change = serde_json::from_slice::<Told>(line)?.result;
        if change.canceled {
            return Err(Error::Etcd("it has ended the watch".into()));
        }
        for event in &change.events {
            seen.revision = seen.revision.max(number(&event.kv.mod_revision)?);
            if event.kind == "DELETE" {
                seen.keys -= 1;
                self.name(&event.kv).and_then(|name| known.remove(&name));
            } else {
                // The first version of a key is a new key.
                seen.keys += i64::from(event.kv.version == "1");
                self.put(known, &event.kv);
            }
        }
        Ok(!change.events.is_empty())
    }

    /// Processes a host's record; skips one that can't be read.
    fn put(&self, known: &mut Known, pair: &Pair) {
        let Some(name) = self.name(pair) else { return };
        let value = STANDARD.decode(&pair.value).unwrap_or_default();
        match serde_json::from_slice(&value) {
            Ok(record) if known.len() < HOSTS_MAX || known.contains_key(&name) => {
                known.insert(name, record);
            }
            Ok(_) => tracing::warn!(host = name, "more than {HOSTS_MAX} hosts: skipped"),
            Err(error) => tracing::warn!(host = name, "its record is skipped: {error}"),
        }
    }

    /// The host of a key.
    fn name(&self, pair: &Pair) -> Option<String> {
        let key = String::from_utf8(STANDARD.decode(&pair.key).ok()?).ok()?;
        let name = key.strip_prefix(&self.settings.prefix)?;
        is_name(name).then(|| name.to_owned())
    }

    fn publish(&self, known: &Known, own: &str) {
        let others = known.iter().filter(|(name, _)| *name != own);
        let hosts = others.map(|(name, record)| Host {
            name: name.clone(),
            address: record.address,
            rack: record.rack.clone(),
            spare_bytes: record.spare_bytes,
        });
        self.hosts.send_replace(hosts.collect());
    }
}

/// Hosts by name.
type Known = BTreeMap<String, Record>;

/// How far the watch has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// Of the last change.
    revision: i64,
    /// How many keys there are.
    keys: i64,
}

/// The answer to a range.
#[derive(Deserialize)]
struct Found {
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
    /// All keys of the range, whatever the limit; left out for none.
    #[serde(default)]
    count: String,
}

#[derive(Deserialize)]
struct Header {
    revision: String,
}

/// A key and its value, in base64.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pair {
    key: String,
    value: String,
    mod_revision: String,
    version: String,
}

/// A number, which the gateway writes as a string, and leaves out if it is zero.
fn number(text: &str) -> Result<i64, Error> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| Error::Etcd(format!("'{text}' is not a number")))
}

/// The lines of an endless answer.
struct Lines {
    body: Incoming,
    text: Vec<u8>,
}

impl Lines {
    /// The next line. Cancel-safe.
    async fn next(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            if let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
                let rest = self.text.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.text, rest));
            }
            let frame = std::future::poll_fn(|context| {
                std::pin::Pin::new(&mut self.body).poll_frame(context)
            });
            let Some(frame) = frame.await else {
                return Err(Error::Etcd("it has ended the watch".into()));
            };
            let frame = frame.map_err(spillway_peers::Error::from)?;
            let Ok(data) = frame.into_data() else { continue };
            if self.text.len() + data.len() > ANSWER_BYTES_MAX {
                return Err(Error::Etcd("an event is too long".into()));
            }
            self.text.extend_from_slice(&data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_a_scheme_and_a_numeric_address() {
        for good in ["http://127.0.0.1:2379", "https://[::1]:2379", "http://10.0.0.1:1/"] {
            assert_eq!(good.parse::<Endpoint>().unwrap().to_string(), good.trim_end_matches('/'));
        }
        for bad in
            ["", "127.0.0.1:2379", "http://etcd:2379", "ftp://127.0.0.1:1", "http://127.0.0.1"]
        {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
