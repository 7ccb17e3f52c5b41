//! Runs the parts until a signal ends them.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rustix::thread::CapabilitySet;
use spillway_api::ServerLimits;
use spillway_serving::ConnectionCounts;
use spillway_types::Access;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::arguments::Arguments;
use crate::frontends::Frontends;
use crate::listeners::Listeners;
use crate::packing::Packing;
use crate::parts::Parts;
use crate::reclaim::Reclaim;
use crate::reload::Reloads;
use crate::sharing::Sharing;
use crate::store_disk::Watch;
use crate::{disks, hardening, keys, manager, reload, sandbox, targets, vm};

/// Interval of periodic checks.
const TICK: Duration = Duration::from_secs(1);
/// Time at the end for borrowers and swapoff, beyond that of a recall.
const RECALL_MARGIN: Duration = Duration::from_secs(120);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// A part can't run.
pub fn run(mut parts: Parts, arguments: &Arguments) -> anyhow::Result<()> {
    // There are no other threads yet, which would keep theirs.
    let kept = hardening::drop_capabilities(&parts.config, parts.daemon.memory_locked)?;
    let file = arguments.config.as_deref();
    for path in keys::unreadable(&parts.config, file) {
        tracing::warn!(
            "{} can't be read again: its mode does not let this user read it, and the daemon has dropped root's \
             capabilities; a reload fails until you change its owner",
            path.display()
        );
    }
    if parts.config.process.sandbox {
        sandbox::enter(&parts.config, file)?;
    }
    // After the sandbox, so that it also covers their threads.
    let frontends = Frontends::start(
        &mut parts.listeners,
        &parts.client_registry,
        parts.secrets.clone(),
        (&parts.config, parts.bounds),
        &parts.disks,
    )?;
    let http = HttpCounts::default();
    let mut measured = frontends.measured(&parts.disks);
    measured.connections.extend(http.of(&parts.listeners));
    let lending = parts.lending.iter().map(|lending| ("lending", lending.connections().clone()));
    measured.connections.extend(lending);
    // Set only here, once.
    let _ = parts.measured.set(measured);
    let disks = parts.disks.clone();
    let reclaim = Reclaim::start(parts.client_registry.clone(), disks.clone())?;
    let packing = Packing::start(parts.client_registry.store())?;
    let shares = parts.config.store.dedup;
    let sharing = shares.then(|| Sharing::start(parts.client_registry.store())).transpose()?;
    let lending = parts.lending.take().map(spillway_lending_driver::Prepared::start).transpose()?;
    let guests = parts.vms.as_ref().map(vm::Prepared::handle);
    let vms = parts.vms.take().map(|vms| vms.start(frontends.ring())).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .context("can't start the control plane")?;
    let served = runtime.block_on(control(
        parts,
        arguments,
        kept,
        &reclaim,
        lending.as_ref(),
        guests.as_deref(),
        &http,
    ));
    // Lending ends before the store from which it lends and the devices on which it borrows.
    drop(lending);
    drop(vms);
    // Exports in progress are cut off.
    runtime.shutdown_background();
    drop(frontends);
    drop(reclaim);
    drop(packing);
    drop(sharing);
    disks::drain(&disks);
    served
}

