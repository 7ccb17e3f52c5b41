//! Errors, as problem+json.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{HeaderMap, HeaderValue, Response as HttpResponse, StatusCode, header};
use axum::response::{IntoResponse, Response};
use spillway_connections::{BodyStopped, invalid_detail};
use spillway_directory::Error as RegistryError;
use spillway_store::Error as StoreError;

use crate::types::{HAS_MOVED, MOVING, NO_CLIENT, PROBLEM_TYPE, Problem, STREAM, TOO_MANY_FLUSHES};

/// The challenge for requests without a token.
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// Longest error body of the framework, in bytes.
const DETAIL_BYTES_MAX: usize = 1024;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The client registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The body or the query is invalid.
    #[error("{0}")]
    Input(String),
    /// The peer stopped sending the body.
    #[error(transparent)]
    Late(BodyStopped),
    /// The path does not exist.
    #[error("there is nothing at {0}; GET /openapi.json lists all paths")]
    NoPath(String),
    /// A request over TCP without a token.
    #[error("this needs the header 'Authorization: Bearer TOKEN' with the token of api_token_file")]
    Token,
    /// Plain HTTP at a listener inside TLS.
    #[error("this port speaks HTTPS: use https:// in the address")]
    NeedsTls,
    /// The read token with a request that changes something.
    #[error(
        "the token of api_read_token_file permits only reading: this needs the token of api_token_file"
    )]
    ReadToken,
    /// Lending is off.
    #[error("this host neither lends nor borrows: set lend.roles, see docs/lending.md")]
    NoLending,
    /// There are no guests to resize.
    #[error(
        "this daemon resizes no guests: name them as [[vm]] in its configuration, see docs/guests.md"
    )]
    NoVms,
    /// The guest does not exist.
    #[error("there is no vm '{0}'")]
    NoVm(String),
    /// An order for a guest can't be executed.
    #[error("{0}")]
    VmRefused(String),
    /// The disk does not exist.
    #[error("there is no disk '{0}'; spillway disk list has their names")]
    NoDisk(String),
    /// A disk can't be emptied now.
    #[error("{0}")]
    DiskRefused(String),
    /// An order for lending can't be executed now.
    #[error("{0}")]
    LendRefused(String),
    /// The new configuration can't be used.
    #[error("{0}")]
    ReloadRefused(String),
    /// A task of the daemon ended early.
    #[error("the daemon is stopping")]
    Stopping,
}

impl From<JsonRejection> for Error {
    fn from(rejection: JsonRejection) -> Self {
        match stopped_by(&rejection) {
            Some(stopped) => Self::Late(stopped),
            None => Self::Input(rejection.body_text()),
        }
    }
}

/// Whether a stopped body caused the error.
fn stopped_by(error: &(dyn std::error::Error + 'static)) -> Option<BodyStopped> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| cause.downcast_ref()).copied()
}

impl From<QueryRejection> for Error {
    fn from(rejection: QueryRejection) -> Self {
        Self::Input(rejection.body_text())
    }
}

impl Error {
    /// The error itself, or that the peer stopped sending if that is the cause.
    pub(crate) fn of_body(self) -> Self {
        stopped_by(&self).map_or(self, Self::Late)
    }

    fn kind(&self) -> (StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::Input(_) => (S::BAD_REQUEST, "input"),
            Self::NeedsTls => (S::BAD_REQUEST, "needs-tls"),
            Self::Late(_) => (S::REQUEST_TIMEOUT, "late"),
            Self::NoPath(_) => (S::NOT_FOUND, "no-path"),
            Self::NoLending => (S::CONFLICT, "no-lending"),
            Self::LendRefused(_) => (S::CONFLICT, "lend-refused"),
            Self::ReloadRefused(_) => (S::CONFLICT, "reload-refused"),
            Self::NoVms => (S::CONFLICT, "no-vms"),
            Self::NoVm(_) => (S::NOT_FOUND, "no-vm"),
            Self::VmRefused(_) => (S::CONFLICT, "vm-refused"),
            Self::NoDisk(_) => (S::NOT_FOUND, "no-disk"),
            Self::DiskRefused(_) => (S::CONFLICT, "disk-refused"),
            Self::Token => (S::UNAUTHORIZED, "token"),
            Self::ReadToken => (S::FORBIDDEN, "read-token"),
            Self::Stopping => (S::SERVICE_UNAVAILABLE, "stopping"),
            Self::Registry(error) => match error {
                RegistryError::NoClient(_) => (S::NOT_FOUND, NO_CLIENT),
                RegistryError::Program(_) => (S::CONFLICT, "program"),
                RegistryError::NoPool(_) => (S::NOT_FOUND, "no-pool"),
                RegistryError::NoBlock(_) => (S::NOT_FOUND, "no-block"),
                RegistryError::ClientExists(_) => (S::CONFLICT, "client-exists"),
                RegistryError::NeedsSecret(_) => (S::BAD_REQUEST, "needs-secret"),
                RegistryError::IdentityTaken(_) => (S::CONFLICT, "identity-taken"),
                RegistryError::Configured(_) => (S::CONFLICT, "configured"),
                RegistryError::BlockExists(_) => (S::CONFLICT, "block-exists"),
                RegistryError::InUse(_) | RegistryError::HasDisk(_) | RegistryError::HasLoan(_) => {
                    (S::CONFLICT, "in-use")
                }
                RegistryError::NoLoan(_) => (S::NOT_FOUND, "no-loan"),
                RegistryError::LoanExists(_) => (S::CONFLICT, "loan-exists"),
                RegistryError::NotEmpty(_) => (S::CONFLICT, "not-empty"),
                RegistryError::Moving(_) => (S::CONFLICT, MOVING),
                RegistryError::NotFrozen(_) => (S::CONFLICT, "not-frozen"),
                RegistryError::TooManyFlushes(_) => (S::CONFLICT, TOO_MANY_FLUSHES),
                RegistryError::HasMoved(_) => (S::CONFLICT, HAS_MOVED),
                RegistryError::NotMoved(_) => (S::CONFLICT, "not-moved"),
                RegistryError::Used(_) => (S::CONFLICT, "used"),
                RegistryError::Connected(_) => (S::CONFLICT, "connected"),
                RegistryError::Name(_) => (S::BAD_REQUEST, "name"),
                RegistryError::FloorAboveCap { .. } => (S::BAD_REQUEST, "floor"),
                RegistryError::Stream(_) => (S::BAD_REQUEST, STREAM),
                RegistryError::NoRoom(_) | RegistryError::JournalFull(_) => {
                    (S::INSUFFICIENT_STORAGE, "no-room")
                }
                RegistryError::Store(error) => of_store(error),
                RegistryError::Block(spillway_block_store::Error::Size(_)) => {
                    (S::BAD_REQUEST, "size")
                }
                RegistryError::Block(spillway_block_store::Error::Store(error)) => of_store(error),
                RegistryError::Journal(_) | RegistryError::Io(_) => {
                    (S::INTERNAL_SERVER_ERROR, "internal")
                }
            },
        }
    }
}

