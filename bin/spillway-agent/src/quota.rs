//! Limits how often, and how much, each user of the guest may request.

use std::collections::HashMap;
use std::time::Duration;

/// Most calls of a user in [`WINDOW`].
pub const CALLS: u32 = 12;
/// Most bytes that a user is granted in [`WINDOW`].
pub const BYTES: u64 = 4 << 30;
/// The time over which both are counted.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Most users in the table. Further ones are refused until a window has passed.
const USERS_MAX: usize = 256;
/// The user without limits.
const ROOT: u32 = 0;

/// The users' requests in their present window.
#[derive(Clone, Debug, Default)]
pub struct Quota {
    users: HashMap<u32, Used>,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    since: Duration,
    calls: u32,
    bytes: u64,
}

impl Quota {
    /// Counts a call of a user for this many bytes.
    ///
    /// # Errors
    /// Why it is refused, as a message for the user.
    pub fn call(&mut self, now: Duration, user: u32, bytes: u64) -> Result<(), String> {
        if user == ROOT {
            return Ok(());
        }
        self.users.retain(|_, used| now < used.since + WINDOW);
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&user) {
            return Err("too many users make requests at the same time".into());
        }
        let used = self.users.entry(user).or_insert(Used { since: now, calls: 0, bytes: 0 });
        if used.calls >= CALLS {
            return Err(format!("a user may call {CALLS} times a minute"));
        }
        used.calls += 1;
        if bytes > BYTES.saturating_sub(used.bytes) {
            return Err(format!("a user may be granted {} GiB a minute", BYTES >> 30));
        }
        used.bytes += bytes;
        Ok(())
    }

    /// Credits the part of a call that was not granted.
    pub fn refund(&mut self, user: u32, bytes: u64) {
        if let Some(used) = self.users.get_mut(&user) {
            used.bytes = used.bytes.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn calls_of_a_user_are_bounded_and_others_are_not_affected() {
        let mut quota = Quota::default();
        for _ in 0..CALLS {
            quota.call(SECOND, 1000, 1).unwrap();
        }
        assert!(quota.call(SECOND, 1000, 1).unwrap_err().contains("12 times"));
        quota.call(SECOND, 1001, 1).unwrap();
        quota.call(SECOND + WINDOW, 1000, 1).unwrap();
    }

    #[test]
    fn a_minute_is_over_for_who_asks_all_the_while() {
        let mut quota = Quota::default();
        for call in 0..CALLS {
            quota.call(call * 5 * SECOND, 1000, 1).unwrap();
        }
        quota.call(WINDOW, 1000, 1).unwrap();
    }

    #[test]
    fn bytes_of_a_user_are_bounded_and_what_was_not_granted_does_not_count() {
        let mut quota = Quota::default();
        quota.call(SECOND, 1000, BYTES).unwrap();
        assert!(quota.call(SECOND, 1000, 1).unwrap_err().contains("4 GiB"));
        quota.refund(1000, 10);
        quota.call(SECOND, 1000, 10).unwrap();
        assert!(quota.call(SECOND, 1000, u64::MAX).is_err());
    }

    #[test]
    fn root_is_not_bounded_and_many_users_take_no_more_room() {
        let mut quota = Quota::default();
        for _ in 0..1000 {
            quota.call(SECOND, 0, BYTES).unwrap();
        }
        for user in 1..=1000 {
            let _ = quota.call(SECOND, user, 1);
        }
        assert_eq!(quota.users.len(), USERS_MAX);
        quota.call(SECOND + WINDOW, 5000, 1).unwrap();
    }

    #[test]
    fn a_minute_is_a_minute_from_the_first_call_on() {
        let mut quota = Quota::default();
        quota.call(SECOND, 1000, BYTES).unwrap();
        let end = SECOND + WINDOW;
        quota.call(end - Duration::from_nanos(1), 1000, 1).unwrap_err();
        quota.call(end, 1000, BYTES).unwrap();
        // The next window begins then.
        quota.call(end + WINDOW - Duration::from_nanos(1), 1000, 1).unwrap_err();
        quota.call(end + WINDOW, 1000, 1).unwrap();
    }

    #[test]
    fn a_call_that_is_too_large_is_a_call_and_takes_no_bytes() {
        let mut quota = Quota::default();
        for _ in 1..CALLS {
            quota.call(SECOND, 1000, BYTES + 1).unwrap_err();
        }
        quota.call(SECOND, 1000, BYTES).unwrap();
        assert!(quota.call(SECOND, 1000, 0).unwrap_err().contains("12 times"));
        // No more than the used amount is credited, and a user without calls gets nothing.
        quota.refund(1000, u64::MAX);
        quota.refund(1001, 5);
        assert_eq!(quota.users[&1000].bytes, 0);
        assert!(!quota.users.contains_key(&1001));
    }
}
