//! A loan, over a session of the client library.

use core::array;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use spillway_client::nvme_tcp::call::{Call, Outcome, PoolRef};
use spillway_client::nvme_tcp::session::{Data, Request, Session, now_us};
use spillway_client::nvme_tcp::settings::Settings as SessionSettings;
use spillway_client::nvme_tcp::tls::TlsDial;
use spillway_fanout::{BATCH_PAGES, Lender, Page, PageOutcome};
use spillway_types::{Key, PAGE_BYTES};
use spillway_wire::kv::PoolEntry;
use spillway_wire::nvme::Status;

use crate::{Error, Settings};

/// Buffer size for a list of pools, bytes.
const LIST_BYTES: usize = 64 << 10;
/// Stack size of the thread that keeps a connection alive.
const STACK_BYTES: usize = 256 << 10;

/// The transport to a loan's pages.
#[derive(Debug)]
pub struct Loan {
    session: Arc<Session<TlsDial>>,
    pool: PoolRef,
    stopping: Arc<AtomicBool>,
    tender: Option<JoinHandle<()>>,
}

impl Loan {
    /// Connects, and finds the loan's pool.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::NoPool`], [`Error::Client`] with the reason why it can't
    /// connect.
    pub fn connect(settings: &Settings) -> Result<Self, Error> {
        let session = Arc::new(connect(settings)?);
        let pool = find(&session, settings.pool)?;
        let pool = pool.ok_or_else(|| Error::NoPool(settings.address.clone()))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let tender = thread::Builder::new().name("loan-tend".into()).stack_size(STACK_BYTES);
        let tender = tender.spawn({
            let (session, stopping) = (Arc::clone(&session), Arc::clone(&stopping));
            move || tend(&session, &stopping)
        })?;
        Ok(Self { session, pool, stopping, tender: Some(tender) })
    }

