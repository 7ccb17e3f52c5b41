//! utility: pages go where they get most work done.
//!
//! **Rates.** What a client gets done in an hour, of what it would get done with memory enough, is its *rate*,
//! `1 / (1 + w)`: w is what it waits for an hour of computing. Its curve ([`spillway_reuse`]: SHARDS, FAST 2015)
//! says how many of its gets so many pages would serve; its counters and what a miss costs say what it computes and
//! waits, so that the rate is known for any number of pages. Rates are mostly *convex* in pages: of two clients that
//! thrash with half of what they need, one could run at full speed with all of it. So it is not the saved stalls
//! that are shared out but rates, over the hulls of their curves ([`crate::hull`]), and clients whose pages don't fit
//! together take turns: load control, as P. J. Denning has it ("Working Sets Past and Present", 1980, section on the
//! balance set).
//!
//! **Turns.** Each client has the share of its time that it waited in the long run. A rate counts the more, the less
//! its client got done: by the square, which makes the sum of slowdowns least (A. L. Stolyar, "On the Asymptotic
//! Optimality of the Gradient Scheduling Algorithm", 2005; the utility is -1 / rate). That is its credit: who goes
//! without for others has them later, as in M. Vuppalapati et al., "Karma: Resource Allocation for Dynamic Demands",
//! OSDI 2023. What a client holds already counts more, the longer it would take it to have it again: a turn is long
//! beside the change.
//!
//! **Fairness.** A client that in the long run gets done less than it would with its share alone (the node by
//! weights) has that share, as far as it has use of it, before all others: whoever fits into its share always has it,
//! and sharing harms nobody for long. An operator's `floor_pages` come before everything.
//!
//! **Idle pages** are taxed as in C. A. Waldspurger, "Memory Resource Management in VMware ESX Server", OSDI 2002: a
//! client that has stopped asking has its former gets counted at a quarter, which others outbid who ask now. It has no
//! claim to its share in an interval in which it asks for nothing.
//!
//! **What can be used.** No client is given more than it could fill until the next interval, by its puts: a
//! kernel does not put a clean page again that it reads from its disk, so that memory given to it late may stay
//! empty. For the same reason pages count only as far as the client grows towards them while nothing holds it back. What
//! nobody can use stays where it is, then goes to who was refused, then to all. Who holds nothing and asks for nothing may
//! begin at any time: until the interval is over it has what is free, as with greedy.

use crate::hull::{Segment, hull, share};
use crate::rates::{Rates, Served};
use crate::{Outcome, Sample};

/// What a get costs that finds its page, µs.
const HIT_US: f64 = 10.0;
/// What an interval of few tells of an interval of many: weights of the newest in the means of before. Demand is of
/// seconds, the success of gets of half a minute, because a walk finds its pages in stretches.
const DEMAND_NEW: f64 = 1.0 / 5.0;
const SUCCESS_NEW: f64 = 1.0 / 30.0;
/// Over so many intervals clients are to have had their turns.
const HORIZON_INTERVALS: f64 = 300.0;
/// What is left of puts and gets when an interval is over, for the hope that a put page comes back.
const RETURNS_KEPT: f64 = 0.99;
/// What a former get counts: the tax is 75 %, ESX's own.
const UNTAXED: f64 = 0.25;
/// Least part of its time that a client counts as computing, however many wait at once.
const COMPUTING_MIN: f64 = 0.02;
/// A turn lasts at least so many times the change, and so many intervals.
const TURN_REFILLS: f64 = 8.0;
const TURN_INTERVALS_MIN: f64 = 10.0;
/// What is held counts at most e^3 times.
const HELD_MAX: f64 = 3.0;
/// Puts for a get of a client that refills, at least.
const PUTS_FOR_GET_MIN: f64 = 0.05;
/// Part of its share's rate that a client may be without for long.
const DUE: f64 = 0.95;
/// Part of its share that a client may get ahead of what it holds and puts.
const AHEAD_PART: u64 = 64;
/// Pages beyond those that are alive by the sample, which errs.
const MARGIN: f64 = 1.05;
/// Most pages that it takes in truth for one of the curve.
const STRETCH_MAX: f64 = 4.0;
/// Intervals for which a client grows as it did, and the weight of the newest in that.
const REACH_INTERVALS: f64 = 10.0;
const GROWTH_NEW: f64 = 0.5;
/// Changes below this part of the node are not worth sending.
const STEP_PART: u64 = 256;

