//! A program that puts and gets pages through any store, checks each, and says how long they take: for guests, whose windows
//! it tries (lab/tests/guest-window).
//!
//! ```text
//! window-client URL fill COUNT        opens a persistent pool and puts COUNT pages
//! window-client URL find COUNT        finds them in one of its pools, after whatever has happened
//! window-client URL time COUNT        medians of COUNT puts and gets, microseconds
//! window-client URL rest COUNT        the same, with a rest before each, so that both sides sleep
//! window-client URL work SECONDS      puts and gets until then; a store that is lost is opened again
//! window-client URL long BYTES        a value of so many bytes, there and back
//! ```

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use spillway_client::{Error, Get, Key, PAGE_BYTES, Pool, PoolSpec, Put, Store, open};

/// Long enough for both sides to stop looking and sleep.
const REST: Duration = Duration::from_millis(20);
/// How long a store that is lost is looked for.
const AGAIN: Duration = Duration::from_secs(30);

type Done = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, command, amount] = arguments.as_slice() else {
        eprintln!("window-client URL fill|find|time|rest|work|long AMOUNT");
        return ExitCode::from(2);
    };
    let amount = amount.parse().unwrap_or(0);
    let done = match command.as_str() {
        "fill" => fill(url, amount),
        "find" => find(url, amount),
        "time" => time(url, amount, Duration::ZERO),
        "rest" => time(url, amount, REST),
        "work" => work(url, Duration::from_secs(amount)),
        "long" => long(url, amount as usize),
        _ => Err("no such command".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("window-client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A page that no other key has.
fn page(index: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

fn put(store: &dyn Store, pool: Pool, index: u64) -> Result<(), Box<dyn std::error::Error>> {
    match store.put(pool, Key::new(1, index as u32), &page(index))? {
        Put::Stored => Ok(()),
        Put::Refused(why) => Err(format!("page {index} is refused: {why:?}").into()),
    }
}

fn check(store: &dyn Store, pool: Pool, index: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut read = [0; PAGE_BYTES];
    match store.get(pool, Key::new(1, index as u32), &mut read)? {
        Get::Hit(PAGE_BYTES) if read == page(index) => Ok(()),
        Get::Hit(_) => Err(format!("page {index} is WRONG").into()),
        other => Err(format!("page {index}: {other:?}").into()),
    }
}

fn fill(url: &str, count: u64) -> Done {
    let store = open(url)?;
    let pool = store.open_pool(PoolSpec::PERSISTENT)?;
    (0..count).try_for_each(|index| put(&*store, pool, index))?;
    (0..count).try_for_each(|index| check(&*store, pool, index))?;
    println!("{count} pages are there");
    Ok(())
}

fn find(url: &str, count: u64) -> Done {
    let store = open(url)?;
    // Programs that were killed have left pools, too.
    let pools = store.pools()?;
    let has_all = |pool: Pool| (0..count).try_for_each(|index| check(&*store, pool, index));
    let missing: Vec<_> = pools.iter().map(|pool| has_all(pool.pool)).collect();
    if !missing.iter().any(Result::is_ok) {
        return Err(
            format!("none of {} pools has all {count} pages: {missing:?}", pools.len()).into()
        );
    }
    println!("{count} pages are there");
    Ok(())
}

fn time(url: &str, count: u64, rest: Duration) -> Done {
    let store = open(url)?;
    let pool = store.open_pool(PoolSpec::PERSISTENT)?;
    let mut took = [Vec::new(), Vec::new()];
    let mut read = [0; PAGE_BYTES];
    for index in 0..count {
        let value = page(index);
        std::thread::sleep(rest);
        let start = Instant::now();
        let put = store.put(pool, Key::new(1, (index % 64) as u32), &value)?;
        took[0].push(start.elapsed());
        std::thread::sleep(rest);
        let start = Instant::now();
        let got = store.get(pool, Key::new(1, (index % 64) as u32), &mut read)?;
        took[1].push(start.elapsed());
        if (put, got) != (Put::Stored, Get::Hit(PAGE_BYTES)) || read != value {
            return Err(format!("page {index}: {put:?}, {got:?}").into());
        }
    }
    store.close_pool(pool)?;
    for (name, took) in ["put", "get"].into_iter().zip(&mut took) {
        took.sort_unstable();
        let us = |part: usize| took[took.len() * part / 100].as_secs_f64() * 1e6;
        println!("{name} median {:.2} us, 90 of 100 below {:.2} us", us(50), us(90));
    }
    Ok(())
}

fn work(url: &str, time: Duration) -> Done {
    let start = Instant::now();
    let (mut rounds, mut opened) = (0_u64, 0);
    while start.elapsed() < time {
        let store = again(|| open(url))?;
        opened += 1;
        match work_on(&*store, start + time, &mut rounds) {
            Err(error) if is_lost(&*error) => {}
            done => done?,
        }
    }
    println!("{rounds} pages there and back, over {opened} connections");
    Ok(())
}

fn work_on(store: &dyn Store, until: Instant, rounds: &mut u64) -> Done {
    let pool = store.open_pool(PoolSpec::PERSISTENT)?;
    // What another connection has put lies in another pool.
    let mut pages = (0..512).cycle();
    while Instant::now() < until {
        let index = pages.next().unwrap_or_default();
        put(store, pool, index)?;
        check(store, pool, index)?;
        check(store, pool, index / 2)?;
        *rounds += 1;
    }
    Ok(store.close_pool(pool)?)
}

fn is_lost(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(Error::Lost | Error::Timeout))
}

/// Tries until it works or too much time has passed.
fn again<T>(mut what: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        match what() {
            Err(_) if start.elapsed() < AGAIN => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

fn long(url: &str, bytes: usize) -> Done {
    let store = open(url)?;
    let pool = store.open_pool(PoolSpec::PERSISTENT)?;
    let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 4096) as u8).collect();
    if store.put(pool, Key::new(2, 0), &value)? != Put::Stored {
        return Err("the value is refused".into());
    }
    let mut read = vec![0; bytes];
    if store.get(pool, Key::new(2, 0), &mut read)? != Get::Hit(bytes) || read != value {
        return Err("the value is WRONG".into());
    }
    store.close_pool(pool)?;
    println!("{bytes} bytes there and back");
    Ok(())
}
