//! Targets with a limited sum, for local frames of programs.
//!
//! A full store refuses puts, whatever the sum of the targets. A program's frames are never refused, so the sum of
//! programs' targets must not exceed the available frames, even under greedy, whose targets are the caps.

/// Input for one program's share of frames, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its floor.
    pub(crate) floor: u64,
    /// Frames that it holds.
    pub(crate) used: u64,
    /// The policy's target.
    pub(crate) wanted: u64,
}

/// Distributes at most `total_pages`: first the floors, then frames that programs hold already, then the rest of the
/// policy's targets, each in equal parts as far as possible. If the policy's targets fit, they are the result.
pub(crate) fn bounded(total_pages: u64, claims: &[Claim]) -> Vec<u64> {
    let mut given = vec![0; claims.len()];
    let mut left = total_pages;
    fill(&mut left, &mut given, |at| claims[at].floor);
    fill(&mut left, &mut given, |at| claims[at].used.min(claims[at].wanted));
    fill(&mut left, &mut given, |at| claims[at].wanted);
    given
}

/// Raises all shares below their bound to the same level, as far as `left` allows.
fn fill(left: &mut u64, given: &mut [u64], bound: impl Fn(usize) -> u64) {
    let mut open: Vec<_> = (0..given.len()).filter(|&at| given[at] < bound(at)).collect();
    while *left > 0 && !open.is_empty() {
        // Distributes the remainder page by page.
        let part = (*left / open.len() as u64).max(1);
        for &at in &open {
            let more = part.min(bound(at) - given[at]).min(*left);
            given[at] += more;
            *left -= more;
        }
        open.retain(|&at| given[at] < bound(at));
    }
}

#[cfg(test)]
mod tests {
    use spillway_test_support::random::Random;

    use super::*;

    fn claim(floor: u64, used: u64, wanted: u64) -> Claim {
        Claim { floor, used, wanted }
    }

    #[test]
    fn what_fits_stays_as_the_policy_has_it() {
        assert_eq!(bounded(100, &[claim(0, 10, 50), claim(5, 0, 50)]), [50, 50]);
        assert_eq!(bounded(100, &[]), [0; 0]);
        assert_eq!(bounded(0, &[claim(9, 9, 9)]), [0]);
    }

    #[test]
    fn who_came_first_keeps_what_it_holds_under_greedy() {
        let all = u64::MAX;
        assert_eq!(bounded(100, &[claim(0, 90, all), claim(0, 0, all)]), [95, 5]);
        assert_eq!(bounded(100, &[claim(0, 95, all), claim(0, 5, all)]), [95, 5]);
        assert_eq!(bounded(101, &[claim(0, 200, all), claim(0, 200, all)]), [51, 50]);
        assert_eq!(bounded(100, &[claim(0, 0, 20), claim(0, 0, all)]), [20, 80]);
    }

    #[test]
    fn floors_come_before_what_others_hold() {
        assert_eq!(bounded(100, &[claim(0, 100, 100), claim(30, 0, 0)]), [70, 30]);
        // Floors beyond all there is are cut.
        assert_eq!(bounded(100, &[claim(80, 0, 0), claim(80, 0, 0)]), [50, 50]);
    }

    #[test]
    fn nothing_is_handed_out_twice() {
        let mut random = Random::new(1);
        let mut next = |most: u64| random.below(most);
        for _ in 0..1000 {
            let total = next(1000);
            let claims: Vec<_> =
                (0..next(8)).map(|_| claim(next(300), next(600), next(600))).collect();
            let given = bounded(total, &claims);
            let wanted: u64 = claims.iter().map(|it| it.wanted.max(it.floor)).sum();
            assert_eq!(given.iter().sum::<u64>(), wanted.min(total), "{total} {claims:?}");
            let kept =
                claims.iter().zip(&given).all(|(it, &given)| given <= it.wanted.max(it.floor));
            assert!(kept, "{total} {claims:?} {given:?}");
        }
    }
}
