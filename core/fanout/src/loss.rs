//! Reports of lost holders, and the queue to the notifier.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::holder::Holder;

/// The most losses that are reported. A device has far fewer holders.
const LOSSES_MAX: usize = 2048;

/// Why a holder is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It did not answer within the time of a request, or its disk failed.
    NoAnswer,
    /// It refused a page in spite of its reservation.
    Refused,
    /// It does not have a page that it took.
    Missing,
    /// It gave other bytes than it took: they fail authentication.
    Forged,
    /// It has not answered for [`Settings::stall_max`](crate::Settings::stall_max).
    Away,
}

impl core::fmt::Display for Cause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "did not answer in time",
            Self::Refused => "refused a page",
            Self::Missing => "has lost a page",
            Self::Forged => "gave bytes that fail authentication",
            Self::Away => "has not answered for too long",
        })
    }
}

/// What a holder's failure means for the requests to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The other copy serves, and the holder is given up.
    FailOver,
    /// The other copy serves. This one stays in use, and is brought up to date when its holder answers.
    Behind,
    /// There is no other copy: requests wait for this one.
    Wait,
    /// There is no other copy, and requests failed with an I/O error. The holder stays in use,
    /// because it may come back.
    Error,
}

/// A holder that failed. It is reported once for each holder and effect, and again after a holder
/// that was waited for or behind has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The holder, by the number that it was made with.
    pub holder: u64,
    /// The slab in which it was found.
    pub slab: u32,
    /// Why.
    pub cause: Cause,
    /// What follows.
    pub effect: Effect,
}

impl core::fmt::Display for Effect {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::FailOver => "the other copy serves",
            Self::Behind => "the other copy serves, until this one answers and has what it missed",
            Self::Wait => "there is no other copy, so requests wait for it",
            Self::Error => "there is no other copy, so this is an I/O error",
        })
    }
}

impl core::fmt::Display for Loss {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { holder, slab, cause, effect } = self;
        write!(f, "{} of slab {slab} {cause}: {effect}", Name(*holder))
    }
}

/// A holder's number in a line of the log.
struct Name(u64);

impl core::fmt::Display for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Holder::FILE => f.write_str("the local file"),
            number => write!(f, "holder {number}"),
        }
    }
}

/// What the notifier tells of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It failed.
    Loss(Loss),
    /// Requests have waited for it, or it has missed some, and it answers again.
    Answer {
        /// The holder, by the number that it was made with.
        holder: u64,
        /// How long ago that was reported.
        after: Duration,
    },
}

impl core::fmt::Display for Report {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Loss(loss) => write!(f, "{loss}"),
            Self::Answer { holder, after } => {
                write!(f, "{} answers again after {after:.1?}", Name(*holder))
            }
        }
    }
}

#[derive(Debug)]
struct Waiting {
    reports: VecDeque<Report>,
    /// Holders that were reported already.
    reported: Vec<Reported>,
    ended: bool,
}

/// A holder that was reported.
#[derive(Debug)]
struct Reported {
    holder: u64,
    effect: Effect,
    cause: Cause,
    at: Instant,
}

/// The queue of reports from the threads that find losses to the notifier.
#[derive(Debug)]
pub(crate) struct Losses {
    waiting: Mutex<Waiting>,
    woken: Condvar,
    /// A holder was reported that requests wait for or that is behind, and that has not answered since.
    has_waits: AtomicBool,
}