fn of_store(error: &StoreError) -> (StatusCode, &'static str) {
    use StatusCode as S;
    match error {
        StoreError::TableFull | StoreError::NoRoom(_) => (S::INSUFFICIENT_STORAGE, "no-room"),
        StoreError::Lifetime(_) => (S::CONFLICT, "lifetime"),
        StoreError::NoClient | StoreError::NoPool => (S::NOT_FOUND, "gone"),
        StoreError::Unreservable => (S::BAD_REQUEST, "size"),
        _ => (S::INTERNAL_SERVER_ERROR, "internal"),
    }
}

/// Turns the framework's own errors, such as for an unknown method, into problems.
pub(crate) async fn of_others(answer: Response) -> Response {
    let status = answer.status();
    let is_problem =
        answer.headers().get(header::CONTENT_TYPE).is_some_and(|it| it == PROBLEM_TYPE);
    if is_problem || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    let told = axum::body::to_bytes(body, DETAIL_BYTES_MAX).await.unwrap_or_default();
    let detail = match String::from_utf8_lossy(&told).into_owned() {
        told if told.is_empty() => status.canonical_reason().unwrap_or_default().to_owned(),
        told => told,
    };
    let body = problem(status, "request", detail);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
    parts.headers.insert(header::CONTENT_LENGTH, body.len().into());
    Response::from_parts(parts, body.into())
}

/// The answer to a request that is not valid HTTP.
pub(crate) fn invalid(status: StatusCode) -> HttpResponse<String> {
    let mut answer = HttpResponse::new(problem(status, "request", invalid_detail(status)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
    protect(answer.headers_mut());
    answer
}

/// Responses are data: browsers must not cache them, render them as a page, or embed them in
/// another.
pub(crate) fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn problem(status: StatusCode, kind: &str, detail: String) -> String {
    let problem = Problem {
        kind: format!("urn:spillway:{kind}"),
        title: status.canonical_reason().unwrap_or_default().to_owned(),
        status: status.as_u16(),
        detail,
    };
    serde_json::to_string(&problem).unwrap_or_default()
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, kind) = self.kind();
        if status.is_server_error() {
            tracing::warn!("{self}");
        }
        let body = problem(status, kind, self.to_string());
        let mut answer = (status, [(header::CONTENT_TYPE, PROBLEM_TYPE)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            // RFC 6750, section 3.
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, BEARER);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::routing::post;
    use axum::{Json, Router};
    use spillway_connections::Deadlines;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::parts::aside;
    use crate::transfer::source_of;

    async fn take(
        body: Result<Json<serde_json::Value>, JsonRejection>,
    ) -> Result<StatusCode, Error> {
        body.map(|_| StatusCode::NO_CONTENT).map_err(Error::from)
    }

    /// Reads a body as an import does.
    async fn import(body: Body) -> Result<StatusCode, Error> {
        let mut source = source_of(body);
        let read = aside(move || Ok(std::io::copy(&mut source, &mut std::io::sink())?));
        read.await.map(|_| StatusCode::NO_CONTENT).map_err(Error::of_body)
    }

    /// The answer to a request whose body should have 100 bytes.
    async fn answer(path: &str, body: &str) -> String {
        let (mut peer, daemon) = tokio::io::duplex(1 << 10);
        let router = Router::new().route("/", post(take)).route("/import", post(import));
        let stall = Duration::from_millis(50);
        let deadlines = Deadlines { head: Duration::from_secs(600), stall };
        let served = tokio::spawn(spillway_connections::serve(daemon, router, deadlines, invalid));
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: 100\r\n\r\n"
        );
        peer.write_all((head + body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        let _ = served.await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_body_that_stops_is_told_from_one_that_is_wrong() {
        for path in ["/", "/import"] {
            let stopped = answer(path, "{").await;
            assert!(stopped.starts_with("HTTP/1.1 408 "), "{stopped}");
            assert!(stopped.contains("urn:spillway:late") && stopped.contains("50ms"), "{stopped}");
        }
        assert!(answer("/import", &"x".repeat(100)).await.starts_with("HTTP/1.1 204 "));
        let wrong = answer("/", &"x".repeat(100)).await;
        assert!(wrong.starts_with("HTTP/1.1 400 ") && wrong.contains("spillway:input"), "{wrong}");
    }
}
