//! Standard workloads of shared memory, each for runs of programs and for guests that swap onto disks of the node. No
//! policy was tuned on them.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::costs::Costs;
use crate::keys::Keys;
use crate::scenario::{MIB, Scenario, after, work, zipf};
use crate::work::{Phase, Work};

/// Computing time for each touch of a page, us.
const THINK_US: u32 = 20;
/// Touches of a page in a second of computing.
const SECOND: u32 = 1_000_000 / THINK_US;

/// The workloads: `bursty`, `daily`, `noisy-neighbour`, `phase-change`, `long-scan` and `arrivals`. The names of those
/// with slots of disks end in `-slots`.
pub fn workloads() -> Vec<Scenario> {
    let kinds = [bursty, daily, noisy_neighbour, phase_change, long_scan, arrivals];
    kinds.into_iter().flat_map(|kind| [on(Keys::Run, kind()), on(Keys::Slots, kind())]).collect()
}

fn on(keys: Keys, mut scenario: Scenario) -> Scenario {
    scenario.works.iter_mut().for_each(|work| work.keys = keys);
    if keys == Keys::Slots {
        scenario.name.push_str("-slots");
    }
    scenario
}

fn scenario(name: &str, about: &str, mib: u32, works: Vec<Work>) -> Scenario {
    let total_pages = u64::from(mib * MIB);
    Scenario { name: name.into(), about: about.into(), total_pages, costs: Costs::of_runs(), works }
}

fn fill(mib: u32) -> Phase {
    Phase::Fill { start: 0, pages: mib * MIB }
}

fn bursty() -> Scenario {
    let service = |number: u32| {
        let burst = [Phase::Idle { ms: 15_000 }, Phase::Shift, zipf(0, 640 * MIB, 0.6, 5 * SECOND)];
        let mut phases = vec![fill(640), Phase::Idle { ms: 1 + 5000 * number }];
        phases.extend(burst.iter().cycle().take(5 * burst.len()).cloned());
        work(format!("service{}", number + 1), 192 * MIB, THINK_US, phases)
    };
    let about = "four services that work for 5 s and rest for 15 s, one after the other";
    scenario("bursty", about, 768, (0..4).map(service).collect())
}

fn daily() -> Scenario {
    let service = |number: u32| {
        let hours = [256, 448, 640, 448];
        let day = (0..8).flat_map(|hour: u32| {
            let mib = hours[((hour + 2 * number) % 4) as usize];
            [Phase::Shift, zipf(0, mib * MIB, 0.5, 10 * SECOND)]
        });
        let phases = [fill(640)].into_iter().chain(day).collect();
        work(format!("region{}", number + 1), 192 * MIB, THINK_US, phases)
    };
    let about =
        "four services whose working sets grow and shrink like a day's load, two of them at night";
    scenario("daily", about, 1024, (0..4).map(service).collect())
}

fn noisy_neighbour() -> Scenario {
    let victim = |number: u32| {
        let phases = vec![fill(448), zipf(0, 448 * MIB, 0.9, 60 * SECOND)];
        work(format!("victim{number}"), 192 * MIB, THINK_US, phases)
    };
    let noise =
        Phase::Zipf { start: 0, pages: 4096 * MIB, skew: 0.0, touches: 60 * SECOND, writes: 80 };
    let neighbour = work("neighbour", 192 * MIB, 5, after(5000, vec![noise]));
    let works = (1..=3).map(victim).chain([neighbour]).collect();
    let about = "three services that fit, and one that touches far more than there is, at random";
    scenario("noisy-neighbour", about, 896, works)
}

fn phase_change() -> Scenario {
    let program = |number: u32| {
        let change = |turn: u32| {
            let start = turn % 2 * 512 * MIB;
            [Phase::Shift, zipf(start, 512 * MIB, 0.4, (12 + 4 * number) * SECOND)]
        };
        let phases = [fill(1024)].into_iter().chain((0..5).flat_map(change)).collect();
        work(format!("program{}", number + 1), 192 * MIB, THINK_US, phases)
    };
    let about = "three programs, each of which leaves its working set for another of the same size now and then";
    scenario("phase-change", about, 896, (0..3).map(program).collect())
}

fn long_scan() -> Scenario {
    let service = |number: u32| {
        let phases = vec![fill(576), zipf(0, 576 * MIB, 0.7, 60 * SECOND)];
        work(format!("service{number}"), 192 * MIB, THINK_US, phases)
    };
    let pass = Phase::Scan { start: 0, pages: 3072 * MIB, passes: 8, writes: 0 };
    let scan = work("scan", 192 * MIB, THINK_US, after(10_000, vec![fill(3072), pass]));
    let about = "one reads four times what there is, in order, over and over; two services look up what they use again";
    scenario("long-scan", about, 768, [1, 2].map(service).into_iter().chain([scan]).collect())
}

fn arrivals() -> Scenario {
    let mut random = SmallRng::seed_from_u64(0xa221);
    let mut start_ms = 1;
    let job = |number: u32| {
        let mib = random.random_range(192..=640);
        let seconds = random.random_range(8..=25);
        let phases = vec![fill(mib), zipf(0, mib * MIB, 0.5, seconds * SECOND), Phase::Restart];
        let job = work(format!("job{number}"), 96 * MIB, THINK_US, after(start_ms, phases));
        start_ms += random.random_range(2000..=9000);
        job
    };
    let about = "twelve jobs of different sizes that come one after the other and go";
    scenario("arrivals", about, 896, (1..=12).map(job).collect())
}
