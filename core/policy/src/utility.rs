//! utility: pages go where they save the most waiting.
//!
//! **Rates.** A client's *rate* is its progress relative to that with enough memory, `1 / (1 + w)`: w is its waiting
//! time for each hour of computing. Its curve ([`spillway_reuse`]: SHARDS, FAST 2015) gives the share of its gets
//! that a number of pages would serve. Its counters and the cost of a miss give its computing and waiting times. So
//! the rate is known for any number of pages. Rates are mostly *convex* in pages: of two clients that thrash with
//! half of what they need, one could run at full speed with all of it. So the policy maximizes rates over the hulls
//! of their curves ([`crate::hull`]), not saved stalls, and clients whose pages do not fit together take turns. This
//! is load control as in P. J. Denning ("Working Sets Past and Present", 1980, section on the balance set).
//!
//! **Turns.** The policy records the share of its time that each client waited in the long run. A rate weighs more,
//! the less progress its client made: by the square, which minimizes the sum of slowdowns (A. L. Stolyar, "On the
//! Asymptotic Optimality of the Gradient Scheduling Algorithm", 2005; the utility is -1 / rate). This is its credit:
//! a client that goes without pages now gets them later, as in M. Vuppalapati et al., "Karma: Resource Allocation
//! for Dynamic Demands", OSDI 2023. Pages that a client holds already count more, the longer it would take to refill
//! them, so that a turn is long compared to the change.
//!
//! **Fairness.** A client that in the long run makes less progress than with its own share (the node divided by
//! weights) gets that share first, as far as it can use it. So a client that needs no more than its share always has
//! it, and sharing harms no client for long. An operator's `floor_pages` come before everything else.
//! [`Utility::fairness_percent`] trades the mean for evenness: that part of the max-min fair share of each client
//! (D. Bertsekas and R. Gallager, "Data Networks", 1992) comes before the value of pages. With 100 there are no turns.
//! What a client can use is what its curve knows, which leaves out pages on the client's own disk.
//!
//! **Idle pages** are taxed as in C. A. Waldspurger, "Memory Resource Management in VMware ESX Server", OSDI 2002: the
//! former gets of a client that has become idle count a quarter, so active clients outbid it. It has no claim to its
//! share in an interval without requests.
//!
//! **Usable pages.** No client gets more than it could fill until the next interval: with its puts, with pages that it
//! reads from its disk (a run puts these again when they leave), and with an eighth of its share. A kernel does not put
//! a clean page again that it reads from its disk, so memory that it gets late may stay empty: pages count only as far
//! as the client grows towards them without limits. Pages that no client can use stay where they are,
//! then go to refused clients, then to all. A client that holds and requests nothing may start at any time: until the
//! interval ends it may use free pages, as with greedy.

use crate::hull::{Segment, hull, share};
use crate::rates::{Rates, Served};
use crate::{Outcome, Sample};

/// Cost of a hit, µs.
const HIT_US: f64 = 10.0;
/// Weights of the newest interval in moving averages. Demand is averaged over seconds, the hit ratio over half a
/// minute, because a scan finds its pages in bursts.
const DEMAND_NEW: f64 = 1.0 / 5.0;
const SUCCESS_NEW: f64 = 1.0 / 30.0;
/// Number of intervals within which each client should get a turn. Also the length of long-run averages.
const HORIZON_INTERVALS: f64 = 300.0;
/// Factor by which the put and get counts decay in each interval. Their ratio estimates whether a put page is read
/// again.
const RETURNS_KEPT: f64 = 0.99;
/// Weight of a former get: the tax is 75 %, as in ESX.
const UNTAXED: f64 = 0.25;
/// Least part of its time that a client counts as computing, however many of its threads wait.
const COMPUTING_MIN: f64 = 0.02;
/// Shortest turn: as a multiple of the time to refill the pages, and in intervals.
const TURN_REFILLS: f64 = 8.0;
const TURN_INTERVALS_MIN: f64 = 10.0;
/// Largest exponent of the weight of held pages: the weight is at most e^3.
const HELD_MAX: f64 = 3.0;
/// Least number of puts for each get of a client that refills.
const PUTS_FOR_GET_MIN: f64 = 0.05;
/// A client is owed its share when its progress is below this part of the rate with that share.
const DUE: f64 = 0.95;
/// Divisor of the share: a client may get this part of its share beyond the pages that it holds, puts and misses.
const AHEAD_PART: u64 = 8;
/// Margin on the number of live pages, because the sample has an error.
const MARGIN: f64 = 1.05;
/// Largest stretch factor between pages of the curve and real pages.
const STRETCH_MAX: f64 = 4.0;
/// Number of intervals for which a client's growth is extrapolated, and the newest one's weight.
const REACH_INTERVALS: f64 = 10.0;
const GROWTH_NEW: f64 = 0.5;
/// Divisor of the node's pages: smaller changes are not sent.
const STEP_PART: u64 = 256;

