//! Memory blocks that the host wants offline or waits for, and the number of blocks of each kind.

use std::time::{Duration, Instant};

use spillway_guests::agent::FromGuest;
use spillway_types::Size;

use super::Agent;
use crate::blocks::{BlockState, Wish};
use crate::watch::Watch;

/// How often new memory is checked for which the host waits.
const ARRIVAL_EVERY: Duration = Duration::from_millis(4);
/// How long the host may take to remove offline blocks, before the kernel's grace periods return to
/// normal.
const TAKEN_TIME: Duration = Duration::from_secs(1);

/// Blocks that the host wants offline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) wanted_bytes: u64,
    pub(super) since: Duration,
    pub(super) until: Duration,
}

/// New memory for which the host waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) id: u64,
    pub(super) wanted_bytes: u64,
    pub(super) until: Duration,
    /// When it is checked again.
    pub(super) next: Duration,
}

/// Counts of the devices' memory blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) at: Duration,
    /// MemTotal at the count: it changes with every block.
    pub(super) total: u64,
    pub(super) offline: u64,
    pub(super) movable: u64,
}

impl Agent {
    /// Sets blocks offline, as far as the reserve allows.
    pub(super) fn start_job(&mut self, now: Duration, job: Job) {
        self.end_job(now);
        let list = self.count(now);
        let block = self.blocks.bytes();
        let missing = job.wanted_bytes.saturating_sub(self.counted.offline);
        let reserve = self.watch.as_ref().map_or(0, |watch| watch.terms().reserve);
        let spare = self.system.meminfo().available.saturating_sub(reserve);
        let wanted = blocks_to_go(missing, spare, block);
        let movable = list.into_iter().filter(|(_, state)| *state == BlockState::Movable);
        self.hurry.begin(job.until + TAKEN_TIME);
        self.mover.start(now, wanted, movable.map(|(number, _)| (number, Wish::Offline)));
        self.job = Some(job);
        self.look_at_job(now);
    }

    /// Answers the host once the change is done or its time is over.
    pub(super) fn look_at_job(&mut self, now: Duration) {
        let Some(job) = self.job else { return };
        if self.watch.as_ref().is_some_and(Watch::is_short) {
            self.mover.stop();
        }
        if self.mover.is_idle() || now >= job.until {
            self.end_job(now);
        }
    }

    /// Reports to the host once its new memory is online, or that it failed.
    pub(super) fn look_at_arrival(&mut self, now: Duration) {
        let Some(arrival) = self.arrival.filter(|it| now >= it.next) else { return };
        let began = Instant::now();
        let bytes = self.blocks.online_within(&self.system.virtio_mem());
        if bytes < arrival.wanted_bytes && now < arrival.until {
            let next = next_look(now, began.elapsed(), arrival.until);
            self.arrival = Some(Arrival { next, ..arrival });
            return;
        }
        self.arrival = None;
        self.port.say(&FromGuest::Arrived { id: arrival.id, bytes });
    }

    pub(super) fn end_job(&mut self, now: Duration) {
        self.mover.stop();
        let Some(job) = self.job.take() else { return };
        self.count(now);
        let bytes = self.counted.offline;
        self.port.say(&FromGuest::Offlined { id: job.id, bytes });
        let (wanted, ms) = (Size(job.wanted_bytes), (now - job.since).as_millis());
        let busy = match self.mover.failed() {
            0 => String::new(),
            count => format!(", {count} blocks are in use"),
        };
        eprintln!("spillway-agent: offline: {} of {wanted}, after {ms} ms{busy}", Size(bytes));
    }

    pub(super) fn bring_online(&mut self, now: Duration, wish: Wish) {
        let mut offline = self.list();
        // A block whose change was stopped may still change.
        offline.retain(|(_, state)| matches!(state, BlockState::Offline | BlockState::Changing));
        if offline.is_empty() {
            return;
        }
        let bytes = Size(offline.len() as u64 * self.blocks.bytes());
        eprintln!("spillway-agent: bringing {bytes} online again");
        // The lowest first: virtio-mem unplugs from the top.
        self.mover.start(now, offline.len(), offline.into_iter().rev().map(|(it, _)| (it, wish)));
    }

    pub(super) fn list(&mut self) -> Vec<(u64, BlockState)> {
        self.blocks.within(&self.system.virtio_mem())
    }

    /// Counts the blocks, and lists them.
    pub(super) fn count(&mut self, now: Duration) -> Vec<(u64, BlockState)> {
        let total = self.system.meminfo().total;
        let list = self.list();
        let bytes = |state| bytes_in(&list, state, self.blocks.bytes());
        let (offline, movable) = (bytes(BlockState::Offline), bytes(BlockState::Movable));
        self.counted = Counted { at: now, total, offline, movable };
        list
    }
}

/// The number of blocks to set offline: enough for the missing bytes, but no more than the spare memory allows.
fn blocks_to_go(missing_bytes: u64, spare_bytes: u64, block_bytes: u64) -> usize {
    let blocks = missing_bytes.div_ceil(block_bytes).min(spare_bytes / block_bytes);
    usize::try_from(blocks).unwrap_or(usize::MAX)
}

/// When new memory is checked again. With many blocks, the check itself takes a while.
fn next_look(now: Duration, took: Duration, until: Duration) -> Duration {
    (now + ARRIVAL_EVERY.max(4 * took)).min(until)
}

fn bytes_in(list: &[(u64, BlockState)], wanted: BlockState, block_bytes: u64) -> u64 {
    list.iter().filter(|(_, state)| *state == wanted).count() as u64 * block_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_next_look_leaves_four_fifths_of_the_time_to_others() {
        let ms = Duration::from_millis;
        for (took, until, next) in
            [(0, 100, 14), (1, 100, 14), (2, 100, 18), (20, 100, 90), (30, 100, 100), (0, 12, 12)]
        {
            assert_eq!(next_look(ms(10), ms(took), ms(until)), ms(next), "{took} {until}");
        }
    }

    proptest! {
        /// Blocks go offline one by one, while bytes are missing and a whole block is spare.
        #[test]
        fn blocks_go_one_by_one(missing in 0..5000u64, spare in 0..5000u64, block in 1..700u64) {
            let (mut gone, mut left) = (0, spare);
            while gone * block < missing && left >= block {
                (gone, left) = (gone + 1, left - block);
            }
            prop_assert_eq!(blocks_to_go(missing, spare, block) as u64, gone);
        }
    }
}
