//! Equal shares.

use crate::Sample;

/// An equal share for each entitled client, and nothing for the others. A client with a smaller cap gets its
/// cap, and the others divide the rest. The remainder of the division goes to the first clients, a page each.
pub(crate) fn equally(
    total_pages: u64,
    clients: &[Sample],
    shares: impl Fn(&Sample) -> bool,
) -> Vec<u64> {
    let mut targets = vec![0; clients.len()];
    let mut left = total_pages;
    let mut open: Vec<_> = (0..clients.len()).filter(|&at| shares(&clients[at])).collect();
    // Each round settles at least one client.
    while let Some(share) = left.checked_div(open.len() as u64) {
        let (capped, rest) =
            open.iter().copied().partition::<Vec<_>, _>(|&at| clients[at].cap_pages <= share);
        for &at in &capped {
            targets[at] = clients[at].cap_pages;
            left -= targets[at];
        }
        if capped.is_empty() {
            let more = (left % open.len() as u64) as usize;
            for (before, &at) in open.iter().enumerate() {
                targets[at] = share + u64::from(before < more);
            }
            break;
        }
        open = rest;
    }
    targets
}
