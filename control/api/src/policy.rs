//! The policy that computes the clients' targets.

use std::sync::PoisonError;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::IntoResponse;
use spillway_directory::{ClientRegistry, Error as RegistryError, ManagerSettings};
use spillway_manager::{Percent, Policy, SmartAlloc, Utility};
use spillway_types::{PAGE_BYTES, Size};

use crate::asker::Changed;
use crate::parts::{Daemon, Shared};
use crate::problem::Error;
use crate::types::{self, Problem};

/// Bounds of an interval, milliseconds.
pub const INTERVALS_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// How each policy divides memory, a line for each of [`Policy::NAMES`].
const SUMMARIES: [&str; Policy::NAMES.len()] = [
    "First come, first served",
    "Equal shares for all clients",
    "Equal shares for the clients that have ever put a page",
    "More for clients whose puts are refused, less for clients with unused memory",
    "Each page where it saves the most waiting",
];

/// Bounds of the cost of a miss, µs.
const MISS_US_MIN: u32 = 10;
const MISS_US_MAX: u32 = 1_000_000;

/// The present policy.
#[utoipa::path(get, path = "/v1/policy", operation_id = "get_policy", tag = "policy", responses((status = 200, body = types::Policy)))]
pub(crate) async fn show(State(daemon): Shared) -> Json<types::Policy> {
    let policy = daemon.manager.lock().unwrap_or_else(PoisonError::into_inner).policy();
    Json(answer(&daemon, policy))
}

/// All policies.
#[utoipa::path(get, path = "/v1/policies", operation_id = "list_policies", tag = "policy", responses((status = 200, body = [types::PolicyKind])))]
pub(crate) async fn kinds() -> Json<Vec<types::PolicyKind>> {
    let kind = |(policy, summary): (&str, &str)| types::PolicyKind {
        policy: policy.to_owned(),
        summary: summary.to_owned(),
        parameters: parameters(policy).iter().map(|&name| name.to_owned()).collect(),
    };
    Json(Policy::NAMES.into_iter().zip(SUMMARIES).map(kind).collect())
}

/// Sets another policy. It survives a restart with a kept store. A later change of the configuration file overrides it.
/// Targets change at the end of the interval.
#[utoipa::path(
    put,
    path = "/v1/policy",
    operation_id = "set_policy",
    tag = "policy",
    request_body = types::Policy,
    responses((status = 200, body = types::Policy), (status = 400, body = Problem))
)]
pub(crate) async fn set(
    State(daemon): Shared,
    policy: Result<Json<types::Policy>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(policy) = policy?;
    let interval_ms = policy.interval_ms;
    if let Some(bad) = interval_ms.filter(|time| !INTERVALS_MS.contains(time)) {
        let (least, most) = (INTERVALS_MS.start(), INTERVALS_MS.end());
        return Err(Error::Input(format!("interval_ms is {least} to {most}, not {bad}")));
    }
    let policy = parse(&policy)?;
    let interval_ms = interval_ms.unwrap_or(*daemon.interval_ms.borrow());
    let before = daemon.policy();
    daemon.client_registry.change_manager(settings(policy, interval_ms)?)?;
    let interval_before_ms = daemon.interval_ms.send_replace(interval_ms);
    daemon.set_policy(policy);
    let changed = change((before, interval_before_ms), (policy, interval_ms));
    Ok((Changed::of(changed), Json(answer(&daemon, policy))))
}

/// Applies the configuration of the memory manager. Returns the effective policy and interval in milliseconds. A policy
/// that an operator has set stays, unless the configuration's has changed since.
///
/// # Errors
/// The registry can't store it.
pub fn configure(
    client_registry: &ClientRegistry,
    configured: Policy,
    interval_ms: u64,
) -> Result<(Policy, u64), RegistryError> {
    let configured_settings = settings(configured, interval_ms)?;
    let current = client_registry.configure_manager(configured_settings.clone())?;
    if let Some(policy) = policy_of(&current) {
        return Ok((policy, current.interval_ms));
    }
    tracing::warn!(
        policy = current.policy,
        "this version does not know the policy that was set: using the configuration's"
    );
    client_registry.change_manager(configured_settings)?;
    Ok((configured, interval_ms))
}

