//! Clients and their targets.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use spillway_directory::{
    ClientChange, ClientSettings, ClientView, FLOOR_PAGES_MAX, Origin, Secret, WEIGHTS, Who,
};
use spillway_types::{Limits, PAGE_BYTES, Size};

use crate::asker::Changed;
use crate::parts::{Shared, aside};
use crate::problem::Error;
use crate::store::{parse_uuid, show_uuid};
use crate::types::{self, Client, ClientTarget, Identity, NewClient, Problem, Statistics, Target};

/// All clients, by name; then all paged programs.
#[utoipa::path(get, path = "/v1/clients", operation_id = "list_clients", tag = "clients", responses((status = 200, body = [Client])))]
pub(crate) async fn list(State(daemon): Shared) -> Result<Json<Vec<Client>>, Error> {
    let clients =
        daemon.client_registry.clients()?.into_iter().chain(daemon.client_registry.programs());
    Ok(Json(clients.map(Client::from).collect()))
}

/// Adds a client. It stays until you remove it or the daemon stops.
#[utoipa::path(
    post,
    path = "/v1/clients",
    operation_id = "add_client",
    tag = "clients",
    request_body = NewClient,
    responses((status = 201, body = Client), (status = "4XX", body = Problem))
)]
pub(crate) async fn add(
    State(daemon): Shared,
    client: Result<Json<NewClient>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(client) = client?;
    let settings = settings(client, daemon.limits)?;
    daemon.client_registry.add_client(&settings)?;
    let cap = limited(settings.target_pages).and_then(|pages| pages.checked_mul(PAGE_BYTES as u64));
    let cap = cap.map_or_else(|| "none".to_owned(), |bytes| Size(bytes).to_string());
    let who = &settings.who;
    let changed = Changed::of(Some(format!("client {}: {who}, cap {cap}", settings.name)));
    let added = Client::from(daemon.client_registry.client(&settings.name)?);
    Ok((StatusCode::CREATED, changed, Json(added)))
}

/// One client.
#[utoipa::path(
    get,
    path = "/v1/clients/{name}",
    operation_id = "get_client",
    tag = "clients",
    params(("name" = String, Path)),
    responses((status = 200, body = Client), (status = 404, body = Problem))
)]
pub(crate) async fn show(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<Json<Client>, Error> {
    Ok(Json(daemon.client_registry.client(&name)?.into()))
}

/// How to remove a client.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Removal {
    /// Only if it has moved.
    #[serde(default)]
    moved: bool,
}

/// Removes a client with its pools. With `moved`, only if it has moved to another daemon; one that is configured then
/// stays without pools.
#[utoipa::path(
    delete,
    path = "/v1/clients/{name}",
    operation_id = "remove_client",
    tag = "clients",
    params(("name" = String, Path), ("moved" = Option<bool>, Query)),
    responses((status = 204), (status = "4XX", body = Problem))
)]
pub(crate) async fn remove(
    State(daemon): Shared,
    Path(name): Path<String>,
    removal: Result<Query<Removal>, QueryRejection>,
) -> Result<StatusCode, Error> {
    let Query(removal) = removal?;
    let client_registry = daemon.client_registry.clone();
    aside(move || match removal.moved {
        true => client_registry.remove_moved(&name),
        false => client_registry.remove_client(&name),
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A client's target and cap.
#[utoipa::path(
    get,
    path = "/v1/clients/{name}/target",
    operation_id = "get_client_target",
    tag = "clients",
    params(("name" = String, Path)),
    responses((status = 200, body = ClientTarget), (status = 404, body = Problem))
)]
pub(crate) async fn target(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<Json<ClientTarget>, Error> {
    Ok(Json(daemon.client_registry.client(&name)?.into()))
}

/// Sets a client's cap, the most that it may hold. Its target is at most the cap. Puts above the
/// target are refused; stored values stay. Returns the target.
#[utoipa::path(
    put,
    path = "/v1/clients/{name}/target",
    operation_id = "set_client_target",
    tag = "clients",
    params(("name" = String, Path)),
    request_body = Target,
    responses((status = 200, body = ClientTarget), (status = "4XX", body = Problem))
)]
pub(crate) async fn set_target(
    State(daemon): Shared,
    Path(name): Path<String>,
    target: Result<Json<Target>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(target) = target?;
    let cap_pages = Some(target.target_pages.unwrap_or(u64::MAX));
    let change = ClientChange { cap_pages, ..ClientChange::default() };
    let changed = daemon.client_registry.change_client(&name, change)?;
    let target = ClientTarget::from(daemon.client_registry.client(&name)?);
    Ok((Changed::of(changed), Json(target)))
}

/// Changes the cap, floor or weight of a client or program. The change takes effect with the next interval and
/// survives a restart with a kept store. A later change of the configuration file overrides it.
#[utoipa::path(
    patch,
    path = "/v1/clients/{name}",
    operation_id = "change_client",
    tag = "clients",
    params(("name" = String, Path)),
    request_body = types::ClientChange,
    responses((status = 200, body = Client), (status = "4XX", body = Problem))
)]
pub(crate) async fn change(
    State(daemon): Shared,
    Path(name): Path<String>,
    change: Result<Json<types::ClientChange>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(change) = change?;
    if let Some(weight) = change.weight.filter(|weight| !WEIGHTS.contains(weight)) {
        let (least, most) = (WEIGHTS.start(), WEIGHTS.end());
        return Err(Error::Input(format!("weight is {least} to {most}, not {weight}")));
    }
    if let Some(pages) = change.floor_pages.filter(|&pages| pages > FLOOR_PAGES_MAX) {
        return Err(Error::Input(format!("floor_pages is at most {FLOOR_PAGES_MAX}, not {pages}")));
    }
    let change = ClientChange {
        cap_pages: change.cap_pages.map(|pages| pages.unwrap_or(u64::MAX)),
        floor_pages: change.floor_pages,
        weight: change.weight,
    };
    let changed = daemon.client_registry.change_client(&name, change)?;
    let client = Client::from(daemon.client_registry.client(&name)?);
    Ok((Changed::of(changed), Json(client)))
}

