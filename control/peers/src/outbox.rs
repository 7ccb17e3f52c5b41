//! Outgoing messages: a task and a bounded queue for each peer.
//!
//! A message is tried once, or twice on an old connection. A lost message is dropped: the state
//! machine repeats it as long as it matters, with newer contents.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;
use spillway_tls::ClientSettings;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::contact::{Contacts, contact};
use crate::http::Connection;
use crate::{Error, MESSAGES_PATH};

/// Most waiting messages for one peer. A further one displaces the oldest.
const WAITING_MAX: usize = 256;
/// Peers that have a queue. More are refused.
const PEERS_MAX: usize = 4096;
/// Idle time after which a queue and its connection are removed.
const IDLE: Duration = Duration::from_secs(30);

/// Sends messages to peers. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Outbox {
    tls: ClientSettings,
    time: Duration,
    contacts: Arc<dyn Contacts>,
    queues: HashMap<String, Queue>,
}

#[derive(Debug)]
struct Queue {
    waiting: Arc<Waiting>,
    task: JoinHandle<()>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Default)]
struct Waiting {
    messages: Mutex<VecDeque<Message>>,
    more: Notify,
}

#[derive(Debug)]
struct Message {
    address: SocketAddr,
    key: String,
    body: Bytes,
}

impl Outbox {
    /// Sends with the keys of `tls`. `time` limits one request, connecting included. `contacts` receives
    /// the result of each message.
    pub fn new(tls: ClientSettings, time: Duration, contacts: Arc<dyn Contacts>) -> Self {
        Self { tls, time, contacts, queues: HashMap::new() }
    }

    /// Posts `body` to the host `name` at `address`. Replaces a waiting message with the same `key`. Call
    /// it within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Tls`] if the name is not valid in a certificate.
    pub fn send(
        &mut self,
        name: &str,
        address: SocketAddr,
        key: String,
        body: Vec<u8>,
    ) -> Result<(), Error> {
        self.queues.retain(|_, queue| !queue.task.is_finished());
        if !self.queues.contains_key(name) {
            if self.queues.len() >= PEERS_MAX {
                tracing::warn!(peer = name, "too many peers at once: a message is dropped");
                return Ok(());
            }
            let tls = self.tls.to(name)?;
            let waiting = Arc::<Waiting>::default();
            let contacts = self.contacts.clone();
            let delivery = deliver(name.to_owned(), tls, waiting.clone(), self.time, contacts);
            let task = tokio::spawn(delivery);
            self.queues.insert(name.to_owned(), Queue { waiting, task });
        }
        let Some(queue) = self.queues.get(name) else { return Ok(()) };
        queue.waiting.push(Message { address, key, body: body.into() });
        Ok(())
    }
}

impl Waiting {
    fn push(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        match messages.iter_mut().find(|waiting| waiting.key == message.key) {
            Some(same) => *same = message,
            None => {
                if messages.len() == WAITING_MAX {
                    messages.pop_front();
                }
                messages.push_back(message);
            }
        }
        drop(messages);
        self.more.notify_one();
    }

    fn pop(&self) -> Option<Message> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Sends the waiting messages of one peer, until none has come for a while.
async fn deliver(
    name: String,
    tls: ClientSettings,
    waiting: Arc<Waiting>,
    time: Duration,
    contacts: Arc<dyn Contacts>,
) {
    let mut connection = None;
    loop {
        let Some(message) = waiting.pop() else {
            match timeout(IDLE, waiting.more.notified()).await {
                Ok(()) => continue,
                Err(_) => return,
            }
        };
        let begun = Instant::now();
        let sent = post(&mut connection, &message, &tls, time).await;
        contacts.contact(&name, message.address, contact(begun.elapsed(), &sent));
    }
}

async fn post(
    connection: &mut Option<(SocketAddr, Connection)>,
    message: &Message,
    tls: &ClientSettings,
    time: Duration,
) -> Result<(), Error> {
    let known =
        connection.take().filter(|(address, it)| *address == message.address && !it.is_closed());
    let old = known.is_some();
    let mut current = match known {
        Some((_, connection)) => connection,
        None => Connection::open(message.address, Some(tls), time).await?,
    };
    let mut sent = post_on(&mut current, message, time).await;
    // The peer may just have closed an old connection. Messages may arrive twice.
    if old && matches!(sent, Err(Error::Http(_))) {
        current = Connection::open(message.address, Some(tls), time).await?;
        sent = post_on(&mut current, message, time).await;
    }
    if matches!(sent, Ok(()) | Err(Error::Status(..))) {
        *connection = Some((message.address, current));
    }
    sent
}

async fn post_on(
    connection: &mut Connection,
    message: &Message,
    time: Duration,
) -> Result<(), Error> {
    let body = message.body.clone();
    connection.ask(Method::POST, MESSAGES_PATH, body, time, 0).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(key: &str, body: &str) -> Message {
        Message {
            address: ([127, 0, 0, 1], 1).into(),
            key: key.to_owned(),
            body: body.to_owned().into(),
        }
    }

    #[test]
    fn the_latest_of_a_key_takes_the_place_of_those_before() {
        let waiting = Waiting::default();
        for (key, body) in [("a", "1"), ("b", "2"), ("a", "3")] {
            waiting.push(message(key, body));
        }
        let left: Vec<_> = std::iter::from_fn(|| waiting.pop()).map(|it| it.body).collect();
        assert_eq!(left, ["3", "2"]);
    }

    #[test]
    fn a_queue_is_bounded_and_drops_the_oldest() {
        let waiting = Waiting::default();
        for number in 0..WAITING_MAX + 1 {
            waiting.push(message(&number.to_string(), ""));
        }
        assert_eq!(waiting.pop().unwrap().key, "1");
        assert_eq!(std::iter::from_fn(|| waiting.pop()).count(), WAITING_MAX - 1);
    }
}
