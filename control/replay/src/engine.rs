//! Clients, a node and the memory manager, in virtual time.
//!
//! Each client computes, makes requests, and waits for them; the client whose clock is furthest behind runs next. At
//! the end of each interval the manager ([`spillway_manager::Manager`], as in the daemon) samples the clients and sets
//! their targets. Nothing depends on anything else, so the same traces give the same run.

use spillway_manager::{Change, ManagedClient, Manager, Policy, UNLIMITED};
use spillway_reuse::Sampler;
use spillway_types::ClientId;

use crate::copies::Copies;
use crate::costs::{Costs, Terms};
use crate::keys::Keys;
use crate::node::Node;
use crate::oracle::{Future, Shares};
use crate::report::{ClientReport, Report, Sums};
use crate::trace::{Step, Trace};

/// What the daemon takes in an interval from a client above its target: this part of the excess, between these numbers
/// of pages (bin/spillwayd/src/reclaim.rs).
const RECLAIM_PART: u64 = 16;
const RECLAIM_PAGES_MIN: u64 = 64;
const RECLAIM_PAGES_MAX: u64 = 1024;

/// The component that sets the targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    /// The memory manager, by a policy.
    Policy(Policy),
    /// An oracle that knows each client's future requests, and whose targets take effect at once.
    Oracle,
}

/// A client in the run.
struct ReplayClient<'a> {
    trace: &'a Trace,
    future: &'a Future,
    at: usize,
    now_ns: u64,
    slept_ns: u64,
    stalled_ns: u64,
    sampler: Option<Box<Sampler>>,
    /// Of a run.
    copies: Option<Copies>,
    done: bool,
}

impl ReplayClient<'_> {
    /// Waits for its last step.
    fn wait(&mut self, stall_ns: u64) {
        self.now_ns += stall_ns;
        self.stalled_ns += stall_ns;
        self.done = self.at == self.trace.events.len();
    }
}

/// A run in progress.
struct Run<'a> {
    costs: Costs,
    total_pages: u64,
    node: Node,
    clients: Vec<ReplayClient<'a>>,
    sums: Sums,
}

/// Runs traces on a node of `total_pages`. `futures` must belong to the same traces, in their order.
pub fn run(
    who: Who,
    total_pages: u64,
    costs: Costs,
    traces: &[Trace],
    futures: &[Future],
    terms: &[Terms],
) -> Report {
    let keys: Vec<_> = traces.iter().map(|trace| trace.keys).collect();
    let samples = matches!(who, Who::Policy(policy) if policy.wants_curves());
    let clients = traces.iter().zip(futures).map(|(trace, future)| ReplayClient {
        trace,
        future,
        at: 0,
        now_ns: 0,
        slept_ns: 0,
        stalled_ns: 0,
        sampler: samples.then(Box::default),
        copies: (trace.kind == Keys::Run).then(|| Copies::new(trace.keys)),
        done: trace.events.is_empty(),
    });
    let mut run = Run {
        costs,
        total_pages,
        node: Node::new(total_pages, &keys),
        clients: clients.collect(),
        sums: Sums::new(total_pages, costs.interval_ns),
    };
    run.go(who, terms);
    run.report(who)
}

