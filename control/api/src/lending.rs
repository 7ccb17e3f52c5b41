//! This host's loans and borrowed devices, and the operator's requests about them.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use spillway_types::Size;

use crate::asker::Changed;
use crate::parts::{Daemon, LendOrder, Lending, Shared};
use crate::problem::Error;
use crate::types::{LendBorrow, LendStatus, Problem};

/// This host's loans and borrowed devices. If lending is off, its role is `off`.
#[utoipa::path(
    get,
    path = "/v1/lending",
    operation_id = "get_lending",
    tag = "lending",
    responses((status = 200, body = LendStatus))
)]
pub(crate) async fn status(State(daemon): Shared) -> Json<LendStatus> {
    let off = || LendStatus {
        role: "off".to_owned(),
        helper: "none".to_owned(),
        ..LendStatus::default()
    };
    Json(daemon.lending.as_ref().map_or_else(off, |lending| lending.status()))
}

/// Borrows a device now, whatever the memory use. The device stays until you return it.
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
) -> Result<impl IntoResponse, Error> {
    let Json(wanted) = wanted?;
    if wanted.bytes == 0 {
        return Err(Error::Input("bytes: give the size to borrow".into()));
    }
    let (status, lending) = order(&daemon, LendOrder::Borrow(wanted.bytes)).await?;
    Ok((status, Changed::of(Some(format!("borrow {}", Size(wanted.bytes)))), lending))
}

/// Returns all borrowed memory, and does not borrow again because of the present shortage.
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

/// Returns all borrowed memory, recalls all loans, and stops lending and borrowing until `resume`.
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

/// Resumes lending and borrowing.
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