/// The policy utility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utility {
    /// What a get that finds nothing costs its client, µs: a read from its disk. Too much does less harm than too
    /// little.
    pub miss_us: u32,
    /// Length of an interval, µs.
    pub interval_us: u64,
}

impl Default for Utility {
    fn default() -> Self {
        Self { miss_us: 1000, interval_us: 1_000_000 }
    }
}

/// What utility keeps of a client from one interval to the next. The default is that of a new client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Means of an interval, of seconds.
    demand: Asked,
    /// Means of an interval, of half a minute.
    success: Asked,
    /// Pages by which it grows in an interval while nothing holds it back, once that was seen.
    growth: Option<f64>,
    /// What it held.
    held_pages: u64,
    /// What it was given.
    given_pages: Option<u64>,
    /// Gets for an interval of computing, in the long run.
    usual: f64,
    /// Part of its time that the client waits, in the long run.
    waiting: f64,
    /// Gets and puts ever, the old ones for less.
    got: f64,
    put: f64,
    /// Logarithm of the pages that it takes in truth for one of the curve, which is of a store that keeps the most
    /// recent pages.
    stretch: f64,
}

impl Standing {
    /// The growth with the interval that is over; one in which something held the client back tells nothing.
    fn grown(&self, client: &Sample<'_>) -> Option<f64> {
        let is_full = client.target_pages.is_none_or(|it| it <= client.used_pages);
        if is_full || client.puts_refused > 0 || !client.asks() {
            return self.growth;
        }
        let now = client.used_pages.saturating_sub(self.held_pages) as f64;
        Some(self.growth.map_or(now, |growth| mean(growth, now, GROWTH_NEW)))
    }

    /// The stretch, by the share of gets that find their pages; it stays where they tell nothing.
    fn stretched(&self, served: &Served, success: &Asked) -> f64 {
        let few = success.hits.min(success.misses) < 20.0 || success.used_pages < 64.0;
        if few {
            return self.stretch;
        }
        let expected = served.pages_for(success.hits / success.gets()).max(1.0);
        let is = (success.used_pages / expected).clamp(1.0, STRETCH_MAX).ln();
        mean(self.stretch, is, 0.1)
    }

    /// The share of the client, if it got done less than it would with that alone.
    fn due_pages(&self, rates: &Rates, fair_pages: u64) -> u64 {
        let end = rates.0.last().map_or(0, |it| it.0).min(fair_pages);
        if 1.0 - self.waiting < rates.at(end) * DUE { end } else { 0 }
    }

    /// What the client may come to hold within some intervals.
    fn reach_pages(&self, client: &Sample<'_>) -> u64 {
        let Some(growth) = self.growth else { return u64::MAX };
        let more = (growth * REACH_INTERVALS) as u64 + client.puts;
        client.used_pages.saturating_add(more)
    }
}

/// What a client may have that begins before the interval is over.
struct Free {
    total_pages: u64,
    /// What all clients hold or have a floor for.
    kept_pages: u64,
    /// What their floors still want.
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

    /// All that is free when it comes, as the store finds it; where another's floor is not filled yet, what is free now
    /// beside that.
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

    /// What it was given before, of what there is.
    fn given_pages(&self) -> Option<u64> {
        self.standing.given_pages.or(self.target_pages)
    }
}

