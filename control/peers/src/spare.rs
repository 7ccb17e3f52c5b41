//! Queries a peer's spare memory, which also shows whether it answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use spillway_tls::ClientSettings;

use crate::contact::{Contacts, contact};
use crate::http::Connection;
use crate::{Error, SPARE_PATH, Spare};

/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 4096;

/// Queries one peer, on a persistent connection.
#[derive(Debug)]
pub struct Question {
    name: String,
    address: SocketAddr,
    tls: ClientSettings,
    time: Duration,
    contacts: Arc<dyn Contacts>,
    connection: Option<Connection>,
}

impl Question {
    /// To the host `name` at `address`, with the keys of `tls`. `time` is for connecting, and for an answer.
    pub fn new(
        name: String,
        address: SocketAddr,
        tls: ClientSettings,
        time: Duration,
        contacts: Arc<dyn Contacts>,
    ) -> Self {
        Self { name, address, tls, time, contacts, connection: None }
    }

    /// The peer's spare memory, bytes; also reports the contact.
    ///
    /// # Errors
    /// Those of a connection, and [`Error::Answer`].
    pub async fn ask(&mut self) -> Result<u64, Error> {
        let begun = Instant::now();
        let is_old = self.connection.is_some();
        let mut answer = self.answer().await;
        // The peer may just have closed an old connection.
        if is_old && matches!(answer, Err(Error::Http(_))) {
            answer = self.answer().await;
        }
        self.contacts.contact(&self.name, self.address, contact(begun.elapsed(), &answer));
        answer
    }

    /// Sends one query. After an error the connection is gone.
    async fn answer(&mut self) -> Result<u64, Error> {
        let known = self.connection.take().filter(|connection| !connection.is_closed());
        let mut connection = match known {
            Some(connection) => connection,
            None => {
                let tls = self.tls.to(&self.name)?;
                Connection::open(self.address, Some(&tls), self.time).await?
            }
        };
        let body = Default::default();
        let answer =
            connection.ask(Method::GET, SPARE_PATH, body, self.time, ANSWER_BYTES_MAX).await?;
        self.connection = Some(connection);
        Ok(serde_json::from_slice::<Spare>(&answer)?.spare_bytes)
    }
}
