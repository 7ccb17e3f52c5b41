//! Keeps idle cores awake.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context;

/// A thread of the idle scheduling class on each core, which runs when no other thread does. They end when this is
/// dropped.
pub struct Awake {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    pub fn start() -> anyhow::Result<Self> {
        let mut awake = Self { over: Arc::default(), threads: Vec::new() };
        for _ in 0..thread::available_parallelism().context("counting cores")?.get() {
            let over = awake.over.clone();
            awake.threads.push(thread::spawn(move || {
                become_idle();
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            }));
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn become_idle() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call. A thread may always lower its own class.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(status, 0, "the idle class is there on every Linux");
}
