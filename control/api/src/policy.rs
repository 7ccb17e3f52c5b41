//! The policy that finds the clients' targets.

use std::sync::PoisonError;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use spillway_manager::{Percent, Policy, SmartAlloc, Utility};

use crate::problem::Error;
use crate::service::Shared;
use crate::types::{self, Problem};

/// Least and most of what a miss may cost, µs.
const MISS_US_MIN: u32 = 10;
const MISS_US_MAX: u32 = 1_000_000;

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
    if name != Policy::NAMES[4] && asked.miss_us.is_some() {
        return Err(Error::Input("miss_us is for the policy utility".into()));
    }
    if name != Policy::NAMES[3] && (asked.p.is_some() || asked.threshold_pages.is_some()) {
        return Err(Error::Input("p and threshold_pages are for the policy smart-alloc".into()));
    }
    Ok(match Policy::NAMES.iter().position(|&known| known == name) {
        Some(0) => Policy::Greedy,
        Some(1) => Policy::StaticAlloc,
        Some(2) => Policy::ReconfStatic,
        Some(3) => {
            let p = asked.p.map(|p| p.to_string().parse::<Percent>()).transpose();
            let p = p.map_err(|error| Error::Input(error.to_string()))?;
            let threshold_pages = asked.threshold_pages;
            let p = p.unwrap_or(SmartAlloc::default().p);
            Policy::SmartAlloc(SmartAlloc { p, threshold_pages })
        }
        Some(_) => {
            let usual = Utility::default();
            let miss_us = asked.miss_us.unwrap_or(usual.miss_us);
            if !(MISS_US_MIN..=MISS_US_MAX).contains(&miss_us) {
                let bounds = format!("{MISS_US_MIN} to {MISS_US_MAX}");
                return Err(Error::Input(format!("miss_us {miss_us} is not within {bounds}")));
            }
            Policy::Utility(Utility { miss_us, ..usual })
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
        let name = policy.name().to_owned();
        let mut shown = Self { policy: name, p: None, threshold_pages: None, miss_us: None };
        match policy {
            Policy::SmartAlloc(smart) => {
                (shown.p, shown.threshold_pages) = (Some(smart.p.get()), smart.threshold_pages);
            }
            Policy::Utility(utility) => shown.miss_us = Some(utility.miss_us),
            Policy::Greedy | Policy::StaticAlloc | Policy::ReconfStatic => {}
        }
        shown
    }
}