/// The policy utility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utility {
    /// Cost of a miss for its client, µs: a read from its disk. A value that is too high does less harm than one
    /// that is too low.
    pub miss_us: u32,
    /// The part of the node that is shared evenly among the clients that can use it, up to 100 percent. The rest goes
    /// where it saves the most waiting, in turns.
    pub fairness_percent: u32,
    /// Length of an interval, µs.
    pub interval_us: u64,
}

impl Default for Utility {
    fn default() -> Self {
        Self { miss_us: 1000, fairness_percent: 0, interval_us: 1_000_000 }
    }
}

/// Utility's state of a client between intervals. The default is that of a new client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Mean of an interval's requests, over seconds.
    demand: Asked,
    /// Mean of an interval's requests, over half a minute.
    success: Asked,
    /// Pages by which it grows in an interval without a limit; `None` until observed.
    growth: Option<f64>,
    /// Pages that it held at the end of the last interval.
    held_pages: u64,
    /// Its last target, before the free pages of [`Free`].
    given_pages: Option<u64>,
    /// Gets for each interval of computing, in the long run.
    usual: f64,
    /// Part of its time that the client waits, in the long run.
    waiting: f64,
    /// All gets and puts, with decay.
    got: f64,
    put: f64,
    /// Logarithm of the stretch factor between pages of the curve, which assumes an LRU store, and real pages.
    stretch: f64,
}

impl Standing {
    /// The growth, updated with the past interval. An interval without requests, or in which a limit held the client
    /// back, does not count.
    fn grown(&self, client: &Sample<'_>) -> Option<f64> {
        let is_full = client.target_pages.is_none_or(|it| it <= client.used_pages);
        if is_full || client.puts_refused > 0 || !client.asks() {
            return self.growth;
        }
        let now = client.used_pages.saturating_sub(self.held_pages) as f64;
        Some(self.growth.map_or(now, |growth| mean(growth, now, GROWTH_NEW)))
    }

    /// The logarithm of the stretch factor, updated from the hit ratio. Unchanged while hits, misses or pages are too
    /// few.
    fn stretched(&self, served: &Served, success: &Asked) -> f64 {
        let few = success.hits.min(success.misses) < 20.0 || success.used_pages < 64.0;
        if few {
            return self.stretch;
        }
        let expected = served.pages_for(success.hits / success.gets()).max(1.0);
        let is = (success.used_pages / expected).clamp(1.0, STRETCH_MAX).ln();
        mean(self.stretch, is, 0.1)
    }

    /// The client's share if it made less progress than with that share alone; else 0.
    fn due_pages(&self, rates: &Rates, fair_pages: u64) -> u64 {
        let end = rates.end().min(fair_pages);
        if 1.0 - self.waiting < rates.at(end) * DUE { end } else { 0 }
    }

    /// The most pages that the client can hold within [`REACH_INTERVALS`].
    fn reach_pages(&self, client: &Sample<'_>) -> u64 {
        let Some(growth) = self.growth else { return u64::MAX };
        let more = (growth * REACH_INTERVALS) as u64 + client.puts;
        client.used_pages.saturating_add(more)
    }
}

/// The target of a client that starts before the interval ends.
struct Free {
    total_pages: u64,
    /// The pages that all clients hold or have as floors.
    kept_pages: u64,
    /// The unfilled part of the floors.
    wanted_pages: u64,
}

