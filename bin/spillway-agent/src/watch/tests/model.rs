//! A second watch, written from docs/guests.md. It keeps all samples, and computes everything from them each time. The
//! real watch must make the same requests at the same times for any input, including inputs at a bound or a byte or a
//! millisecond beside it.

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A time and an amount.
type Point = (Duration, u64);

struct Plain {
    terms: Terms,
    all: Vec<(Duration, Sample)>,
    /// The sample from which the guest has been at rest, and since when.
    rests_from: usize,
    rests_since: Duration,
    asked: Option<(Duration, Ask)>,
    /// Memory that has arrived since the request.
    came: u64,
    /// Granted memory that has not arrived: how much, and until when it is awaited.
    coming: (u64, Duration),
    /// Refusals of urgent and of other requests: their number in a row, and until when no request is made.
    refused: [(u32, Duration); 2],
    alarm: bool,
}

/// The points that are at least a second apart, from the first on.
fn each_second(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut taken: Vec<Point> = Vec::new();
    for point in points {
        if taken.last().is_none_or(|last| point.0 >= last.0 + SECOND) {
            taken.push(point);
        }
    }
    taken
}

/// The points within a time before the last one, and the one before them.
fn within(points: &[Point], time: Duration) -> &[Point] {
    let Some((end, _)) = points.last() else { return points };
    let before = points.iter().rposition(|(at, _)| *at + time <= *end).unwrap_or(0);
    &points[before..]
}

/// The count per second, from a count in a time.
fn of_second(count: u64, time: Duration) -> u64 {
    (u128::from(count) * 1_000_000 / time.as_micros().max(1)) as u64
}

impl Plain {
    fn new(terms: Terms, now: Duration) -> Self {
        Self {
            terms,
            all: Vec::new(),
            rests_from: 0,
            rests_since: now,
            asked: None,
            came: 0,
            coming: (0, now),
            refused: [(0, now); 2],
            alarm: false,
        }
    }

    fn used(&self) -> Vec<Point> {
        self.all.iter().map(|(at, it)| (*at, it.total.saturating_sub(it.available))).collect()
    }

    /// The highest pace of the last half second, over periods of at least `least`.
    fn burst(&self, least: Duration) -> u64 {
        let used = self.used();
        let Some(&(now, has)) = used.last() else { return 0 };
        let lately = within(&used, 500 * MS).iter().filter(|(at, _)| now - *at >= least);
        lately.map(|(at, had)| of_second(has.saturating_sub(*had), now - *at)).max().unwrap_or(0)
    }

    /// The pace of the last ten seconds, if at least two seconds are known.
    fn trend(&self) -> u64 {
        let used = self.used();
        let Some(&(now, has)) = used.last() else { return 0 };
        let seconds = each_second(used.into_iter());
        let (at, had) = within(&seconds, 10 * SECOND)[0];
        if now < at + 2 * SECOND { 0 } else { of_second(has.saturating_sub(had), now - at) }
    }

    /// The least available memory in each second of the last minute of rest.
    fn lows(&self) -> Vec<u64> {
        let mut lows: Vec<Point> = Vec::new();
        for (at, sample) in &self.all[self.rests_from..] {
            match lows.last_mut().filter(|low| *at < low.0 + SECOND) {
                Some(low) => low.1 = low.1.min(sample.available),
                None => lows.push((*at, sample.available)),
            }
        }
        within(&lows, 60 * SECOND).iter().map(|(_, low)| *low).collect()
    }

    /// The last two samples of the counters, a second apart, if the second one is the latest sample.
    fn counters(&self) -> Option<(Duration, Sample, Sample)> {
        let now = self.all.last()?.0;
        let places = self.all.iter().enumerate().map(|(place, (at, _))| (*at, place as u64));
        let looks = each_second(places);
        let [.., (before, old), (at, new)] = looks[..] else { return None };
        (at == now && new as usize == self.all.len() - 1)
            .then(|| (at - before, self.all[old as usize].1, self.all[new as usize].1))
    }

    /// Whether tasks stalled for more than a tenth of the time between the last two samples of the counters.
    fn stalls(&self) -> bool {
        let places = self.all.iter().enumerate().map(|(place, (at, _))| (*at, place as u64));
        let looks = each_second(places);
        let [.., (before, old), (at, new)] = looks[..] else { return false };
        let stalled = |place: u64| self.all[place as usize].1.stalled_us;
        of_second(stalled(new).saturating_sub(stalled(old)), at - before) > 100_000
    }

    fn rest(&mut self, now: Duration, from: usize) {
        (self.rests_from, self.rests_since) = (from, now);
    }