/// A policy in the registry's form, which is this interface's.
fn settings(policy: Policy, interval_ms: u64) -> Result<ManagerSettings, RegistryError> {
    let policy = serde_json::to_string(&shown(policy)).map_err(std::io::Error::from)?;
    Ok(ManagerSettings { policy, interval_ms })
}

fn policy_of(settings: &ManagerSettings) -> Option<Policy> {
    parse(&serde_json::from_str(&settings.policy).ok()?).ok()
}

/// A line about the policy and the interval in milliseconds, with old and new values; none if nothing has changed.
pub fn change(before: (Policy, u64), after: (Policy, u64)) -> Option<String> {
    (before != after).then(|| format!("policy {} (was {})", described(after), described(before)))
}

/// A policy with its parameters and interval, for the log.
pub fn described((policy, interval_ms): (Policy, u64)) -> String {
    let its = shown(policy);
    let parts = [
        Some(its.policy),
        its.p.map(|p| format!("p {p} %")),
        its.threshold_pages.map(|pages| format!("threshold {}", size(pages))),
        its.miss_us.map(|us| format!("miss {us} us")),
        its.fairness_percent.map(|percent| format!("fairness {percent} %")),
        Some(format!("interval {interval_ms} ms")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn size(pages: u64) -> Size {
    Size(pages.saturating_mul(PAGE_BYTES as u64))
}

fn answer(daemon: &Daemon, policy: Policy) -> types::Policy {
    types::Policy { interval_ms: Some(*daemon.interval_ms.borrow()), ..shown(policy) }
}

/// A policy without its interval.
fn shown(policy: Policy) -> types::Policy {
    let mut shown = types::Policy {
        policy: policy.name().to_owned(),
        p: None,
        threshold_pages: None,
        miss_us: None,
        fairness_percent: None,
        interval_ms: None,
    };
    match policy {
        Policy::SmartAlloc(smart) => {
            (shown.p, shown.threshold_pages) = (Some(smart.p.get()), smart.threshold_pages);
        }
        Policy::Utility(utility) => {
            shown.miss_us = Some(utility.miss_us);
            shown.fairness_percent = Some(utility.fairness_percent);
        }
        Policy::Greedy | Policy::StaticAlloc | Policy::ReconfStatic => {}
    }
    shown
}

/// The members that apply to the policy of this name.
fn parameters(policy: &str) -> &'static [&'static str] {
    match Policy::NAMES.iter().position(|&known| known == policy) {
        Some(3) => &["p", "threshold_pages"],
        Some(4) => &["miss_us", "fairness_percent"],
        _ => &[],
    }
}

fn parse(asked: &types::Policy) -> Result<Policy, Error> {
    let name = asked.policy.as_str();
    let given = [
        ("p", asked.p.is_some()),
        ("threshold_pages", asked.threshold_pages.is_some()),
        ("miss_us", asked.miss_us.is_some()),
        ("fairness_percent", asked.fairness_percent.is_some()),
    ];
    let known = parameters(name);
    if let Some((stray, _)) = given.iter().find(|(it, is_given)| *is_given && !known.contains(it)) {
        let owner = Policy::NAMES.iter().find(|other| parameters(other).contains(stray));
        let owner = owner.copied().unwrap_or_default();
        return Err(Error::Input(format!("{stray} is for the policy {owner}")));
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
        Some(4) => {
            let usual = Utility::default();
            let miss_us = asked.miss_us.unwrap_or(usual.miss_us);
            if !(MISS_US_MIN..=MISS_US_MAX).contains(&miss_us) {
                let bounds = format!("{MISS_US_MIN} to {MISS_US_MAX}");
                return Err(Error::Input(format!("miss_us {miss_us} is not within {bounds}")));
            }
            let fairness_percent = asked.fairness_percent.unwrap_or(usual.fairness_percent);
            if fairness_percent > 100 {
                let what = format!("fairness_percent {fairness_percent} is not within 0 to 100");
                return Err(Error::Input(what));
            }
            Policy::Utility(Utility { miss_us, fairness_percent, ..usual })
        }
        Some(_) | None => {
            let names = Policy::NAMES.join(", ");
            let name: String = name.chars().take(64).collect();
            return Err(Error::Input(format!("there is no policy '{name}'; there are {names}")));
        }
    })
}
