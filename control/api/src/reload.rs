//! The reload of the configuration.

use axum::Json;
use axum::extract::State;
use tokio::sync::oneshot;

use crate::parts::Shared;
use crate::problem::Error;
use crate::types::{Problem, Reload};

/// Reads the configuration file again, and the files with keys, certificates and secrets that it names. Answers when
/// the new settings are in force. An error in any of the files changes nothing.
#[utoipa::path(
    post,
    path = "/v1/reload",
    operation_id = "reload_configuration",
    tag = "daemon",
    responses((status = 200, body = Reload), (status = "4XX", body = Problem))
)]
pub(crate) async fn reload(State(daemon): Shared) -> Result<Json<Reload>, Error> {
    let (outcome, done) = oneshot::channel();
    daemon.reloads.send(outcome).await.map_err(|_| Error::Stopping)?;
    let reloaded = done.await.map_err(|_| Error::Stopping)?;
    reloaded.map(Json).map_err(Error::ReloadRefused)
}
