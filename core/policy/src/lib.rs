//! Policies: functions from the clients' activity in an interval to their targets.
//!
//! All are pure functions, without a clock, threads or I/O. Four are those of SmarTmem (L. A. Garrido, R. Nishtala
//! and P. Carpenter, "SmarTmem: Intelligent Management of Transcendent Memory in a Virtualized Server", RADR/IPDPS
//! workshops 2019, section III-E); where its text and its algorithms differ or are silent, the documentation of
//! each policy says what it does. The fifth, [`Utility`], estimates the value of pages.

#![forbid(unsafe_code)]

pub mod hull;
mod percent;
mod rates;
mod smart;
mod split;
pub mod utility;

use core::fmt;

pub use percent::{Percent, PercentError};
pub use smart::SmartAlloc;
use spillway_reuse::Curve;
pub use utility::{Standing, Utility};

/// A target without a limit.
pub const UNLIMITED: u64 = u64::MAX;

/// A policy's input for one client at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Puts refused in the interval, at the target or because the node was full.
    pub puts_refused: u64,
    /// Puts requested since the client was added.
    pub puts_ever: u64,
    /// Puts requested in the interval.
    pub puts: u64,
    /// Gets in the interval that found a page.
    pub hits: u64,
    /// Gets in the interval that found none.
    pub misses: u64,
    /// Pages that it holds.
    pub used_pages: u64,
    /// Its cap; [`UNLIMITED`] means no cap. The others get what it can't take.
    pub cap_pages: u64,
    /// Its guaranteed pages, regardless of their value to other clients. Only utility uses this and [`Self::weight`].
    pub floor_pages: u64,
    /// Its weight, which scales its stalls and its share.
    pub weight: u32,
    /// Its last target from the policy; `None` for a new client.
    pub target_pages: Option<u64>,
    /// Its reuse distances, for policies that need them ([`Policy::wants_curves`]).
    pub curve: Option<&'a Curve>,
    /// The policy's state for this client between intervals.
    pub standing: Standing,
}

impl Default for Sample<'_> {
    /// A client without a cap that has done nothing.
    fn default() -> Self {
        Self {
            puts_refused: 0,
            puts_ever: 0,
            puts: 0,
            hits: 0,
            misses: 0,
            used_pages: 0,
            cap_pages: UNLIMITED,
            floor_pages: 0,
            weight: 1,
            target_pages: None,
            curve: None,
            standing: Standing::default(),
        }
    }
}

/// A policy's output for one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Its target, pages.
    pub target_pages: u64,
    /// The state for the next interval.
    pub standing: Standing,
}

/// The method that computes targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served: no client has a target.
    #[default]
    Greedy,
    /// Equal shares of the node for all clients (Algorithm 2).
    StaticAlloc,
    /// Equal shares for the clients that have ever put a page, and nothing for the others (Algorithm 3).
    ReconfStatic,
    /// A target grows while its client's puts are refused, and shrinks while the client has unused
    /// pages (Algorithm 4).
    SmartAlloc(SmartAlloc),
    /// Each page goes to the client for which it saves the most waiting time, within bounds of fairness.
    Utility(Utility),
}

impl Policy {
    /// Names of all policies, the paper's in its order.
    pub const NAMES: [&'static str; 5] =
        ["greedy", "static-alloc", "reconf-static", "smart-alloc", "utility"];

    /// The policy's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Greedy => Self::NAMES[0],
            Self::StaticAlloc => Self::NAMES[1],
            Self::ReconfStatic => Self::NAMES[2],
            Self::SmartAlloc(_) => Self::NAMES[3],
            Self::Utility(_) => Self::NAMES[4],
        }
    }

    /// Whether samples need curves.
    pub const fn wants_curves(&self) -> bool {
        matches!(self, Self::Utility(_))
    }

    /// The target of a client that joins `count` others, until the end of its first interval. The paper
    /// defines it only for reconf-static, whose clients begin with 0 pages.
    pub fn first_target_pages(&self, total_pages: u64, count: usize) -> u64 {
        match self {
            Self::Greedy => UNLIMITED,
            Self::ReconfStatic => 0,
            Self::StaticAlloc | Self::SmartAlloc(_) | Self::Utility(_) => {
                total_pages / (count as u64 + 1)
            }
        }
    }

    /// The targets of all clients, in their order, for a node of `total_pages`. Their sum is at most
    /// `total_pages`, except for [`Self::Greedy`], whose targets are the caps, and for clients of
    /// [`Self::Utility`] that hold and request nothing.
    pub fn targets(&self, total_pages: u64, clients: &[Sample<'_>]) -> Vec<u64> {
        match self {
            Self::Utility(utility) => {
                utility.outcomes(total_pages, clients).iter().map(|it| it.target_pages).collect()
            }
            Self::Greedy => clients.iter().map(|client| client.cap_pages).collect(),
            Self::StaticAlloc => split::equally(total_pages, clients, |_| true),
            // The paper's text says "at least one put", its algorithm "failed puts". This follows
            // the text.
            Self::ReconfStatic => {
                split::equally(total_pages, clients, |client| client.puts_ever > 0)
            }
            Self::SmartAlloc(smart) => smart.targets(total_pages, clients),
        }
    }

    /// As [`Self::targets`], with the state of each client.
    pub fn outcomes(&self, total_pages: u64, clients: &[Sample<'_>]) -> Vec<Outcome> {
        if let Self::Utility(utility) = self {
            return utility.outcomes(total_pages, clients);
        }
        let targets = self.targets(total_pages, clients).into_iter();
        targets
            .map(|target_pages| Outcome { target_pages, standing: Standing::default() })
            .collect()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmartAlloc(smart) => f.pad(&format!("{} {} %", self.name(), smart.p)),
            _ => f.pad(self.name()),
        }
    }
}
