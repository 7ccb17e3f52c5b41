//! Points where the schedule of threads may change. With the feature `shuttle` its scheduler chooses what runs next.

/// A point where another thread may run.
#[inline(always)]
pub fn preempt() {
    #[cfg(feature = "shuttle")]
    if exploring::on() {
        // Not `yield_now`, which asks for a switch: this only allows one.
        use shuttle::sync::atomic::{AtomicBool, Ordering};
        AtomicBool::new(false).load(Ordering::SeqCst);
    }
}

/// Lets other threads run, for a while.
pub fn give_way() {
    #[cfg(feature = "shuttle")]
    if exploring::on() {
        return shuttle::thread::yield_now();
    }
    rustix::thread::sched_yield();
}

/// Whether shuttle's scheduler runs the threads.
#[cfg(feature = "shuttle")]
pub mod exploring {
    use core::sync::atomic::{AtomicBool, Ordering};

    static EXPLORING: AtomicBool = AtomicBool::new(false);

    /// Tells atomics and locks whether they run under shuttle's scheduler. A test sets it around the
    /// body that shuttle runs.
    pub fn explore(on: bool) {
        EXPLORING.store(on, Ordering::SeqCst);
    }

    pub(crate) fn on() -> bool {
        EXPLORING.load(Ordering::SeqCst)
    }
}
