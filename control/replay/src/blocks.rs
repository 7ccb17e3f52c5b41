//! Readers of trace files. The first line selects one of three formats: Spillway's own recordings ([`recorded`]), and
//! two of public block traces, whose disk accesses stand for memory accesses.
//!
//! A line of a block trace is a request; each page of 4096 bytes that it touches is an access:
//!
//! - CloudPhysics, as libCacheSim has it in CSV: `version,time,op,size,lbn`, with that header; time in milliseconds, op
//!   a SCSI command in hexadecimal, size in bytes, lbn in blocks of 512 bytes.
//! - MSR Cambridge (D. Narayanan, A. Donnelly and A. Rowstron, "Write Off-Loading", FAST 2008):
//!   `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, without a header; time in units of 100 ns.

use std::collections::HashMap;
use std::io::BufRead;

use spillway_types::PAGE_BYTES;

use crate::keys::Keys;
pub use crate::lines::Error;
use crate::lines::{Lines, fields, number};
use crate::local::Local;
use crate::recorded;
use crate::trace::{KEYS_MAX, Trace};

/// Largest request, bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Limit of the pause between two requests, ns: longer pauses are idle time, not computing.
const THINK_NS_MAX: u64 = 1_000_000_000;
/// The first line of a CloudPhysics trace.
const CLOUDPHYSICS: &str = "version,time,op,size,lbn";

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    time_ns: u64,
    start_bytes: u64,
    bytes: u64,
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    CloudPhysics,
    Msr,
}

/// Reads a trace of a client with `local_pages` of its own memory. A recording contains only the accesses beyond that
/// memory, so it ignores `local_pages` and `keys`.
///
/// # Errors
/// The first invalid line, and errors of `input`.
pub fn read(input: impl BufRead, name: &str, local_pages: u32, keys: Keys) -> Result<Trace, Error> {
    let mut local = Local::new(name, local_pages, keys);
    let mut pages = HashMap::new();
    let mut last_ns = None;
    let mut lines = Lines::new(input);
    let mut format = None;
    while let Some(line) = lines.next()? {
        if line.is_empty() {
            continue;
        }
        if format.is_none() && line == CLOUDPHYSICS {
            format = Some(Format::CloudPhysics);
            continue;
        }
        if format.is_none() && line == recorded::HEADER {
            return recorded::read(&mut lines, name);
        }
        let known = *format.get_or_insert(Format::Msr);
        let request = parse(known, line);
        let number = lines.number();
        let error = |reason| Error::Line { line: number, reason };
        let request = request.map_err(error)?;
        let think_ns = request.time_ns.saturating_sub(last_ns.unwrap_or(request.time_ns));
        last_ns = Some(request.time_ns);
        let page_bytes = PAGE_BYTES as u64;
        let first = request.start_bytes / page_bytes;
        let last = (request.start_bytes + request.bytes.max(1) - 1) / page_bytes;
        let mut think_ns = think_ns.min(THINK_NS_MAX) as u32;
        for page in first..=last {
            let next = pages.len() as u32;
            let page = *pages.entry(page).or_insert(next);
            if page >= KEYS_MAX / 4 {
                return Err(error("more pages than can be counted, 512 GiB"));
            }
            local.access(page, request.write, core::mem::take(&mut think_ns));
        }
    }
    if last_ns.is_none() { Err(Error::Empty) } else { Ok(local.finish()) }
}

fn parse(format: Format, line: &str) -> Result<Request, &'static str> {
    match format {
        Format::CloudPhysics => parse_cloudphysics(line),
        Format::Msr => parse_msr(line),
    }
}

fn parse_cloudphysics(line: &str) -> Result<Request, &'static str> {
    let [_, time, op, size, lbn] = fields(line).ok_or("not version,time,op,size,lbn")?;
    // READ and WRITE of 6, 10, 12 and 16 bytes (SCSI Block Commands).
    let write = match op {
        "8" | "08" | "28" | "a8" | "88" => false,
        "a" | "0a" | "2a" | "aa" | "8a" => true,
        _ => return Err("op is neither a read (28) nor a write (2a)"),
    };
    let blocks = number(lbn).ok_or("lbn is not a number")?;
    let time_ms = number(time).ok_or("time is not a number")?;
    request(
        time_ms.checked_mul(1_000_000),
        blocks.checked_mul(512),
        number(size).ok_or("size is not a number")?,
        write,
    )
}

