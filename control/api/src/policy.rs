//! The policy that finds the clients' targets.

use std::sync::PoisonError;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use spillway_manager::{Percent, Policy, SmartAlloc};

use crate::problem::Error;
use crate::service::{Daemon, Shared};
use crate::types::{self, Problem};

/// What an interval may be, milliseconds.
pub const INTERVALS_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// Who gets the memory, a line for each of [`Policy::NAMES`].
const SUMMARIES: [&str; Policy::NAMES.len()] = [
    "First come, first served",
    "Equal shares for all clients",
    "Equal shares for the clients that have ever put a page",
    "More for clients that are refused pages, less for clients with pages to spare",
];

/// The policy of now.
#[utoipa::path(get, path = "/v1/policy", tag = "policy", responses((status = 200, body = types::Policy)))]
pub(crate) async fn show(State(daemon): Shared) -> Json<types::Policy> {
    let policy = daemon.manager.lock().unwrap_or_else(PoisonError::into_inner).policy();
    Json(answer(&daemon, policy))
}

/// The policies that there are.
#[utoipa::path(get, path = "/v1/policies", tag = "policy", responses((status = 200, body = [types::PolicyKind])))]
pub(crate) async fn kinds() -> Json<Vec<types::PolicyKind>> {
    let kind = |(policy, summary): (&str, &str)| types::PolicyKind {
        policy: policy.to_owned(),
        summary: summary.to_owned(),
        parameters: parameters(policy).iter().map(|&name| name.to_owned()).collect(),
    };
    Json(Policy::NAMES.into_iter().zip(SUMMARIES).map(kind).collect())
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
    let interval_ms = policy.interval_ms;
    if let Some(bad) = interval_ms.filter(|time| !INTERVALS_MS.contains(time)) {
        let (least, most) = (INTERVALS_MS.start(), INTERVALS_MS.end());
        return Err(Error::Input(format!("interval_ms is {least} to {most}, not {bad}")));
    }
    let policy = parse(&policy)?;
    if let Some(time) = interval_ms {
        daemon.interval_ms.send_replace(time);
    }
    daemon.manager.lock().unwrap_or_else(PoisonError::into_inner).set_policy(policy);
    tracing::info!(policy = policy.name(), "another policy");
    Ok(Json(answer(&daemon, policy)))
}

fn answer(daemon: &Daemon, policy: Policy) -> types::Policy {
    let (p, threshold_pages) = match policy {
        Policy::SmartAlloc(smart) => (Some(smart.p.get()), smart.threshold_pages),
        Policy::Greedy | Policy::StaticAlloc | Policy::ReconfStatic => (None, None),
    };
    let interval_ms = Some(*daemon.interval_ms.borrow());
    types::Policy { policy: policy.name().to_owned(), p, threshold_pages, interval_ms }
}

/// Members of a policy that mean something to the one of this name.
fn parameters(policy: &str) -> &'static [&'static str] {
    if policy == Policy::NAMES[3] { &["p", "threshold_pages"] } else { &[] }
}

fn parse(asked: &types::Policy) -> Result<Policy, Error> {
    let name = asked.policy.as_str();
    if parameters(name).is_empty() && (asked.p.is_some() || asked.threshold_pages.is_some()) {
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
