//! When the guest asks for more memory, and when it offers some back. A state machine: samples and answers with their time go
//! in, requests come out.
//!
//! - *at the last moment*: what is available falls below the reserve;
//! - *ahead of need*: at the pace of the last seconds it will, or tasks stall for want of memory;
//! - *back*: for a minute there was more than is needed, and nothing waited for memory.

use std::collections::VecDeque;
use std::time::Duration;

/// How soon the next sample is wanted while memory is short, and while there is plenty.
pub const SAMPLES_EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(100);
/// The fastest that a guest is expected to begin to use memory up, bytes a second: so far ahead of the reserve samples come
/// quickly.
const FASTEST_START: u64 = 4 << 30;
/// An urgent request covers what is used up in this time at the present pace.
const BURST_AHEAD: Duration = Duration::from_secs(2);
/// The present pace is the highest over parts of this time.
const BURST_WINDOW: Duration = Duration::from_millis(500);
/// The least part of it that says something.
const BURST_PART: Duration = Duration::from_millis(20);
/// Memory that will be used up in this time at the present pace is asked for ahead of need: about what it takes to come.
const SOON: Duration = Duration::from_millis(500);
/// The least part of the window that says something of that.
const SOON_PART: Duration = Duration::from_millis(100);
/// A request ahead of need looks so far along the trend.
const TREND_AHEAD: Duration = Duration::from_secs(5);
/// The trend is taken over this time.
const TREND_WINDOW: Duration = Duration::from_secs(10);
/// Between the points that it is taken from.
const TREND_STEP: Duration = Duration::from_secs(1);
/// A slower trend is none, bytes a second.
const TREND_LEAST: u64 = 4 << 20;
/// Tasks that stall for more than this part of a second, one of so many, are pressure that asks for memory.
const STALL_PART: u64 = 10;
/// How long the host may take for an answer while no memory comes.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Memory that was granted and did not come in this time does not come any more.
const ARRIVAL_TIME: Duration = Duration::from_secs(10);
/// After a refusal: doubled with each one that follows, up to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long there must be plenty before some is offered.
pub const PLENTY_TIME: Duration = Duration::from_secs(60);
/// Refaults a second that are no sign of pressure.
pub const REFAULTS_QUIET: u64 = 64;
/// Stalls in a second that are none, microseconds.
pub const STALLED_QUIET_US: u64 = 10_000;
/// Bytes of new memory for one byte of the kernel's that describes it: 64 for each page.
const DESCRIBED: u64 = 64;

/// What the host lets the guest have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What is to stay available, bytes.
    pub reserve: u64,
    /// What the guest may hold at most, bytes.
    pub most: u64,
    /// Bytes of a memory block.
    pub block: u64,
}

/// How the guest is at a moment.
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
    /// What of it is taken as in use, though the kernel could do without.
    pub used_cache: u64,
    /// What could be given back: online, and movable.
    pub returnable: u64,
    /// Counters.
    pub stalled_us: u64,
    /// Counters.
    pub refaults: u64,
    /// Counters.
    pub swap_ins: u64,
}

/// What is asked of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// More memory.
    Need {
        /// How much.
        bytes: u64,
        /// The reserve is being used up.
        urgent: bool,
    },
    /// Take some back.
    Give {
        /// How much.
        bytes: u64,
    },
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Watch {
    terms: Terms,
    last: Option<(Duration, Sample)>,
    /// Memory in use, lately and over the last seconds.
    recent: VecDeque<(Duration, u64)>,
    steps: VecDeque<(Duration, u64)>,
    /// The last look at the counters.
    counters: Option<(Duration, Sample)>,
    /// Tasks stall.
    is_pressed: bool,
    asked: Option<(Duration, Ask)>,
    /// What came since then: the host answers when all has come.
    risen: u64,
    /// Granted, and not seen in MemTotal yet: how much, and until when it is waited for.
    coming: (u64, Duration),
    /// Urgent requests, and those ahead of need: refused in a row, and when the next may be made.
    refused: [(u32, Duration); 2],
    /// Since when nothing was asked for, and nothing waited for memory.
    quiet_since: Duration,
    /// The least that was available in each of the seconds of that, as far as they count.
    lows: VecDeque<(Duration, u64)>,
    /// The memory.high of the session was reached.
    alarm: bool,
}

