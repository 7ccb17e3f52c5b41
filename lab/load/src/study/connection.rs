//! One connection of the study: what it asks, and what it counts.

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

/// What was asked and answered.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// Gets.
    pub gets: u64,
    /// Of these, those that found a value.
    pub hits: u64,
    /// Sets.
    pub sets: u64,
    /// Adds.
    pub adds: u64,
    /// Bytes of the values read and written.
    pub value_bytes: u64,
    /// Pages that these values fill, each value by itself.
    pub value_pages: u64,
    /// Values read and compared, byte by byte.
    pub verified: u64,
    /// Of these, wrong; and adds that were refused after a miss.
    pub wrong: u64,
}

impl Counts {
    /// Requests of all kinds.
    pub const fn requests(&self) -> u64 {
        self.gets + self.sets + self.adds
    }

    /// Adds those of another connection.
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

/// A connection with its keys, each with the version last written.
pub struct Connection<'a> {
    client: CacheClient,
    trace: Trace,
    corpus: &'a Corpus,
    requests: Requests,
    keys: Vec<(u64, u64)>,
    value: Vec<u8>,
    found: Vec<u8>,
    /// What was counted since it was last taken.
    pub counts: Counts,
    /// Times since they were last taken.
    pub times: Histogram,
}

impl<'a> Connection<'a> {
    /// Connects.
    ///
    /// # Errors
    /// There is no server.
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

    /// Brings the server to where it is when half of the trace has been replayed: stores each value
    /// that came up, in the order of the keys. Continues with the other half.
    ///
    /// # Errors
    /// The server does not answer as it should.
    pub fn fill(&mut self) -> Result<()> {
        let mut came_up = vec![false; self.keys.len()];
        for _ in 0..self.trace.requests_of_connection() / 2 {
            came_up[self.next_request().rank()] = true;
        }
        let mut ranks: Vec<_> = (0..self.keys.len()).filter(|rank| came_up[*rank]).collect();
        ranks.sort_by_key(|rank| self.keys[*rank].0);
        ranks.into_iter().try_for_each(|rank| self.set(rank).map(drop))
    }

    /// Asks for the whole trace of this connection, one request after the other.
    ///
    /// # Errors
    /// The server does not answer as it should.
    pub fn replay(&mut self) -> Result<()> {
        (0..self.trace.requests_of_connection()).try_for_each(|_| self.ask(None))
    }

    /// Asks without a pause until the time is over.
    ///
    /// # Errors
    /// The server does not answer as it should.
    pub fn closed(&mut self, time: Duration) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < time {
            self.ask(None)?;
        }
        Ok(())
    }

    /// Asks when requests are due until the time is over. A request that is late counts its delay.
    ///
    /// # Errors
    /// The server does not answer as it should.
    pub fn open(&mut self, began: Instant, time: Duration, arrivals: Arrivals) -> Result<()> {
        for due in arrivals.take_while(|due| *due < time) {
            let due = began + due;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.ask(Some(due))?;
            // An overloaded server makes the queue grow without end: so much says enough.
            if began.elapsed() > 2 * time {
                break;
            }
        }
        Ok(())
    }

    /// Reads every key once, and compares.
    ///
    /// # Errors
    /// The server does not answer as it should.
    pub fn check(&mut self) -> Result<()> {
        (0..self.keys.len()).try_for_each(|rank| self.get(rank).map(drop))
    }

    fn next_request(&mut self) -> Request {
        self.requests.next().expect("requests have no end")
    }

    /// One request of the trace, and the store that follows a miss. Times count from when the
    /// request was due, or else from when it was sent.
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
        // Nobody else has this key: where a get missed, an add must store.
        self.counts.wrong += u64::from(!stored);
        self.counts.moved(self.value.len());
        Ok(sent.elapsed())
    }

    /// The value that a key now has.
    fn make(&mut self, rank: usize) -> u64 {
        let (key, version) = self.keys[rank];
        self.trace.make(self.corpus, key, version, &mut self.value);
        key
    }
}
