//! Atomics and locks of the core, in one place so that shuttle can choose their interleaving.
//!
//! The feature `shuttle` makes every operation a point where the schedule may change. The layout
//! stays that of the plain integers, because some of them lie in zeroed mapped memory.

pub use core::sync::atomic::Ordering;
pub use spillway_platform::lock::{Guard, Lock};
#[cfg(feature = "shuttle")]
pub use spillway_platform::schedule::exploring::explore;
use spillway_platform::schedule::preempt;

macro_rules! atomic {
    ($name:ident, $core:ident, $int:ty) => {
        #[doc = concat!("An atomic `", stringify!($int), "`; all zero bytes are the value 0.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(core::sync::atomic::$core);

        impl $name {
            /// Starts with `value`.
            pub const fn new(value: $int) -> Self {
                Self(core::sync::atomic::$core::new(value))
            }

            /// The value.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $int {
                preempt();
                self.0.load(order)
            }

            /// Sets the value.
            #[inline(always)]
            pub fn store(&self, value: $int, order: Ordering) {
                preempt();
                self.0.store(value, order);
            }

            /// Adds, wrapping; gives the value from before.
            #[inline(always)]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                preempt();
                self.0.fetch_add(value, order)
            }

            /// Subtracts, wrapping; gives the value from before.
            #[inline(always)]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                preempt();
                self.0.fetch_sub(value, order)
            }

            /// Replaces the value; gives the one from before.
            #[inline(always)]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                preempt();
                self.0.swap(value, order)
            }

            /// Replaces the value by what `change` makes of it, unless that is `None`.
            #[inline(always)]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                preempt();
                self.0.fetch_update(set, fetch, change)
            }

            /// Adds without a bus lock. Only for values that one lock guards for writing.
            #[inline(always)]
            pub fn add_guarded(&self, value: $int) {
                let old = self.0.load(Ordering::Relaxed);
                self.0.store(old.wrapping_add(value), Ordering::Relaxed);
            }
        }
    };
}

atomic!(AtomicU8, AtomicU8, u8);
atomic!(AtomicU16, AtomicU16, u16);
atomic!(AtomicU32, AtomicU32, u32);
atomic!(AtomicI32, AtomicI32, i32);
atomic!(AtomicU64, AtomicU64, u64);