impl Free {
    fn of(total_pages: u64, clients: &[Sample<'_>]) -> Self {
        let sum =
            |of: &dyn Fn(&Sample<'_>) -> u64| clients.iter().map(of).fold(0, u64::saturating_add);
        Self {
            total_pages,
            kept_pages: sum(&|it| it.used_pages.max(it.floor())),
            wanted_pages: sum(&|it| it.floor().saturating_sub(it.used_pages)),
        }
    }

    /// The whole node; if another client's floor is not filled, only what other clients neither hold nor have as
    /// floors.
    fn pages_for(&self, client: &Sample<'_>) -> u64 {
        let own_pages = client.floor();
        if self.wanted_pages.saturating_sub(own_pages) == 0 {
            return self.total_pages;
        }
        self.total_pages.saturating_sub(self.kept_pages.saturating_sub(own_pages))
    }
}

impl Sample<'_> {
    fn floor(&self) -> u64 {
        self.floor_pages.min(self.cap_pages)
    }

    fn asks(&self) -> bool {
        self.puts + self.hits + self.misses > 0
    }

    /// Its former target, without the free pages of [`Free`].
    fn given_pages(&self) -> Option<u64> {
        self.standing.given_pages.or(self.target_pages)
    }
}

/// A client's requests in an interval, and its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Asked {
    hits: f64,
    misses: f64,
    puts: f64,
    used_pages: f64,
}

impl Asked {
    fn of(client: &Sample<'_>) -> Self {
        Self {
            hits: client.hits as f64,
            misses: client.misses as f64,
            puts: client.puts as f64,
            used_pages: client.used_pages as f64,
        }
    }

    fn gets(&self) -> f64 {
        self.hits + self.misses
    }

    /// The moving average, updated with a new interval.
    fn with(&self, new: &Self, weight: f64) -> Self {
        Self {
            hits: mean(self.hits, new.hits, weight),
            misses: mean(self.misses, new.misses, weight),
            puts: mean(self.puts, new.puts, weight),
            used_pages: mean(self.used_pages, new.used_pages, weight),
        }
    }
}

fn mean(was: f64, new: f64, weight: f64) -> f64 {
    was + (new - was) * weight
}