/// Accepts the puts of an exported client again.
#[utoipa::path(
    post,
    path = "/v1/clients/{name}/thaw",
    operation_id = "thaw_client",
    tag = "moving",
    params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = Problem))
)]
pub(crate) async fn thaw(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<StatusCode, Error> {
    daemon.client_registry.thaw(&name)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Notes that another daemon has all that an exported client stores. It stays exported, also over a restart, until it is
/// removed or thawed.
#[utoipa::path(
    post,
    path = "/v1/clients/{name}/moved",
    operation_id = "set_client_moved",
    tag = "moving",
    params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem))
)]
pub(crate) async fn moved(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<StatusCode, Error> {
    daemon.client_registry.set_moved(&name)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A target in the interface's form.
pub(crate) const fn limited(target_pages: u64) -> Option<u64> {
    match target_pages {
        u64::MAX => None,
        pages => Some(pages),
    }
}

fn settings(client: NewClient, usual: Limits) -> Result<ClientSettings, Error> {
    let who = match client.identity {
        Identity::Uid(uid) => Who::User(uid),
        Identity::Gid(gid) => Who::Group(gid),
        Identity::Nqn(nqn) => Who::Host(nqn),
        Identity::Name(name) => Who::Name(name),
        Identity::Disk(_) => {
            let line =
                "a client of disks can be set only in the configuration file, with its [[disk]]";
            return Err(Error::Input(line.into()));
        }
        Identity::Password(_) => {
            let line = "a client with a password can be set only in the configuration file, with its password_file";
            return Err(Error::Input(line.into()));
        }
        Identity::Program(_) => {
            return Err(Error::Input("a program registers itself, under spillway run".into()));
        }
    };
    let secret = match (&client.secret, &who) {
        (None, _) => None,
        (Some(text), Who::Host(nqn)) => {
            Some(Secret::parse(text, nqn).map_err(|error| Error::Input(error.to_string()))?)
        }
        (Some(_), _) => return Err(Error::Input("a secret is for hosts: give an nqn".into())),
    };
    let shared = client.shared.iter().map(|uuid| parse_uuid(uuid));
    Ok(ClientSettings {
        name: client.name,
        who,
        secret,
        target_pages: client.target_pages.unwrap_or(u64::MAX),
        floor_pages: 0,
        weight: 1,
        limits: Limits {
            connections_max: client.connections_max.unwrap_or(usual.connections_max),
            operations_max: client.operations_max.unwrap_or(usual.operations_max),
            bytes_max: client.bytes_max.unwrap_or(usual.bytes_max),
        },
        domain: client.domain,
        shared: shared.collect::<Result<_, _>>()?,
    })
}

impl From<ClientView> for ClientTarget {
    fn from(view: ClientView) -> Self {
        let (target, cap) = (view.statistics.target_pages, view.cap_pages);
        Self { target_pages: limited(target), cap_pages: limited(cap) }
    }
}

impl From<ClientView> for Client {
    fn from(view: ClientView) -> Self {
        Self {
            name: view.name,
            identity: match view.who {
                Who::User(uid) => Identity::Uid(uid),
                Who::Group(gid) => Identity::Gid(gid),
                Who::Host(nqn) => Identity::Nqn(nqn),
                Who::Name(name) => Identity::Name(name),
                Who::Disk(name) => Identity::Disk(name),
                Who::Password(name) => Identity::Password(name),
                Who::Program(pid) => Identity::Program(pid),
            },
            origin: match view.origin {
                Origin::Configured => "configured",
                Origin::Added => "added",
                Origin::Unnamed => "unnamed",
            }
            .to_owned(),
            connections: view.connections,
            connections_max: view.limits.connections_max,
            operations_max: view.limits.operations_max,
            bytes_max: view.limits.bytes_max,
            in_flight_bytes: view.in_flight_bytes,
            cap_pages: limited(view.cap_pages),
            floor_pages: view.floor_pages,
            weight: view.weight,
            domain: view.domain,
            shared: view.shared.into_iter().map(show_uuid).collect(),
            arrived: view.arrived,
            frozen: view.frozen,
            moved: view.moved,
            metrics_number: view.series.map(|series| series.number),
            statistics: Statistics {
                puts: view.statistics.puts,
                puts_stored: view.statistics.puts_stored,
                puts_refused_at_target: view.statistics.puts_refused_at_target,
                puts_refused_node_full: view.statistics.puts_refused_node_full,
                puts_refused_other: view.statistics.puts_refused_other,
                gets: view.statistics.gets,
                hits: view.statistics.hits,
                misses: view.statistics.misses,
                flushed_pages: view.statistics.flushed_pages,
                evicted_pages: view.statistics.evicted_pages,
                used_pages: view.statistics.used_pages,
                target_pages: limited(view.statistics.target_pages),
                reserved_pages: view.statistics.reserved_pages,
            },
        }
    }
}