    /// Makes calls that end by the deadline. `meaning` translates an answer to the outcome of its
    /// page.
    fn run(
        &self,
        requests: &mut [Request<'_>],
        outcomes: &mut [PageOutcome],
        deadline: Instant,
        meaning: Meaning,
    ) {
        let left = deadline.saturating_duration_since(Instant::now());
        self.session.run_within(requests, left.as_micros() as u64);
        for (request, outcome) in requests.iter().zip(outcomes) {
            *outcome = carried(request.outcome, meaning);
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.session.stop();
        if let Some(tender) = self.tender.take() {
            tender.thread().unpark();
            // It never panics, which would abort the program.
            let _ = tender.join();
        }
    }
}

fn connect(settings: &Settings) -> Result<Session<TlsDial>, Error> {
    let wrong = || Error::Address(settings.address.clone());
    let (host, port) = settings.address.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().map_err(|_| wrong())?;
    let dial = TlsDial::with_settings(host, port, settings.tls.clone())?;
    // The target ends an association when another with the same id connects, so each has its own
    // id.
    let mut host_id = [0; 16];
    let mut seed = [0; 8];
    for random in [&mut host_id[..], &mut seed[..]] {
        rustix::rand::getrandom(random, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
    }
    let timeout_us = settings.timeout.as_micros() as u64;
    let mut to = SessionSettings::new(settings.host_nqn.clone(), host_id);
    to.io_queues = settings.queues.max(1);
    to.call_timeout_us = timeout_us;
    to.command_timeout_us = timeout_us;
    to.connect_timeout_us = timeout_us;
    let session = Session::new(dial, to, u64::from_le_bytes(seed));
    session.connect().map_err(spillway_client::Error::Unreachable)?;
    Ok(session)
}

/// Looks for a pool on the lender.
fn find(session: &Session<TlsDial>, identity: u128) -> Result<Option<PoolRef>, Error> {
    let mut list = vec![0; LIST_BYTES];
    let mut requests = [Request::new(Call::Pools(LIST_BYTES as u32), Data::In(&mut list))];
    session.run(&mut requests);
    let [Request { outcome, .. }] = requests;
    let result = match outcome {
        Some(Outcome::Answered { status, result, .. })
            if Status(status).code() == Status::SUCCESS =>
        {
            result
        }
        Some(Outcome::Unreachable(trouble) | Outcome::Unknown(trouble)) => {
            return Err(spillway_client::Error::Unreachable(trouble).into());
        }
        _ => return Ok(None),
    };
    let count = (result as u32 as usize).min(LIST_BYTES / PoolEntry::BYTES);
    let entries = list.chunks_exact(PoolEntry::BYTES).take(count);
    let found = entries
        .filter_map(|entry| PoolEntry::decode(entry).ok())
        .find(|entry| entry.identity == identity);
    Ok(found.and_then(|found| {
        session.with(|association| association.pools().adopt(found.number, identity, true))
    }))
}

/// Keeps the session alive, and reconnects when it is lost, until it is stopped.
fn tend(session: &Session<TlsDial>, stopping: &AtomicBool) {
    // The kernel may wait for a page that depends on this thread; see `spillway_fanout::Holder`.
    let _ = spillway_platform::swap::serve_swap();
    while !stopping.load(Ordering::Acquire) {
        let at_us = session.tend();
        thread::park_timeout(Duration::from_micros(at_us.saturating_sub(now_us())));
    }
}

/// The outcome of a page, from the answer's status and whether it contains exactly a page.
type Meaning = fn(Status, bool) -> PageOutcome;

/// The outcome of a page at the end of its call.
fn carried(outcome: Option<Outcome>, meaning: Meaning) -> PageOutcome {
    match outcome {
        Some(Outcome::Answered { status, result, bytes, .. }) => {
            let page = PAGE_BYTES as u64;
            meaning(Status(status).code(), result == page && u64::from(bytes) == page)
        }
        Some(Outcome::PoolLost) => PageOutcome::Missing,
        _ => PageOutcome::Lost,
    }
}

const fn stored(status: Status, _with_page: bool) -> PageOutcome {
    match status {
        Status::SUCCESS => PageOutcome::Done,
        _ => PageOutcome::Refused,
    }
}

const fn retrieved(status: Status, with_page: bool) -> PageOutcome {
    match status {
        Status::SUCCESS if with_page => PageOutcome::Done,
        // The lender does not have the page, or has other bytes than were put.
        Status::SUCCESS | Status::KEY_NOT_FOUND | Status::UNRECOVERED | Status::VALUE_SIZE => {
            PageOutcome::Missing
        }
        // Only this means that the contents are gone.
        _ => PageOutcome::Lost,
    }
}

const fn deleted(status: Status, _with_page: bool) -> PageOutcome {
    match status {
        Status::SUCCESS | Status::KEY_NOT_FOUND => PageOutcome::Done,
        _ => PageOutcome::Lost,
    }
}

/// A filler of the array; no request is sent.
const fn none<'a>() -> Request<'a> {
    Request::new(Call::Pools(0), Data::None)
}

impl Lender for Loan {
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], deadline: Instant) {
        let mut pairs = keys.iter().zip(pages);
        let mut requests: [_; BATCH_PAGES] = array::from_fn(|_| match pairs.next() {
            Some((key, page)) => {
                let call = Call::Store(self.pool, *key, PAGE_BYTES as u32);
                Request::new(call, Data::Out(&page.0))
            }
            None => none(),
        });
        self.run(&mut requests[..keys.len()], outcomes, deadline, stored);
    }

    fn get(
        &self,
        keys: &[Key],
        pages: &mut [Page],
        outcomes: &mut [PageOutcome],
        deadline: Instant,
    ) {
        let mut pairs = keys.iter().zip(pages);
        let mut requests: [_; BATCH_PAGES] = array::from_fn(|_| match pairs.next() {
            Some((key, page)) => {
                let call = Call::Retrieve(self.pool, *key, PAGE_BYTES as u32);
                Request::new(call, Data::In(&mut page.0))
            }
            None => none(),
        });
        self.run(&mut requests[..keys.len()], outcomes, deadline, retrieved);
    }

    fn flush(&self, keys: &[Key], outcomes: &mut [PageOutcome], deadline: Instant) {
        let mut keys_left = keys.iter();
        let mut requests: [_; BATCH_PAGES] = array::from_fn(|_| match keys_left.next() {
            Some(key) => Request::new(Call::Delete(self.pool, *key), Data::None),
            None => none(),
        });
        self.run(&mut requests[..keys.len()], outcomes, deadline, deleted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = PAGE_BYTES as u32;

    fn answered(status: Status, bytes: u32, meaning: Meaning) -> PageOutcome {
        let (status, result) = (status.0, PAGE.into());
        let answer = Outcome::Answered { status, result, bytes, generation: 1 };
        carried(Some(answer), meaning)
    }

    #[test]
    fn a_page_is_missing_only_if_the_lender_says_so() {
        assert_eq!(answered(Status::SUCCESS, PAGE, retrieved), PageOutcome::Done);
        assert_eq!(answered(Status::SUCCESS, PAGE - 1, retrieved), PageOutcome::Missing);
        let result = u64::from(PAGE) + 1;
        let longer = Outcome::Answered { status: 0, result, bytes: PAGE, generation: 1 };
        assert_eq!(carried(Some(longer), retrieved), PageOutcome::Missing, "its first bytes");
        for status in [Status::KEY_NOT_FOUND, Status::UNRECOVERED, Status::VALUE_SIZE] {
            let outcome = answered(status.finally(), 0, retrieved);
            assert_eq!(outcome, PageOutcome::Missing, "{status}");
        }
        for status in [Status::NOT_READY, Status::INTERNAL, Status::ABORTED, Status::PATH] {
            assert_eq!(answered(status, 0, retrieved), PageOutcome::Lost, "{status}");
        }
        assert_eq!(carried(Some(Outcome::PoolLost), retrieved), PageOutcome::Missing);
        assert_eq!(carried(None, retrieved), PageOutcome::Lost);
    }

    #[test]
    fn a_page_that_is_gone_is_deleted_and_a_page_without_room_is_refused() {
        assert_eq!(answered(Status::SUCCESS, 0, stored), PageOutcome::Done);
        assert_eq!(answered(Status::CAPACITY, 0, stored), PageOutcome::Refused);
        for status in [Status::SUCCESS, Status::KEY_NOT_FOUND] {
            assert_eq!(answered(status, 0, deleted), PageOutcome::Done, "{status}");
        }
        assert_eq!(answered(Status::INTERNAL, 0, deleted), PageOutcome::Lost);
    }
}
