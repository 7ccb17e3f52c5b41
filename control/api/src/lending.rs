//! What this host lends and borrows, and what the operator wants of that.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use tokio::sync::oneshot;

use crate::problem::Error;
use crate::service::{Daemon, Shared};
use crate::types::{LendBorrow, LendStatus, Problem};

/// Whoever lends and borrows for the daemon.
pub trait Lending: Send + Sync {
    /// How it stands.
    fn status(&self) -> LendStatus;

    /// Has something done; whether it was begun comes back, or a line that says why it can't be.
    fn order(&self, order: LendOrder) -> oneshot::Receiver<Result<(), String>>;
}

/// What an operator can want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LendOrder {
    /// Borrow a device of so many bytes.
    Borrow(u64),
    /// Give back all that is borrowed.
    Return,
    /// Give all back, recall all that is lent, and do neither until `Resume`.
    Drain,
    /// Take part again.
    Resume,
}

/// What this host lends and borrows. Where that is off, its role is `off`.
#[utoipa::path(
    get,
    path = "/v1/lending",
    operation_id = "get_lending",
    tag = "lending",
    responses((status = 200, body = LendStatus))
)]
pub(crate) async fn status(State(daemon): Shared) -> Json<LendStatus> {
    let off = || LendStatus { role: "off".to_owned(), ..LendStatus::default() };
    Json(daemon.lending.as_ref().map_or_else(off, |lending| lending.status()))
}

/// Borrows a device now, whatever the memory says. It stays until it is returned.
#[utoipa::path(
    post,
    path = "/v1/lending/borrow",
    operation_id = "borrow_memory",
    tag = "lending",
    request_body = LendBorrow,
    responses((status = 202, body = LendStatus), (status = "4XX", body = Problem))
)]
pub(crate) async fn borrow(
    State(daemon): Shared,
    wanted: Result<Json<LendBorrow>, JsonRejection>,
) -> Result<(StatusCode, Json<LendStatus>), Error> {
    let Json(wanted) = wanted?;
    if wanted.bytes == 0 {
        return Err(Error::Input("bytes: how much is to be borrowed".into()));
    }
    order(&daemon, LendOrder::Borrow(wanted.bytes)).await
}

/// Gives back all that is borrowed, and borrows nothing for the memory that is short just now.
#[utoipa::path(
    post,
    path = "/v1/lending/return",
    operation_id = "return_memory",
    tag = "lending",
    responses((status = 202, body = LendStatus), (status = "4XX", body = Problem))
)]
pub(crate) async fn give_back(
    State(daemon): Shared,
) -> Result<(StatusCode, Json<LendStatus>), Error> {
    order(&daemon, LendOrder::Return).await
}

/// Gives back all that is borrowed, recalls all that is lent, and does neither again until it is resumed.
#[utoipa::path(
    post,
    path = "/v1/lending/drain",
    operation_id = "drain_lending",
    tag = "lending",
    responses((status = 202, body = LendStatus), (status = "4XX", body = Problem))
)]
pub(crate) async fn drain(State(daemon): Shared) -> Result<(StatusCode, Json<LendStatus>), Error> {
    order(&daemon, LendOrder::Drain).await
}

/// Lends and borrows again.
#[utoipa::path(
    post,
    path = "/v1/lending/resume",
    operation_id = "resume_lending",
    tag = "lending",
    responses((status = 202, body = LendStatus), (status = "4XX", body = Problem))
)]
pub(crate) async fn resume(State(daemon): Shared) -> Result<(StatusCode, Json<LendStatus>), Error> {
    order(&daemon, LendOrder::Resume).await
}

fn lending(daemon: &Daemon) -> Result<&dyn Lending, Error> {
    daemon.lending.as_deref().ok_or(Error::NoLending)
}

async fn order(daemon: &Daemon, order: LendOrder) -> Result<(StatusCode, Json<LendStatus>), Error> {
    let lending = lending(daemon)?;
    match lending.order(order).await {
        Ok(Ok(())) => Ok((StatusCode::ACCEPTED, Json(lending.status()))),
        Ok(Err(why)) => Err(Error::LendRefused(why)),
        Err(_) => Err(Error::Stopping),
    }
}