impl Utility {
    /// As [`crate::Policy::outcomes`].
    pub(crate) fn outcomes(&self, total_pages: u64, clients: &[Sample<'_>]) -> Vec<Outcome> {
        let weights: f64 = clients.iter().map(|it| f64::from(it.weight)).sum();
        let mut outcomes = Vec::with_capacity(clients.len());
        let mut floors = Vec::with_capacity(clients.len());
        let mut due = Vec::with_capacity(clients.len());
        let mut hulls = Vec::with_capacity(clients.len());
        let mut bounds = Vec::with_capacity(clients.len());
        let mut usable = Vec::with_capacity(clients.len());
        for client in clients {
            let part = f64::from(client.weight) / weights.max(1.0);
            let fair_pages = (total_pages as f64 * part) as u64;
            let served = Served::of(client.curve);
            let standing = self.note(client, &served);
            let rates = self.rates(client, &standing, &served, fair_pages);
            floors.push(client.floor());
            let due_pages = if client.asks() { standing.due_pages(&rates, fair_pages) } else { 0 };
            hulls.push(self.prices(client, &standing, &rates));
            // One interval of many requests does not predict another.
            let asked = client.puts + client.misses;
            let usual = standing.demand.puts + standing.demand.misses;
            let soon = asked.min(usual as u64) + fair_pages / AHEAD_PART;
            let bound = client.cap_pages.min(client.used_pages.saturating_add(soon));
            due.push(due_pages.min(bound));
            // Whoever pauses for an interval keeps its share, although it can't fill it at once.
            usable.push(rates.end().min(bound.max(fair_pages)).min(client.cap_pages));
            bounds.push(bound);
            outcomes.push(Outcome { target_pages: 0, standing });
        }
        // The operator's floors, then the clients' due shares, then even ones, then the highest value of pages.
        let mut targets = cut(total_pages, &floors);
        let left = total_pages - targets.iter().sum::<u64>();
        let more: Vec<_> = due.iter().zip(&targets).map(|(d, t)| d.saturating_sub(*t)).collect();
        add(&mut targets, &cut(left, &more));
        let even = self.even(total_pages, clients, &usable);
        spread(total_pages, clients, &mut targets, |at| even[at]);
        let left = total_pages - targets.iter().sum::<u64>();
        let windows = hulls.iter().zip(&targets).zip(&bounds);
        let hulls: Vec<_> = windows.map(|((hull, &from), &to)| window(hull, from, to)).collect();
        add(&mut targets, &share(left, &hulls));
        spread(total_pages, clients, &mut targets, |at| clients[at].used_pages);
        spread(total_pages, clients, &mut targets, |at| match clients[at].puts_refused {
            0 => 0,
            _ => clients[at].cap_pages,
        });
        spread(total_pages, clients, &mut targets, |at| clients[at].cap_pages);
        let settled = is_settled(total_pages, clients, &targets);
        let free = Free::of(total_pages, clients);
        for ((outcome, target_pages), client) in outcomes.iter_mut().zip(targets).zip(clients) {
            let kept = client.given_pages().filter(|_| settled);
            let given_pages = kept.unwrap_or(target_pages);
            outcome.standing.given_pages = Some(given_pages);
            let is_away = client.used_pages == 0 && !client.asks();
            let free_pages = if is_away { free.pages_for(client).min(client.cap_pages) } else { 0 };
            outcome.target_pages = given_pages.max(free_pages);
        }
        outcomes
    }

    /// The part of each client's max-min fair share that it gets whatever the value of its pages.
    fn even(&self, total_pages: u64, clients: &[Sample<'_>], usable: &[u64]) -> Vec<u64> {
        let mut shares = vec![0; clients.len()];
        let percent = u64::from(self.fairness_percent.min(100));
        if percent > 0 {
            spread(total_pages, clients, &mut shares, |at| usable[at]);
        }
        shares.iter().map(|share| (u128::from(*share) * u128::from(percent) / 100) as u64).collect()
    }

    /// Updates a client's state at the end of an interval.
    fn note(&self, client: &Sample<'_>, served: &Served) -> Standing {
        let was = client.standing;
        let now = Asked::of(client);
        let computing = self.computing(&now);
        let long = 1.0 / HORIZON_INTERVALS;
        let success = was.success.with(&now, SUCCESS_NEW);
        Standing {
            demand: was.demand.with(&now, DEMAND_NEW),
            success,
            growth: was.grown(client),
            held_pages: client.used_pages,
            given_pages: None,
            usual: mean(was.usual, now.gets() / computing, long),
            waiting: mean(was.waiting, 1.0 - computing, long),
            got: was.got * RETURNS_KEPT + now.gets(),
            put: was.put * RETURNS_KEPT + now.puts,
            stretch: was.stretched(served, &success),
        }
    }

    /// The part of an interval in which a client does not wait.
    fn computing(&self, asked: &Asked) -> f64 {
        let wait_us = asked.misses * self.miss_us() + asked.hits * HIT_US;
        (1.0 - wait_us / self.interval_us.max(1) as f64).max(COMPUTING_MIN)
    }

    fn miss_us(&self) -> f64 {
        f64::from(self.miss_us).max(HIT_US)
    }

    /// A client's rate with this many pages.
    fn rates(
        &self,
        client: &Sample<'_>,
        standing: &Standing,
        served: &Served,
        fair_pages: u64,
    ) -> Rates {
        let gets = standing.demand.gets();
        // Pages that were put but not read yet are expected back at the past ratio. As long as their distances are
        // unknown, a part of the pages is assumed to serve the same part of the gets. No client gets more than its
        // share by this estimate alone.
        let fair = fair_pages.max(1) as f64;
        let returns = ((standing.got + fair) / (standing.put + fair)).min(1.0);
        let hoped = (standing.demand.puts * returns - gets).max(0.0);
        let live_pages = client.curve.map_or(0, |curve| curve.live_pages);
        let hope_pages = live_pages.min(fair_pages);
        let asked = (gets + hoped) / self.computing(&standing.demand);
        let asked = asked.max(standing.usual * UNTAXED);
        let hope_part = if hoped > 0.0 { hoped / (gets + hoped) } else { 0.0 };
        let rate = |share: f64| {
            let wait_us = asked * (share * HIT_US + (1.0 - share) * self.miss_us());
            1.0 / (1.0 + wait_us / self.interval_us.max(1) as f64)
        };
        let stretch = standing.stretch.exp();
        // A bucket of distances may extend beyond the client's pages.
        let end = ((live_pages as f64 * stretch * MARGIN) as u64).max(hope_pages);
        let corners = served.0.iter().map(|it| (it.0 as f64 * stretch) as u64).chain([hope_pages]);
        let mut corners: Vec<_> = corners.collect();
        corners.sort_unstable();
        corners.dedup();
        let mut points = Vec::with_capacity(corners.len());
        for pages in corners {
            let known = served.at(pages as f64 / stretch);
            let hope = pages.min(hope_pages) as f64 / live_pages.max(1) as f64;
            let share = (1.0 - hope_part) * known + hope_part * hope;
            points.push((pages.min(end), rate(share)));
            if pages > end {
                break;
            }
        }
        Rates(points)
    }

    /// The value of pages to a client, relative to others.
    fn prices(&self, client: &Sample<'_>, standing: &Standing, rates: &Rates) -> Vec<Segment> {
        let start = rates.0[0].1;
        let behind = (1.0 - standing.waiting).max(COMPUTING_MIN).powi(-2);
        let factor = f64::from(client.weight) * behind;
        let held_pages = client.given_pages().unwrap_or(0).min(client.used_pages);
        // Not every page read from the disk is put again.
        let puts_for_get = standing.demand.puts / standing.demand.gets().max(1.0);
        let refill_us = self.miss_us() / puts_for_get.clamp(PUTS_FOR_GET_MIN, 1.0);
        let mut at = 0;
        let price = |Segment { pages, slope }: Segment| {
            let held = held_pages.saturating_sub(at).min(pages) as f64 / pages as f64;
            let refill = pages as f64 * refill_us / self.interval_us.max(1) as f64;
            let turn = (refill * TURN_REFILLS).max(TURN_INTERVALS_MIN);
            // After a turn of t intervals, the squares of the rates differ by a factor of about exp(4 t / horizon).
            let stays = (4.0 * turn / HORIZON_INTERVALS).min(HELD_MAX) * held;
            at += pages;
            Segment { pages, slope: slope * factor * stays.exp() }
        };
        let reached = rates.up_to(standing.reach_pages(client));
        hull(reached.map(|(pages, rate)| (pages, rate - start))).into_iter().map(price).collect()
    }
}

fn add(targets: &mut [u64], more: &[u64]) {
    targets.iter_mut().zip(more).for_each(|(target, more)| *target += more);
}

/// Reduces parts proportionally if their sum exceeds the whole.
fn cut(total_pages: u64, parts: &[u64]) -> Vec<u64> {
    let sum: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    if sum <= u128::from(total_pages) {
        return parts.to_vec();
    }
    let cut = |&part: &u64| (u128::from(part) * u128::from(total_pages) / sum) as u64;
    parts.iter().map(cut).collect()
}

/// The part of a hull between two counts of pages.
fn window(hull: &[Segment], from: u64, to: u64) -> Vec<Segment> {
    let mut at = 0;
    let part = |segment: &Segment| {
        let (start, end) = (at.max(from), (at + segment.pages).min(to));
        at += segment.pages;
        (end > start).then(|| Segment { pages: end - start, slope: segment.slope })
    };
    hull.iter().filter_map(part).collect()
}

/// Distributes the remaining pages by weight to clients below their bounds, up to their bounds and caps.
fn spread(
    total_pages: u64,
    clients: &[Sample<'_>],
    targets: &mut [u64],
    bound: impl Fn(usize) -> u64,
) {
    let mut left = total_pages - targets.iter().sum::<u64>();
    let bound = |at: usize| bound(at).min(clients[at].cap_pages);
    let mut open: Vec<_> = (0..clients.len()).filter(|&at| targets[at] < bound(at)).collect();
    loop {
        let weights: u64 = open.iter().map(|&at| u64::from(clients[at].weight)).sum();
        if left == 0 || weights == 0 {
            return;
        }
        let round = u128::from(left);
        for &at in &open {
            let part = round * u128::from(clients[at].weight) / u128::from(weights);
            // Distributes the remainder page by page.
            let more = (part as u64).max(1).min(bound(at) - targets[at]).min(left);
            targets[at] += more;
            left -= more;
        }
        open.retain(|&at| targets[at] < bound(at));
    }
}

/// Whether all targets are close enough to the former ones to keep them.
fn is_settled(total_pages: u64, clients: &[Sample<'_>], targets: &[u64]) -> bool {
    let mut sum = 0_u128;
    let close = clients.iter().zip(targets).all(|(client, &target)| {
        let Some(was) = client.given_pages() else { return false };
        sum += u128::from(was);
        // A small step of a large node may be everything that a small client needs.
        was.abs_diff(target) <= total_pages / STEP_PART
            && was >= target / 2
            && was <= client.cap_pages
            && was >= client.floor_pages.min(target)
    });
    close && sum <= u128::from(total_pages)
}
