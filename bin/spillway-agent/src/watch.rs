//! Decides when the guest requests more memory, and when it offers some back. A state machine: its input is timestamped
//! samples and answers, its output requests.
//!
//! - *urgent*: available memory falls below the reserve;
//! - *ahead of need*: at the pace of the last seconds it will soon fall below, or tasks stall because memory is short;
//! - *back*: for a minute more memory than needed was available, and no task waited for memory.

use std::collections::VecDeque;
use std::time::Duration;

/// Sampling intervals while memory is short and while it is plentiful.
pub const SAMPLES_EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(100);
/// The fastest rate at which a guest is expected to start consuming memory, bytes per second. It determines how far
/// above the reserve sampling becomes fast.
const FASTEST_START: u64 = 4 << 30;
/// An urgent request covers the consumption of this time at the present pace.
const BURST_AHEAD: Duration = Duration::from_secs(2);
/// The present pace is the highest over parts of this time.
const BURST_WINDOW: Duration = Duration::from_millis(500);
/// Shortest part of it that is significant.
const BURST_PART: Duration = Duration::from_millis(20);
/// Memory that will be consumed within this time at the present pace is requested ahead of need. It is about the time
/// until requested memory arrives.
const SOON: Duration = Duration::from_millis(500);
/// Shortest part of the window that is significant for that.
const SOON_PART: Duration = Duration::from_millis(100);
/// How far a request ahead of need extrapolates the trend.
const TREND_AHEAD: Duration = Duration::from_secs(5);
/// Time over which the trend is computed.
const TREND_WINDOW: Duration = Duration::from_secs(10);
/// Interval between its points.
const TREND_STEP: Duration = Duration::from_secs(1);
/// A slower trend counts as none, bytes per second.
const TREND_LEAST: u64 = 4 << 20;
/// If tasks stall for more than one part in this many of a second, the guest requests memory.
const STALL_PART: u64 = 10;
/// How long the host may take to answer while no memory arrives.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Granted memory that does not arrive within this time is given up.
const ARRIVAL_TIME: Duration = Duration::from_secs(10);
/// Pause after a refusal: doubles with each further one, up to the second value.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long memory must be plentiful before some is offered.
pub const PLENTY_TIME: Duration = Duration::from_secs(60);
/// Refaults per second that do not count as pressure.
pub const REFAULTS_QUIET: u64 = 64;
/// Stalls per second that do not count as pressure, microseconds.
pub const STALLED_QUIET_US: u64 = 10_000;
/// Bytes of new memory for each byte of kernel memory that describes it: 64 bytes for each page.
const DESCRIBED: u64 = 64;

/// The host's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Memory to keep available, bytes.
    pub reserve: u64,
    /// The most that the guest may hold, bytes.
    pub most: u64,
    /// Bytes of a memory block.
    pub block: u64,
}

/// The guest's memory at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// MemTotal.
    pub total: u64,
    /// MemAvailable.
    pub available: u64,
    /// Free in the kernel's zones.
    pub kernel_free: u64,
    /// Page cache.
    pub cached: u64,
    /// The part of it that counts as in use, although the kernel could drop it.
    pub used_cache: u64,
    /// Memory that could be returned: online and movable.
    pub returnable: u64,
    /// Counters.
    pub stalled_us: u64,
    /// Counters.
    pub refaults: u64,
    /// Counters.
    pub swap_ins: u64,
}

