//! Client of the daemon's HTTP interface.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use spillway_api::types::{Problem, STREAM_TYPE};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::daemon::address::ApiAddress;
use crate::daemon::body::{Relayed, RequestBody};
use crate::daemon::options::Daemon;
use crate::refusal::Refusal;

/// Largest response body in bytes, except an export's.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How long a client that moves may stand still: as long as the daemons themselves wait for each other's bytes.
const STALL_MAX: Duration = Duration::from_secs(120);
/// How often the progress of a move is told.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// A daemon's HTTP interface.
pub struct Api {
    runtime: Runtime,
    address: ApiAddress,
    token: Option<String>,
    /// Whether something else encrypts what goes to other hosts.
    is_guarded: bool,
    /// How long an answer may take, except that of a relay.
    deadline: Option<Duration>,
}

impl Api {
    /// Finds the interface and reads its token.
    ///
    /// # Errors
    /// The token file can't be read, or no address of the interface is given.
    pub fn new(options: &Daemon) -> anyhow::Result<Self> {
        Self::at(options.address()?, options.token_file.as_deref(), options.api_guarded)
    }

    /// The interface at an address. With `is_guarded`, something else encrypts what goes to other hosts.
    ///
    /// # Errors
    /// The token file can't be read.
    pub fn at(
        address: ApiAddress,
        token_file: Option<&Path>,
        is_guarded: bool,
    ) -> anyhow::Result<Self> {
        let token = token_file.map(|path| {
            fs::read_to_string(path)
                .map_err(|e| Refusal::usage(format!("can't read {}: {e}", path.display())))
        });
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let token = token.transpose()?.map(|token| token.trim().to_owned());
        Ok(Self { runtime, address, token, is_guarded, deadline: None })
    }

    /// The interface, each of whose answers comes within the time that a move may stand still.
    pub fn with_deadline(self) -> Self {
        Self { deadline: Some(STALL_MAX), ..self }
    }

    /// Waits for an answer, until the deadline if there is one.
    fn wait<T>(&self, answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.runtime.block_on(async {
            let Some(deadline) = self.deadline else { return answer.await };
            timeout(deadline, answer).await.unwrap_or_else(|_| {
                let (address, seconds) = (self.address.address(), deadline.as_secs());
                Err(anyhow!("the daemon at {address} has not answered for {seconds} s"))
            })
        })
    }

