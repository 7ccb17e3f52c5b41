//! Samples the guest's memory, for the watch, the host and the control group's limit.

use std::time::Duration;

use spillway_guests::agent::Status;
use spillway_types::Size;

use super::Agent;
use super::requests::Origin;
use crate::blocks::Wish;
use crate::watch::{Ask, SAMPLES_EVERY, Sample};

/// How often the slower files of /proc are read while memory is plentiful. Otherwise every full sample reads them.
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// How often memory blocks are counted if nothing indicates a change.
const BLOCKS_EVERY: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) fn sample(&mut self, now: Duration) {
        let memory = self.system.meminfo();
        let reserve = self.watch.as_ref().map_or(0, |watch| watch.terms().reserve);
        let every = slow_every(memory.available, reserve);
        // The limits change with the guest's size.
        let is_slow = memory.total != self.sample.total || now >= self.slow_at + every;
        (self.sample.total, self.sample.available) = (memory.total, memory.available);
        self.sample.cached = memory.cached.saturating_sub(memory.shared);
        // If idle cache is dropped, the rest is in use; otherwise this is unknown.
        let part = if self.reclaimer.is_some() { 1 } else { 2 };
        self.sample.used_cache = self.sample.cached / part;
        if is_slow {
            self.slow_at = now;
            if memory.total != self.counted.total || now >= self.counted.at + BLOCKS_EVERY {
                self.count(now);
            }
            let counters = self.system.vmstat();
            self.sample = Sample {
                kernel_free: self.system.zones().free,
                returnable: self.counted.movable,
                stalled_us: self.system.stalled_us(),
                refaults: counters.refaults,
                swap_ins: counters.swap_ins,
                ..self.sample
            };
        }
        if is_slow {
            self.drop_idle(now, memory.swap_total > 0);
        }
        let Some(watch) = &mut self.watch else { return };
        let ask = watch.sample(now, self.sample);
        self.sample_at = now + watch.next();
        match ask {
            Some(ask) if self.is_greeted => self.ask(now, ask, Origin::Watch),
            // The host does not take the offline blocks: use them again.
            Some(Ask::Need { .. }) if self.mover.is_idle() => self.bring_online(now, Wish::Movable),
            _ => {}
        }
        if self.high.is_none() && is_slow {
            // systemd creates user.slice when the first user logs in.
            self.high = self.group.as_ref().and_then(|group| group.open().ok());
        }
        if let Some(high) = self.high.as_mut().filter(|_| is_slow && self.is_greeted) {
            high.follow(now, memory.available, reserve);
        }
    }

    /// Drops idle page cache, so that the memory can be returned.
    pub(super) fn drop_idle(&mut self, now: Duration, has_swap: bool) {
        let (Some(reclaimer), Some(watch)) = (&mut self.reclaimer, &self.watch) else { return };
        match reclaimer.ended() {
            Some(Ok(bytes)) => self.idle.dropped(bytes),
            // The kernel found no more, or was interrupted.
            Some(Err(_)) => said(self.idle.pause(now)),
            None => {}
        }
        let (step, dropped) = self.idle.step(now, &self.sample, &watch.terms());
        said(dropped);
        let is_free = self.is_greeted && self.mover.is_idle() && self.asked.is_empty();
        let Some(bytes) = step.filter(|_| is_free && reclaimer.is_idle()) else { return };
        if let Err(error) = reclaimer.start(bytes, has_swap) {
            eprintln!("spillway-agent: idle page cache is not dropped: {error}");
            self.reclaimer = None;
        }
    }

    pub(super) fn status(&mut self, now: Duration) -> Status {
        let mut status = self.system.status();
        if status.total_bytes != self.counted.total {
            self.count(now);
        }
        status.offline_bytes = self.counted.offline;
        status
    }
}

/// How often the slower files are read.
fn slow_every(available: u64, reserve: u64) -> Duration {
    let has_plenty = available > 4 * reserve;
    if has_plenty { SLOW_EVERY } else { *SAMPLES_EVERY.end() }
}

/// Logs how much page cache was dropped, before a pause.
fn said(dropped: u64) {
    if dropped > 0 {
        let size = Size(dropped);
        eprintln!("spillway-agent: dropped {size} of idle page cache; pausing");
    }
}
