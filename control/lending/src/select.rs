//! Selects which hosts to ask for how much.
//!
//! It draws two hosts at random, weighted by their spare memory, and takes the better one: the power of two choices (M.
//! Mitzenmacher, 2001). Spare memory is only known roughly and late. If all hosts asked the emptiest one, they would
//! all ask the same host. The better of two is the one whose rack has less of the device, then the one with more spare
//! memory.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::{HostId, Peer};

/// Most lenders that one round asks for a device: the request is split into this many parts.
const PARTS_MAX: usize = 8;

/// A device's needs and present slabs.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    /// For each needed slab, the host with its other copy, which must not be asked for it.
    pub apart_from: Vec<Option<HostId>>,
    /// Most slabs of the device on one host; none for no limit. At most half of all copies, so that no two copies
    /// of a slab need be on the same host.
    pub host_slabs_max: Option<u32>,
    /// Whether one lender must provide all slabs, as in direct mode.
    pub is_whole: bool,
    /// Slabs of the device on each host.
    pub held: BTreeMap<HostId, u32>,
}

/// Slabs to request from each host. `spare` is each peer's presumed spare memory in slabs, and is reduced here. The
/// result may be less than needed.
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
    // Sorts needs by the host to avoid, so that each part has few of them.
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
            // No host can take this part; a single slab excludes fewer hosts.
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

/// Draws two hosts with spare memory, weighted by it, and takes the better one.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peers(count: usize, racks: usize) -> Vec<Peer> {
        let peer = |at: usize| Peer {
            host: HostId::new(&format!("h{at:04}")).expect("a name"),
            rack: format!("r{}", at % racks),
            spare_bytes: 0,
        };
        (0..count).map(peer).collect()
    }

    proptest! {
        #[test]
        fn nobody_is_asked_for_more_than_it_has_or_for_what_it_must_not_hold(
            spare in proptest::collection::vec(0..20_u32, 1..12),
            apart in proptest::collection::vec(any::<Option<u8>>(), 0..60),
            host_slabs_max in any::<Option<u8>>(),
            is_whole in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let peers = peers(spare.len(), 3);
            let host = |at: u8| peers[usize::from(at) % peers.len()].host.clone();
            let apart_from: Vec<_> = apart.into_iter().map(|at| at.map(host)).collect();
            let host_slabs_max = host_slabs_max.map(u32::from);
            let wants = Wants { apart_from: apart_from.clone(), host_slabs_max, is_whole, held: BTreeMap::new() };
            let mut left = spare.clone();
            let asks = plan(&peers, &mut left, wants, &mut Random::new(seed));
            prop_assert!(asks.values().sum::<u32>() as usize <= apart_from.len());
            prop_assert!(!is_whole || asks.len() <= 1);
            for (at, peer) in peers.iter().enumerate() {
                let asked = asks.get(&peer.host).copied().unwrap_or(0);
                prop_assert_eq!(asked, spare[at] - left[at]);
                prop_assert!(host_slabs_max.is_none_or(|most| asked <= most));
                let allowed = apart_from.iter().filter(|apart| apart.as_ref() != Some(&peer.host));
                prop_assert!(asked as usize <= allowed.count());
            }
        }
    }

    /// Many ask at once, with the same stale figures: the loads stay near each other, and racks alike.
    #[test]
    fn many_that_know_the_same_do_not_all_ask_the_same() {
        let peers = peers(100, 10);
        let mut load = BTreeMap::new();
        for seed in 0..1_000 {
            let wants = Wants { apart_from: vec![None], ..Wants::default() };
            // One has twice as much to spare as the others.
            let mut spare = vec![100; 100];
            spare[7] = 200;
            for (host, slabs) in plan(&peers, &mut spare, wants, &mut Random::new(seed)) {
                *load.entry(host).or_insert(0) += slabs;
            }
        }
        let most = load.values().max().copied().unwrap_or(0);
        assert!(load.len() > 95 && most < 80, "{most} of 1000 ask the same of {}", load.len());
    }

    /// Of two in the same rack the one with more to spare is asked, unless only the other was drawn: 15 times of 16 here.
    #[test]
    fn the_better_of_two_has_more_to_spare() {
        let peers = peers(2, 1);
        let asks_larger = |seed: &u64| {
            let wants = Wants { apart_from: vec![None], ..Wants::default() };
            let asks = plan(&peers, &mut [30, 10], wants, &mut Random::new(*seed));
            asks.contains_key(&peers[0].host)
        };
        let times = (0..1_000).filter(asks_larger).count();
        assert!((900..970).contains(&times), "{times} of 1000");
    }
}
