use super::*;
use proptest::prelude::*;

mod model;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 128 * MIB;
const TERMS: Terms = Terms { reserve: 64 * MIB, most: 4096 * MIB, block: BLOCK };

/// A guest that uses memory at a pace, and a host that grants requests or refuses them.
struct Guest {
    watch: Watch,
    now: Duration,
    sample: Sample,
    asks: Vec<(Duration, Ask)>,
    /// The host's remaining memory, the time until it arrives, and the time of an answer.
    pool: u64,
    only_urgent: bool,
    brings: Duration,
    delay: Duration,
    arriving: Vec<(Duration, u64)>,
    answering: Vec<(Duration, Ask, u64)>,
}

impl Guest {
    fn new(total: u64, available: u64) -> Self {
        let sample = Sample { total, available, kernel_free: 300 * MIB, ..Sample::default() };
        Self {
            watch: Watch::new(TERMS, Duration::ZERO),
            now: Duration::ZERO,
            sample,
            asks: Vec::new(),
            pool: u64::MAX,
            only_urgent: false,
            brings: Duration::from_millis(150),
            delay: Duration::from_millis(160),
            arriving: Vec::new(),
            answering: Vec::new(),
        }
    }

    /// Runs for this time at a pace in bytes per second. Returns the least available memory.
    fn run(&mut self, time: Duration, pace: u64) -> u64 {
        let (end, mut least) = (self.now + time, u64::MAX);
        while self.now < end {
            let step = self.watch.next();
            self.now += step;
            let used = u64::try_from(u128::from(pace) * step.as_micros() / 1_000_000).unwrap();
            self.sample.available = self.sample.available.saturating_sub(used);
            self.host();
            least = least.min(self.sample.available);
            if let Some(ask) = self.watch.sample(self.now, self.sample) {
                self.asks.push((self.now, ask));
                let granted = match ask {
                    Ask::Need { urgent: false, .. } if self.only_urgent => 0,
                    Ask::Need { bytes, .. } => bytes.min(self.pool),
                    Ask::Give { bytes } => bytes,
                };
                self.answering.push((self.now + self.delay, ask, granted));
                if matches!(ask, Ask::Need { .. }) && self.delay < Duration::from_secs(1000) {
                    self.pool -= granted;
                    self.arriving.push((self.now + self.brings, granted));
                }
            }
        }
        least
    }

    fn host(&mut self) {
        let now = self.now;
        for (at, ask, granted) in std::mem::take(&mut self.answering) {
            if at > now {
                self.answering.push((at, ask, granted));
                continue;
            }
            self.watch.answered(now, ask, granted);
            if matches!(ask, Ask::Give { .. }) {
                self.sample.total -= granted;
                self.sample.available -= granted;
                self.sample.returnable -= granted;
            }
        }
        let (come, coming): (Vec<_>, _) = self.arriving.drain(..).partition(|(at, _)| *at <= now);
        self.arriving = coming;
        for (_, bytes) in come {
            self.sample.total += bytes;
            self.sample.available += bytes;
            self.sample.returnable += bytes;
        }
    }

    fn needs(&self, which: bool) -> usize {
        let is_one = |ask: &Ask| matches!(ask, Ask::Need { urgent, .. } if *urgent == which);
        self.asks.iter().filter(|(_, ask)| is_one(ask)).count()
    }
}

#[test]
fn a_guest_at_rest_asks_for_nothing_and_samples_slowly() {
    let mut guest = Guest::new(448 * MIB, 340 * MIB);
    guest.run(Duration::from_secs(600), 0);
    assert_eq!(guest.asks, []);
    guest.sample.available = 2048 * MIB;
    guest.watch.sample(guest.now, guest.sample);
    assert_eq!(guest.watch.next(), *SAMPLES_EVERY.end());
}

#[test]
fn a_burst_never_runs_dry() {
    let mut guest = Guest::new(448 * MIB, 340 * MIB);
    let least = guest.run(Duration::from_secs(12), 200 * MIB);
    assert!(least > TERMS.reserve, "only {} MiB were left", least / MIB);
    assert_eq!(guest.needs(true), 0, "{:?}", guest.asks);
}

#[test]
fn a_burst_lives_on_the_reserve_where_the_host_gives_nothing_ahead_of_need() {
    let mut guest = Guest::new(448 * MIB, 340 * MIB);
    guest.only_urgent = true;
    let least = guest.run(Duration::from_secs(12), 200 * MIB);
    assert!(least > 8 * MIB, "only {} MiB were left", least / MIB);
    assert!(guest.needs(true) >= 1);
}

#[test]
fn slow_growth_is_met_ahead_of_need() {
    let mut guest = Guest::new(448 * MIB, 340 * MIB);
    let least = guest.run(Duration::from_secs(120), 16 * MIB);
    assert_eq!(guest.needs(true), 0, "{:?}", guest.asks);
    assert!(guest.needs(false) >= 5);
    assert!(least >= TERMS.reserve);
}

