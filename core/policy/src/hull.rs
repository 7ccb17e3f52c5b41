//! Curves of the value of pages, and the optimal division of pages among them.
//!
//! A curve is replaced by its upper convex hull. Between two corners of the hull a client can get a mixture of both,
//! in turns or for parts of its keys (N. Beckmann and D. Sanchez, "Talus: A Simple Way to Remove Cliffs in Cache
//! Performance", HPCA 2015); a store that refuses puts at the target achieves this automatically. For hulls, giving
//! each page to the client with the highest marginal value is optimal.

/// A number of pages with the same marginal value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The number of pages.
    pub pages: u64,
    /// The value of each; above 0.
    pub slope: f64,
}

/// The segments of the hull over points (pages, value), the steepest first. Points are sorted by pages; zero
/// pages have no value.
pub fn hull(points: impl IntoIterator<Item = (u64, f64)>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let (mut last, mut worth) = (0, 0.0);
    for (pages, value) in points {
        if pages <= last || value <= worth {
            continue;
        }
        let mut new =
            Segment { pages: pages - last, slope: (value - worth) / (pages - last) as f64 };
        while let Some(before) = segments.last().filter(|before| before.slope <= new.slope) {
            let all = before.pages + new.pages;
            let sum = before.slope * before.pages as f64 + new.slope * new.pages as f64;
            new = Segment { pages: all, slope: sum / all as f64 };
            segments.pop();
        }
        segments.push(new);
        (last, worth) = (pages, value);
    }
    segments
}

/// Divides `total_pages` among hulls: each page goes where it has the highest value, and none beyond a hull's end. Of
/// segments with equal value the first is served completely, because two halves usually have less value than the hull
/// suggests.
pub fn share(total_pages: u64, hulls: &[Vec<Segment>]) -> Vec<u64> {
    let mut all: Vec<(Segment, usize)> = Vec::new();
    for (at, hull) in hulls.iter().enumerate() {
        all.extend(hull.iter().map(|&segment| (segment, at)));
    }
    all.sort_by(|a, b| b.0.slope.total_cmp(&a.0.slope).then(a.1.cmp(&b.1)));
    let mut shares = vec![0; hulls.len()];
    let mut left = total_pages;
    for (Segment { pages, .. }, at) in all {
        let given = pages.min(left);
        shares[at] += given;
        left -= given;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cliff_becomes_a_slope() {
        let points = [(1, 0.0), (10, 0.0), (20, 10.0), (30, 11.0), (40, 15.0), (50, 15.0)];
        assert_eq!(
            hull(points),
            // 0 to 20 at 0.5; 20 to 40 at 0.25: the point at 30 lies below.
            [Segment { pages: 20, slope: 0.5 }, Segment { pages: 20, slope: 0.25 }]
        );
        assert_eq!(hull([]), []);
        assert_eq!(hull([(0, 5.0), (7, 0.0)]), []);
    }

    #[test]
    fn pages_go_where_they_are_worth_most() {
        let a = vec![Segment { pages: 10, slope: 4.0 }, Segment { pages: 100, slope: 1.0 }];
        let b = vec![Segment { pages: 50, slope: 2.0 }];
        let hulls = [a, b];
        assert_eq!(share(5, &hulls), [5, 0]);
        assert_eq!(share(40, &hulls), [10, 30]);
        assert_eq!(share(100, &hulls), [50, 50]);
        assert_eq!(share(1000, &hulls), [110, 50], "nothing beyond the ends");
        assert_eq!(share(0, &hulls), [0, 0]);
        assert_eq!(share(7, &[]), []);
        // Worth the same: one after the other.
        let c = vec![Segment { pages: 30, slope: 2.0 }];
        assert_eq!(share(60, &[hulls[1].clone(), c]), [50, 10]);
    }
}
