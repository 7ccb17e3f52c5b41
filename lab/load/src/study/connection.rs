//! A connection of the study: its requests and counts.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::arrivals::Arrivals;
use super::histogram::Histogram;
use super::pages::{Request, Requests, Trace, keys_of};
use crate::client::CacheClient;
use crate::values::Corpus;

const PAGE_BYTES: usize = 4096;

/// Counts of requests and answers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// Gets.
    pub gets: u64,
    /// Those gets that found a value.
    pub hits: u64,
    /// Sets.
    pub sets: u64,
    /// Adds.
    pub adds: u64,
    /// Bytes of the values read and written.
    pub value_bytes: u64,
    /// Pages of these values, each value rounded up.
    pub value_pages: u64,
    /// Values read and compared byte by byte.
    pub verified: u64,
    /// Wrong values among these, and adds that were refused after a miss.
    pub wrong: u64,
}

impl Counts {
    /// The number of requests of all kinds.
    pub const fn requests(&self) -> u64 {
        self.gets + self.sets + self.adds
    }

    /// Adds the counts of another connection.
    pub const fn merge(&mut self, other: &Self) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.sets += other.sets;
        self.adds += other.adds;
        self.value_bytes += other.value_bytes;
        self.value_pages += other.value_pages;
        self.verified += other.verified;
        self.wrong += other.wrong;
    }

    const fn moved(&mut self, bytes: usize) {
        self.value_bytes += bytes as u64;
        self.value_pages += bytes.div_ceil(PAGE_BYTES) as u64;
    }
}

/// A connection with its keys and the last written version of each.
pub struct Connection<'a> {
    client: CacheClient,
    trace: Trace,
    corpus: &'a Corpus,
    requests: Requests,
    keys: Vec<(u64, u64)>,
    value: Vec<u8>,
    found: Vec<u8>,
    /// Counts since they were last taken.
    pub counts: Counts,
    /// Request times since they were last taken.
    pub times: Histogram,
}

impl<'a> Connection<'a> {
    /// Connects.
    ///
    /// # Errors
    /// No server listens there.
    pub fn new(server: &str, trace: Trace, corpus: &'a Corpus, number: u64) -> Result<Self> {
        Ok(Self {
            client: CacheClient::connect_to(server)?,
            trace,
            corpus,
            requests: Requests::new(&trace, number)?,
            keys: keys_of(&trace, number).into_iter().map(|key| (key, 1)).collect(),
            value: Vec::new(),
            found: Vec::new(),
            counts: Counts::default(),
            times: Histogram::new(),
        })
    }

    /// Brings the server to the state after half of the trace: stores each value that has occurred, in the order of the
    /// keys. Continues with the other half.
    ///
    /// # Errors
    /// The server does not answer as expected.
    pub fn fill(&mut self) -> Result<()> {
        let mut came_up = vec![false; self.keys.len()];
        for _ in 0..self.trace.requests_of_connection() / 2 {
            came_up[self.next_request().rank()] = true;
        }
        let mut ranks: Vec<_> = (0..self.keys.len()).filter(|rank| came_up[*rank]).collect();
        ranks.sort_by_key(|rank| self.keys[*rank].0);
        ranks.into_iter().try_for_each(|rank| self.set(rank).map(drop))
    }

    /// Sends the whole trace of this connection, one request after the other.
    ///
    /// # Errors
    /// The server does not answer as expected.
    pub fn replay(&mut self) -> Result<()> {
        (0..self.trace.requests_of_connection()).try_for_each(|_| self.ask(None))
    }

    /// Sends requests without a pause until the time is over.
    ///
    /// # Errors
    /// The server does not answer as expected.
    pub fn closed(&mut self, time: Duration) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < time {
            self.ask(None)?;
        }
        Ok(())
    }

    /// Sends requests at their due times until the time is over. A late request includes its delay.
    ///
    /// # Errors
    /// The server does not answer as expected.
    pub fn open(&mut self, began: Instant, time: Duration, arrivals: Arrivals) -> Result<()> {
        for due in arrivals.take_while(|due| *due < time) {
            let due = began + due;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.ask(Some(due))?;
            // An overloaded server makes the queue grow without end. Stop after twice the time.
            if began.elapsed() > 2 * time {
                break;
            }
        }
        Ok(())
    }

    /// Reads every key once, and compares.
    ///
    /// # Errors
    /// The server does not answer as expected.
    pub fn check(&mut self) -> Result<()> {
        (0..self.keys.len()).try_for_each(|rank| self.get(rank).map(drop))
    }

    fn next_request(&mut self) -> Request {
        self.requests.next().expect("requests have no end")
    }

    /// Sends a request of the trace, and the store after a miss. The time counts from the due time, or else from the
    /// sending.
    fn ask(&mut self, due: Option<Instant>) -> Result<()> {
        let late = due.map_or(Duration::ZERO, |due| due.elapsed());
        match self.next_request() {
            Request::Edit { rank } => {
                self.keys[rank].1 += 1;
                let took = self.set(rank)?;
                self.note(late + took);
            }
            Request::Get { rank, adds } => {
                let (there, took) = self.get(rank)?;
                self.note(late + took);
                if !there {
                    let took = if adds { self.add(rank)? } else { self.set(rank)? };
                    self.note(took);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, took: Duration) {
        self.times.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn get(&mut self, rank: usize) -> Result<(bool, Duration)> {
        let (key, version) = self.keys[rank];
        let sent = Instant::now();
        let there = self.client.get(key, &mut self.found)?;
        let took = sent.elapsed();
        self.counts.gets += 1;
        if there {
            self.trace.make(self.corpus, key, version, &mut self.value);
            self.counts.hits += 1;
            self.counts.verified += 1;
            self.counts.wrong += u64::from(self.found != self.value);
            self.counts.moved(self.found.len());
        }
        Ok((there, took))
    }

    fn set(&mut self, rank: usize) -> Result<Duration> {
        let key = self.make(rank);
        let sent = Instant::now();
        self.client.set(key, &self.value)?;
        self.counts.sets += 1;
        self.counts.moved(self.value.len());
        Ok(sent.elapsed())
    }

    fn add(&mut self, rank: usize) -> Result<Duration> {
        let key = self.make(rank);
        let sent = Instant::now();
        let stored = self.client.add(key, &self.value)?;
        self.counts.adds += 1;
        // No other connection has this key: after a miss, an add must store.
        self.counts.wrong += u64::from(!stored);
        self.counts.moved(self.value.len());
        Ok(sent.elapsed())
    }

    /// Writes the present value of a key into the buffer. Returns the key.
    fn make(&mut self, rank: usize) -> u64 {
        let (key, version) = self.keys[rank];
        self.trace.make(self.corpus, key, version, &mut self.value);
        key
    }
}