    /// GETs `path`.
    ///
    /// # Errors
    /// The daemon can't be reached, or says no.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::GET, path, RequestBody::Text(None), None)
    }

    /// Sends `body` to `path`.
    ///
    /// # Errors
    /// The daemon can't be reached, or says no.
    pub fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let text = serde_json::to_vec(body)?;
        let body = RequestBody::Text(Some(text.into()));
        self.ask(method, path, body, Some("application/json"))
    }

    /// Sends a request whose response has no body.
    ///
    /// # Errors
    /// The daemon can't be reached, or says no.
    pub fn order(&self, method: Method, path: &str) -> anyhow::Result<()> {
        self.wait(async {
            self.answer(method, path, RequestBody::Text(None), None).await.map(|_| ())
        })
    }

    /// Writes the response body of `path` to `sink`, and returns its length.
    ///
    /// # Errors
    /// The daemon can't be reached, refuses, or ends the stream early; or the sink fails.
    pub fn download(&self, path: &str, sink: &mut dyn Write) -> anyhow::Result<u64> {
        self.wait(async {
            let body = RequestBody::Text(None);
            let mut answer = self.answer(Method::POST, path, body, None).await?;
            let mut written = 0;
            while let Some(frame) = answer.frame().await {
                let frame =
                    frame.context("the daemon ended the stream early; nothing has moved")?;
                let Ok(data) = frame.into_data() else { continue };
                sink.write_all(&data).context("can't write the stream")?;
                written += data.len() as u64;
            }
            sink.flush().context("can't write the stream")?;
            Ok(written)
        })
    }

    /// Sends everything from `source` to `path`.
    ///
    /// # Errors
    /// The daemon can't be reached or refuses, or the source can't be read.
    pub fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        source: Box<dyn Read + Send>,
    ) -> anyhow::Result<T> {
        self.ask(Method::POST, path, RequestBody::Reader(source), Some(STREAM_TYPE))
    }

    /// Sends what this daemon answers at `source` to `target` of another, and tells the bytes that have moved about once
    /// a second.
    ///
    /// # Errors
    /// A daemon can't be reached, refuses, hangs up, or nothing moves for a while.
    pub fn relay<T: DeserializeOwned>(
        &self,
        source: &str,
        to: &Self,
        target: &str,
        mut tell: impl FnMut(u64),
    ) -> anyhow::Result<T> {
        self.runtime.block_on(async {
            let stalled = || {
                let (from, to) = (self.address.address(), to.address.address());
                anyhow!("nothing has moved from {from} to {to} for {} s", STALL_MAX.as_secs())
            };
            let asked = self.answer(Method::POST, source, RequestBody::Text(None), None);
            let answer = timeout(STALL_MAX, asked).await.map_err(|_| stalled())??;
            let relayed = Arc::<Relayed>::default();
            let body = RequestBody::Relay(answer.into_body(), Arc::clone(&relayed));
            let mut sent = pin!(to.read(Method::POST, target, body, Some(STREAM_TYPE)));
            let (mut bytes, mut since) = (0, Instant::now());
            loop {
                if let Ok(done) = timeout(TELL_INTERVAL, &mut sent).await {
                    if relayed.is_broken() {
                        bail!("the daemon at {} hung up", self.address.address());
                    }
                    return done;
                }
                if relayed.bytes() > bytes {
                    (bytes, since) = (relayed.bytes(), Instant::now());
                    tell(bytes);
                } else if since.elapsed() >= STALL_MAX {
                    return Err(stalled());
                }
            }
        })
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
        content_type: Option<&str>,
    ) -> anyhow::Result<T> {
        self.wait(self.read(method, path, body, content_type))
    }

    /// Sends a request and reads the whole response.
    async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
        content_type: Option<&str>,
    ) -> anyhow::Result<T> {
        let answer = self.answer(method, path, body, content_type).await?;
        let text = collect(answer).await?;
        serde_json::from_slice(&text).context("the daemon's answer is not understood")
    }

    /// Sends a request and drives the connection until the response begins.
    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
        content_type: Option<&str>,
    ) -> anyhow::Result<Response<Incoming>> {
        let is_secret = self.token.is_some() && !self.is_guarded;
        let wire = self.address.connect(is_secret).await?;
        let host = self.address.host();
        let lost = || format!("the daemon at {} hung up", self.address.address());
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(wire)).await.with_context(lost)?;
        // It ends with the response, which reports any error.
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request
            .body(body)
            .context("the token has characters that are not allowed in a token")?;
        let answer = sender.send_request(request).await.with_context(lost)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let problem = serde_json::from_slice(&collect(answer).await?);
        Err(Refusal::of_daemon(problem.unwrap_or_else(|_| Problem {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: format!("the daemon says {status}"),
        }))
        .into())
    }
}

/// The whole body of a response.
async fn collect(answer: Response<Incoming>) -> anyhow::Result<Bytes> {
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
    let body = body.collect().await.map_err(anyhow::Error::from_boxed);
    Ok(body.context("the daemon's answer is incomplete")?.to_bytes())
}

/// Percent-encodes a path segment that comes from user input.
pub fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().fold(String::new(), |mut path, byte| {
        if plain(byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
        path
    })
}

#[cfg(test)]
mod tests {
    use super::segment;

    #[test]
    fn a_name_can_not_leave_its_place_in_a_path() {
        assert_eq!(segment("nqn.2014-08.org:a_b"), "nqn.2014-08.org%3Aa_b");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
    }
}
