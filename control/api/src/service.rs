//! The service: its routes and authentication.

use std::sync::{Arc, RwLock};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Uri, header};
use axum::middleware;
use axum::response::Response;
use spillway_types::Access;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::asker::{self, Tokens};
use crate::parts::Daemon;
use crate::problem::Error;
use crate::{
    clients, daemon, disks, history, lending, openapi, policy, problem, reload, store, transfer,
    vms,
};

/// Largest request body in bytes, except an import's.
const BODY_BYTES_MAX: usize = 64 << 10;

#[derive(OpenApi)]
#[openapi(info(
    title = "Spillway",
    version = "1",
    description = "What an operator asks of spillwayd. Errors are problem+json (RFC 9457). At the Unix socket api.sock, \
                   which only the daemon's user and root can open, no token is needed; at listen.api_tcp and api_tls \
                   every request needs one.",
    license(name = "Apache-2.0", identifier = "Apache-2.0"),
    contact()
))]
struct Document;

fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(daemon::version))
        .routes(routes!(daemon::health))
        .routes(routes!(daemon::metrics))
        .routes(routes!(daemon::dashboard))
        .routes(routes!(reload::reload))
        .routes(routes!(store::status))
        .routes(routes!(clients::list, clients::add))
        .routes(routes!(clients::show, clients::change, clients::remove))
        .routes(routes!(clients::target, clients::set_target))
        .routes(routes!(clients::thaw))
        .routes(routes!(clients::moved))
        .routes(routes!(policy::show, policy::set))
        .routes(routes!(policy::kinds))
        .routes(routes!(history::show))
        .routes(routes!(store::pools, store::create_pool))
        .routes(routes!(store::destroy_pool))
        .routes(routes!(store::blocks, store::create_block))
        .routes(routes!(store::destroy_block))
        .routes(routes!(disks::list))
        .routes(routes!(disks::empty))
        .routes(routes!(lending::status))
        .routes(routes!(lending::borrow))
        .routes(routes!(lending::give_back))
        .routes(routes!(lending::drain))
        .routes(routes!(lending::resume))
        .routes(routes!(vms::list))
        .routes(routes!(vms::show))
        .routes(routes!(vms::resize))
        .routes(routes!(vms::set_auto))
        .routes(routes!(vms::args))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .routes(routes!(transfer::export))
        .merge(
            OpenApiRouter::new()
                .routes(routes!(transfer::import))
                .layer(DefaultBodyLimit::disable()),
        )
}

/// The OpenAPI document, as docs/openapi.json holds it.
pub fn document() -> String {
    let (_, mut document) = routes().split_for_parts();
    openapi::complete(&mut document);
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// The service. With `tokens`, every request must carry one of the present tokens. Requests that change something are
/// logged with their peer, which [`serve`](crate::serve) attaches to each request.
pub fn router(daemon: Arc<Daemon>, tokens: Option<Arc<RwLock<Tokens>>>) -> Router {
    let (router, _) = routes().split_for_parts();
    let router = router
        .route("/openapi.json", axum::routing::get(openapi_json))
        .fallback(|uri: Uri| async move { Error::NoPath(uri.path().to_owned()) })
        .with_state(daemon.clone());
    let refused = move || daemon.client_registry.authentication_failed();
    asker::guarded(router, tokens, refused).layer(middleware::map_response(headed))
}

async fn headed(answer: Response) -> Response {
    let mut answer = problem::of_others(answer).await;
    problem::protect(answer.headers_mut());
    answer
}

async fn openapi_json() -> impl axum::response::IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document())
}

#[cfg(test)]
mod tests {
    use spillway_test_support::documents;

    use super::*;

    #[test]
    fn the_document_in_docs_is_what_the_code_says() {
        documents::check("openapi.json", &document());
    }
}