/// A request to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// More memory.
    Need {
        /// The amount.
        bytes: u64,
        /// Whether the reserve is being used up.
        urgent: bool,
    },
    /// Take some back.
    Give {
        /// The amount.
        bytes: u64,
    },
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Watch {
    terms: Terms,
    last: Option<(Duration, Sample)>,
    /// Memory in use, recently and over the last seconds.
    recent: VecDeque<(Duration, u64)>,
    steps: VecDeque<(Duration, u64)>,
    /// The last sample of the counters.
    counters: Option<(Duration, Sample)>,
    /// Whether tasks stall.
    is_pressed: bool,
    asked: Option<(Duration, Ask)>,
    /// Memory that arrived since then; the host answers when all has arrived.
    risen: u64,
    /// Memory that was granted but does not show in MemTotal yet, and until when the guest waits
    /// for it.
    coming: (u64, Duration),
    /// For urgent requests and for those ahead of need: consecutive refusals, and when the next
    /// request may be made.
    refused: [(u32, Duration); 2],
    /// Since when there were no requests and no task waited for memory.
    quiet_since: Duration,
    /// The least available memory in each recent second of that time.
    lows: VecDeque<(Duration, u64)>,
    /// Whether the session's memory.high was reached.
    alarm: bool,
}

impl Watch {
    /// Starts with the host's terms, at a given time.
    pub fn new(terms: Terms, now: Duration) -> Self {
        Self {
            terms,
            last: None,
            recent: VecDeque::new(),
            steps: VecDeque::new(),
            counters: None,
            is_pressed: false,
            asked: None,
            risen: 0,
            coming: (0, now),
            refused: [(0, now); 2],
            quiet_since: now,
            lows: VecDeque::new(),
            alarm: false,
        }
    }

    /// The host says hello again, with the same terms. A host that was gone has lost all requests and refusals; one
    /// that `was_there` may still answer.
    pub fn greeted(&mut self, now: Duration, was_there: bool) {
        if !was_there {
            self.asked = None;
            self.refused = [(0, now); 2];
        }
    }

    /// The host's terms.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Reports that the session has reached its memory.high: the next sample is judged as if the reserve were
    /// twice as large.
    pub fn alarm(&mut self) {
        self.alarm = true;
    }

    /// Processes a sample, and returns the request to the host, if any.
    pub fn sample(&mut self, now: Duration, sample: Sample) -> Option<Ask> {
        self.note(now, &sample);
        if self.asked.is_some_and(|(since, _)| now >= since + ANSWER_TIME) {
            self.refuse(now);
        }
        let ask = self.need(now, &sample).or_else(|| self.give(now, &sample));
        self.alarm = false;
        if let Some(ask) = ask {
            (self.asked, self.risen) = (Some((now, ask)), 0);
            self.begin_rest(now);
        }
        ask
    }

    /// Processes the host's answer to a request, even a late one.
    pub fn answered(&mut self, now: Duration, ask: Ask, granted: u64) {
        let is_last = self.asked.is_some_and(|(_, last)| last == ask);
        match ask {
            Ask::Need { .. } if granted > 0 => {
                let risen = if is_last { self.risen } else { 0 };
                self.coming.0 = self.coming.0.saturating_add(granted.saturating_sub(risen));
                self.coming.1 = now + ARRIVAL_TIME;
                self.refused = [(0, now); 2];
            }
            Ask::Need { .. } if is_last => return self.refuse(now),
            Ask::Need { .. } | Ask::Give { .. } => {}
        }
        if is_last {
            self.asked = None;
        }
    }

    /// The most that a program may request now.
    pub fn possible_now(&self) -> u64 {
        self.last.map_or(0, |(_, sample)| self.possible(&sample))
    }

    /// When the next sample is due.
    pub fn next(&self) -> Duration {
        let (least, most) = (*SAMPLES_EVERY.start(), *SAMPLES_EVERY.end());
        let Some((now, sample)) = self.last else { return least };
        let far = sample.available.saturating_add(self.coming.0).saturating_sub(self.terms.reserve);
        let pace = FASTEST_START.max(4 * self.burst(now, BURST_PART));
        let wait = Duration::from_secs_f64(far as f64 / pace as f64);
        // While no request may be made, fast sampling is useless.
        let (_, until) = self.refused[0];
        wait.max(until.saturating_sub(now)).clamp(least, most)
    }