impl Watch {
    /// Starts anew: with the host's terms, at a time.
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

    /// The host says hello again, with the same terms. One that was gone knows nothing of what it was asked or has refused; one
    /// that `was_there` may still answer.
    pub fn greeted(&mut self, now: Duration, was_there: bool) {
        if !was_there {
            self.asked = None;
            self.refused = [(0, now); 2];
        }
    }

    /// What the host lets the guest have.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The session has reached its memory.high: the next sample decides as if the reserve were twice as large.
    pub fn alarm(&mut self) {
        self.alarm = true;
    }

    /// Takes a sample, and says what is to be asked of the host.
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

    /// The host's answer to what was asked, late ones too.
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

    /// The most that a program may ask for now.
    pub fn possible_now(&self) -> u64 {
        self.last.map_or(0, |(_, sample)| self.possible(&sample))
    }

    /// When the next sample is wanted.
    pub fn next(&self) -> Duration {
        let (least, most) = (*SAMPLES_EVERY.start(), *SAMPLES_EVERY.end());
        let Some((now, sample)) = self.last else { return least };
        let far = sample.available.saturating_add(self.coming.0).saturating_sub(self.terms.reserve);
        let pace = FASTEST_START.max(4 * self.burst(now, BURST_PART));
        let wait = Duration::from_secs_f64(far as f64 / pace as f64);
        // While no request may be made, there is nothing to be quick for.
        let (_, until) = self.refused[0];
        wait.max(until.saturating_sub(now)).clamp(least, most)
    }

    /// What is available is below the reserve.
    pub fn is_short(&self) -> bool {
        self.last.is_some_and(|(_, sample)| sample.available < self.terms.reserve)
    }

    /// The present pace, bytes a second: the highest over the last moments that are at least as long as `part`.
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
        // However slowly: a guest that fills its memory is not at rest.
        let began = self.lows.front().map_or(0, |(_, low)| *low);
        if sample.available.saturating_add(self.terms.reserve) < began {
            self.begin_rest(now);
        }
    }

    /// New memory is there. More may be on its way for as long as some comes, and the host refuses requests until all has come:
    /// neither counts against it.
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

    /// The time of rest begins anew.
    fn begin_rest(&mut self, now: Duration) {
        self.quiet_since = now;
        self.lows.clear();
    }

    /// Once a second: did tasks stall, were pages wanted back?
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
            // What is urgent does not wait for the answer to what is not.
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
        // At most it doubles at once.
        let bytes = short
            .div_ceil(block)
            .saturating_mul(block)
            .min(sample.total.max(block) / block * block);
        let bytes = bytes.min(self.possible(sample));
        (bytes > 0).then_some(Ask::Need { bytes, urgent })
    }

    /// How much will be missing if all goes on as it does.
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

    /// The most that may be asked for now: the host's bound, and memory in the kernel's zones to describe new memory with.
    fn possible(&self, sample: &Sample) -> u64 {
        let Terms { most, block, .. } = self.terms;
        let bound = most.saturating_sub(sample.total).saturating_sub(self.coming.0);
        // Half of what is free there: the kernel needs some for itself, and the host's answer may be late.
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

    /// Over the last seconds, bytes a second; none while it is known for too short a time.
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

/// Appends a point; of those older than `window` one stays.
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
    // So that sums and multiples of some of them fit.
    u64::try_from(bytes).unwrap_or(u64::MAX).min(u64::MAX / 16)
}

#[cfg(test)]
mod tests;
