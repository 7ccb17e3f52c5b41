//! RLIMIT_AS and RLIMIT_DATA, corrected for the pager's reservations.
//!
//! The kernel counts the pager's address space as the program's. A limit that the program sets, or its shell
//! by `ulimit -v`, is meant for the program alone. So these functions raise a new limit by the pager's share,
//! and subtract that share when the program reads the limit.

use crate::pager::pager;
use crate::raw;
use libc::{c_int, c_uint, pid_t, rlimit};

/// The bytes of address space that the pager takes; 0 without a pager.
fn shift() -> u64 {
    pager().map_or(0, |pager| pager.address_space_bytes())
}

fn shifted(limit: rlimit, by: impl Fn(u64) -> u64) -> rlimit {
    let one = |value| if value == libc::RLIM_INFINITY { value } else { by(value) };
    rlimit { rlim_cur: one(limit.rlim_cur), rlim_max: one(limit.rlim_max) }
}

/// `prlimit(2)`. Limits of other processes stay as they are.
///
/// # Safety
/// As prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    process: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    let own = process == 0 || process.cast_unsigned() == std::process::id();
    let shift =
        if own && matches!(resource, libc::RLIMIT_AS | libc::RLIMIT_DATA) { shift() } else { 0 };
    // SAFETY: the pointers are null or valid, as the program promises.
    unsafe {
        let raised = new.as_ref().map(|&new| {
            shifted(new, |limit| limit.saturating_add(shift).min(libc::RLIM_INFINITY - 1))
        });
        let new = raised.as_ref().filter(|_| shift > 0).map_or(new, std::ptr::from_ref);
        let args = [process as usize, resource as usize, new as usize, old as usize, 0, 0];
        let answer = raw::call(libc::SYS_prlimit64, args) as c_int;
        if answer == 0
            && let Some(old) = old.as_mut()
        {
            *old = shifted(*old, |limit| limit.saturating_sub(shift));
        }
        answer
    }
}

/// `prlimit64(3)`: the same on this architecture.
///
/// # Safety
/// As prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    process: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: passes the caller's arguments on.
    unsafe { prlimit(process, resource, new, old) }
}

macro_rules! own_limits {
    ($($get:ident, $set:ident;)*) => {$(
        /// `getrlimit(2)`.
        ///
        /// # Safety
        /// As getrlimit(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(resource: c_uint, limit: *mut rlimit) -> c_int {
            // SAFETY: passes the caller's arguments on.
            unsafe { prlimit(0, resource, std::ptr::null(), limit) }
        }

        /// `setrlimit(2)`.
        ///
        /// # Safety
        /// As setrlimit(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(resource: c_uint, limit: *const rlimit) -> c_int {
            // SAFETY: passes the caller's arguments on.
            unsafe { prlimit(0, resource, limit, std::ptr::null_mut()) }
        }
    )*};
}

own_limits! {
    getrlimit, setrlimit;
    getrlimit64, setrlimit64;
}
