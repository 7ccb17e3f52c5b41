//! The recent history of the store and its clients.

use std::collections::HashMap;
use std::sync::PoisonError;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use spillway_directory::is_program;
use spillway_history::{ClientSample, Sample};
use spillway_types::ClientId;

use crate::clients::limited;
use crate::parts::Shared;
use crate::problem::Error;
use crate::types::{ClientHistory, History, Problem, StoreHistory};

/// Samples of clients after which an answer ends, so that it does not delay other requests.
const CLIENT_SAMPLES_MAX: usize = 50_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Since {
    #[serde(default)]
    since: u64,
}

/// The samples of the last hour after number `since`, oldest first. With more than 100 clients the time is shorter. An
/// answer ends after some 50,000 samples of clients: request more with `last` as `since`, until `last` equals `newest`.
/// A `since` in the future returns no samples.
#[utoipa::path(
    get,
    path = "/v1/history",
    operation_id = "get_history",
    tag = "store",
    params(("since" = Option<u64>, Query)),
    responses((status = 200, body = History), (status = 400, body = Problem))
)]
pub(crate) async fn show(
    State(daemon): Shared,
    since: Result<Query<Since>, QueryRejection>,
) -> Result<Json<History>, Error> {
    let Query(Since { since }) = since?;
    let history = daemon.history.lock().unwrap_or_else(PoisonError::into_inner);
    let (samples, mut clients) = history.after(since, CLIENT_SAMPLES_MAX);
    let mut series = Series::default();
    let name = |id| history.name(id).map_or_else(String::new, |name| (**name).to_owned());
    for (at, sample) in samples.iter().enumerate() {
        clients.by_ref().take(sample.clients).for_each(|client| series.add(at, client, name));
    }
    let last = samples.last().map_or(since, |sample| sample.number);
    Ok(Json(History {
        run_ms: daemon.started_ms,
        interval_ms: *daemon.interval_ms.borrow(),
        capacity_bytes: daemon.client_registry.store().capacity_bytes(),
        last,
        newest: history.newest(),
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        elapsed_ms: samples.iter().map(|sample| sample.elapsed_ms).collect(),
        store: store(&samples),
        clients: series.clients,
    }))
}

fn store(samples: &[Sample]) -> StoreHistory {
    let column = |value: fn(&Sample) -> u64| samples.iter().map(value).collect();
    StoreHistory {
        total_pages: column(|sample| sample.store.total_pages),
        memory_bytes: column(|sample| sample.store.memory_bytes),
        free_frame_bytes: column(|sample| sample.store.free_frame_bytes),
        disk_bytes: column(|sample| sample.store.disk_bytes),
        same_filled_pages: column(|sample| sample.store.same_filled_pages),
        compressed_pages: column(|sample| sample.store.compressed_pages),
    }
}

/// Samples grouped by client.
#[derive(Default)]
struct Series {
    places: HashMap<ClientId, usize>,
    clients: Vec<ClientHistory>,
}

impl Series {
    fn add(&mut self, at: usize, sample: &ClientSample, name: impl Fn(ClientId) -> String) {
        let new = |series: &mut Vec<ClientHistory>| {
            let (name, program) = (name(sample.id), is_program(sample.id));
            series.push(ClientHistory { name, program, first: at, ..ClientHistory::default() });
            series.len() - 1
        };
        let clients = &mut self.clients;
        let place = self.places.entry(sample.id).or_insert_with(|| new(clients));
        if clients[*place].first + clients[*place].used_pages.len() != at {
            *place = new(clients);
        }
        let series = &mut clients[*place];
        series.used_pages.push(sample.used_pages);
        series.target_pages.push(limited(sample.target_pages));
        series.puts.push(sample.puts);
        series.refused_at_target.push(sample.refused_at_target);
        series.refused_node_full.push(sample.refused_node_full);
        series.hits.push(sample.hits);
        series.misses.push(sample.misses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_samples_in_a_row() {
        let sample = |id, used_pages, target_pages| ClientSample {
            id: ClientId(id),
            used_pages,
            target_pages,
            puts: 1,
            refused_at_target: 2,
            refused_node_full: 3,
            hits: 4,
            misses: 5,
        };
        let mut series = Series::default();
        for (at, sample) in [
            (0, sample(1, 10, 7)),
            (1, sample(1, 11, u64::MAX)),
            (1, sample(2, 20, 0)),
            // It was away: what was not there takes no place.
            (3, sample(1, 12, 8)),
        ] {
            series.add(at, &sample, |id| format!("client-{}", id.0));
        }
        let rows = series.clients.iter();
        let rows: Vec<_> = rows
            .map(|it| (&*it.name, it.first, &*it.used_pages, &*it.target_pages, it.misses.len()))
            .collect();
        assert_eq!(
            rows,
            [
                ("client-1", 0, &[10, 11][..], &[Some(7), None][..], 2),
                ("client-2", 1, &[20], &[Some(0)], 1),
                ("client-1", 3, &[12], &[Some(8)], 1),
            ]
        );
    }
}
