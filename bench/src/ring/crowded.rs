//! The ring while another thread keeps the server's core busy, compared with servers that always sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::process::{Child, Polling, SERVER_CORE, pin};
use super::servers::{Dialect, Server};
use super::sides::{Flight, Ring, Side, Way};
use super::{BENCH, SPAN, SPANS, STRIDE};
use crate::rows::{Report, Row, median};
use crate::{go_on, rounds};

/// The name of the cell.
pub const CELL: &str = "get 4 KiB, depth 1, server's core busy";

/// A thread that keeps the servers' core busy.
struct Busy {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn start() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let thread = thread::spawn(move || {
            // Pinning may not be allowed; continue without it.
            let _ = pin(SERVER_CORE);
            while !end.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Measures the time of a get.
///
/// # Errors
/// A server that can't be started, a wrong value, or the user's interruption.
pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    let mut children = [Child::ring_server(Polling::Yes)?, Child::memcached()?, Child::redis()?];
    let mut ring = Ring::connect(children[0].socket(), 4096)?;
    let mut memcached = Server::connect(children[1].socket(), Dialect::Memcached, 4096)?;
    let mut redis = Server::connect(children[2].socket(), Dialect::Redis, 4096)?;
    let mut sides = [&mut ring as &mut dyn Side, &mut memcached, &mut redis];
    let numbers: Vec<usize> = (0..STRIDE).collect();
    for side in &mut sides {
        side.run(Way::Put, Flight::One, &numbers)?;
    }
    let busy = Busy::start();
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..rounds()? * SPANS {
        for (side, samples) in sides.iter_mut().zip(&mut samples) {
            go_on()?;
            samples.push(microseconds(&mut **side, &numbers)?);
        }
    }
    drop(busy);
    let [ours, memcached_us, redis_us] = samples.map(median);
    for other in [("memcached", memcached_us), ("redis", redis_us)] {
        report.rows.push(Row::new(BENCH, CELL, "µs", ours, other));
    }
    drop((ring, memcached, redis));
    children.iter_mut().try_for_each(Child::end)
}

/// The mean time of a get during a span.
fn microseconds(side: &mut dyn Side, numbers: &[usize]) -> anyhow::Result<f64> {
    let (start, mut done) = (Instant::now(), 0);
    for number in numbers.iter().cycle() {
        side.run(Way::Get, Flight::One, &[*number])?;
        done += 1;
        if start.elapsed() >= SPAN {
            break;
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(done))
}