impl Run<'_> {
    fn go(&mut self, who: Who, terms: &[Terms]) {
        let policy = if let Who::Policy(policy) = who { policy } else { Policy::Greedy };
        let mut manager = Manager::new(policy);
        // The clients exist before their first requests.
        let first = manager.first_target_pages(self.total_pages) / self.clients.len().max(1) as u64;
        for (client, its) in terms.iter().enumerate() {
            let first = if policy == Policy::Greedy { UNLIMITED } else { first };
            self.node.set_target(client, first.min(its.cap_pages));
        }
        let mut intervals = 0;
        while self.clients.iter().any(|client| !client.done) {
            match who {
                Who::Policy(_) => {
                    self.interval(&mut manager, terms);
                    self.reclaim();
                }
                Who::Oracle => self.foresee(terms),
            }
            self.measure(who);
            intervals += 1;
            self.go_until(intervals * self.costs.interval_ns.max(1));
        }
    }

    /// Takes pages back from clients above their targets, if they swap onto disks of the node: what runs and programs
    /// hold stays until they take or flush it.
    fn reclaim(&mut self) {
        for (at, client) in self.clients.iter().enumerate() {
            if matches!(client.trace.kind, Keys::Frontswap | Keys::Slots) {
                let debt_pages = self.node.statistics(at).debt_pages();
                let pages = (debt_pages / RECLAIM_PART).clamp(RECLAIM_PAGES_MIN, RECLAIM_PAGES_MAX);
                self.node.reclaim(at, pages);
            }
        }
    }

    /// Runs all clients until a time, the one that is furthest behind first.
    fn go_until(&mut self, end_ns: u64) {
        loop {
            let times: Vec<_> = (self.clients.iter().enumerate())
                .filter(|(_, client)| !client.done)
                .map(|(at, client)| (at, client.now_ns))
                .collect();
            let Some(&(first, _)) = times.iter().filter(|it| it.1 < end_ns).min_by_key(|it| it.1)
            else {
                return;
            };
            let others = times.iter().filter(|it| it.0 != first).map(|it| it.1).min();
            // At least one step, then more as long as it is behind.
            let until_ns = others.unwrap_or(end_ns).min(end_ns);
            loop {
                self.step(first);
                let client = &self.clients[first];
                if client.done || client.now_ns > until_ns || client.now_ns >= end_ns {
                    break;
                }
            }
        }
    }

    #[inline]
    fn step(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let event = client.trace.events[client.at];
        client.at += 1;
        client.now_ns += u64::from(event.think_ns);
        let Costs { put_ns, hit_ns, disk_read_ns, disk_write_ns, .. } = self.costs;
        let stall_ns = match event.step() {
            Step::Leave(key) if client.copies.as_ref().is_none_or(|its| !its.is_without(key)) => 0,
            Step::Put(key) | Step::Leave(key) => {
                let now_ns = client.now_ns;
                if client.copies.as_mut().is_some_and(|its| its.goes_to_disk(key, now_ns)) {
                    return client.wait(put_ns + disk_write_ns);
                }
                if let Some(sampler) = &mut client.sampler {
                    sampler.put(hash(key));
                }
                let stored = self.node.put(number, key);
                if let Some(copies) = client.copies.as_mut().filter(|_| !stored) {
                    copies.refused(now_ns);
                }
                if stored { put_ns } else { put_ns + disk_write_ns }
            }
            Step::Read(key) => {
                if let Some(sampler) = &mut client.sampler {
                    sampler.get(hash(key));
                }
                let hit = self.node.get(number, key);
                let now_ns = client.now_ns;
                if client.copies.as_mut().is_some_and(|its| its.read(key, hit, now_ns)) {
                    if let Some(sampler) = &mut client.sampler {
                        sampler.flush(hash(key));
                    }
                    self.node.flush(number, key);
                }
                if hit { hit_ns } else { disk_read_ns }
            }
            Step::Get(key) => {
                if let Some(sampler) = &mut client.sampler {
                    sampler.get(hash(key));
                }
                if self.node.get(number, key) { hit_ns } else { disk_read_ns }
            }
            Step::Take(key) => {
                if let Some(sampler) = &mut client.sampler {
                    sampler.take(hash(key));
                }
                let hit = self.node.get(number, key);
                self.node.flush(number, key);
                if hit { hit_ns } else { disk_read_ns }
            }
            Step::Flush(key) => {
                if let Some(sampler) = &mut client.sampler {
                    sampler.flush(hash(key));
                }
                self.node.flush(number, key);
                0
            }
            Step::Sleep(ms) => {
                client.slept_ns += u64::from(ms) * 1_000_000;
                client.now_ns += u64::from(ms) * 1_000_000;
                0
            }
            Step::Shift => {
                self.sums.shift(client.now_ns);
                0
            }
            Step::Exit => {
                if let Some(sampler) = &mut client.sampler {
                    sampler.forget();
                }
                if let Some(copies) = &mut client.copies {
                    copies.forget();
                }
                self.node.flush_all(number);
                0
            }
        };
        client.wait(stall_ns);
    }

    fn interval(&mut self, manager: &mut Manager, terms: &[Terms]) {
        let node = &self.node;
        let sample =
            |(at, (client, its)): (usize, (&mut ReplayClient<'_>, &Terms))| ManagedClient {
                cap_pages: its.cap_pages,
                floor_pages: its.floor_pages,
                weight: its.weight,
                curve: client.sampler.as_mut().map(|sampler| sampler.interval()),
                ..ManagedClient::new(ClientId(at as u64 + 1), node.statistics(at))
            };
        let clients: Vec<_> = self.clients.iter_mut().zip(terms).enumerate().map(sample).collect();
        for Change { id, target_pages } in manager.interval(self.total_pages, &clients) {
            let client = id.0 as usize - 1;
            self.sums.change(self.node.statistics(client).target_pages, target_pages);
            self.node.set_target(client, target_pages);
        }
    }

    /// The clients' next requests.
    fn shares(&self) -> Shares {
        let clients = self.clients.iter();
        Shares::new(
            self.total_pages,
            &self.costs,
            clients.map(|it| it.future.soon(it.at)).collect(),
        )
    }

    /// Sets the oracle's targets for an interval.
    fn foresee(&mut self, terms: &[Terms]) {
        let used = (0..terms.len()).map(|at| self.node.statistics(at).used_pages);
        let best = self.shares().best(terms, &used.collect::<Vec<_>>());
        for (client, target_pages) in best.into_iter().enumerate() {
            let was = self.node.statistics(client).target_pages;
            if was != target_pages {
                self.sums.change(was, target_pages);
            }
            self.node.set_target(client, target_pages);
            self.node.reclaim(client, u64::MAX);
        }
    }

    /// Measures how close the current shares come to the best.
    fn measure(&mut self, who: Who) {
        let now_ns = self.clients.iter().filter(|it| !it.done).map(|it| it.now_ns).min();
        let Some(now_ns) = now_ns else { return };
        if who == Who::Oracle || !self.sums.is_shifting() {
            return;
        }
        let shares = self.shares();
        let used: Vec<_> = (0..self.clients.len()).map(|at| self.node.statistics(at)).collect();
        let all: u64 = used.iter().map(|its| its.used_pages).sum();
        // What a client can hold: its target, limited by the memory that the others leave.
        let free = self.total_pages.saturating_sub(all);
        let reach = used.iter().map(|its| its.target_pages.min(its.used_pages + free));
        let part = shares.part_of_best(&reach.collect::<Vec<_>>());
        self.sums.reached(now_ns, part);
    }

    fn report(self, who: Who) -> Report {
        let clients = self.clients.iter().enumerate().map(|(at, client)| {
            let compute_ns = client.trace.compute_ns();
            ClientReport {
                name: client.trace.name.clone(),
                compute_ns,
                stall_ns: client.stalled_ns,
                slowdown: 1.0 + client.stalled_ns as f64 / compute_ns.max(1) as f64,
                statistics: self.node.statistics(at),
            }
        });
        let clients: Vec<_> = clients.collect();
        let end_ns = self.clients.iter().map(|client| client.now_ns).max().unwrap_or(0);
        let name = match who {
            Who::Policy(policy) => policy.to_string(),
            Who::Oracle => "oracle".to_owned(),
        };
        Report::new(name, clients, end_ns, self.sums, self.costs.interval_ns)
    }
}

/// Spreads keys like the store's hash, but without a secret.
#[inline]
const fn hash(key: u32) -> u64 {
    let mut mixed = (key as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}
