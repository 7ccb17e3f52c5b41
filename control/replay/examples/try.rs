//! wip
use spillway_manager::{Percent, Policy, SmartAlloc, Utility};
use spillway_replay::engine::{run, Who};
use spillway_replay::scenario::scenarios;
use std::time::Instant;
fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    for scenario in scenarios() {
        if !only.is_empty() && !only.iter().any(|o| scenario.name == o) { continue; }
        let t = Instant::now();
        let p = scenario.prepare(1);
        let acc: u64 = p.traces.iter().map(|t| t.accesses).sum();
        let ev: usize = p.traces.iter().map(|t| t.events.len()).sum();
        println!("== {} : {} accesses {} events prepared in {:?}", scenario.name, acc, ev, t.elapsed());
        let mut whos = vec![Who::Oracle, Who::Policy(Policy::Utility(Utility { miss_us: std::env::var("MISS").ok().and_then(|v| v.parse().ok()).unwrap_or((scenario.costs.disk_read_ns / 1000) as u32), ..Utility::default() })), Who::Policy(Policy::Greedy), Who::Policy(Policy::StaticAlloc), Who::Policy(Policy::ReconfStatic)];
        for h in [25, 75, 200, 400, 600] { whos.push(Who::Policy(Policy::SmartAlloc(SmartAlloc { p: Percent::hundredths(h), threshold_pages: None }))); }
        if std::env::var("FEW").is_ok() { whos.truncate(2); }
        for who in whos {
            let t = Instant::now();
            let r = run(who, scenario.total_pages, scenario.costs, &p.traces, &p.futures, &p.terms);
            let s: Vec<String> = r.clients.iter().take(6).map(|c| format!("{:.2}", c.slowdown)).collect();
            println!("{:18} mean {:6.3} worst {:6.2} jain {:.3} churn {:6.0} settle {:?} end {:.0} [{}] {:?}", r.policy, r.mean_slowdown(), r.worst_slowdown(), r.jain(), r.churn_pages, r.settled_mean().map(|x| (x*10.0).round()/10.0), r.end_s, s.join(" "), t.elapsed());
        }
    }
}
