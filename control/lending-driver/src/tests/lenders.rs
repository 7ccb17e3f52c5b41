//! Other hosts in memory: they grant what they are asked for, and keep pages, unless a test says otherwise.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use spillway_fanout::{Lender, Page, PageOutcome};
use spillway_lending::{
    Access, Body, Epoch, HostId, MemBorAck, MemBorRej, MemBorReq, Message, PoolIdentity, Reason,
};
use spillway_peers::server::Host as _;
use spillway_types::Key;

use crate::error::Error;
use crate::peers::{Messenger, Peers};
use crate::transport::Transport;

/// How a host answers requests for loans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// It grants and renews.
    #[default]
    Grants,
    /// It says nothing.
    Silent,
    /// It has lost what it lent.
    Forgets,
}

/// The hosts to which the driver sends messages.
#[derive(Clone, Debug)]
pub struct FakeHosts {
    pub peers: Arc<Peers>,
    state: Arc<Mutex<HostsState>>,
}

#[derive(Debug, Default)]
struct HostsState {
    sent: Vec<Message>,
    answers: BTreeMap<String, Answer>,
}

impl FakeHosts {
    pub fn new(peers: Arc<Peers>) -> Self {
        Self { peers, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, HostsState> {
        self.state.lock().unwrap()
    }

    pub fn set(&self, host: &str, answer: Answer) {
        self.state().answers.insert(host.to_owned(), answer);
    }

    /// The messages that a host was sent.
    pub fn sent(&self, host: &str) -> Vec<Body> {
        let its = |message: &&Message| message.to.as_str() == host;
        self.state().sent.iter().filter(its).map(|message| message.body.clone()).collect()
    }

    /// How often a host was asked to renew a loan.
    pub fn renewals(&self, host: &str) -> usize {
        let is_one = |body: &Body| matches!(body, Body::MemBorReq(it) if it.holds.is_some());
        self.sent(host).iter().filter(|body| is_one(body)).count()
    }

    /// Says something to the driver.
    pub fn say(&self, from: &HostId, to: &HostId, body: Body) {
        let message = Message { from: from.clone(), to: to.clone(), epoch: Epoch(1), body };
        self.peers.message(from.as_str(), &message.encode()).unwrap();
    }

    fn answer(&self, host: &HostId, body: &Body) -> Option<Body> {
        let how = self.state().answers.get(host.as_str()).copied().unwrap_or_default();
        let unknown = |loan: &_, sequence| {
            let loan = Clone::clone(loan);
            Body::MemBorRej(MemBorRej { loan, sequence, reason: Reason::Unknown, spare_slabs: 0 })
        };
        match (how, body) {
            (Answer::Silent, _) => None,
            (_, Body::MemBorFin(fin)) => Some(unknown(&fin.loan, 0)),
            (Answer::Forgets, Body::MemBorReq(request)) => {
                Some(unknown(&request.loan, request.sequence))
            }
            (Answer::Grants, Body::MemBorReq(request)) => Some(grant(request)),
            _ => None,
        }
    }
}

/// What a lender answers that grants a request.
pub fn grant(request: &MemBorReq) -> Body {
    let access = Access {
        address: "192.0.2.1:4420".to_owned(),
        pool: PoolIdentity(request.loan.number.into()),
        nqn: Some("nqn.2014-08.test:lender".to_owned()),
    };
    let (loan, sequence) = (request.loan.clone(), request.sequence);
    Body::MemBorAck(MemBorAck { loan, sequence, access, lease_ms: 30_000 })
}

impl Messenger for FakeHosts {
    fn send(
        &mut self,
        _: &str,
        _: SocketAddr,
        _: String,
        body: Vec<u8>,
    ) -> Result<(), spillway_peers::Error> {
        let message = Message::decode(&body).unwrap();
        let answer = self.answer(&message.to, &message.body);
        self.state().sent.push(message.clone());
        if let Some(answer) = answer {
            self.say(&message.to, &message.from, answer);
        }
        Ok(())
    }
}

/// The pools of all lenders.
#[derive(Clone, Debug, Default)]
pub struct FakePools(Arc<PoolsState>);

#[derive(Debug, Default)]
struct PoolsState {
    /// Lenders whose pools answer late, and how.
    late: Mutex<BTreeMap<String, Late>>,
    changed: Condvar,
    connected: Mutex<Vec<(String, Weak<FakePool>)>>,
}

/// How a pool is late, or refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// A request takes until [`FakePools::let_go`].
    Hangs,
    /// Each request is over without an answer.
    Loses,
    /// Each page is refused.
    Refuses,
}

impl FakePools {
    pub fn set_late(&self, lender: &str, late: Late) {
        self.0.late.lock().unwrap().insert(lender.to_owned(), late);
    }

