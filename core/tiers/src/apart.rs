//! Keeping what different cores write apart.

use core::ops::Deref;

/// Two cache lines, which the hardware fetches together, so that neighbours in an array do not share
/// one.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
