//! Puts pages into a store and checks each that it gets: `verified_load URL PAGES SECONDS [POOL]`.
//!
//! It fills a pool with PAGES pages, puts, gets and flushes some of them for SECONDS, and gets all of them in the end.
//! It reconnects when a connection ends; for operations in flight at that time, either outcome is correct. With the
//! identity of a POOL that an earlier call filled, it only gets all pages of that pool. It prints its results as one
//! line of JSON, and fails if a page was wrong or lost.

use std::time::{Duration, Instant};

use spillway_client::{
    Error, Get, Key, Operation, Outcome, PAGE_BYTES, Pool, PoolSpec, Put, Store,
};

/// Operations of a batch.
const BATCH: usize = 16;
/// How long a store may be unreachable.
const AWAY: Duration = Duration::from_secs(30);

type Page = [u8; PAGE_BYTES];

/// Possible contents of a key: versions, of which 0 means no value.
#[derive(Clone, Debug)]
struct Known(Vec<u32>);

#[derive(Debug, Default)]
struct Found {
    puts: u64,
    refused: u64,
    gets: u64,
    hits: u64,
    flushes: u64,
    errors: u64,
    corrupt: u64,
    reconnects: u64,
    wrong: u64,
    lost: u64,
}

struct Load<'a> {
    url: &'a str,
    store: Box<dyn Store>,
    pool: Pool,
    identity: u128,
    known: Vec<Known>,
    /// Another call put the pages: any version of a page is correct.
    takes_any: bool,
    found: Found,
    random: u64,
}

/// A page's contents identify it; every third page is compressible.
fn page(number: u64, version: u32, page: &mut Page) {
    let mut state = (number << 32 | u64::from(version)).wrapping_mul(2).wrapping_add(1);
    let (words, _) = page.as_chunks_mut::<8>();
    for (at, word) in words.iter_mut().enumerate() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = state ^ state >> 29;
        *word = if number.is_multiple_of(3) && at % 4 != 0 { 7 } else { mixed }.to_le_bytes();
    }
    words[0] = number.to_le_bytes();
    words[1] = u64::from(version).to_le_bytes();
}

fn version_of(bytes: &Page) -> u32 {
    u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]])
}

const fn key(number: u64) -> Key {
    Key::new(number / 1024, (number % 1024) as u32)
}

impl<'a> Load<'a> {
    fn open(url: &'a str, pages: u64, identity: Option<u128>) -> Result<Self, Error> {
        let store = spillway_client::open(url)?;
        let takes_any = identity.is_some();
        let (pool, identity) = match identity {
            Some(identity) => (find(&*store, identity)?, identity),
            None => {
                let pool = store.open_pool(PoolSpec::PERSISTENT)?;
                let made = store.pools()?.into_iter().find(|info| info.pool == pool);
                (pool, made.ok_or(Error::NoPool)?.identity)
            }
        };
        let known = vec![Known(vec![0]); pages as usize];
        Ok(Self {
            url,
            store,
            pool,
            identity,
            known,
            takes_any,
            found: Found::default(),
            random: 1,
        })
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % below
    }

