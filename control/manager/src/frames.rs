//! Targets whose sum is bounded, for local frames of programs.
//!
//! A store refuses a put when it is full, whatever the targets add up to. Nobody refuses a program a frame, so what
//! they may hold must never be more than there is, under greedy too, whose targets are the caps.

/// What is known of one program when frames are handed out, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// What it is left at any time.
    pub(crate) floor: u64,
    /// What it holds.
    pub(crate) used: u64,
    /// What the policy would give it.
    pub(crate) wanted: u64,
}

/// Hands out at most `total_pages`: first the floors, then what programs hold already, then the rest of what the policy
/// gives, each in equal parts as far as it goes. Where the policy's targets fit, they are what comes out.
pub(crate) fn bounded(total_pages: u64, claims: &[Claim]) -> Vec<u64> {
    let mut given = vec![0; claims.len()];
    let mut left = total_pages;
    fill(&mut left, &mut given, |at| claims[at].floor);
    fill(&mut left, &mut given, |at| claims[at].used.min(claims[at].wanted));
    fill(&mut left, &mut given, |at| claims[at].wanted);
    given
}

/// Raises those that are below their bound, all to the same height as far as `left` goes.
fn fill(left: &mut u64, given: &mut [u64], bound: impl Fn(usize) -> u64) {
    let mut open: Vec<_> = (0..given.len()).filter(|&at| given[at] < bound(at)).collect();
    while *left > 0 && !open.is_empty() {
        // What does not come out even goes by pages.
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