/// What a client asks in an interval, and what it holds.
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

    /// The mean with a newer interval.
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
        for client in clients {
            let part = f64::from(client.weight) / weights.max(1.0);
            let fair_pages = (total_pages as f64 * part) as u64;
            let served = Served::of(client.curve);
            let standing = self.note(client, &served);
            let rates = self.rates(client, &standing, &served, fair_pages);
            floors.push(client.floor());
            let due_pages = if client.asks() { standing.due_pages(&rates, fair_pages) } else { 0 };
            hulls.push(self.prices(client, &standing, &rates));
            // One interval of many puts is no sign of another.
            let soon = client.puts.min(standing.demand.puts as u64) + fair_pages / AHEAD_PART;
            let bound = client.cap_pages.min(client.used_pages.saturating_add(soon));
            due.push(due_pages.min(bound));
            bounds.push(bound);
            outcomes.push(Outcome { target_pages: 0, standing });
        }
        // The operator's floors, what is due, and then where pages are worth most.
        let mut targets = cut(total_pages, &floors);
        let left = total_pages - targets.iter().sum::<u64>();
        let more: Vec<_> = due.iter().zip(&targets).map(|(d, t)| d.saturating_sub(*t)).collect();
        add(&mut targets, &cut(left, &more));
        let left = total_pages - targets.iter().sum::<u64>();
        let windows = hulls.iter().zip(&targets).zip(&bounds);
        let hulls: Vec<_> = windows.map(|((hull, &from), &to)| window(hull, from, to)).collect();
        add(&mut targets, &share(left, &hulls));
        spread(total_pages, clients, &mut targets, |it| it.used_pages);
        spread(total_pages, clients, &mut targets, |it| match it.puts_refused {
            0 => 0,
            _ => it.cap_pages,
        });
        spread(total_pages, clients, &mut targets, |it| it.cap_pages);
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

    /// What is known of a client when another interval is over.
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

    /// The part of an interval that a client does not wait.
    fn computing(&self, asked: &Asked) -> f64 {
        let wait_us = asked.misses * self.miss_us() + asked.hits * HIT_US;
        (1.0 - wait_us / self.interval_us.max(1) as f64).max(COMPUTING_MIN)
    }

    fn miss_us(&self) -> f64 {
        f64::from(self.miss_us).max(HIT_US)
    }

    /// What a client would get done with so many pages.
    fn rates(
        &self,
        client: &Sample<'_>,
        standing: &Standing,
        served: &Served,
        fair_pages: u64,
    ) -> Rates {
        let gets = standing.demand.gets();
        // Pages that are put and not got yet: as far as pages came back before, they will, and until somebody knows
        // when, a share of them would serve as many. Nobody gets more than its share for hope alone.
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
        // A bucket of distances may reach beyond all that the client has.
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

    /// What pages are worth to a client, beside others.
    fn prices(&self, client: &Sample<'_>, standing: &Standing, rates: &Rates) -> Vec<Segment> {
        let start = rates.0[0].1;
        let behind = (1.0 - standing.waiting).max(COMPUTING_MIN).powi(-2);
        let factor = f64::from(client.weight) * behind;
        let held_pages = client.given_pages().unwrap_or(0).min(client.used_pages);
        // Not every page that is read from the disk is put again.
        let puts_for_get = standing.demand.puts / standing.demand.gets().max(1.0);
        let refill_us = self.miss_us() / puts_for_get.clamp(PUTS_FOR_GET_MIN, 1.0);
        let mut at = 0;
        let price = |Segment { pages, slope }: Segment| {
            let held = held_pages.saturating_sub(at).min(pages) as f64 / pages as f64;
            let refill = pages as f64 * refill_us / self.interval_us.max(1) as f64;
            let turn = (refill * TURN_REFILLS).max(TURN_INTERVALS_MIN);
            // After a turn of t the squares of the rates differ by some exp(4 t / horizon).
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

/// Cuts parts in proportion where their sum is beyond the whole.
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

/// Gives what is left to all that are below a bound of theirs, up to it and to their caps.
fn spread(
    total_pages: u64,
    clients: &[Sample<'_>],
    targets: &mut [u64],
    bound: impl Fn(&Sample<'_>) -> u64,
) {
    let mut left = total_pages - targets.iter().sum::<u64>();
    let bound = |at: usize| bound(&clients[at]).min(clients[at].cap_pages);
    let mut open: Vec<_> = (0..clients.len()).filter(|&at| targets[at] < bound(at)).collect();
    loop {
        let weights: u64 = open.iter().map(|&at| u64::from(clients[at].weight)).sum();
        if left == 0 || weights == 0 {
            return;
        }
        let round = u128::from(left);
        for &at in &open {
            let part = round * u128::from(clients[at].weight) / u128::from(weights);
            // What does not come out even goes by pages.
            let more = (part as u64).max(1).min(bound(at) - targets[at]).min(left);
            targets[at] += more;
            left -= more;
        }
        open.retain(|&at| targets[at] < bound(at));
    }
}

/// Whether all targets are so close to those of before that they can stay.
fn is_settled(total_pages: u64, clients: &[Sample<'_>], targets: &[u64]) -> bool {
    let mut sum = 0_u128;
    let close = clients.iter().zip(targets).all(|(client, &target)| {
        let Some(was) = client.given_pages() else { return false };
        sum += u128::from(was);
        // A step of a large node may be all that a small client needs.
        was.abs_diff(target) <= total_pages / STEP_PART
            && was >= target / 2
            && was <= client.cap_pages
            && was >= client.floor_pages.min(target)
    });
    close && sum <= u128::from(total_pages)
}