    fn sample(&mut self, now: Duration, sample: Sample) -> Option<Ask> {
        let had = self.all.last().map_or(sample.total, |(_, last)| last.total);
        let came = sample.total.saturating_sub(had);
        if came > 0 {
            self.coming.0 = self.coming.0.saturating_sub(came);
            self.came += came;
            self.asked = self.asked.map(|(_, ask)| (now, ask));
            self.refused = self.refused.map(|(_, until)| (0, until.min(now + 500 * MS)));
        }
        if now >= self.coming.1 {
            self.coming.0 = 0;
        }
        self.all.push((now, sample));
        if let Some((time, old, new)) = self.counters() {
            let stalled = of_second(new.stalled_us.saturating_sub(old.stalled_us), time);
            let refaults = of_second(new.refaults.saturating_sub(old.refaults), time);
            let same = new.swap_ins == old.swap_ins && new.total == old.total;
            if stalled >= 10_000 || refaults > 64 || !same {
                self.rest(now, self.all.len() - 1);
            }
        }
        if sample.available + self.terms.reserve < self.lows()[0] {
            self.rest(now, self.all.len());
        }
        if self.asked.is_some_and(|(since, _)| now >= since + 5 * SECOND) {
            self.refuse(now);
        }
        let ask = self.need(now, &sample).or_else(|| self.give(now, &sample));
        self.alarm = false;
        if let Some(ask) = ask {
            (self.asked, self.came) = (Some((now, ask)), 0);
            self.rest(now, self.all.len());
        }
        ask
    }

    fn need(&self, now: Duration, sample: &Sample) -> Option<Ask> {
        let Terms { reserve, block, .. } = self.terms;
        let room = sample.available + self.coming.0;
        let urgent = room < if self.alarm { 2 * reserve } else { reserve };
        let waits = match self.asked {
            Some((_, Ask::Need { urgent: true, .. })) => true,
            Some((_, Ask::Need { urgent: false, .. })) => !urgent,
            _ => false,
        };
        if waits || now < self.refused[usize::from(!urgent)].1 {
            return None;
        }
        let soon = self.burst(100 * MS) / 2;
        let later = self.trend() * 5;
        let is_tight = room < (2 * reserve).max(sample.total / 4);
        let bytes = if urgent {
            (reserve.saturating_sub(room) + 2 * self.burst(20 * MS)).max(1)
        } else if room < reserve + soon {
            2 * soon
        } else if later >= 20 * MIB && room < reserve + later {
            later
        } else if self.stalls() && is_tight && self.coming.0 == 0 {
            block
        } else {
            return None;
        };
        let whole = bytes.div_ceil(block) * block;
        // It may double. It needs a page of kernel memory for 64 new pages, and uses only half of the free ones.
        let most = (sample.total / block * block).max(block);
        let bound = self.terms.most.saturating_sub(sample.total).saturating_sub(self.coming.0);
        let possible = bound.min(sample.kernel_free / 2 * 64) / block * block;
        let bytes = whole.min(most).min(possible);
        (bytes > 0).then_some(Ask::Need { bytes, urgent })
    }

    fn give(&self, now: Duration, sample: &Sample) -> Option<Ask> {
        let Terms { reserve, block, .. } = self.terms;
        let rests = now >= self.rests_since + 60 * SECOND && self.trend() < 4 * MIB;
        if self.asked.is_some() || !rests {
            return None;
        }
        let least = self.lows().into_iter().min().unwrap_or(0);
        let spare = least.saturating_sub(2 * reserve + sample.used_cache);
        let bytes = spare.min(sample.returnable) / block * block;
        (bytes > 0).then_some(Ask::Give { bytes })
    }

    fn refuse(&mut self, now: Duration) {
        let Some((_, Ask::Need { urgent, .. })) = self.asked.take() else { return };
        let (times, until) = &mut self.refused[usize::from(!urgent)];
        *until = now + (500 * MS * (1 << (*times).min(6))).min(30 * SECOND);
        *times += 1;
    }

    fn answered(&mut self, now: Duration, ask: Ask, granted: u64) {
        let is_last = self.asked.is_some_and(|(_, last)| last == ask);
        match ask {
            Ask::Need { .. } if granted == 0 && is_last => self.refuse(now),
            Ask::Need { .. } if granted > 0 => {
                let there = if is_last { self.came } else { 0 };
                self.coming = (self.coming.0 + granted.saturating_sub(there), now + 10 * SECOND);
                self.refused = [(0, now); 2];
            }
            _ => {}
        }
        if is_last {
            self.asked = None;
        }
    }

    fn greeted(&mut self, now: Duration, was_there: bool) {
        if !was_there {
            (self.asked, self.refused) = (None, [(0, now); 2]);
        }
    }

    /// When the next sample is due, in nanoseconds.
    fn next(&self) -> u128 {
        let Some((now, sample)) = self.all.last() else { return (10 * MS).as_nanos() };
        let far = (sample.available + self.coming.0).saturating_sub(self.terms.reserve);
        let pace = (4 << 30).max(4 * self.burst(20 * MS));
        let wait = u128::from(far) * 1_000_000_000 / u128::from(pace);
        let until = self.refused[0].1.saturating_sub(*now).as_nanos();
        wait.max(until).clamp((10 * MS).as_nanos(), (100 * MS).as_nanos())
    }

