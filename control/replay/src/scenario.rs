//! Scenarios: clients, their programs and the node that they share.
//!
//! Sizes are the papers' divided by 16: a page here stands for 64 KiB there.

use crate::costs::{Costs, Terms};
use crate::keys::Keys;
use crate::oracle::Future;
use crate::trace::Trace;
use crate::work::{Phase, Work};

/// Pages here that stand for a mebibyte of the papers.
pub(crate) const MIB: u32 = 16;

/// Clients that share a node.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its description, in a line.
    pub about: String,
    /// Pages of the node.
    pub total_pages: u64,
    /// The times of requests.
    pub costs: Costs,
    /// The clients' programs.
    pub works: Vec<Work>,
}

/// A scenario's traces, ready to run.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// A trace for each client.
    pub traces: Vec<Trace>,
    /// Their future requests.
    pub futures: Vec<Future>,
    /// The operator's settings for each.
    pub terms: Vec<Terms>,
}

impl Scenario {
    /// Generates the traces. The same seed gives the same traces.
    pub fn prepare(&self, seed: u64) -> Prepared {
        let numbered = self.works.iter().enumerate();
        let traces: Vec<_> =
            numbered.map(|(at, work)| work.trace(seed.wrapping_mul(1000) + at as u64)).collect();
        let futures = traces.iter().map(Future::of).collect();
        Prepared { futures, terms: vec![Terms::default(); traces.len()], traces }
    }
}

pub(crate) fn work(
    name: impl Into<String>,
    local_pages: u32,
    think_us: u32,
    phases: Vec<Phase>,
) -> Work {
    let name = name.into();
    Work { name, local_pages, keys: Keys::Slots, think_ns: think_us * 1000, phases }
}

fn with_keys(keys: Keys, work: Work) -> Work {
    Work { keys, ..work }
}

pub(crate) fn zipf(start: u32, pages: u32, skew: f64, touches: u32) -> Phase {
    Phase::Zipf { start, pages, skew, touches, writes: 30 }
}

/// A service that starts after a while, and looks up some pages of its 640 MiB more often than others.
fn service(name: &str, after_ms: u32, skew: f64, touches: u32) -> Work {
    let phases =
        vec![Phase::Fill { start: 0, pages: 640 * MIB }, zipf(0, 640 * MIB, skew, touches)];
    let phases = if after_ms == 0 { phases } else { after(after_ms, phases) };
    work(name, 256 * MIB, 20, phases)
}

/// ALS over ratings in memory: it loads a data set, then scans it with look-ups in the factors.
fn analytics(data: u32, passes: u32) -> Vec<Phase> {
    let factors = data / 4;
    vec![
        Phase::Fill { start: 0, pages: data + factors },
        Phase::Join { start: 0, pages: data, passes, others_start: data, others: factors },
    ]
}

/// PageRank: it loads edges and scans them, and touches vertices in proportion to their degree.
fn graph(edges: u32, vertices: u32, passes: u32) -> Vec<Phase> {
    vec![
        Phase::Fill { start: 0, pages: edges },
        Phase::Join { start: 0, pages: edges, passes, others_start: edges, others: vertices },
    ]
}

pub(crate) fn after(ms: u32, mut phases: Vec<Phase>) -> Vec<Phase> {
    phases.insert(0, Phase::Idle { ms });
    phases.insert(1, Phase::Shift);
    phases
}