fn parse_msr(line: &str) -> Result<Request, &'static str> {
    let [time, _, _, kind, offset, size, _] = fields(line)
        .ok_or("neither version,time,op,size,lbn nor Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime")?;
    let write = match kind {
        _ if kind.eq_ignore_ascii_case("read") => false,
        _ if kind.eq_ignore_ascii_case("write") => true,
        _ => return Err("Type is neither Read nor Write"),
    };
    let time = number(time).ok_or("Timestamp is not a number")?;
    // Times count from 1601: the nanoseconds overflow, and only differences are used.
    request(
        Some(time.wrapping_mul(100)),
        number(offset),
        number(size).ok_or("Size is not a number")?,
        write,
    )
}

fn request(
    time_ns: Option<u64>,
    start_bytes: Option<u64>,
    bytes: u64,
    write: bool,
) -> Result<Request, &'static str> {
    let time_ns = time_ns.ok_or("a time beyond all time")?;
    let start_bytes = start_bytes.filter(|&start| start < 1 << 60).ok_or("no place on a disk")?;
    if bytes > REQUEST_BYTES_MAX {
        return Err("a request of more than 64 MiB");
    }
    Ok(Request { time_ns, start_bytes, bytes, write })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Step;

    const CLOUD: &str =
        "version,time,op,size,lbn\n1,100,2a,4096,8\n1,101,28,8192,16\n1,103,28,512,9\n";
    const MSR: &str = "128166372003061629,hm,0,Write,4096,4096,100\r\n\
                       128166372003071629,hm,0,Read,8192,8192,100\n\
                       128166372003091629,hm,0,read,4608,512,9\n";

    fn trace(text: &str) -> Result<Trace, Error> {
        read(text.as_bytes(), "a", 1, Keys::Pages)
    }

    #[test]
    fn both_formats_say_the_same() {
        let cloud = trace(CLOUD).unwrap();
        let steps: Vec<_> = cloud.events.iter().map(|event| event.step()).collect();
        // Pages 1; 2 and 3; 1 again.
        let expected = [Step::Put(0), Step::Put(1), Step::Put(2), Step::Take(0), Step::Exit];
        assert_eq!(steps, expected);
        assert_eq!(cloud.accesses, 4);
        assert_eq!(cloud.compute_ns(), 3_000_000);
        let msr = trace(MSR).unwrap();
        assert_eq!(msr.compute_ns(), 3_000_000);
        assert_eq!(msr.events, cloud.events);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, said) in [
            ("", "no request"),
            ("version,time,op,size,lbn\n", "no request"),
            ("hello\n", "line 1: neither version"),
            ("version,time,op,size,lbn\n1,1,2a,512,3\n1,1,2b,512,3\n", "line 3: op is neither"),
            ("version,time,op,size,lbn\n1,1,2a,512\n", "line 2: not version"),
            ("version,time,op,size,lbn\n1,-1,2a,512,4\n", "line 2: time is not a number"),
            ("1,h,0,Write,99999999999999999999,1,1\n", "line 1: no place"),
            ("1,h,0,Write,0,999999999999,1\n", "line 1: a request of more"),
            ("1,h,0,Trim,0,1,1\n", "line 1: Type is neither"),
        ] {
            let error = trace(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        let long = format!("1,{},0,Read,0,1,1\n", "h".repeat(2000));
        assert!(trace(&long).unwrap_err().to_string().contains("longer than"));
        let binary = read(&[0x1f, 0x8b, 0xff, b'\n'][..], "a", 1, Keys::Pages).unwrap_err();
        assert!(binary.to_string().contains("unpacked"), "{binary}");
    }
}
