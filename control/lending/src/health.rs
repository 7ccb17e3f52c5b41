//! The health of each other host: pure logic over contacts, which the driver reports with the monotonic time.
//!
//! A host's health is the worse of two: the results of its messages, and failures of its loans' pages. A mismatched
//! certificate and a refused connection count at once. Timeouts and slow answers must repeat, and a host stops being
//! slow after some prompt answers in a row, so that one busy second changes little.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::HostId;

/// Slow answers in a row after which a host counts as slow, and prompt ones after which it no longer
/// does.
const IN_A_ROW: u32 = 3;
/// Time without contact after which a host's health is unknown.
const STALE: Duration = Duration::from_secs(60);
/// How long a failed page of a held loan counts, unless requests wait for the lender.
const PAGE_FAULT_LASTS: Duration = Duration::from_secs(60);

/// How well a host answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It answers.
    Ok,
    /// There was no request to it, or none for a while.
    #[default]
    Unknown,
    /// It answers late, or not always.
    Slow,
    /// It does not answer.
    Unreachable,
    /// It is reachable, but one side rejects the other's certificate, message or page.
    Refused,
}

impl Health {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Ok, Self::Unknown, Self::Slow, Self::Unreachable, Self::Refused];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Slow => "slow",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
        }
    }

    /// Whether there were requests to the host, and it did not answer well.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Slow | Self::Unreachable | Self::Refused)
    }

    /// Whether pages on the host are unavailable now.
    pub const fn is_out_of_reach(self) -> bool {
        matches!(self, Self::Unreachable | Self::Refused)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of a contact's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There was no answer in time, or the host is overloaded.
    Late,
    /// There is no connection.
    Unreachable,
    /// One side rejects the other.
    Refused,
}

/// How a request to a host went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It was answered after this time.
    Answered(Duration),
    /// It was not answered.
    Failed {
        /// The kind.
        fault: Fault,
        /// Why, in plain words.
        reason: String,
    },
}

/// The status of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// How well it answers.
    pub health: Health,
    /// The last problem; empty if there is none.
    pub reason: String,
    /// Time since its health last changed.
    pub lasted: Duration,
}

/// A change of a host's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthChange {
    /// The host.
    pub host: HostId,
    /// What it was.
    pub from: Health,
    /// For how long.
    pub lasted: Duration,
    /// What it is.
    pub to: Health,
    /// The problem; empty if there is none.
    pub reason: String,
}

/// The health of all hosts.
#[derive(Clone, Debug)]
pub struct HealthWatch {
    /// Time within which a host must answer a message.
    answer_timeout: Duration,
    hosts: BTreeMap<HostId, Host>,
    /// The loans that this host holds, by number.
    loans: BTreeMap<u64, Loan>,
}

#[derive(Clone, Debug)]
struct Host {
    /// By its messages alone.
    messages: Messages,
    /// The last contact of any kind.
    contact_at: Duration,
    /// Its last reported health, pages included.
    health: Health,
    reason: String,
    since: Duration,
}

#[derive(Clone, Debug, Default)]
struct Messages {
    health: Health,
    reason: String,
    /// Slow answers in a row, or prompt ones of a host that is slow.
    in_a_row: u32,
    /// When the first of the consecutive timeouts occurred.
    timed_out_at: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Loan {
    lender: HostId,
    failed: Option<PageFault>,
}

/// The failure of the last failed page.
#[derive(Clone, Debug)]
struct PageFault {
    at: Duration,
    health: Health,
    reason: String,
    /// Requests wait for the lender: the fault lasts until pages are answered again.
    waits: bool,
}

impl PageFault {
    fn counts(&self, now: Duration) -> bool {
        self.waits || now.saturating_sub(self.at) < PAGE_FAULT_LASTS
    }
}

impl Messages {
    fn contact(&mut self, now: Duration, timeout: Duration, contact: Contact) {
        let (health, reason) = match contact {
            Contact::Answered(took) if took <= timeout / 2 => {
                self.timed_out_at = None;
                if self.health == Health::Slow {
                    self.in_a_row += 1;
                    if self.in_a_row < IN_A_ROW {
                        return;
                    }
                }
                (Health::Ok, String::new())
            }
            Contact::Answered(took) => {
                self.timed_out_at = None;
                let is_slow = self.health == Health::Slow;
                self.in_a_row = if is_slow { 0 } else { self.in_a_row + 1 };
                if is_slow || self.in_a_row == IN_A_ROW {
                    (Health::Slow, format!("an answer took {} ms", took.as_millis()))
                } else {
                    // Late, but answered: whatever it was before, it is reachable.
                    (self.health, self.reason) = (Health::Ok, String::new());
                    return;
                }
            }
            Contact::Failed { fault: Fault::Late, reason } => {
                let first = *self.timed_out_at.get_or_insert(now);
                // The request began after the first timeout, so it is not one of several concurrent
                // ones.
                let lasts = now.saturating_sub(first) >= timeout;
                match self.health {
                    _ if lasts => (Health::Unreachable, reason),
                    Health::Refused => return,
                    Health::Unreachable => (Health::Unreachable, reason),
                    Health::Ok | Health::Unknown | Health::Slow => (Health::Slow, reason),
                }
            }
            Contact::Failed { fault: Fault::Unreachable, reason } => (Health::Unreachable, reason),
            Contact::Failed { fault: Fault::Refused, reason } => (Health::Refused, reason),
        };
        self.in_a_row = 0;
        (self.health, self.reason) = (health, reason);
    }
}

impl HealthWatch {
    /// No hosts yet. `answer_timeout` is the time within which a host must answer a message; more than half of it
    /// counts as slow.
    pub const fn new(answer_timeout: Duration) -> Self {
        Self { answer_timeout, hosts: BTreeMap::new(), loans: BTreeMap::new() }
    }