/// The scenarios on which policies were tuned.
pub fn scenarios() -> Vec<Scenario> {
    let gib = u64::from(1024 * MIB);
    vec![
        Scenario {
            name: "analytics".into(),
            about: "the paper's scenario 1: three run in-memory analytics, sleep 5 s, and run it again".into(),
            total_pages: gib,
            costs: Costs::of_runs(),
            works: (1..=3)
                .map(|n| {
                    let run = analytics(1300 * MIB, 12);
                    let mut phases = run.clone();
                    phases.extend([Phase::Restart, Phase::Idle { ms: 5000 }, Phase::Shift]);
                    phases.extend(run);
                    with_keys(Keys::Run, work(format!("vm{n}"), 1024 * MIB, 20, phases))
                })
                .collect(),
        },
        Scenario {
            name: "graphs".into(),
            about: "the paper's scenario 2: three graph analytics, the third 30 s later".into(),
            total_pages: gib,
            costs: Costs::of_runs(),
            works: (1..=3)
                .map(|n| {
                    let run = graph(700 * MIB, 300 * MIB, 50);
                    let phases = if n == 3 { after(30_000, run) } else { run };
                    with_keys(Keys::Run, work(format!("vm{n}"), 512 * MIB, 20, phases))
                })
                .collect(),
        },
        Scenario {
            name: "usemem".into(),
            about: "the paper's: 128 MiB steps to 1 GiB, the third starts late".into(),
            total_pages: u64::from(384 * MIB),
            costs: Costs::of_runs(),
            works: (1..=3)
                .map(|n| {
                    let mut phases: Vec<_> = (1..=8)
                        .map(|step| Phase::Scan {
                            start: 0,
                            pages: 128 * MIB * step,
                            passes: 20,
                            writes: 50,
                        })
                        .collect();
                    if n == 3 {
                        phases = after(20_000, phases);
                    }
                    with_keys(Keys::Run, work(format!("vm{n}"), 512 * MIB, 20, phases))
                })
                .collect(),
        },
        Scenario {
            name: "mixed-graphs".into(),
            about: "the paper's scenario 3: two graphs, and analytics in a larger VM 30 s later".into(),
            total_pages: gib,
            costs: Costs::of_runs(),
            works: vec![
                with_keys(Keys::Run, work("graph1", 512 * MIB, 20, graph(700 * MIB, 300 * MIB, 50))),
                with_keys(Keys::Run, work("graph2", 512 * MIB, 20, graph(700 * MIB, 300 * MIB, 50))),
                with_keys(Keys::Run, work("analytics", 1024 * MIB, 20, after(30_000, analytics(1300 * MIB, 25)))),
            ],
        },
        Scenario {
            name: "equals".into(),
            about: "four of the same key-value service, evenly loaded: shares should be even".into(),
            total_pages: gib,
            costs: Costs::with_disk(150),
            works: (1..=4)
                .map(|n| {
                    let phases = vec![
                        Phase::Fill { start: 0, pages: 768 * MIB },
                        zipf(0, 768 * MIB, 0.8, 3_000_000),
                    ];
                    with_keys(Keys::Pages, work(format!("kv{n}"), 256 * MIB, 20, phases))
                })
                .collect(),
        },
        Scenario {
            name: "sizes".into(),
            about: "four services with working sets of 1, 2, 4 and 8 parts".into(),
            total_pages: gib,
            costs: Costs::with_disk(150),
            works: (0..4_u32)
                .map(|n| {
                    let pages = (256 * MIB) << n;
                    let phases = vec![
                        Phase::Fill { start: 0, pages },
                        zipf(0, pages, 0.7, 3_000_000),
                    ];
                    work(format!("kv{}", 1 << n), 192 * MIB, 20, phases)
                })
                .collect(),
        },
        Scenario {
            name: "scan".into(),
            about: "one goes through far more than there is, over and over; two look up what they use again".into(),
            total_pages: u64::from(768 * MIB),
            costs: Costs::with_disk(500),
            works: vec![
                work(
                    "scan",
                    256 * MIB,
                    20,
                    vec![Phase::Scan { start: 0, pages: 4096 * MIB, passes: 30, writes: 5 }],
                ),
                service("kv1", 0, 0.6, 3_000_000),
                service("kv2", 0, 0.9, 3_000_000),
            ],
        },
        Scenario {
            name: "stream".into(),
            about: "one writes a log in memory that nobody reads, beside two services".into(),
            total_pages: u64::from(768 * MIB),
            costs: Costs::with_disk(500),
            works: vec![
                work(
                    "log",
                    128 * MIB,
                    200,
                    vec![Phase::Stream { start: 0, pages: 16 * 1024 * MIB }],
                ),
                service("kv1", 0, 0.7, 2_500_000),
                service("kv2", 0, 0.7, 2_500_000),
            ],
        },
        Scenario {
            name: "hoarder".into(),
            about: "a service fills the node and goes to sleep; two start later and need it; it wakes up again".into(),
            total_pages: u64::from(768 * MIB),
            costs: Costs::with_disk(500),
            works: vec![
                work(
                    "hoarder",
                    192 * MIB,
                    20,
                    vec![
                        Phase::Fill { start: 0, pages: 1024 * MIB },
                        zipf(0, 1024 * MIB, 0.7, 1_000_000),
                        Phase::Idle { ms: 100_000 },
                        Phase::Shift,
                        zipf(0, 1024 * MIB, 0.7, 1_000_000),
                    ],
                ),
                service("kv1", 2000, 0.7, 3_000_000),
                service("kv2", 2000, 0.7, 3_000_000),
            ],
        },
        Scenario {
            name: "trickle".into(),
            about: "a hoarder that touches a page now and then, beside two services".into(),
            total_pages: u64::from(768 * MIB),
            costs: Costs::with_disk(500),
            works: vec![
                Work {
                    think_ns: 2_000_000,
                    ..work(
                        "trickle",
                        128 * MIB,
                        20,
                        vec![
                            Phase::Fill { start: 0, pages: 1024 * MIB },
                            zipf(0, 1024 * MIB, 0.2, 40_000),
                        ],
                    )
                },
                service("kv1", 40_000, 0.7, 2_500_000),
                service("kv2", 40_000, 0.7, 2_500_000),
            ],
        },
        Scenario {
            name: "shift".into(),
            about: "two swap a large and a small working set every 40 s".into(),
            total_pages: u64::from(512 * MIB),
            costs: Costs::with_disk(500),
            works: (0..2)
                .map(|n| {
                    let mut phases = vec![Phase::Fill { start: 0, pages: 768 * MIB }];
                    for turn in 0..4 {
                        let pages = if turn % 2 == n { 704 * MIB } else { 288 * MIB };
                        phases.push(Phase::Shift);
                        phases.push(zipf(0, pages, 0.5, 1_500_000));
                    }
                    work(format!("vm{}", n + 1), 256 * MIB, 20, phases)
                })
                .collect(),
        },
        Scenario {
            name: "relay".into(),
            about: "batch jobs one after the other, each of which can use all there is: greedy should do well".into(),
            total_pages: u64::from(768 * MIB),
            costs: Costs::with_disk(500),
            works: (0..3_u32)
                .map(|n| {
                    let mut phases = vec![Phase::Idle { ms: 1 + 45_000 * n }, Phase::Shift];
                    phases.extend([
                        Phase::Fill { start: 0, pages: 960 * MIB },
                        Phase::Scan { start: 0, pages: 960 * MIB, passes: 80, writes: 50 },
                        Phase::Restart,
                    ]);
                    with_keys(Keys::Pages, work(format!("job{}", n + 1), 256 * MIB, 20, phases))
                })
                .collect(),
        },
        Scenario {
            name: "many".into(),
            about: "sixteen clients: services, scans, jobs and sleepers".into(),
            total_pages: gib,
            costs: Costs::with_disk(500),
            works: (0..16_u32)
                .map(|n| {
                    let pages = (96 + 32 * (n % 5)) * MIB;
                    let phases = match n % 4 {
                        0 => vec![
                            Phase::Fill { start: 0, pages },
                            zipf(0, pages, 0.8, 1_500_000),
                        ],
                        1 => vec![Phase::Scan { start: 0, pages: 2 * pages, passes: 200, writes: 20 }],
                        2 => vec![
                            Phase::Idle { ms: 2500 * n },
                            Phase::Shift,
                            Phase::Fill { start: 0, pages },
                            zipf(0, pages, 0.4, 1_000_000),
                            Phase::Restart,
                        ],
                        _ => vec![
                            Phase::Fill { start: 0, pages },
                            Phase::Idle { ms: 30_000 },
                            zipf(0, pages, 0.6, 800_000),
                        ],
                    };
                    with_keys(Keys::Pages, work(format!("c{}", n + 1), 64 * MIB, 20, phases))
                })
                .collect(),
        },
        Scenario {
            name: "slow-disk".into(),
            about: "three services of different sizes beside disks of 5 ms".into(),
            total_pages: u64::from(768 * MIB),
            costs: Costs::with_disk(5000),
            works: [384, 512, 896]
                .into_iter()
                .map(|mib| {
                    let phases = vec![
                        Phase::Fill { start: 0, pages: mib * MIB },
                        zipf(0, mib * MIB, 0.9, 2_000_000),
                    ];
                    work(format!("kv{mib}"), 256 * MIB, 50, phases)
                })
                .collect(),
        },
    ]
}
