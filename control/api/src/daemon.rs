//! Information about the daemon.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::parts::Shared;
use crate::types::{Dashboard, Health, Version};

/// Version of this interface. It increases when an existing part changes its meaning.
const API_VERSION: u32 = 1;

/// The daemon's version and process.
#[utoipa::path(get, path = "/v1/version", operation_id = "get_version", tag = "daemon", responses((status = 200, body = Version)))]
pub(crate) async fn version(State(daemon): Shared) -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: daemon.commit.map(str::to_owned),
        api: API_VERSION,
        host: daemon.host.clone(),
        pid: std::process::id(),
    })
}

/// Whether it serves, and how.
#[utoipa::path(get, path = "/v1/health", operation_id = "get_health", tag = "daemon", responses((status = 200, body = Health)))]
pub(crate) async fn health(State(daemon): Shared) -> Json<Health> {
    Json(Health {
        serving: true,
        uptime_seconds: daemon.started.elapsed().as_secs(),
        restarts: daemon.client_registry.restarts(),
        memory_locked: daemon.memory_locked,
        kept_by: daemon.kept_by.to_owned(),
    })
}

/// All metrics, in Prometheus' text format.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "get_metrics",
    tag = "daemon",
    responses((status = 200, content_type = "text/plain", body = String))
)]
pub(crate) async fn metrics(State(daemon): Shared) -> impl IntoResponse {
    let (render, content_type) = &daemon.metrics;
    ([(header::CONTENT_TYPE, *content_type)], render())
}

/// The address of the dashboard, which shows the store in a browser.
#[utoipa::path(get, path = "/v1/dashboard", operation_id = "get_dashboard", tag = "daemon", responses((status = 200, body = Dashboard)))]
pub(crate) async fn dashboard(State(daemon): Shared) -> Json<Dashboard> {
    Json(daemon.dashboard.clone())
}
