//! Authenticates requests, and logs those that change something.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use spillway_connections::ConnectionPermit;
use spillway_types::Seldom;
use tokio::net::{TcpStream, UnixStream};

use crate::problem::Error;

/// Longest part of a path in the log, in characters.
const PATH_CHARS_MAX: usize = 200;

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A process of this host.
    Process {
        /// Its user.
        uid: u32,
        /// Its process id; none if this process can't see it.
        pid: Option<i32>,
    },
    /// An address of the network.
    Address(SocketAddr),
    /// The kernel did not report it.
    Unknown,
}

impl From<&UnixStream> for Asker {
    fn from(stream: &UnixStream) -> Self {
        let process = stream.peer_cred();
        process.map_or(Self::Unknown, |it| Self::Process { uid: it.uid(), pid: it.pid() })
    }
}

impl From<&TcpStream> for Asker {
    fn from(stream: &TcpStream) -> Self {
        stream.peer_addr().map_or(Self::Unknown, Self::Address)
    }
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { uid, pid: Some(pid) } => write!(f, "uid {uid} pid {pid}"),
            Self::Process { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The tokens of a listener that other users or hosts can reach.
#[derive(Clone)]
pub struct Tokens {
    /// Permits everything.
    pub all: Arc<str>,
    /// Permits requests that change nothing and return no pool's contents; none if there is no such token.
    pub read: Option<Arc<str>>,
}

/// Omits the tokens, so that no log contains them.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// The token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Borne {
    All,
    Read,
    Neither,
}

impl Borne {
    const fn name(self) -> &'static str {
        match self {
            Self::All => "api_token_file",
            Self::Read => "api_read_token_file",
            Self::Neither => "none",
        }
    }

    /// Whether a request is permitted.
    fn check(self, method: &Method) -> Result<(), Error> {
        match self {
            Self::All => Ok(()),
            // An export is a POST, because it returns what clients have stored.
            Self::Read if is_read(method) => Ok(()),
            Self::Read => Err(Error::ReadToken),
            Self::Neither => Err(Error::Token),
        }
    }
}

impl Tokens {
    /// Which token is `given`. Compares it with both tokens in every case.
    fn borne(&self, given: &[u8]) -> Borne {
        let all = same(given, self.all.as_bytes());
        let read = self.read.as_ref().is_some_and(|read| same(given, read.as_bytes()));
        match (all, read) {
            (true, _) => Borne::All,
            (false, true) => Borne::Read,
            (false, false) => Borne::Neither,
        }
    }
}

/// What a request has changed, with old and new values, for its line in the log. A handler adds it to its answer. It has
/// no secret.
#[derive(Clone, Debug)]
pub(crate) struct Changed(String);

impl Changed {
    /// For a handler's answer, if it has changed anything.
    pub(crate) fn of(line: Option<String>) -> Option<Extension<Self>> {
        line.map(|line| Extension(Self(line)))
    }
}

/// The authentication layer of the service.
struct Door {
    tokens: Option<Arc<RwLock<Tokens>>>,
    began: Instant,
    /// Limits the log lines of refused requests, because anyone can send as many as they like.
    refused: Mutex<Seldom>,
    /// Called for each request without a valid token.
    told: Box<dyn Fn() + Send + Sync>,
}

/// Checks every request of `router`, and logs those that change something. Calls `told` for each without a valid token.
pub(crate) fn guarded(
    router: Router,
    tokens: Option<Arc<RwLock<Tokens>>>,
    told: impl Fn() + Send + Sync + 'static,
) -> Router {
    let told = Box::new(told);
    let door = Door { tokens, began: Instant::now(), refused: Mutex::default(), told };
    router.layer(middleware::from_fn_with_state(Arc::new(door), attend))
}

async fn attend(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let borne = door.tokens.as_ref().map(|tokens| {
        let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let tokens = tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.borne(given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default())
    });
    let method = request.method().clone();
    let refused = borne.and_then(|borne| borne.check(&method).err());
    if matches!(refused, Some(Error::Token)) {
        (door.told)();
    }
    if refused.is_none()
        && let Some(place) = request.extensions().get::<Arc<ConnectionPermit>>()
    {
        place.prove();
    }
    if is_read(&method) {
        return match refused {
            Some(error) => error.into_response(),
            None => next.run(request).await,
        };
    }
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    let by = request.extensions().get::<ConnectInfo<Asker>>().map_or(Asker::Unknown, |by| by.0);
    let token = borne.map(Borne::name);
    match refused {
        None => {
            let answer = next.run(request).await;
            let changed = answer.extensions().get::<Changed>();
            note(&method, &path, answer.status(), by, token, None, changed);
            answer
        }
        Some(error) => {
            let answer = error.into_response();
            if let Some(others) = door.line() {
                note(&method, &path, answer.status(), by, token, Some(others), None);
            }
            answer
        }
    }
}

/// A log line. `others` requests were refused without a line since the last one.
fn note(
    method: &Method,
    path: &str,
    status: StatusCode,
    by: Asker,
    token: Option<&str>,
    others: Option<u64>,
    changed: Option<&Changed>,
) {
    let (status, changed) = (status.as_u16(), changed.map(|changed| &*changed.0));
    tracing::info!(%method, path, status, %by, token, others, changed, "asked to change");
}

impl Door {
    fn line(&self) -> Option<u64> {
        let now_ms = self.began.elapsed().as_millis() as u64;
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).line(now_ms)
    }
}

/// Whether such requests change nothing.
fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Compares in a time that depends only on the length.
fn same(given: &[u8], token: &[u8]) -> bool {
    let differences = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"token", b"token"));
        for other in [&b""[..], b"toke", b"tokens", b"tokem"] {
            assert!(!same(other, b"token"));
        }
    }

    #[test]
    fn the_token_for_reading_permits_no_change() {
        let tokens = Tokens { all: "all".into(), read: Some("read".into()) };
        fn check(tokens: &Tokens, given: &[u8], method: &Method) -> Result<(), Error> {
            tokens.borne(given).check(method)
        }
        for method in [Method::GET, Method::HEAD] {
            assert!(
                check(&tokens, b"all", &method).is_ok() && check(&tokens, b"read", &method).is_ok()
            );
        }
        for method in [Method::PUT, Method::POST, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            assert!(check(&tokens, b"all", &method).is_ok());
            assert!(matches!(check(&tokens, b"read", &method), Err(Error::ReadToken)), "{method}");
        }
        let alone = Tokens { read: None, ..tokens };
        for given in [&b"read"[..], b"", b"other"] {
            assert!(matches!(check(&alone, given, &Method::GET), Err(Error::Token)));
        }
    }
}
