//! The policy that finds the clients' targets.

use std::sync::PoisonError;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use spillway_manager::{Percent, Policy, SmartAlloc};

use crate::problem::Error;
use crate::service::Shared;
use crate::types::{self, Problem};

/// The policy of now.
#[utoipa::path(get, path = "/v1/policy", tag = "policy", responses((status = 200, body = types::Policy)))]
pub(crate) async fn show(State(daemon): Shared) -> Json<types::Policy> {
    Json(daemon.manager.lock().unwrap_or_else(PoisonError::into_inner).policy().into())
}

/// Takes another policy, until the daemon ends. Targets follow at the end of the interval.
#[utoipa::path(
    put,
    path = "/v1/policy",
    tag = "policy",
    request_body = types::Policy,
    responses((status = 200, body = types::Policy), (status = 400, body = Problem))
)]
pub(crate) async fn set(
    State(daemon): Shared,
    policy: Result<Json<types::Policy>, JsonRejection>,
) -> Result<Json<types::Policy>, Error> {
    let Json(policy) = policy?;
    let policy = parse(&policy)?;
    daemon.manager.lock().unwrap_or_else(PoisonError::into_inner).set_policy(policy);
    tracing::info!(policy = policy.name(), "another policy");
    Ok(Json(policy.into()))
}

fn parse(asked: &types::Policy) -> Result<Policy, Error> {
    let name = asked.policy.as_str();
    if name != Policy::NAMES[3] && (asked.p.is_some() || asked.threshold_pages.is_some()) {
        return Err(Error::Input("p and threshold_pages are for the policy smart-alloc".into()));
    }
    Ok(match Policy::NAMES.iter().position(|&known| known == name) {
        Some(0) => Policy::Greedy,
        Some(1) => Policy::StaticAlloc,
        Some(2) => Policy::ReconfStatic,
        Some(_) => {
            let p = asked.p.map(|p| p.to_string().parse::<Percent>()).transpose();
            let p = p.map_err(|error| Error::Input(error.to_string()))?;
            let threshold_pages = asked.threshold_pages;
            let p = p.unwrap_or(SmartAlloc::default().p);
            Policy::SmartAlloc(SmartAlloc { p, threshold_pages })
        }
        None => {
            let names = Policy::NAMES.join(", ");
            let name: String = name.chars().take(64).collect();
            return Err(Error::Input(format!("there is no policy '{name}'; there are {names}")));
        }
    })
}

impl From<Policy> for types::Policy {
    fn from(policy: Policy) -> Self {
        let (p, threshold_pages) = match policy {
            Policy::SmartAlloc(smart) => (Some(smart.p.get()), smart.threshold_pages),
            Policy::Greedy | Policy::StaticAlloc | Policy::ReconfStatic => (None, None),
        };
        Self { policy: policy.name().to_owned(), p, threshold_pages }
    }
}
