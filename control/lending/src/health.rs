//! How well each other host answers: pure logic over contacts, which whoever drives it reports with the monotonic time.
//!
//! Two things are known of a host: how its messages go, and whether pages of its loans failed. The worse of both is its
//! health. A certificate that does not match and a connection that is refused count at once. A time-out and slow answers
//! must repeat, and a host is no longer slow after some prompt answers in a row, so that one busy second changes little.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::HostId;

/// Slow answers in a row after which a host is slow, and prompt ones after which it is not slow any more.
const IN_A_ROW: u32 = 3;
/// Without any contact for so long, a host's health is unknown.
const STALE: Duration = Duration::from_secs(60);
/// A failed page of a loan that is still held counts for so long, unless requests wait for the lender.
const PAGE_FAULT_LASTS: Duration = Duration::from_secs(60);

/// How well a host answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It answers.
    Ok,
    /// Nobody has asked it, or not for a while.
    #[default]
    Unknown,
    /// It answers late, or not always.
    Slow,
    /// No answer comes from it.
    Unreachable,
    /// It can be reached, but one side rejects the other: a certificate, a message, or a page.
    Refused,
}

impl Health {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Ok, Self::Unknown, Self::Slow, Self::Unreachable, Self::Refused];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Slow => "slow",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
        }
    }

    /// Whether the host was asked, and did not answer well.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Slow | Self::Unreachable | Self::Refused)
    }

    /// Whether nothing that lies with the host can be counted on now.
    pub const fn is_out_of_reach(self) -> bool {
        matches!(self, Self::Unreachable | Self::Refused)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What kind of failure a contact met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There was no answer in time, or the host has too much to do.
    Late,
    /// There is no connection.
    Unreachable,
    /// One side rejects the other.
    Refused,
}

/// How a request to a host went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It was answered, after so long.
    Answered(Duration),
    /// It was not.
    Failed {
        /// The kind.
        fault: Fault,
        /// Why, in plain words.
        reason: String,
    },
}

/// How a host stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// How well it answers.
    pub health: Health,
    /// The last thing that went wrong; empty where nothing is wrong.
    pub reason: String,
    /// For how long it has had this health.
    pub lasted: Duration,
}

/// A host's health is another now.
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
    /// What went wrong; empty where nothing is wrong.
    pub reason: String,
}

/// The health of all hosts.
#[derive(Clone, Debug)]
pub struct HealthWatch {
    /// Within which a host must answer a message.
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
    /// What was told of it last, pages included.
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
    /// When the first of the time-outs in a row came.
    timed_out_at: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Loan {
    lender: HostId,
    failed: Option<PageFault>,
}

/// What the last page met that failed.
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
                    // Late, but there: whatever it was before, it is not out of reach.
                    (self.health, self.reason) = (Health::Ok, String::new());
                    return;
                }
            }
            Contact::Failed { fault: Fault::Late, reason } => {
                let first = *self.timed_out_at.get_or_insert(now);
                // A request that began after the first time-out: not one of several at the same time.
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
    /// Nobody is known yet. `answer_timeout` is within which a host must answer a message; more than half of it is slow.
    pub const fn new(answer_timeout: Duration) -> Self {
        Self { answer_timeout, hosts: BTreeMap::new(), loans: BTreeMap::new() }
    }

    /// A message to a host, or a question, was answered or not.
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

    /// A loan has ended: what failed in it says nothing of its lender any more.
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

    /// Pages were copied into a loan, or a lender answers that requests have waited for.
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
        // What is known to be wrong stays until it is known to be right.
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

    /// Whether a host was not asked for `time` or longer.
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