/// The control plane: the HTTP interface, signals and periodic work.
async fn control(
    mut parts: Parts,
    arguments: &Arguments,
    capabilities: CapabilitySet,
    reclaim: &Reclaim,
    lending: Option<&spillway_lending_driver::Lending>,
    guests: Option<&vm::Handle>,
    http: &HttpCounts,
) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    serve_api(&mut parts, http)?;
    let mut reloads = Reloads::new(&parts, arguments);
    let mut tick = every(TICK);
    let mut disk = Watch::default();
    let mut interval_ms = parts.daemon.interval_ms.subscribe();
    let mut interval = every(Duration::from_millis(*interval_ms.borrow_and_update()));
    manager::state("READY=1");
    tracing::info!(
        capacity = %spillway_types::Size(parts.client_registry.store().capacity_bytes()),
        memory_locked = parts.daemon.memory_locked,
        kept_by = parts.daemon.kept_by,
        restarts = parts.client_registry.restarts(),
        user = %rustix::process::geteuid(),
        capabilities = hardening::names(capabilities),
        listens = parts.listeners.places.join(", "),
        "ready"
    );
    loop {
        tokio::select! {
            () = received(&mut stop) => break,
            () = received(&mut interrupt) => break,
            () = received(&mut hangup) => {
                // The log has the outcome.
                if let Err(request) = reloads.request(None) {
                    reload::refuse(request);
                }
            }
            // Its sender is one of the parts.
            Some(outcome) = parts.reloads.recv() => {
                if let Err(request) = reloads.request(Some(outcome)) {
                    reload::refuse(request);
                }
            }
            read = reloads.read() => reloads.answer(&reload::apply(&mut parts, read, guests)),
            // The sender is one of the parts.
            Ok(()) = interval_ms.changed() => {
                let time = Duration::from_millis(*interval_ms.borrow_and_update());
                if interval.period() != time {
                    interval = every(time);
                }
            }
            _ = interval.tick() => {
                if let Err(error) = targets::interval(&parts.daemon, interval.period()) {
                    tracing::error!("can't set targets: {error}");
                }
                reclaim.interval();
                if let Some(guests) = guests {
                    vm::interval(guests, parts.daemon.policy(), interval.period());
                }
            }
            () = vm::hunger(guests) => {
                if let Some(guests) = guests {
                    vm::at_once(guests);
                }
            }
            _ = tick.tick() => {
                parts.client_registry.note_all_flushes();
                parts.client_registry.expire();
                disk.look(parts.client_registry.store());
            }
        }
    }
    tracing::info!("stopping");
    manager::state("STOPPING=1");
    if let Some(lending) = lending {
        let recall = Duration::from_secs(parts.config.lend.recall_s) + RECALL_MARGIN;
        tokio::select! {
            () = lending.drain(recall) => {}
            // A second signal means that the operator does not want to wait.
            () = received(&mut stop) => tracing::error!("second signal: ending without waiting, loans and borrowed memory are lost"),
            () = received(&mut interrupt) => tracing::error!("second signal: ending without waiting, loans and borrowed memory are lost"),
        }
    }
    parts.listeners.bound.remove();
    Ok(())
}

/// Ticks every `time`, however long the work took.
fn every(time: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(Instant::now() + time, time);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

async fn received(signal: &mut Signal) {
    // It returns none only when the runtime ends.
    signal.recv().await;
}

/// Counts of the connections of the HTTP interface, of each listener.
#[derive(Debug, Default)]
struct HttpCounts {
    socket: Arc<ConnectionCounts>,
    tcp: Arc<ConnectionCounts>,
    tls: Arc<ConnectionCounts>,
}

impl HttpCounts {
    /// Those of the listeners that there are, with the names of their front ends.
    fn of(
        &self,
        listeners: &Listeners,
    ) -> impl Iterator<Item = (&'static str, Arc<ConnectionCounts>)> {
        let all = [
            (listeners.api.is_some(), "http", &self.socket),
            (listeners.api_tcp.is_some(), "http", &self.tcp),
            (listeners.api_tls.is_some(), "https", &self.tls),
        ];
        all.into_iter().filter(|it| it.0).map(|(_, name, counts)| (name, counts.clone()))
    }
}

/// Each listener has its own connection limit, so that a flood over TCP does not block the socket.
fn serve_api(parts: &mut Parts, counts: &HttpCounts) -> anyhow::Result<()> {
    let limits = ServerLimits::of(parts.bounds.api);
    if let Some(listener) = parts.listeners.api.take() {
        listener.set_nonblocking(true)?;
        let router = spillway_api::router(parts.daemon.clone(), None);
        let listener = UnixListener::from_std(listener)?;
        let counts = counts.socket.clone();
        tokio::spawn(spillway_api::serve("HTTP", listener, router, limits, counts));
    }
    let keys = parts.keys.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(tokens) = keys.tokens.clone() else { return Ok(()) };
    let data = spillway_api::router(parts.daemon.clone(), Some(tokens));
    // The page needs no token: it contains no data.
    let router = spillway_web::router().merge(data);
    if let Some(listener) = parts.listeners.api_tcp.take() {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (router, counts) = (router.clone(), counts.tcp.clone());
        tokio::spawn(spillway_api::serve("HTTP over TCP", listener, router, limits, counts));
    }
    if let (Some(listener), Some(tls)) = (parts.listeners.api_tls.take(), &keys.tls) {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (tls, counts) = (tls.api.clone(), counts.tls.clone());
        let keys = (tls, parts.client_registry.clone() as Arc<dyn Access>);
        tokio::spawn(spillway_api::serve_tls("HTTPS", listener, keys, router, limits, counts));
    }
    Ok(())
}
