//! Decides which guests give memory to which: computes new sizes from the policy's targets and the
//! guests' needs.
//!
//! A guest in need gets free memory of the pool first, then memory outside other guests' working sets: first from
//! guests above their targets, from as few as possible, from each in one step. Whatever its target, no guest shrinks
//! below its working set, or while it is under pressure itself.

use crate::agent::Status;

/// A guest's state at the end of an interval. Sizes are in bytes, boot memory included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its size.
    pub size_bytes: u64,
    /// Its smallest size.
    pub least_bytes: u64,
    /// Its largest size.
    pub most_bytes: u64,
    /// Its target by the policy.
    pub target_bytes: u64,
    /// Its working set, including its reserve; none without an agent: then it gives nothing.
    pub working_bytes: Option<u64>,
    /// Whether it stalls on memory, or refaults dropped pages.
    pub is_pressed: bool,
    /// Memory that it needs at once but could not get.
    pub wanted_bytes: u64,
    /// Whether its size is changing, may not change automatically, or it recently kept its memory.
    pub is_fixed: bool,
}

/// A change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The guest's index among the holders.
    pub holder: usize,
    /// Its new size, bytes.
    pub to_bytes: u64,
}

impl Holder {
    /// Memory that it can give, in whole sections, bytes.
    fn spare_bytes(&self, section_bytes: u64) -> u64 {
        let Some(working) = self.working_bytes else { return 0 };
        if self.is_fixed || self.is_pressed || self.wanted_bytes > 0 {
            return 0;
        }
        let floor = working.max(self.least_bytes);
        self.size_bytes.saturating_sub(floor) / section_bytes * section_bytes
    }

    /// Memory that it lacks to its target, in whole sections, bytes.
    fn lack_bytes(&self, section_bytes: u64) -> u64 {
        // A guest takes requested memory itself: a step of the manager would interrupt that.
        if self.is_fixed || !self.is_pressed || self.wanted_bytes > 0 {
            return 0;
        }
        let room = self.target_bytes.min(self.most_bytes).saturating_sub(self.size_bytes);
        // One step of an eighth, so that short pressure does not take everything.
        let step = (self.size_bytes / 8).next_multiple_of(section_bytes);
        room.min(step) / section_bytes * section_bytes
    }
}

/// The changes of size, if `free_bytes` of the pool are unused.
pub fn share(section_bytes: u64, free_bytes: u64, holders: &[Holder]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut left = free_bytes;
    // Waiting guests take free memory themselves.
    let wanted: u64 = holders.iter().map(|it| it.wanted_bytes).sum();
    left = left.saturating_sub(wanted);
    let mut short = wanted.saturating_sub(free_bytes);
    for (at, holder) in holders.iter().enumerate() {
        let lack = holder.lack_bytes(section_bytes);
        let given = lack.min(left) / section_bytes * section_bytes;
        if given > 0 {
            steps.push(Step { holder: at, to_bytes: holder.size_bytes + given });
            left -= given;
        }
        short += lack - given;
    }
    steps.extend(take(section_bytes, short.next_multiple_of(section_bytes), holders));
    steps
}

/// Takes `short` bytes from the guests with the most spare memory, those above their targets first.
fn take(section_bytes: u64, mut short: u64, holders: &[Holder]) -> Vec<Step> {
    let mut donors: Vec<_> = (0..holders.len())
        .map(|at| (at, holders[at].spare_bytes(section_bytes)))
        .filter(|&(_, spare)| spare > 0)
        .collect();
    donors.sort_by_key(|&(at, spare)| {
        let above = holders[at].size_bytes.saturating_sub(holders[at].target_bytes);
        core::cmp::Reverse((above.min(spare), spare))
    });
    let mut steps = Vec::new();
    for (at, spare) in donors {
        if short == 0 {
            break;
        }
        let given = spare.min(short);
        steps.push(Step { holder: at, to_bytes: holders[at].size_bytes - given });
        short -= given;
    }
    steps
}