    /// Opens the store again; it may still be restarting.
    fn again(&mut self) -> Result<(), Error> {
        self.found.reconnects += 1;
        let until = Instant::now() + AWAY;
        loop {
            let opened = spillway_client::open(self.url)
                .and_then(|store| find(&*store, self.identity).map(|pool| (store, pool)));
            match opened {
                Ok((store, pool)) => {
                    (self.store, self.pool) = (store, pool);
                    return Ok(());
                }
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Puts the next version of pages.
    fn put(&mut self, numbers: &[u64]) -> Result<(), Error> {
        let mut pages = vec![[0; PAGE_BYTES]; numbers.len()];
        let versions: Vec<u32> = numbers
            .iter()
            .map(|&n| 1 + self.known[n as usize].0.iter().max().unwrap_or(&0))
            .collect();
        for ((&number, &version), bytes) in numbers.iter().zip(&versions).zip(&mut pages) {
            page(number, version, bytes);
        }
        let pool = self.pool;
        let operation =
            |(&number, value): (&u64, &'_ Page)| (key(number), value.as_slice().to_vec());
        let parts: Vec<_> = numbers.iter().zip(&pages).map(operation).collect();
        let mut operations: Vec<_> = parts
            .iter()
            .map(|(key, value)| Operation::Put { pool, key: *key, value: value.as_slice() })
            .collect();
        let mut outcomes = Vec::new();
        self.store.batch(&mut operations, &mut outcomes);
        let mut ended = false;
        for ((&number, version), outcome) in numbers.iter().zip(versions).zip(outcomes) {
            self.found.puts += 1;
            let known = &mut self.known[number as usize];
            match outcome {
                Ok(Outcome::Put(Put::Stored)) => known.0 = vec![version],
                Ok(_) => {
                    self.found.refused += 1;
                    known.0 = vec![0];
                }
                Err(error) => {
                    self.found.errors += 1;
                    ended |= ends(&error);
                    known.0.extend([version, 0]);
                }
            }
        }
        if ended { self.again() } else { Ok(()) }
    }

    /// Gets pages and checks them. Afterwards the version of each is known.
    fn get(&mut self, numbers: &[u64]) -> Result<(), Error> {
        let mut values = vec![[0; PAGE_BYTES]; numbers.len()];
        let pool = self.pool;
        let mut operations: Vec<_> = numbers
            .iter()
            .zip(&mut values)
            .map(|(&number, value)| Operation::Get { pool, key: key(number), value })
            .collect();
        let mut outcomes = Vec::new();
        self.store.batch(&mut operations, &mut outcomes);
        drop(operations);
        let mut ended = false;
        for ((&number, value), outcome) in numbers.iter().zip(&values).zip(outcomes) {
            self.found.gets += 1;
            let known = &mut self.known[number as usize].0;
            let version = match outcome {
                Ok(Outcome::Get(Get::Hit(PAGE_BYTES))) => {
                    self.found.hits += 1;
                    let mut expected = [0; PAGE_BYTES];
                    page(number, version_of(value), &mut expected);
                    if *value != expected {
                        self.found.wrong += 1;
                        eprintln!("page {number} has wrong bytes");
                        continue;
                    }
                    version_of(value)
                }
                Ok(Outcome::Get(Get::Miss)) => 0,
                Ok(other) => {
                    self.found.wrong += 1;
                    eprintln!("page {number}: {other:?}");
                    continue;
                }
                Err(Error::Corrupt) => {
                    self.found.corrupt += 1;
                    continue;
                }
                Err(error) => {
                    self.found.errors += 1;
                    ended |= ends(&error);
                    continue;
                }
            };
            if !self.takes_any && !known.contains(&version) {
                eprintln!("page {number} is version {version}, not {known:?}");
                let count = if version == 0 { &mut self.found.lost } else { &mut self.found.wrong };
                *count += 1;
            }
            *known = vec![version];
        }
        if ended { self.again() } else { Ok(()) }
    }

    fn flush(&mut self, number: u64) -> Result<(), Error> {
        self.found.flushes += 1;
        match self.store.flush(self.pool, key(number)) {
            Ok(_) => self.known[number as usize].0 = vec![0],
            Err(error) => {
                self.found.errors += 1;
                self.known[number as usize].0.push(0);
                if ends(&error) {
                    return self.again();
                }
            }
        }
        Ok(())
    }

    fn work(&mut self, time: Duration) -> Result<(), Error> {
        let pages = self.known.len() as u64;
        for first in (0..pages).step_by(BATCH) {
            self.put(&(first..(first + BATCH as u64).min(pages)).collect::<Vec<_>>())?;
        }
        let until = Instant::now() + time;
        while Instant::now() < until {
            let first = self.next(pages);
            let numbers: Vec<_> = (0..BATCH as u64)
                .map(|at| (first + at * 37) % pages)
                .filter(|_| pages > 1024)
                .collect();
            match self.next(8) {
                0..3 => self.put(&numbers)?,
                3 => self.flush(first)?,
                _ => self.get(&numbers)?,
            }
        }
        Ok(())
    }

    /// Gets all pages. Tries each again that failed because the store was unreachable.
    fn check_all(&mut self) -> Result<(), Error> {
        let pages = self.known.len() as u64;
        for first in (0..pages).step_by(BATCH) {
            let numbers: Vec<_> = (first..(first + BATCH as u64).min(pages)).collect();
            let errors = self.found.errors;
            self.get(&numbers)?;
            if self.found.errors != errors {
                self.get(&numbers)?;
            }
        }
        Ok(())
    }
}

fn find(store: &dyn Store, identity: u128) -> Result<Pool, Error> {
    let found = store.pools()?.into_iter().find(|info| info.identity == identity);
    found.map(|info| info.pool).ok_or(Error::NoPool)
}

/// Whether a connection is unusable after an error.
const fn ends(error: &Error) -> bool {
    matches!(
        error,
        Error::Lost
            | Error::Timeout
            | Error::Unreachable(_)
            | Error::PoolLost
            | Error::NoPool
            | Error::Io(_)
            | Error::Connect { .. }
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, url, pages, seconds, pool @ ..] = &arguments[..] else {
        return Err("verified_load URL PAGES SECONDS [POOL]".into());
    };
    let pool = pool.first().map(|identity| u128::from_str_radix(identity, 16)).transpose()?;
    let mut load = Load::open(url, pages.parse()?, pool)?;
    if pool.is_none() {
        load.work(Duration::from_secs(seconds.parse()?))?;
    }
    let before = Instant::now();
    let gets = load.found.gets;
    load.check_all()?;
    let rate = (load.found.gets - gets) as f64 / before.elapsed().as_secs_f64();
    let pool = load.identity;
    let Found { puts, refused, gets, hits, flushes, errors, corrupt, reconnects, wrong, lost } =
        load.found;
    println!(
        "{{\"pool\": \"{pool:032x}\", \"puts\": {puts}, \"refused\": {refused}, \"gets\": {gets}, \"hits\": {hits}, \
         \"flushes\": {flushes}, \"errors\": {errors}, \"corrupt\": {corrupt}, \"reconnects\": {reconnects}, \
         \"wrong\": {wrong}, \"lost\": {lost}, \"check_gets_per_second\": {rate:.0}}}"
    );
    if wrong + lost == 0 { Ok(()) } else { Err("pages are wrong or lost".into()) }
}