    /// Reports whether a message or query to a host was answered.
    pub fn contact(
        &mut self,
        now: Duration,
        host: &HostId,
        contact: Contact,
    ) -> Option<HealthChange> {
        let timeout = self.answer_timeout;
        let known = self.host(now, host);
        known.contact_at = now;
        known.messages.contact(now, timeout, contact);
        self.look(now, host)
    }

    /// This host holds a loan of a lender.
    pub fn loan_opened(&mut self, number: u64, lender: HostId) {
        self.loans.insert(number, Loan { lender, failed: None });
    }

    /// A loan has ended: its failures no longer count against its lender.
    pub fn loan_ended(&mut self, now: Duration, number: u64) -> Option<HealthChange> {
        let loan = self.loans.remove(&number)?;
        self.look(now, &loan.lender)
    }

    /// The lender of a loan that this host holds.
    pub fn lender(&self, number: u64) -> Option<&HostId> {
        self.loans.get(&number).map(|loan| &loan.lender)
    }

    /// A page of a loan could not be stored or read. If requests wait for the lender (`waits`), that counts until
    /// [`loan_works`](Self::loan_works), else for a minute.
    pub fn page_failed(
        &mut self,
        now: Duration,
        number: u64,
        fault: Fault,
        reason: String,
        waits: bool,
    ) -> Option<HealthChange> {
        let health = match fault {
            Fault::Late => Health::Slow,
            Fault::Unreachable => Health::Unreachable,
            Fault::Refused => Health::Refused,
        };
        let loan = self.loans.get_mut(&number)?;
        let waits = waits || loan.failed.as_ref().is_some_and(|before| before.waits);
        loan.failed = Some(PageFault { at: now, health, reason, waits });
        let lender = loan.lender.clone();
        self.host(now, &lender);
        self.look(now, &lender)
    }

    /// Pages were copied to a loan, or a lender answers again after requests have waited for it.
    pub fn loan_works(&mut self, now: Duration, number: u64) -> Option<HealthChange> {
        let loan = self.loans.get_mut(&number)?;
        loan.failed = None;
        let lender = loan.lender.clone();
        self.look(now, &lender)
    }

    /// How a host stands.
    pub fn standing(&self, now: Duration, host: &HostId) -> Standing {
        let Some(known) = self.hosts.get(host) else { return Standing::default() };
        let stale_at = known.contact_at + STALE;
        // A known problem stays until it is known to be solved.
        if known.health == Health::Ok && now >= stale_at {
            return Standing {
                health: Health::Unknown,
                reason: "not asked any more".to_owned(),
                lasted: now - stale_at,
            };
        }
        Standing {
            health: known.health,
            reason: known.reason.clone(),
            lasted: now.saturating_sub(known.since),
        }
    }

    /// Whether there was no request to a host for `time` or longer.
    pub fn is_due(&self, now: Duration, host: &HostId, time: Duration) -> bool {
        self.hosts.get(host).is_none_or(|known| now.saturating_sub(known.contact_at) >= time)
    }

    fn host(&mut self, now: Duration, host: &HostId) -> &mut Host {
        self.hosts.entry(host.clone()).or_insert_with(|| Host {
            messages: Messages::default(),
            contact_at: now,
            health: Health::Unknown,
            reason: String::new(),
            since: now,
        })
    }

    /// Takes the worse of messages and pages.
    fn look(&mut self, now: Duration, host: &HostId) -> Option<HealthChange> {
        let known = self.hosts.get_mut(host)?;
        let its = self.loans.values().filter(|loan| loan.lender == *host);
        let failed = its.filter_map(|loan| loan.failed.as_ref());
        let pages =
            failed.filter(|fault| fault.counts(now)).max_by_key(|fault| (fault.health, fault.at));
        let (health, reason) = match pages {
            Some(fault) if fault.health > known.messages.health => (fault.health, &fault.reason),
            _ => (known.messages.health, &known.messages.reason),
        };
        known.reason.clone_from(reason);
        if health == known.health {
            return None;
        }
        let (from, lasted) = (known.health, now.saturating_sub(known.since));
        (known.health, known.since) = (health, now);
        let reason = known.reason.clone();
        Some(HealthChange { host: host.clone(), from, lasted, to: health, reason })
    }
}