    /// Whether available memory is below the reserve.
    pub fn is_short(&self) -> bool {
        self.last.is_some_and(|(_, sample)| sample.available < self.terms.reserve)
    }

    /// The present pace in bytes per second: the highest over the recent periods of at least `part`.
    fn burst(&self, now: Duration, part: Duration) -> u64 {
        let Some(&(_, used)) = self.recent.back() else { return 0 };
        let paces = self.recent.iter().filter(|(at, _)| now - *at >= part);
        paces.map(|&(at, before)| pace(used.saturating_sub(before), now - at)).max().unwrap_or(0)
    }

    fn note(&mut self, now: Duration, sample: &Sample) {
        let used = sample.total.saturating_sub(sample.available);
        if let Some((_, last)) = self.last.filter(|(_, last)| sample.total > last.total) {
            self.came(now, sample.total - last.total);
        }
        if now >= self.coming.1 {
            self.coming.0 = 0;
        }
        self.last = Some((now, *sample));
        push(&mut self.recent, (now, used), BURST_WINDOW);
        if self.steps.back().is_none_or(|(at, _)| now >= *at + TREND_STEP) {
            push(&mut self.steps, (now, used), TREND_WINDOW);
        }
        self.look_at_counters(now, sample);
        match self.lows.back_mut().filter(|(at, _)| now < *at + TREND_STEP) {
            Some((_, low)) => *low = (*low).min(sample.available),
            None => push(&mut self.lows, (now, sample.available), PLENTY_TIME),
        }
        // Even slow growth counts: a guest that fills its memory is not at rest.
        let began = self.lows.front().map_or(0, |(_, low)| *low);
        if sample.available.saturating_add(self.terms.reserve) < began {
            self.begin_rest(now);
        }
    }

    /// New memory has arrived. While it keeps arriving, more may follow, and the host refuses requests until all has
    /// arrived, so neither counts as a failure.
    fn came(&mut self, now: Duration, bytes: u64) {
        self.coming.0 = self.coming.0.saturating_sub(bytes);
        self.risen = self.risen.saturating_add(bytes);
        if let Some((since, _)) = &mut self.asked {
            *since = now;
        }
        for (times, until) in &mut self.refused {
            (*times, *until) = (0, (*until).min(now + BACK_OFF.0));
        }
    }

    /// Restarts the time of rest.
    fn begin_rest(&mut self, now: Duration) {
        self.quiet_since = now;
        self.lows.clear();
    }

    /// Checks once a second whether tasks stalled or pages were read again.
    fn look_at_counters(&mut self, now: Duration, sample: &Sample) {
        let Some((at, before)) = self.counters else {
            self.counters = Some((now, *sample));
            return;
        };
        if now < at + TREND_STEP {
            return;
        }
        let stalled = pace(sample.stalled_us.saturating_sub(before.stalled_us), now - at);
        let refaults = pace(sample.refaults.saturating_sub(before.refaults), now - at);
        self.is_pressed = stalled > 1_000_000 / STALL_PART;
        let is_quiet = stalled < STALLED_QUIET_US
            && refaults <= REFAULTS_QUIET
            && sample.swap_ins == before.swap_ins
            && sample.total == before.total;
        if !is_quiet {
            self.begin_rest(now);
        }
        self.counters = Some((now, *sample));
    }

    fn need(&mut self, now: Duration, sample: &Sample) -> Option<Ask> {
        let Terms { reserve, block, .. } = self.terms;
        let room = sample.available.saturating_add(self.coming.0);
        let urgent = room < if self.alarm { 2 * reserve } else { reserve };
        let (_, not_before) = self.refused[usize::from(!urgent)];
        let is_waiting = match self.asked {
            // An urgent request does not wait for the answer to another one.
            Some((_, Ask::Need { urgent: asked, .. })) => asked || !urgent,
            Some((_, Ask::Give { .. })) | None => false,
        };
        if is_waiting || now < not_before {
            return None;
        }
        let short = if urgent {
            let burst = ahead(self.burst(now, BURST_PART), BURST_AHEAD);
            reserve.saturating_sub(room).saturating_add(burst).max(1)
        } else {
            self.short_later(now, sample, room)?
        };
        // The guest at most doubles with one request.
        let bytes = short
            .div_ceil(block)
            .saturating_mul(block)
            .min(sample.total.max(block) / block * block);
        let bytes = bytes.min(self.possible(sample));
        (bytes > 0).then_some(Ask::Need { bytes, urgent })
    }

