//! A mutex on a futex that needs nothing of the thread it runs on.
//!
//! Pager, store and clients also run on bare tasks without thread-local storage, where the standard
//! library's mutex must not be used: it asks for the panic count, which is thread-local. The
//! algorithm is the third of U. Drepper, "Futexes are tricky" (2011): free, held, held with sleepers.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Looks at a held lock this often before it sleeps. A holder's section is some tens of
/// nanoseconds, a sleep and a wake are microseconds.
const SPINS: u32 = 100;

/// Guards a value. No poisoning: the program aborts on panic.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value of a held [`Lock`], which dropping it frees.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        crate::schedule::preempt();
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        #[cfg(feature = "shuttle")]
        if crate::schedule::exploring::on() {
            while self.state.swap(HELD, Ordering::Acquire) != FREE {
                shuttle::thread::yield_now();
            }
            return;
        }
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            // An interrupted or outdated wait only means that the state is looked at again.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    #[cold]
    fn wake(&self) {
        // Waking cannot fail for a valid address.
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held as long as the guard lives, and this guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            self.lock.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes() {
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let mut value = lock.lock();
                        let read = *value;
                        if read.is_multiple_of(64) {
                            std::thread::yield_now();
                        }
                        *value = read + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 200_000);
    }
}
