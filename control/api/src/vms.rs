//! Guests that grow and shrink.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use spillway_types::Size;

use crate::asker::Changed;
use crate::parts::{Daemon, Guests, Shared};
use crate::problem::Error;
use crate::types::{Problem, VmArgs, VmAuto, VmList, VmOutcome, VmResize, VmStatus};

/// The section pool and all guests.
#[utoipa::path(get, path = "/v1/vms", operation_id = "list_vms", tag = "vms", responses((status = 200, body = VmList)))]
pub(crate) async fn list(State(daemon): Shared) -> Json<VmList> {
    Json(daemon.guests.as_ref().map(|guests| guests.list()).unwrap_or_default())
}

/// A guest.
#[utoipa::path(
    get,
    path = "/v1/vms/{name}",
    operation_id = "get_vm",
    tag = "vms",
    params(("name" = String, Path, description = "The guest.")),
    responses((status = 200, body = VmStatus), (status = "4XX", body = Problem))
)]
pub(crate) async fn show(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<Json<VmStatus>, Error> {
    status(&daemon, &name).map(Json)
}

/// Changes a guest's size, and answers when the change has ended.
#[utoipa::path(
    post,
    path = "/v1/vms/{name}/resize",
    operation_id = "resize_vm",
    tag = "vms",
    params(("name" = String, Path, description = "The guest.")),
    request_body = VmResize,
    responses((status = 200, body = VmOutcome), (status = "4XX", body = Problem))
)]
pub(crate) async fn resize(
    State(daemon): Shared,
    Path(name): Path<String>,
    wanted: Result<Json<VmResize>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(wanted) = wanted?;
    let sizes = [wanted.to_bytes, wanted.grow_bytes, wanted.shrink_bytes];
    if sizes.iter().flatten().count() != 1 {
        return Err(Error::Input("give one of to_bytes, grow_bytes and shrink_bytes".into()));
    }
    let ended = guests(&daemon)?.resize(&name, wanted).ok_or(Error::NoVm(name))?;
    match ended.await {
        Ok(Ok(outcome)) => {
            let (now, before) = (Size(outcome.size_bytes), Size(outcome.from_bytes));
            let changed = format!("size {now} (was {before}): {}", outcome.end);
            Ok((Changed::of(Some(changed)), Json(outcome)))
        }
        Ok(Err(why)) => Err(Error::VmRefused(why)),
        Err(_) => Err(Error::Stopping),
    }
}

/// Sets whether a guest's own requests and the memory manager change its size.
#[utoipa::path(
    put,
    path = "/v1/vms/{name}/auto",
    operation_id = "set_vm_auto",
    tag = "vms",
    params(("name" = String, Path, description = "The guest.")),
    request_body = VmAuto,
    responses((status = 200, body = VmStatus), (status = "4XX", body = Problem))
)]
pub(crate) async fn set_auto(
    State(daemon): Shared,
    Path(name): Path<String>,
    wanted: Result<Json<VmAuto>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(wanted) = wanted?;
    if !guests(&daemon)?.set_auto(&name, wanted.auto) {
        return Err(Error::NoVm(name));
    }
    let mut status = status(&daemon, &name)?;
    status.auto = wanted.auto;
    Ok((Changed::of(Some(format!("auto {}", wanted.auto))), Json(status)))
}

/// Reserves a guest's boot memory, and returns the options with which to start QEMU.
#[utoipa::path(
    post,
    path = "/v1/vms/{name}/args",
    operation_id = "get_vm_args",
    tag = "vms",
    params(("name" = String, Path, description = "The guest.")),
    responses((status = 200, body = VmArgs), (status = "4XX", body = Problem))
)]
pub(crate) async fn args(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<Json<VmArgs>, Error> {
    let guests = daemon.guests.clone().ok_or(Error::NoVms)?;
    let asked = name.clone();
    // The host may take long to allocate the memory, or the store to return lent memory.
    let args = tokio::task::spawn_blocking(move || guests.args(&asked)).await;
    let args = args.map_err(|_| Error::Stopping)?.ok_or(Error::NoVm(name))?;
    args.map(Json).map_err(Error::VmRefused)
}

fn guests(daemon: &Daemon) -> Result<&dyn Guests, Error> {
    daemon.guests.as_deref().ok_or(Error::NoVms)
}

fn status(daemon: &Daemon, name: &str) -> Result<VmStatus, Error> {
    let listed = guests(daemon)?.list().vms;
    listed.into_iter().find(|vm| vm.name == name).ok_or_else(|| Error::NoVm(name.to_owned()))
}