#[test]
fn a_host_that_has_nothing_is_asked_less_and_less() {
    let mut guest = Guest::new(448 * MIB, 50 * MIB);
    guest.pool = 0;
    guest.run(Duration::from_secs(300), 0);
    let count = guest.needs(true);
    assert!((8..=16).contains(&count), "{count} requests");
    // Once the host has memory, the next request comes within the longest back-off.
    guest.pool = u64::MAX;
    guest.run(Duration::from_secs(31), 0);
    assert!(guest.sample.available > TERMS.reserve);
}

#[test]
fn a_host_that_does_not_answer_is_asked_less_and_less() {
    let mut guest = Guest::new(448 * MIB, 50 * MIB);
    guest.delay = Duration::from_secs(100_000);
    guest.run(Duration::from_secs(300), 0);
    assert!(guest.asks.len() <= 16, "{} requests", guest.asks.len());
}

#[test]
fn an_answer_before_the_memory_and_one_after_it_count_the_same() {
    for (brings, delay) in [(500, 10), (10, 500)] {
        let mut guest = Guest::new(448 * MIB, 60 * MIB);
        guest.brings = Duration::from_millis(brings);
        guest.delay = Duration::from_millis(delay);
        guest.run(Duration::from_secs(3), 0);
        assert_eq!(guest.asks.len(), 1, "{brings} {delay}");
        guest.sample.available = 50 * MIB;
        guest.run(Duration::from_millis(20), 0);
        assert_eq!(guest.asks.len(), 2, "{brings} {delay}");
    }
}

#[test]
fn while_memory_comes_the_host_may_take_its_time() {
    let mut guest = Guest::new(448 * MIB, 20 * MIB);
    guest.delay = Duration::from_secs(1000);
    guest.run(Duration::from_secs(4), 0);
    assert_eq!(guest.asks.len(), 1);
    // Less than the reserve is available, and each new block is used up.
    for _ in 0..20 {
        guest.sample.total += BLOCK;
        guest.run(Duration::from_secs(1), 0);
    }
    assert_eq!(guest.asks.len(), 1);
}

#[test]
fn what_is_urgent_does_not_wait_for_an_answer_to_what_is_not() {
    let mut guest = Guest::new(448 * MIB, 340 * MIB);
    (guest.brings, guest.delay) = (Duration::from_secs(8), Duration::from_secs(8));
    guest.run(Duration::from_secs(5), 40 * MIB);
    assert_eq!(guest.needs(false), 1);
    guest.sample.available = 20 * MIB;
    guest.run(Duration::from_millis(20), 0);
    assert_eq!(guest.needs(true), 1);
}

#[test]
fn no_more_is_asked_for_than_the_host_allows() {
    let mut guest = Guest::new(448 * MIB, 340 * MIB);
    guest.run(Duration::from_secs(60), 200 * MIB);
    assert!(guest.sample.total <= TERMS.most, "{} MiB", guest.sample.total / MIB);
}

#[test]
fn no_more_is_asked_for_than_the_kernel_can_describe() {
    let mut guest = Guest::new(448 * MIB, 50 * MIB);
    guest.sample.kernel_free = 8 * MIB;
    let ask = guest.watch.sample(Duration::from_secs(1), guest.sample);
    assert_eq!(ask, Some(Ask::Need { bytes: BLOCK, urgent: true }));
    guest.sample.kernel_free = 3 * MIB;
    let mut watch = Watch::new(TERMS, Duration::ZERO);
    assert_eq!(watch.sample(Duration::from_secs(1), guest.sample), None);
}

#[test]
fn stalls_ask_for_a_block_where_little_is_left() {
    let mut guest = Guest::new(448 * MIB, 100 * MIB);
    guest.run(Duration::from_secs(3), 0);
    assert_eq!(guest.asks, []);
    guest.sample.stalled_us += 900_000;
    guest.run(Duration::from_secs(2), 0);
    assert_eq!(guest.asks[0].1, Ask::Need { bytes: BLOCK, urgent: false });
}

#[test]
fn the_alarm_asks_earlier() {
    let mut guest = Guest::new(448 * MIB, 100 * MIB);
    guest.run(Duration::from_secs(1), 0);
    guest.watch.alarm();
    guest.run(Duration::from_millis(10), 0);
    assert_eq!(guest.needs(true), 1);
}

#[test]
fn plenty_is_given_back_after_a_minute_and_only_what_came() {
    let mut guest = Guest::new(2048 * MIB, 1800 * MIB);
    guest.sample.returnable = 1536 * MIB;
    guest.run(Duration::from_secs(59), 0);
    assert_eq!(guest.asks, []);
    guest.run(Duration::from_secs(3), 0);
    assert_eq!(guest.asks[0].1, Ask::Give { bytes: 1536 * MIB });
    guest.run(Duration::from_secs(600), 0);
    assert_eq!(guest.sample.returnable, 0);
    assert_eq!(guest.asks.len(), 1);
}