    /// Times at which something is decided.
    fn due(&self, now: Duration) -> Vec<Duration> {
        let last = self.all.last().map_or(now, |(at, _)| *at);
        let mut due = vec![
            self.coming.1,
            self.refused[0].1,
            self.refused[1].1,
            self.rests_since + 60 * SECOND,
            last + 20 * MS,
            last + 100 * MS,
            last + 500 * MS,
            last + SECOND,
        ];
        due.extend(self.asked.map(|(since, _)| since + 5 * SECOND));
        due.retain(|at| *at > now);
        due
    }
}

/// The next event: a sample, an answer, an alarm, or a host.
#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    /// Which time, and how far beside it.
    at: u8,
    beside: i8,
    ms: u64,
    /// Which amount, and how far beside it.
    amount: u8,
    off: i8,
    many: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = (0..24u8, 0..16u8, -1..=1i8, 0..3000u64, 0..12u8, -1..=1i8, 0..2000u64);
    let step = some.prop_map(|(kind, at, beside, ms, amount, off, many)| Step {
        kind,
        at,
        beside,
        ms,
        amount,
        off,
        many,
    });
    proptest::collection::vec(step, 1..80)
}

struct Both {
    real: Watch,
    plain: Plain,
    now: Duration,
    sample: Sample,
    asks: Vec<Ask>,
}

impl Both {
    fn pass(&mut self, step: &Step) {
        let due = self.plain.due(self.now);
        let moment = due.get(usize::from(step.at)).copied();
        let at = moment.unwrap_or(self.now + Duration::from_millis(step.ms));
        let at = match step.beside {
            -1 => at.saturating_sub(MS),
            0 => at,
            _ => at + MS,
        };
        self.now = at.max(self.now);
    }

    fn change(&mut self, step: &Step) {
        let many = step.many * MIB;
        let near = |bytes: u64| bytes.saturating_add_signed(step.off.into());
        let (reserve, it) = (TERMS.reserve, &mut self.sample);
        let since = self.plain.all.last().map_or(0, |(at, _)| (self.now - *at).as_millis() as u64);
        match step.amount {
            0 => it.available = near(reserve),
            1 => it.available = near(2 * reserve),
            2 => it.available = near(reserve.saturating_sub(self.plain.coming.0)),
            3 => it.available = near(it.total / 4),
            4 => it.available = many,
            // At a pace that just counts as a trend.
            5 => it.available = near(it.available.saturating_sub(4 * MIB * since / 1000)),
            6 => it.stalled_us += near(since * if step.many.is_multiple_of(2) { 100 } else { 10 }),
            7 => it.refaults += near(since * 64 / 1000),
            8 => it.swap_ins += step.many % 2,
            9 => it.kernel_free = many / 16,
            10 => {
                let block = (step.many % 4) * BLOCK;
                (it.total, it.available) = (it.total + block, it.available + block);
                it.returnable += block;
            }
            _ => it.used_cache = many / 8,
        }
        it.total = it.total.min(6000 * MIB);
        it.available = it.available.min(it.total);
    }

    fn go(&mut self, step: &Step) {
        self.pass(step);
        match step.kind {
            0 => {
                self.real.alarm();
                self.plain.alarm = true;
            }
            1 => {
                let was_there = step.many.is_multiple_of(2);
                self.real.greeted(self.now, was_there);
                self.plain.greeted(self.now, was_there);
            }
            // An answer to the last request, or to an earlier one.
            2..=5 => {
                let late = usize::from(step.kind == 5);
                let Some(&ask) = self.asks.iter().rev().nth(late) else { return };
                let (Ask::Need { bytes, .. } | Ask::Give { bytes }) = ask;
                let granted = if step.many.is_multiple_of(3) { 0 } else { bytes };
                self.real.answered(self.now, ask, granted);
                self.plain.answered(self.now, ask, granted);
            }
            kind => {
                if kind % 2 == 0 {
                    self.change(step);
                }
                self.look();
            }
        }
    }

    fn look(&mut self) {
        let ask = self.real.sample(self.now, self.sample);
        assert_eq!(ask, self.plain.sample(self.now, self.sample), "at {:?}", self.now);
        self.asks.extend(ask);
        let (next, expected) = (self.real.next().as_nanos(), self.plain.next());
        assert!(next.abs_diff(expected) < 1000, "{next} is not {expected} ns");
        assert_eq!(self.real.is_short(), self.sample.available < TERMS.reserve);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn the_watch_asks_for_what_a_plain_one_asks_for(
        begins in (448..4096u64, 0..4096u64, 0..2048u64),
        steps in steps(),
    ) {
        let (total, available, returnable) = (begins.0 * MIB, begins.1 * MIB, begins.2 * MIB);
        let available = available.min(total);
        let sample = Sample { total, available, returnable, kernel_free: 300 * MIB, ..Sample::default() };
        let (real, plain) = (Watch::new(TERMS, SECOND), Plain::new(TERMS, SECOND));
        let mut both = Both { real, plain, now: SECOND, sample, asks: Vec::new() };
        for step in &steps {
            both.go(step);
            // Samples between the events: otherwise a minute of rest takes too many steps.
            if step.kind >= 20 {
                for _ in 0..step.ms / 40 {
                    both.now += Duration::from_millis(970);
                    both.look();
                }
            }
        }
    }
}
