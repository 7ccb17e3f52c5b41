//! Equal shares.

use crate::Sample;

/// An equal share for each client that has one coming, and nothing for the others. What does not divide goes to the
/// first of them, a page each.
pub(crate) fn equally(
    total_pages: u64,
    clients: &[Sample],
    shares: impl Fn(&Sample) -> bool,
) -> Vec<u64> {
    let count = clients.iter().filter(|client| shares(client)).count() as u64;
    let mut before = 0;
    let share = |client: &Sample| {
        if !shares(client) {
            return 0;
        }
        before += 1;
        total_pages / count + u64::from(before <= total_pages % count)
    };
    clients.iter().map(share).collect()
}