    /// Has all answer again.
    pub fn let_go(&self) {
        self.0.late.lock().unwrap().clear();
        self.0.changed.notify_all();
    }

    /// The pools to which there is a connection.
    fn pools(&self) -> Vec<(String, Arc<FakePool>)> {
        let connected = self.0.connected.lock().unwrap();
        let its = |(name, pool): &(String, Weak<FakePool>)| Some((name.clone(), pool.upgrade()?));
        connected.iter().filter_map(its).collect()
    }

    /// How many connections there are.
    pub fn connected(&self) -> usize {
        self.pools().len()
    }

    /// How many pages a lender has.
    pub fn pages(&self, lender: &str) -> usize {
        let pools = self.pools();
        let its = pools.iter().filter(|(name, _)| name == lender);
        its.map(|(_, pool)| pool.pages.lock().unwrap().len()).sum()
    }

    /// How many requests of a lender hang.
    pub fn hanging(&self, lender: &str) -> usize {
        let pools = self.pools();
        let its = pools.iter().filter(|(name, _)| name == lender);
        its.map(|(_, pool)| *pool.hanging.lock().unwrap()).sum()
    }
}

impl Transport for FakePools {
    fn connect(&self, lender: &HostId, _: &Access) -> Result<Arc<dyn Lender>, Error> {
        let pool = Arc::new(FakePool {
            lender: lender.to_string(),
            all: self.0.clone(),
            pages: Mutex::default(),
            hanging: Mutex::default(),
        });
        let name = lender.to_string();
        self.0.connected.lock().unwrap().push((name, Arc::downgrade(&pool)));
        Ok(pool)
    }
}

#[derive(Debug)]
struct FakePool {
    lender: String,
    all: Arc<PoolsState>,
    pages: Mutex<HashMap<Key, Page>>,
    hanging: Mutex<usize>,
}

impl FakePool {
    /// Begins a request; whether it is answered.
    fn answers(&self) -> bool {
        let mut late = self.all.late.lock().unwrap();
        *self.hanging.lock().unwrap() += 1;
        while late.get(&self.lender) == Some(&Late::Hangs) {
            late = self.all.changed.wait(late).unwrap();
        }
        *self.hanging.lock().unwrap() -= 1;
        late.get(&self.lender) != Some(&Late::Loses)
    }
}

impl Lender for FakePool {
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], _: Instant) {
        let answers = self.answers();
        let refuses = self.all.late.lock().unwrap().get(&self.lender) == Some(&Late::Refuses);
        for ((key, page), outcome) in keys.iter().zip(pages).zip(outcomes) {
            *outcome = match answers {
                true if refuses => PageOutcome::Refused,
                true => PageOutcome::Done,
                false => PageOutcome::Lost,
            };
            if *outcome == PageOutcome::Done {
                self.pages.lock().unwrap().insert(*key, page.clone());
            }
        }
    }

    fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [PageOutcome], _: Instant) {
        let answers = self.answers();
        let stored = self.pages.lock().unwrap();
        for ((key, page), outcome) in keys.iter().zip(pages).zip(outcomes) {
            *outcome = match stored.get(key) {
                _ if !answers => PageOutcome::Lost,
                None => PageOutcome::Missing,
                Some(found) => {
                    *page = found.clone();
                    PageOutcome::Done
                }
            };
        }
    }

    fn flush(&self, keys: &[Key], outcomes: &mut [PageOutcome], _: Instant) {
        let answers = self.answers();
        for (key, outcome) in keys.iter().zip(outcomes) {
            *outcome = if answers { PageOutcome::Done } else { PageOutcome::Lost };
            if answers {
                self.pages.lock().unwrap().remove(key);
            }
        }
    }
}
