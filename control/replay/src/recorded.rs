//! Reader of the output of `spillway run --record`: the requests of a run's pagers to their stores.
//!
//! The first line is [`HEADER`]. Each other line is a request: `time_ns`, by the machine's monotonic clock; `op`; and
//! `page`, a number that identifies a page from when it leaves until its copy is dropped. The ops:
//!
//! - `out`: the page leaves, a put;
//! - `take`: it comes back, and the store keeps no copy;
//! - `get`: it comes back, and its copy stays, so it may leave again without a line;
//! - `free`: its copy is dropped.
//!
//! A page that comes back without having left was inherited by a fork, or its line was lost. Such lines are ignored.

use std::collections::HashMap;
use std::io::BufRead;

use crate::lines::{Error, Lines, fields, number};
use crate::trace::{Event, KEYS_MAX, Step, Trace};

/// The first line.
pub const HEADER: &str = "time_ns,op,page";
/// Limit of the pause between two requests, ns: longer pauses are idle time, not computing.
const THINK_NS_MAX: u64 = 1_000_000_000;

/// Reads the lines after the first.
pub(crate) fn read(lines: &mut Lines<impl BufRead>, name: &str) -> Result<Trace, Error> {
    let mut trace = Trace { name: name.to_owned(), ..Trace::default() };
    let mut keys = Keys::default();
    let (mut think_ns, mut last_ns) = (0_u64, None);
    while let Some(line) = lines.next()? {
        if line.is_empty() {
            continue;
        }
        let parsed = parse(line);
        let error = |reason| Error::Line { line: lines.number(), reason };
        let Line { at_ns, op, page } = parsed.map_err(error)?;
        // Tasks record requests independently, so times may go back a little.
        think_ns += at_ns.saturating_sub(last_ns.unwrap_or(at_ns)).min(THINK_NS_MAX);
        last_ns = Some(at_ns.max(last_ns.unwrap_or(0)));
        let step = match op {
            Op::Out => {
                let key = keys.of(page);
                if key >= KEYS_MAX {
                    return Err(error("more pages than can be counted, 1 TiB"));
                }
                Some(Step::Put(key))
            }
            Op::Take => keys.end(page).map(Step::Take),
            Op::Get => keys.known(page).map(Step::Get),
            Op::Free => keys.end(page).map(Step::Flush),
        };
        let Some(step) = step else { continue };
        // Limit the time to what a word holds.
        let event = Event::new(think_ns.min(u32::MAX.into()) as u32, step);
        trace.accesses += u64::from(!matches!(step, Step::Flush(_)));
        trace.events.push(event);
        think_ns = 0;
    }
    if trace.events.is_empty() {
        return Err(Error::Empty);
    }
    trace.events.push(Event::new(0, Step::Exit));
    trace.keys = keys.most;
    Ok(trace)
}

/// Keys of pages in the store. Keys of dropped pages are reused.
#[derive(Default)]
struct Keys {
    places: HashMap<u64, u32>,
    free: Vec<u32>,
    most: u32,
}

impl Keys {
    fn of(&mut self, page: u64) -> u32 {
        *self.places.entry(page).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.most += 1;
                self.most - 1
            })
        })
    }

    fn known(&self, page: u64) -> Option<u32> {
        self.places.get(&page).copied()
    }

    fn end(&mut self, page: u64) -> Option<u32> {
        let key = self.places.remove(&page)?;
        self.free.push(key);
        Some(key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Out,
    Take,
    Get,
    Free,
}

struct Line {
    at_ns: u64,
    op: Op,
    page: u64,
}

fn parse(line: &str) -> Result<Line, &'static str> {
    let [time, op, page] = fields(line).ok_or("not time_ns,op,page")?;
    let op = match op {
        "out" => Op::Out,
        "take" => Op::Take,
        "get" => Op::Get,
        "free" => Op::Free,
        _ => return Err("op is none of out, take, get and free"),
    };
    let at_ns = number(time).ok_or("time_ns is not a number")?;
    Ok(Line { at_ns, op, page: number(page).ok_or("page is not a number")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks;
    use crate::keys;

    fn trace(lines: &str) -> Result<Trace, Error> {
        let text = format!("{HEADER}\n{lines}");
        blocks::read(text.as_bytes(), "a", 1, keys::Keys::Pages)
    }

    #[test]
    fn requests_are_those_of_the_lines() {
        let trace = trace(
            "1000,out,70\n1500,out,80\n1400,take,70\n2000,out,90\n2100,get,80\n\n\
             2200,take,5\n5000000000,free,80\n5000000100,out,80\n",
        )
        .unwrap();
        let steps: Vec<_> = trace.events.iter().map(|event| event.step()).collect();
        // Page 90 reuses the key of page 70. The key of page 80 is reused by the page that leaves under this number
        // later.
        let expected = [
            Step::Put(0),
            Step::Put(1),
            Step::Take(0),
            Step::Put(0),
            Step::Get(1),
            Step::Flush(1),
            Step::Put(1),
            Step::Exit,
        ];
        assert_eq!(steps, expected);
        let thinks: Vec<_> = trace.events.iter().map(|event| event.think_ns).collect();
        assert_eq!(thinks, [0, 500, 0, 500, 100, 1_000_000_100, 100, 0]);
        assert_eq!((trace.keys, trace.accesses), (2, 6));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (lines, said) in [
            ("", "no request"),
            ("1,take,5\n", "no request"),
            ("1,out\n", "line 2: not time_ns,op,page"),
            ("1,out,1\n1,in,1\n", "line 3: op is none of"),
            ("x,out,1\n", "line 2: time_ns is not a number"),
            ("1,out,-1\n", "line 2: page is not a number"),
        ] {
            let error = trace(lines).unwrap_err().to_string();
            assert!(error.contains(said), "{lines:?}: {error}");
        }
    }
}
