//! Which hosts to ask for how much.
//!
//! Two hosts are drawn at random, each with a chance in proportion to what it can spare, and the better is taken: the power of
//! two choices (M. Mitzenmacher, 2001). What others can spare is known late and roughly; were all to ask the
//! emptiest host that they know of, all would ask the same one. The better of two is the one whose rack has less of
//! the device, then the one with more to spare.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::{HostId, Peer};

/// Most lenders that one round asks for a device: what is wanted is cut into so many parts.
const PARTS_MAX: usize = 8;

/// What a device wants, and what it has.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    /// For each slab that is wanted, the host that has its other copy and so must not be asked for it.
    pub apart_from: Vec<Option<HostId>>,
    /// Most slabs that one host may hold of the device, with what it has; none without a bound. Half of all copies
    /// at most, so that no two copies of a slab need lie on one host.
    pub host_slabs_max: Option<u32>,
    /// One lender for all, as direct mode needs it.
    pub is_whole: bool,
    /// What each host holds of the device, slabs.
    pub held: BTreeMap<HostId, u32>,
}

/// Slabs to ask of each host. `spare` is what each peer is thought to spare, slabs; it is counted down. May come to less
/// than is wanted.
pub(crate) fn plan(
    peers: &[Peer],
    spare: &mut [u32],
    mut wants: Wants,
    random: &mut Random,
) -> BTreeMap<HostId, u32> {
    let mut asks = BTreeMap::new();
    let mut racks = BTreeMap::<&str, u32>::new();
    for peer in peers {
        let held = wants.held.get(&peer.host).copied().unwrap_or(0);
        *racks.entry(&peer.rack).or_default() += held;
    }
    // Wants that must keep away from the same host lie side by side, so that a part has few of them.
    wants.apart_from.sort();
    let wanted = wants.apart_from.len();
    let mut part = if wants.is_whole { wanted } else { wanted.div_ceil(PARTS_MAX).max(1) };
    let mut rest = &wants.apart_from[..];
    while !rest.is_empty() {
        let apart = &rest[..part.min(rest.len())];
        let room = |at: usize| {
            let host = &peers[at].host;
            if apart.iter().flatten().any(|apart| apart == host) {
                return 0;
            }
            let held = wants.held.get(host).copied().unwrap_or(0);
            let most = wants.host_slabs_max.map_or(u32::MAX, |most| most.saturating_sub(held));
            spare[at].min(most).min(apart.len() as u32)
        };
        let Some(at) = better_of_two(peers, spare, &racks, room, random) else {
            // Nobody can take a part of this mix; a single slab has less to keep away from.
            rest = if part == 1 || wants.is_whole { &rest[apart.len()..] } else { rest };
            part = 1;
            continue;
        };
        let slabs = room(at);
        spare[at] -= slabs;
        *racks.entry(&peers[at].rack).or_default() += slabs;
        *wants.held.entry(peers[at].host.clone()).or_default() += slabs;
        *asks.entry(peers[at].host.clone()).or_default() += slabs;
        rest = &rest[slabs as usize..];
        if wants.is_whole {
            break;
        }
    }
    asks
}

/// Draws two of those that have room, by what they can spare, and takes the better.
fn better_of_two(
    peers: &[Peer],
    spare: &[u32],
    racks: &BTreeMap<&str, u32>,
    room: impl Fn(usize) -> u32,
    random: &mut Random,
) -> Option<usize> {
    let fit: Vec<usize> = (0..peers.len()).filter(|&at| room(at) != 0).collect();
    let total: u64 = fit.iter().map(|&at| u64::from(spare[at])).sum();
    let mut draw = || {
        let mut ticket = random.below(total);
        fit.iter().copied().find(|&at| {
            let weight = u64::from(spare[at]);
            let is_drawn = ticket < weight;
            ticket = ticket.saturating_sub(weight);
            is_drawn
        })
    };
    let (one, other) = (draw()?, draw()?);
    let rank = |at: usize| {
        let load = racks.get(peers[at].rack.as_str()).copied().unwrap_or(0);
        (load, core::cmp::Reverse(spare[at]))
    };
    Some(if rank(other) < rank(one) { other } else { one })
}