impl Losses {
    pub(crate) fn new() -> Self {
        let waiting = Waiting {
            reports: VecDeque::with_capacity(LOSSES_MAX),
            reported: Vec::with_capacity(LOSSES_MAX),
            ended: false,
        };
        let has_waits = AtomicBool::new(false);
        Self { waiting: Mutex::new(waiting), woken: Condvar::new(), has_waits }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a loss if it is the first of its effect and holder. Returns whether it is. It
    /// allocates nothing.
    pub(crate) fn push(&self, loss: Loss) -> bool {
        let mut waiting = self.waiting();
        let Loss { holder, effect, cause, .. } = loss;
        let is_it = |reported: &Reported| reported.holder == holder && reported.effect == effect;
        if waiting.reported.iter().any(is_it) || !waiting.has_room() {
            return false;
        }
        waiting.reported.push(Reported { holder, effect, cause, at: Instant::now() });
        waiting.reports.push_back(Report::Loss(loss));
        let is_away = matches!(effect, Effect::Wait | Effect::Behind);
        self.has_waits.fetch_or(is_away, Ordering::Relaxed);
        self.woken.notify_one();
        true
    }

    /// Whether a holder is waited for or behind, so that [`Self::note_answer`] has something to note.
    pub(crate) fn has_waits(&self) -> bool {
        self.has_waits.load(Ordering::Relaxed)
    }

    /// How long requests have waited for a holder, since that was reported.
    pub(crate) fn waited(&self, holder: u64) -> Duration {
        let waiting = self.waiting();
        let first = waiting.reported.iter().find(|reported| reported.is_wait_for(holder));
        first.map_or(Duration::ZERO, |first| first.at.elapsed())
    }

    /// Queues that a holder answers again, if it was waited for or behind. Its next failure is reported anew.
    /// A holder that is behind answers again when it takes changes (`is_written`).
    pub(crate) fn note_answer(&self, holder: u64, is_written: bool) {
        let Some(at) = self.end_wait(holder, is_written) else { return };
        let mut waiting = self.waiting();
        if waiting.has_room() {
            waiting.reports.push_back(Report::Answer { holder, after: at.elapsed() });
            self.woken.notify_one();
        }
    }

    /// Forgets that requests wait for a holder, or that it is behind. Returns since when.
    pub(crate) fn end_wait(&self, holder: u64, is_written: bool) -> Option<Instant> {
        let mut waiting = self.waiting();
        let first = waiting.reported.iter().find(|it| {
            it.holder == holder && it.is_away() && (is_written || it.effect != Effect::Behind)
        });
        let at = first?.at;
        waiting.reported.retain(|it| {
            let stays = it.effect == Effect::Behind && !is_written;
            it.holder != holder || stays || !it.is_of_wait()
        });
        let has_waits = waiting.reported.iter().any(Reported::is_away);
        self.has_waits.store(has_waits, Ordering::Relaxed);
        Some(at)
    }

    /// Ends [`Self::next`].
    pub(crate) fn stop(&self) {
        self.waiting().ended = true;
        self.woken.notify_all();
    }

    /// Waits for the next report. None at the end.
    pub(crate) fn next(&self) -> Option<Report> {
        let mut waiting = self.waiting();
        loop {
            if let Some(report) = waiting.reports.pop_front() {
                return Some(report);
            }
            if waiting.ended {
                return None;
            }
            waiting = self.woken.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Reported {
    fn is_wait_for(&self, holder: u64) -> bool {
        self.holder == holder && self.effect == Effect::Wait
    }

    /// Whether its holder is expected to answer again.
    const fn is_away(&self) -> bool {
        matches!(self.effect, Effect::Wait | Effect::Behind)
    }

    /// Whether it is of requests that wait, or that have waited and failed.
    fn is_of_wait(&self) -> bool {
        match self.effect {
            Effect::Wait | Effect::Behind => true,
            Effect::Error => self.cause == Cause::NoAnswer,
            Effect::FailOver => false,
        }
    }
}

impl Waiting {
    /// Whether another report fits without an allocation.
    fn has_room(&self) -> bool {
        self.reports.len() < LOSSES_MAX && self.reported.len() < LOSSES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_is_read_but_not_written_stays_behind() {
        let losses = Losses::new();
        let loss = |effect| Loss { holder: 7, slab: 0, cause: Cause::NoAnswer, effect };
        assert!(losses.push(loss(Effect::Behind)) && losses.push(loss(Effect::Wait)));
        losses.note_answer(7, false);
        assert!(losses.has_waits());
        assert!(losses.push(loss(Effect::Wait)), "reads wait anew");
        assert!(!losses.push(loss(Effect::Behind)), "it was behind all the time");
        losses.note_answer(7, true);
        assert!(!losses.has_waits() && losses.push(loss(Effect::Behind)));
    }
}