/// A guest's working set, bytes: memory that is not available, half of its available page cache, and its
/// reserve.
pub fn working_bytes(size_bytes: u64, status: &Status, reserve_bytes: u64) -> u64 {
    let used = size_bytes.saturating_sub(status.available_bytes);
    let cache = status.cached_bytes.min(status.available_bytes) / 2;
    used.saturating_add(cache).saturating_add(reserve_bytes).min(size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 128 << 20;

    fn holder(size: u64, working: u64) -> Holder {
        Holder {
            size_bytes: size * S,
            least_bytes: 4 * S,
            most_bytes: 32 * S,
            target_bytes: 8 * S,
            working_bytes: Some(working * S),
            is_pressed: false,
            wanted_bytes: 0,
            is_fixed: false,
        }
    }

    #[test]
    fn nobody_gives_while_nobody_needs() {
        assert_eq!(share(S, 0, &[holder(16, 5), holder(8, 8)]), []);
    }

    #[test]
    fn a_guest_in_need_gets_from_one_that_idles_in_one_step() {
        let needy = Holder { wanted_bytes: 3 * S, ..holder(8, 8) };
        let steps = share(S, 0, &[needy, holder(16, 5), holder(9, 8)]);
        assert_eq!(steps, [Step { holder: 1, to_bytes: 13 * S }]);
        // Free memory counts first.
        let steps = share(S, 2 * S, &[needy, holder(16, 5)]);
        assert_eq!(steps, [Step { holder: 1, to_bytes: 15 * S }]);
        assert_eq!(share(S, 3 * S, &[needy, holder(16, 5)]), []);
        // Free memory need not be whole sections.
        let steps = share(S, 2 * S + S / 2, &[needy, holder(16, 5)]);
        assert_eq!(steps, [Step { holder: 1, to_bytes: 15 * S }]);
    }

    #[test]
    fn those_above_their_target_give_first() {
        let needy = Holder { wanted_bytes: 2 * S, ..holder(8, 8) };
        let rich = Holder { target_bytes: 20 * S, ..holder(16, 5) };
        let steps = share(S, 0, &[needy, rich, holder(11, 8)]);
        assert_eq!(steps, [Step { holder: 2, to_bytes: 9 * S }]);
    }

    #[test]
    fn who_is_far_above_its_target_and_has_little_to_spare_is_not_asked_first() {
        let needy = Holder { wanted_bytes: 2 * S, ..holder(8, 8) };
        let steps = share(S, 0, &[needy, holder(24, 23), holder(10, 5)]);
        assert_eq!(steps, [Step { holder: 2, to_bytes: 8 * S }]);
    }

    #[test]
    fn no_guest_gives_what_it_works_on_or_while_it_is_pressed_or_unknown() {
        let needy = Holder { wanted_bytes: 9 * S, ..holder(8, 8) };
        let pressed = Holder { is_pressed: true, target_bytes: 4 * S, ..holder(16, 5) };
        let unknown = Holder { working_bytes: None, ..holder(16, 5) };
        let fixed = Holder { is_fixed: true, ..holder(16, 5) };
        assert_eq!(share(S, 0, &[needy, pressed, unknown, fixed, holder(9, 9)]), []);
        // The smallest size that the operator sets has the same effect.
        let steps = share(S, 0, &[needy, holder(6, 1)]);
        assert_eq!(steps, [Step { holder: 1, to_bytes: 4 * S }]);
    }

    #[test]
    fn pressure_grows_a_guest_towards_its_target_by_an_eighth() {
        let pressed = Holder { is_pressed: true, target_bytes: 20 * S, ..holder(16, 16) };
        assert_eq!(share(S, 9 * S, &[pressed]), [Step { holder: 0, to_bytes: 18 * S }]);
        let near = Holder { target_bytes: 17 * S, ..pressed };
        assert_eq!(share(S, 9 * S, &[near]), [Step { holder: 0, to_bytes: 17 * S }]);
        let there = Holder { target_bytes: 16 * S, ..pressed };
        assert_eq!(share(S, 9 * S, &[there]), []);
        // Without free memory, it comes from another guest, and is given when it is available.
        assert_eq!(share(S, 0, &[pressed, holder(8, 5)]), [Step { holder: 1, to_bytes: 6 * S }]);
    }

    #[test]
    fn half_of_the_cache_is_worked_on() {
        let status = Status { available_bytes: 6 * S, cached_bytes: 4 * S, ..Status::default() };
        assert_eq!(working_bytes(10 * S, &status, S), 7 * S);
        assert_eq!(working_bytes(2 * S, &status, S), 2 * S);
    }

    #[test]
    fn shared_memory_is_not_counted_twice_although_the_kernel_has_it_in_the_cache() {
        let status = Status { available_bytes: 2 * S, cached_bytes: 6 * S, ..Status::default() };
        assert_eq!(working_bytes(10 * S, &status, S / 2), 9 * S + S / 2);
        let status = Status { available_bytes: 0, ..status };
        assert_eq!(working_bytes(10 * S, &status, 0), 10 * S);
    }

    fn any_holder() -> impl Strategy<Value = Holder> {
        let sizes =
            (0..40_u64, 0..8_u64, 8..40_u64, 0..40_u64, proptest::option::of(0..40_u64), 0..8_u64);
        (sizes, any::<bool>(), any::<bool>()).prop_map(|(it, is_pressed, is_fixed)| Holder {
            size_bytes: it.0 * S,
            least_bytes: it.1 * S,
            most_bytes: it.2 * S,
            target_bytes: it.3 * S,
            working_bytes: it.4.map(|bytes| bytes * S),
            is_pressed,
            wanted_bytes: it.5.saturating_sub(5) * S,
            is_fixed,
        })
    }

    proptest! {
        #[test]
        fn what_is_given_is_there_and_what_is_taken_is_spare(
            free in 0..10_u64,
            holders in proptest::collection::vec(any_holder(), 0..6),
        ) {
            let steps = share(S, free * S, &holders);
            let mut given = 0;
            let mut seen = std::collections::HashSet::new();
            for step in &steps {
                let holder = &holders[step.holder];
                prop_assert!(seen.insert(step.holder));
                prop_assert!(!holder.is_fixed && step.to_bytes != holder.size_bytes);
                prop_assert_eq!(step.to_bytes % S, 0);
                if step.to_bytes > holder.size_bytes {
                    prop_assert!(holder.is_pressed);
                    prop_assert!(step.to_bytes <= holder.target_bytes.min(holder.most_bytes));
                    given += step.to_bytes - holder.size_bytes;
                } else {
                    prop_assert!(!holder.is_pressed && holder.wanted_bytes == 0);
                    prop_assert!(step.to_bytes >= holder.least_bytes.max(holder.working_bytes.unwrap()));
                }
            }
            let wanted: u64 = holders.iter().map(|it| it.wanted_bytes).sum();
            prop_assert!(given <= (free * S).saturating_sub(wanted));
        }

        /// Computes by hand which guest lacks how much: in order, as far as unclaimed free memory goes.
        #[test]
        fn all_that_is_free_is_given_once_and_only_what_is_missing_is_taken(
            free in 0..8_u64,
            holders in proptest::collection::vec(any_holder(), 0..6),
        ) {
            let steps = share(S, free * S, &holders);
            let sections = |bytes: u64| bytes / S;
            let to = |at: usize| {
                let step = steps.iter().find(|step| step.holder == at);
                sections(step.map_or(holders[at].size_bytes, |step| step.to_bytes))
            };
            let wanted: u64 = holders.iter().map(|it| sections(it.wanted_bytes)).sum();
            let (mut left, mut missing) = (free.saturating_sub(wanted), wanted.saturating_sub(free));
            let lacks = |it: &Holder| it.is_pressed && !it.is_fixed && it.wanted_bytes == 0;
            for (at, it) in holders.iter().enumerate().filter(|(_, it)| lacks(it)) {
                let size = sections(it.size_bytes);
                let may = sections(it.target_bytes.min(it.most_bytes)).saturating_sub(size);
                let lacks = may.min(size.div_ceil(8));
                let gets = lacks.min(left);
                prop_assert_eq!(to(at), size + gets, "{} of {:?}", at, holders);
                (left, missing) = (left - gets, missing + lacks - gets);
            }
            let spare = |it: &Holder| {
                let rests = !it.is_fixed && !it.is_pressed && it.wanted_bytes == 0;
                let floor = it.working_bytes.filter(|_| rests).unwrap_or(u64::MAX).max(it.least_bytes);
                sections(it.size_bytes.saturating_sub(floor))
            };
            let taken = |at: usize| sections(holders[at].size_bytes).saturating_sub(to(at));
            let all: u64 = holders.iter().map(spare).sum();
            prop_assert_eq!((0..holders.len()).map(taken).sum::<u64>(), missing.min(all), "{:?}", holders);
            // Guests give all their spare memory in turn, the one furthest above its target first.
            let rank = |at: usize| {
                let above = sections(holders[at].size_bytes.saturating_sub(holders[at].target_bytes));
                (above.min(spare(&holders[at])), spare(&holders[at]))
            };
            let is_donor = |at: &usize| spare(&holders[*at]) > 0;
            for one in (0..holders.len()).filter(is_donor) {
                for other in (0..holders.len()).filter(is_donor).filter(|it| rank(*it) < rank(one)) {
                    prop_assert!(taken(other) == 0 || taken(one) == spare(&holders[one]), "{:?}", holders);
                }
            }
        }
    }
}
