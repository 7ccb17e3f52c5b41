//! Tmem disks.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use spillway_types::{PAGE_BYTES, Size};

use crate::asker::Changed;
use crate::parts::Shared;
use crate::problem::Error;
use crate::types::{DiskEmptied, DiskStatus, Problem};

/// All tmem disks, in the order of the configuration.
#[utoipa::path(get, path = "/v1/disks", operation_id = "list_disks", tag = "disks", responses((status = 200, body = [DiskStatus])))]
pub(crate) async fn list(State(daemon): Shared) -> Json<Vec<DiskStatus>> {
    Json(daemon.disks.list())
}

/// Removes all pages of a disk from the store. A swap disk reads as zeros afterwards; a cache disk keeps the data in its
/// file. Refused while a guest is connected, and for a few seconds after its connection or the daemon began or ended.
#[utoipa::path(
    post,
    path = "/v1/disks/{name}/empty",
    operation_id = "empty_disk",
    tag = "disks",
    params(("name" = String, Path, description = "The disk.")),
    responses((status = 200, body = DiskEmptied), (status = "4XX", body = Problem))
)]
pub(crate) async fn empty(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, Error> {
    let asked = name.clone();
    // A long disk takes long.
    let emptied = tokio::task::spawn_blocking(move || daemon.disks.empty(&asked)).await;
    let emptied = emptied.map_err(|_| Error::Stopping)?;
    let emptied =
        emptied.ok_or_else(|| Error::NoDisk(name.clone()))?.map_err(Error::DiskRefused)?;
    let freed = Size(emptied.freed_pages.saturating_mul(PAGE_BYTES as u64));
    Ok((Changed::of(Some(format!("disk {name}: {freed} freed"))), Json(emptied)))
}
