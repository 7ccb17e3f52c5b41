//! What went wrong, as problem+json.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use spillway_directory::Error as RegistryError;
use spillway_store::Error as StoreError;

use crate::types::{PROBLEM_TYPE, Problem};

/// How whoever gave no token could have.
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The client registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The body or the query is not what is asked for.
    #[error("{0}")]
    Input(String),
    /// A path that there is not.
    #[error("there is nothing at {0}; GET /openapi.json tells what there is")]
    NoPath(String),
    /// A listener on TCP was asked without its token.
    #[error("this needs the header 'Authorization: Bearer TOKEN' with the token of api_token_file")]
    Token,
    /// The token that only reads came with a request that does more.
    #[error("the token of api_read_token_file only reads: this needs the token of api_token_file")]
    ReadToken,
    /// Lending is off.
    #[error("this host neither lends nor borrows: set lend.roles, see docs/lending.md")]
    NoLending,
    /// There are no guests to resize.
    #[error(
        "this daemon resizes no guests: name them as [[vm]] in its configuration, see docs/guests.md"
    )]
    NoVms,
    /// A guest that there is not.
    #[error("there is no vm '{0}'")]
    NoVm(String),
    /// What is wanted of a guest can't be done.
    #[error("{0}")]
    VmRefused(String),
    /// What the operator wants of lending can't be done now.
    #[error("{0}")]
    LendRefused(String),
    /// A task of the daemon ended before its time.
    #[error("the daemon is stopping")]
    Stopping,
}

impl From<JsonRejection> for Error {
    fn from(rejection: JsonRejection) -> Self {
        Self::Input(rejection.body_text())
    }
}

impl From<QueryRejection> for Error {
    fn from(rejection: QueryRejection) -> Self {
        Self::Input(rejection.body_text())
    }
}

impl Error {
    fn kind(&self) -> (StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::Input(_) => (S::BAD_REQUEST, "input"),
            Self::NoPath(_) => (S::NOT_FOUND, "no-path"),
            Self::NoLending => (S::CONFLICT, "no-lending"),
            Self::LendRefused(_) => (S::CONFLICT, "lend-refused"),
            Self::NoVms => (S::CONFLICT, "no-vms"),
            Self::NoVm(_) => (S::NOT_FOUND, "no-vm"),
            Self::VmRefused(_) => (S::CONFLICT, "vm-refused"),
            Self::Token => (S::UNAUTHORIZED, "token"),
            Self::ReadToken => (S::FORBIDDEN, "read-token"),
            Self::Stopping => (S::SERVICE_UNAVAILABLE, "stopping"),
            Self::Registry(error) => match error {
                RegistryError::NoClient(_) => (S::NOT_FOUND, "no-client"),
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
                RegistryError::NotFrozen(_) => (S::CONFLICT, "not-frozen"),
                RegistryError::TooManyFlushes(_) => (S::CONFLICT, "too-many-flushes"),
                RegistryError::Name(_) => (S::BAD_REQUEST, "name"),
                RegistryError::Stream(_) => (S::BAD_REQUEST, "stream"),
                RegistryError::NoRoom(_) | RegistryError::JournalFull(_) => {
                    (S::INSUFFICIENT_STORAGE, "no-room")
                }
                RegistryError::Store(error) => of_store(error),
                RegistryError::Block(spillway_block::Error::Size(_)) => (S::BAD_REQUEST, "size"),
                RegistryError::Block(spillway_block::Error::Store(error)) => of_store(error),
                RegistryError::Block(_) | RegistryError::Journal(_) | RegistryError::Io(_) => {
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

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, kind) = self.kind();
        if status.is_server_error() {
            tracing::warn!("{self}");
        }
        let problem = Problem {
            kind: format!("urn:spillway:{kind}"),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: self.to_string(),
        };
        let body = serde_json::to_string(&problem).unwrap_or_default();
        let mut answer = (status, [(header::CONTENT_TYPE, PROBLEM_TYPE)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            // RFC 6750, section 3.
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, BEARER);
        }
        answer
    }
}