#[test]
fn a_host_that_says_hello_again_does_not_put_giving_back_off() {
    for was_there in [true, false] {
        let mut guest = Guest::new(2048 * MIB, 1600 * MIB);
        guest.sample.returnable = 1024 * MIB;
        while guest.asks.is_empty() && guest.now < 2 * PLENTY_TIME {
            guest.watch.greeted(guest.now, was_there);
            guest.run(Duration::from_secs(5), 0);
        }
        let (at, ask) = guest.asks[0];
        assert!(matches!(ask, Ask::Give { .. }));
        assert!(at < PLENTY_TIME + Duration::from_secs(6), "{at:?}");
    }
}

#[test]
fn a_host_that_comes_back_is_asked_at_once_and_one_that_never_went_is_not() {
    let mut guest = Guest::new(512 * MIB, 32 * MIB);
    guest.pool = 0;
    guest.run(Duration::from_secs(60), 0);
    for was_there in [true, false] {
        // It was just refused, so it waits for 30 s.
        let before = guest.asks.len();
        while guest.asks.len() == before {
            guest.run(Duration::from_millis(100), 0);
        }
        guest.run(Duration::from_secs(1), 0);
        let before = guest.asks.len();
        guest.watch.greeted(guest.now, was_there);
        guest.run(Duration::from_secs(1), 0);
        assert_eq!(guest.asks.len() > before, !was_there);
    }
}

#[test]
fn what_was_in_use_more_than_a_minute_ago_is_given_back() {
    let mut guest = Guest::new(2048 * MIB, 1600 * MIB);
    guest.sample.returnable = 1024 * MIB;
    guest.run(Duration::from_secs(20), 0);
    // Much memory is in use for a moment, and no task waits for it.
    guest.pool = 0;
    guest.sample.available = 200 * MIB;
    guest.run(Duration::from_secs(1), 0);
    guest.sample.available = 1600 * MIB;
    guest.run(PLENTY_TIME + Duration::from_secs(5), 0);
    assert!(
        matches!(guest.asks.last(), Some((_, Ask::Give { bytes })) if *bytes == 1024 * MIB),
        "{:?}",
        guest.asks
    );
}

#[test]
fn a_guest_that_fills_its_memory_slowly_gives_none_back() {
    let mut guest = Guest::new(4096 * MIB, 3900 * MIB);
    guest.sample.returnable = 3584 * MIB;
    guest.run(Duration::from_secs(300), 2 * MIB);
    assert_eq!(guest.asks, []);
    // It offers memory once it rests.
    guest.run(PLENTY_TIME + Duration::from_secs(40), 0);
    assert!(matches!(guest.asks[..], [(_, Ask::Give { .. })]), "{:?}", guest.asks);
}

#[test]
fn page_cache_and_refaults_keep_memory() {
    let mut guest = Guest::new(2048 * MIB, 1800 * MIB);
    (guest.sample.returnable, guest.sample.used_cache) = (1536 * MIB, 600 * MIB);
    guest.run(Duration::from_secs(62), 0);
    assert_eq!(guest.asks[0].1, Ask::Give { bytes: 1024 * MIB });
    let mut guest = Guest::new(2048 * MIB, 1800 * MIB);
    guest.sample.returnable = 1536 * MIB;
    for _ in 0..200 {
        guest.run(Duration::from_secs(1), 0);
        guest.sample.refaults += 1000;
    }
    assert_eq!(guest.asks, []);
}

#[test]
fn what_was_given_back_is_not_asked_for_again() {
    let mut guest = Guest::new(2048 * MIB, 1000 * MIB);
    guest.sample.returnable = 1536 * MIB;
    guest.run(Duration::from_secs(600), 0);
    assert_eq!(guest.needs(true) + guest.needs(false), 0, "{:?}", guest.asks);
    assert!(guest.sample.available >= TERMS.reserve);
}

proptest! {
    /// For any samples and answers, requests are whole blocks, within the limits, and not too frequent.
    #[test]
    fn requests_are_bounded(
        steps in proptest::collection::vec(
            (1u64..2000, 0u64..8192, 0u64..8192, 0u64..400, 0u64..5_000_000, any::<bool>(), any::<bool>()), 1..300)
    ) {
        let (mut watch, mut now) = (Watch::new(TERMS, Duration::ZERO), Duration::ZERO);
        let mut asks = Vec::new();
        for (ms, total, available, kernel, stalled, grants, alarms) in steps {
            now += Duration::from_millis(ms);
            let (total, available) = (total * MIB, available.min(total) * MIB);
            let sample = Sample { total, available, kernel_free: kernel * MIB, returnable: total / 2,
                                  stalled_us: stalled, ..Sample::default() };
            if alarms { watch.alarm() }
            let ask = watch.sample(now, sample);
            prop_assert!(SAMPLES_EVERY.contains(&watch.next()));
            let Some(ask) = ask else { continue };
            asks.push(now);
            match ask {
                Ask::Need { bytes, .. } => {
                    prop_assert!(bytes > 0 && bytes % BLOCK == 0 && total + bytes <= TERMS.most);
                    watch.answered(now, ask, if grants { bytes } else { 0 });
                }
                Ask::Give { bytes } => {
                    prop_assert!(bytes > 0 && bytes % BLOCK == 0 && bytes <= total / 2);
                    watch.answered(now, ask, 0);
                }
            }
        }
    }
}