    /// How much memory will be missing if the trend continues.
    fn short_later(&self, now: Duration, sample: &Sample, room: u64) -> Option<u64> {
        let Terms { reserve, block, .. } = self.terms;
        let soon = ahead(self.burst(now, SOON_PART), SOON);
        if room < reserve.saturating_add(soon) {
            return Some(2 * soon);
        }
        let trend = self.trend(now);
        let later = ahead(trend, TREND_AHEAD);
        if trend >= TREND_LEAST && room < reserve.saturating_add(later) {
            return Some(later);
        }
        let is_tight = room < (2 * reserve).max(sample.total / 4);
        (self.is_pressed && is_tight && self.coming.0 == 0).then_some(block)
    }

    /// The most that may be requested now, limited by the host's terms and by the kernel memory needed to describe new
    /// memory.
    fn possible(&self, sample: &Sample) -> u64 {
        let Terms { most, block, .. } = self.terms;
        let bound = most.saturating_sub(sample.total).saturating_sub(self.coming.0);
        // Half of the free kernel memory: the kernel needs some itself, and the host's answer may be late.
        let described = (sample.kernel_free / 2).saturating_mul(DESCRIBED);
        bound.min(described) / block * block
    }

    fn give(&self, now: Duration, sample: &Sample) -> Option<Ask> {
        let Terms { reserve, block, .. } = self.terms;
        let least = self.lows.iter().map(|(_, low)| *low).min().unwrap_or(0);
        if self.asked.is_some()
            || now < self.quiet_since + PLENTY_TIME
            || self.trend(now) >= TREND_LEAST
        {
            return None;
        }
        let kept = (2 * reserve).saturating_add(sample.used_cache);
        let bytes = least.saturating_sub(kept).min(sample.returnable) / block * block;
        (bytes > 0).then_some(Ask::Give { bytes })
    }

    /// The trend over the last seconds, bytes per second; none if the recorded time is too short.
    fn trend(&self, now: Duration) -> u64 {
        let (Some(&(at, before)), Some(&(_, used))) = (self.steps.front(), self.recent.back())
        else {
            return 0;
        };
        if now < at + 2 * TREND_STEP { 0 } else { pace(used.saturating_sub(before), now - at) }
    }

    fn refuse(&mut self, now: Duration) {
        if let Some((_, Ask::Need { urgent, .. })) = self.asked.take() {
            let (times, until) = &mut self.refused[usize::from(!urgent)];
            *until = now + BACK_OFF.0.saturating_mul(1 << (*times).min(10)).min(BACK_OFF.1);
            *times += 1;
        }
    }
}

/// Appends a point, and keeps only one point older than `window`.
fn push(points: &mut VecDeque<(Duration, u64)>, point: (Duration, u64), window: Duration) {
    points.push_back(point);
    while points.get(1).is_some_and(|(at, _)| *at + window <= point.0) {
        points.pop_front();
    }
}

fn pace(count: u64, time: Duration) -> u64 {
    let us = time.as_micros().max(1);
    u64::try_from(u128::from(count) * 1_000_000 / us).unwrap_or(u64::MAX)
}

fn ahead(pace: u64, time: Duration) -> u64 {
    let bytes = u128::from(pace) * time.as_millis() / 1000;
    // Limits values so that sums and multiples of some of them do not overflow.
    u64::try_from(bytes).unwrap_or(u64::MAX).min(u64::MAX / 16)
}

#[cfg(test)]
mod tests;
