//! A ring that only polls and copies: the cost of shared memory between two cores.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use super::process::{SERVER_CORE, pin};
use super::sides::{Buffers, Flight, Side, Way};
use super::{DEEP, STRIDE};

/// Slots for values in flight.
const SLOTS: usize = 64;

/// A counter on its own cache line.
#[repr(align(64))]
#[derive(Default)]
struct Count(AtomicU32);

/// The state that both threads share.
struct Shared {
    asked: Count,
    answered: Count,
    ended: AtomicBool,
    /// Whether the server sleeps, because another side is measured on its core.
    resting: AtomicBool,
    /// The value number of each slot's request; the top bit says put or get.
    wanted: [AtomicU32; SLOTS],
    slots: *mut u8,
    held: *mut u8,
    bytes: usize,
    _memory: [Vec<u8>; 2],
}

// SAFETY: a slot belongs to the client until it has sent a request, then to the server until it has answered. Only the
// server accesses the stored values.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

const PUT: u32 = 1 << 31;

impl Shared {
    fn slot(&self, count: u32) -> *mut u8 {
        self.slots.wrapping_add(count as usize % SLOTS * self.bytes)
    }

    fn serve(&self) {
        let mut done = 0;
        while !self.ended.load(Ordering::Relaxed) {
            let asked = self.asked.0.load(Ordering::Acquire);
            if asked == done {
                core::hint::spin_loop();
                if self.resting.load(Ordering::Relaxed) {
                    thread::park();
                }
            }
            while done != asked {
                let wanted = self.wanted[done as usize % SLOTS].load(Ordering::Relaxed);
                let held = self.held.wrapping_add((wanted & !PUT) as usize * self.bytes);
                let slot = self.slot(done);
                // SAFETY: both ranges lie in their arrays, and the slot is the server's now.
                unsafe {
                    if wanted & PUT != 0 {
                        held.copy_from_nonoverlapping(black_box(slot), self.bytes);
                    } else {
                        slot.copy_from_nonoverlapping(black_box(held), self.bytes);
                    }
                }
                done += 1;
                self.answered.0.store(done, Ordering::Release);
            }
        }
    }
}

/// The client's end.
pub struct Bare {
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
    buffers: Buffers,
    asked: u32,
    answered: u32,
}

impl Bare {
    /// Starts a server of `count` values of `bytes`.
    pub fn start(count: usize, bytes: usize) -> anyhow::Result<Self> {
        let mut memory = [vec![0; SLOTS * bytes], vec![0; count * bytes]];
        let [slots, held] = memory.each_mut().map(|memory| memory.as_mut_ptr());
        let shared = Arc::new(Shared {
            asked: Count::default(),
            answered: Count::default(),
            ended: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            wanted: [const { AtomicU32::new(0) }; SLOTS],
            slots,
            held,
            bytes,
            _memory: memory,
        });
        let server = thread::spawn({
            let shared = shared.clone();
            move || {
                // Use the same core as the other servers, if the system allows it.
                let _ = pin(SERVER_CORE);
                shared.serve();
            }
        });
        let buffers = Buffers::new(bytes);
        Ok(Self { shared, server: Some(server), buffers, asked: 0, answered: 0 })
    }

    /// Sends requests, with at most `depth` in flight.
    fn exchange(&mut self, way: Way, depth: u32, numbers: &[usize]) {
        let values = match way {
            Way::Put => self.buffers.numbered(numbers),
            Way::Get => self.buffers.emptied(numbers.len()),
        };
        let bytes = self.shared.bytes;
        let (first, mut next) = (self.asked, 0);
        while self.answered - first < numbers.len() as u32 {
            while next < numbers.len() && self.asked - self.answered < depth {
                let slot = self.asked as usize % SLOTS;
                let put = if way == Way::Put { PUT } else { 0 };
                self.shared.wanted[slot].store(numbers[next] as u32 | put, Ordering::Relaxed);
                if way == Way::Put {
                    let to = self.shared.slot(self.asked);
                    // SAFETY: the slot is the client's, and has the value's length.
                    unsafe { to.copy_from_nonoverlapping(black_box(values[next].as_ptr()), bytes) };
                }
                next += 1;
                self.asked += 1;
                self.shared.asked.0.store(self.asked, Ordering::Release);
            }
            let answered = self.shared.answered.0.load(Ordering::Acquire);
            if answered == self.answered {
                core::hint::spin_loop();
            }
            while self.answered != answered {
                if way == Way::Get {
                    let value = &mut values[(self.answered - first) as usize];
                    let from = self.shared.slot(self.answered);
                    // SAFETY: the slot is the client's again, and has the value's length.
                    unsafe { from.copy_to_nonoverlapping(black_box(value.as_mut_ptr()), bytes) };
                }
                self.answered += 1;
            }
        }
    }
}

impl Bare {
    /// Wakes the server.
    fn wake(&self) {
        self.shared.resting.store(false, Ordering::Relaxed);
        if let Some(server) = &self.server {
            server.thread().unpark();
        }
    }
}

impl Side for Bare {
    fn run(&mut self, way: Way, flight: Flight, numbers: &[usize]) -> anyhow::Result<()> {
        if self.shared.resting.load(Ordering::Relaxed) {
            self.wake();
        }
        for numbers in numbers.chunks(STRIDE) {
            match flight {
                Flight::One => self.exchange(way, 1, numbers),
                Flight::Window => self.exchange(way, DEEP as u32, numbers),
                Flight::Batches => {
                    for numbers in numbers.chunks(DEEP) {
                        self.exchange(way, DEEP as u32, numbers);
                    }
                }
            }
            if way == Way::Get && flight != Flight::Batches {
                self.buffers.check(numbers)?;
            }
        }
        Ok(())
    }

    fn rest(&mut self) {
        self.shared.resting.store(true, Ordering::Relaxed);
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}
