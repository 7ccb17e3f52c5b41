//! The protocol without I/O: input bytes against expected output bytes.

mod support;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use spillway_block::{Device, Extent, Geometry};
use spillway_block_store::BlockDevice;
use spillway_nbd::{
    Error, Negotiation, Output, Peer, Progress, Session, Step, TlsState, Transmission,
};
use spillway_serving::{BOUNDS_NS, CommandKind, Latencies};
use support::*;

const ERR_UNSUPPORTED: u32 = 0x8000_0001;
const ERR_POLICY: u32 = 0x8000_0002;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_TLS_REQUIRED: u32 = 0x8000_0005;
const ERR_UNKNOWN: u32 = 0x8000_0006;

/// Runs a handshake over `input`, with the first client as its peer. Returns the output, and the step at which it
/// ended.
fn haggle(registry: &FakeRegistry, tls: TlsState, input: &[u8]) -> Result<(Vec<u8>, Step), Error> {
    let mut negotiation = Negotiation::new(tls);
    let (mut output, mut at) = (Vec::new(), 0);
    loop {
        let (used, step) = negotiation.advance(&input[at..], registry, &mut output)?;
        at += used;
        match step {
            Step::Meet => negotiation.meet(Peer::Client(registry.client)),
            step => return Ok((output, step)),
        }
    }
}

/// The kinds and data of the replies to options.
fn replies(mut output: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !output.is_empty() {
        found.push(option_reply(&mut output));
    }
    found
}

fn kinds_of(registry: &FakeRegistry, tls: TlsState, options: &[Vec<u8>]) -> Vec<u32> {
    let input = [&FLAGS[..], &options.concat()].concat();
    let (output, _) = haggle(registry, tls, &input).unwrap();
    replies(&output).into_iter().map(|reply| reply.0).collect()
}

#[test]
fn options_are_answered() {
    let registry = FakeRegistry::new();
    let kinds = |options: &[Vec<u8>]| kinds_of(&registry, TlsState::Off, options);
    assert_eq!(kinds(&[option(3, &[])]), [2, 1]);
    assert_eq!(kinds(&[option(3, b"x")]), [ERR_INVALID]);
    assert_eq!(kinds(&[option(4711, b"anything")]), [ERR_UNSUPPORTED]);
    assert_eq!(kinds(&[option(5, &[])]), [ERR_POLICY]);
    assert_eq!(kinds(&[option(6, &info("disk"))]), [3, 1]);
    assert_eq!(kinds(&[option(6, b"junk")]), [ERR_INVALID]);
    assert_eq!(kinds(&[option(2, &[])]), [1]);
    // Another client's export is as unknown as one that does not exist.
    for name in ["secret", "nothing"] {
        assert_eq!(kinds(&[option(7, &info(name))]), [ERR_UNKNOWN]);
    }
}

#[test]
fn block_status_is_chosen_after_structured_replies() {
    let registry = FakeRegistry::new();
    let kinds = |options: &[Vec<u8>]| kinds_of(&registry, TlsState::Off, options);
    let set = |query: &str| option(10, &context("disk", query));
    assert_eq!(kinds(&[set("base:allocation")]), [ERR_INVALID]);
    assert_eq!(kinds(&[option(8, &[]), set("base:allocation")]), [1, 4, 1]);
    assert_eq!(kinds(&[option(8, &[]), set("base:")]), [1, 1]);
    assert_eq!(kinds(&[option(8, &[]), set("x-mine:dirty")]), [1, 1]);
    let list = |data: &[u8]| option(9, data);
    assert_eq!(kinds(&[option(8, &[]), list(&context("disk", "base:"))]), [1, 4, 1]);
    let all = [&text("disk")[..], &[0; 4]].concat();
    assert_eq!(kinds(&[option(8, &[]), list(&all)]), [1, 4, 1]);
}

#[test]
fn the_only_export_needs_no_name() {
    let registry = FakeRegistry::new();
    let input = [&FLAGS[..], &option(8, &[]), &option(10, &context("", "base:allocation"))];
    let input = [&input.concat()[..], &option(7, &info("disk"))].concat();
    let (_, step) = haggle(&registry, TlsState::Off, &input).unwrap();
    let Step::Begin(session) = step else { panic!("{step:?}") };
    assert!(session.structured && session.allocation);
    assert_eq!(session.device.bytes(), 64 * MIB);
}

#[test]
fn the_oldest_way_of_choosing_works() {
    let registry = FakeRegistry::new();
    for (flags, length) in [([0, 0, 0, 1], 8 + 2 + 124), (FLAGS, 8 + 2)] {
        let input = [&flags[..], &option(1, b"disk")].concat();
        let (output, step) = haggle(&registry, TlsState::Off, &input).unwrap();
        assert!(matches!(step, Step::Begin(_)));
        assert_eq!(output.len(), length);
        assert_eq!(output[..8], (64 * MIB).to_be_bytes());
    }
    let input = [&FLAGS[..], &option(1, b"secret")].concat();
    assert!(haggle(&registry, TlsState::Off, &input).is_err());
}

#[test]
fn nothing_is_told_before_tls_where_it_is_required() {
    let registry = FakeRegistry::new();
    for number in [3, 6, 7, 8, 9, 10, 99] {
        let kinds = kinds_of(&registry, TlsState::Required, &[option(number, &info("disk"))]);
        assert_eq!(kinds, [ERR_TLS_REQUIRED]);
    }
    let oldest = [&FLAGS[..], &option(1, b"disk")].concat();
    assert!(haggle(&registry, TlsState::Required, &oldest).is_err());
    let input = [&FLAGS[..], &option(5, &[]), b"more"].concat();
    let mut negotiation = Negotiation::new(TlsState::Required);
    let mut output = Vec::new();
    let (used, step) = negotiation.advance(&input, &registry, &mut output).unwrap();
    assert!(matches!(step, Step::StartTls));
    assert_eq!(input.len() - used, 4, "what follows is left");
    // Choices made before TLS do not count after it.
    negotiation.encrypted();
    let input = [option(5, &[]), option(10, &context("disk", "base:allocation"))].concat();
    output.clear();
    let (_, step) = negotiation.advance(&input, &registry, &mut output).unwrap();
    assert!(matches!(step, Step::Meet));
    assert_eq!(replies(&output)[0].0, ERR_INVALID);
}

#[test]
fn who_is_denied_is_told_so() {
    let registry = FakeRegistry::new();
    let mut negotiation = Negotiation::new(TlsState::Off);
    negotiation.meet(Peer::Denied(spillway_types::Denied::Connections));
    let mut output = Vec::new();
    let input = [&FLAGS[..], &option(3, &[]), &option(7, &info("disk"))].concat();
    let (_, step) = negotiation.advance(&input, &registry, &mut output).unwrap();
    assert!(matches!(step, Step::More));
    let said = replies(&output);
    assert_eq!(said.iter().map(|reply| reply.0).collect::<Vec<_>>(), [ERR_POLICY; 2]);
    assert!(String::from_utf8_lossy(&said[0].1).contains("connections"));
}

#[test]
fn broken_handshakes_end() {
    let registry = FakeRegistry::new();
    for input in [
        &[0, 0, 0, 7][..],
        &[&FLAGS[..], b"IHAVEOPX", &[0; 8]].concat(),
        &[&FLAGS[..], b"IHAVEOPT", &[0, 0, 0, 7, 0xff, 0, 0, 0]].concat(),
    ] {
        assert!(haggle(&registry, TlsState::Off, input).is_err());
    }
}

fn transmission(registry: &FakeRegistry, structured: bool) -> Transmission {
    Transmission::new(Session { device: registry.device(), structured, allocation: structured })
}

/// Sends `input` in pieces through a transmission. Returns the whole output.
fn carry_out(transmission: &mut Transmission, input: &[u8], piece: usize) -> Vec<u8> {
    let mut output = Output::new(68 << 10);
    let (mut sent, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        let (used, progress) = transmission.advance(&input[start..end], &mut output).unwrap();
        start += used;
        sent.extend(output.bytes());
        output.clear();
        match progress {
            Progress::NeedRoom => {}
            Progress::NeedInput if end == input.len() => return sent,
            // As a reader with a buffer of 64 KiB would.
            Progress::NeedInput => end = (end + piece).min(start + (64 << 10)).min(input.len()),
            Progress::End => return sent,
        }
    }
}

#[test]
fn reads_and_writes_with_simple_replies() {
    let registry = FakeRegistry::new();
    let data: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    let input = [
        request(WRITE, 1, 1, 1000, data.len() as u32),
        data.clone(),
        request(READ, 0, 2, 1000, data.len() as u32),
        request(READ, 0, 3, 0, 0),
        request(FLUSH, 0, 4, 0, 0),
        request(CACHE, 0, 5, 0, 4096),
    ]
    .concat();
    let expected =
        [simple(1, 0), simple(2, 0), data, simple(3, 0), simple(4, 0), simple(5, 0)].concat();
    for piece in [1, 29, 5000, usize::MAX / 2] {
        let mut transmission = transmission(&registry, false);
        assert!(carry_out(&mut transmission, &input, piece) == expected, "pieces of {piece}");
    }
}

#[test]
fn reads_with_structured_replies() {
    let registry = FakeRegistry::new();
    registry.device().write(0, &[9; 100_000]).unwrap();
    let mut transmission = transmission(&registry, true);
    let input = [request(READ, 0, 1, 100, 90_000), request(READ, 0, 2, 0, 0)].concat();
    let output = carry_out(&mut transmission, &input, usize::MAX / 2);
    // In pieces of whole pages that fit the buffer.
    let end = 64 * 1024_u64;
    let first = [&100_u64.to_be_bytes()[..], &vec![9; end as usize - 100]].concat();
    let second = [&end.to_be_bytes()[..], &vec![9; 90_100 - end as usize]].concat();
    let expected =
        [chunk(1, false, 1, &first), chunk(1, true, 1, &second), chunk(0, true, 2, &[])].concat();
    assert!(output == expected);
    // With DF, in one piece or not at all.
    let whole = carry_out(&mut transmission, &request(READ, 4, 3, 0, 65_536), usize::MAX / 2);
    assert_eq!(whole.len(), 20 + 8 + 65_536);
    let none = carry_out(&mut transmission, &request(READ, 4, 4, 0, 90_000), usize::MAX / 2);
    assert_eq!(none, chunk(0x8001, true, 4, &[0, 0, 0, 75, 0, 0]));
}

#[test]
fn block_status_tells_holes() {
    let registry = FakeRegistry::new();
    registry.device().write(8192, &[1; 4096]).unwrap();
    let mut transmission = transmission(&registry, true);
    let status = |bytes: u32, flags| request(BLOCK_STATUS, flags, 1, 0, bytes);
    let expected = |extents: &[[u32; 2]]| {
        let words = extents.as_flattened().iter().flat_map(|word| word.to_be_bytes());
        chunk(5, true, 1, &[1_u32.to_be_bytes().to_vec(), words.collect()].concat())
    };
    let told = carry_out(&mut transmission, &status(1 << 20, 0), 100);
    assert_eq!(told, expected(&[[8192, 3], [4096, 0], [(1 << 20) - 12_288, 3]]));
    let one = carry_out(&mut transmission, &status(1 << 20, 8), 100);
    assert_eq!(one, expected(&[[8192, 3]]));
    let cut = carry_out(&mut transmission, &status(9000, 0), 100);
    assert_eq!(cut, expected(&[[8192, 3], [808, 0]]));
}

#[test]
fn zeroes_and_trim_give_memory_back() {
    let registry = FakeRegistry::new();
    let device = registry.device();
    device.write(0, &[1; 32 << 10]).unwrap();
    let mut transmission = transmission(&registry, false);
    let input = [
        request(TRIM, 0, 1, 0, 8192),
        request(WRITE_ZEROES, 2, 2, 8192, 4096),
        request(WRITE_ZEROES, 0x10, 3, 12_288, 100),
    ]
    .concat();
    let output = carry_out(&mut transmission, &input, 1000);
    assert_eq!(output, [simple(1, 0), simple(2, 0), simple(3, 0)].concat());
    assert!(device.compare(0, &[0; 12_388]).unwrap());
    assert!(device.compare(12_388, &[1; 32_768 - 12_388]).unwrap());
    let mut extents = [spillway_block::Extent::default(); 4];
    device.status(0, 32 << 10, &mut extents).unwrap();
    assert_eq!(extents[0], spillway_block::Extent { bytes: 12_288, stored: false });
}

#[test]
fn bad_requests_are_refused_and_the_next_is_served() {
    let registry = FakeRegistry::new();
    let end = 64 * MIB;
    let data = vec![7; 5000];
    let cases = [
        (request(READ, 0, 1, end - 100, 101), &[][..], 22),
        (request(READ, 0, 1, u64::MAX, 2), &[], 22),
        (request(READ, 0, 1, 0, (32 << 20) + 1), &[], 22),
        (request(READ, 4, 1, 0, 4096), &[], 22),
        (request(WRITE, 0, 1, end - 4999, 5000), &data, 28),
        (request(WRITE, 2, 1, 0, 5000), &data, 22),
        (request(WRITE_ZEROES, 0, 1, end, 1), &[], 28),
        (request(TRIM, 0, 1, end, 1), &[], 22),
        (request(TRIM, 2, 1, 0, 1), &[], 22),
        (request(BLOCK_STATUS, 0, 1, 0, 4096), &[], 22),
        (request(99, 0, 1, 0, 4096), &[], 22),
    ];
    for (request_, data, error) in cases {
        let mut transmission = transmission(&registry, false);
        let next = request(FLUSH, 0, 2, 0, 0);
        let output = carry_out(&mut transmission, &[&request_, data, &next].concat(), 700);
        assert_eq!(output, [simple(1, error), simple(2, 0)].concat());
    }
    assert!(registry.device().compare(0, &vec![0; 1 << 20]).unwrap(), "nothing was written");
    // With structured replies, reads and block status fail with an error chunk.
    let mut transmission = transmission(&registry, true);
    let output = carry_out(&mut transmission, &request(READ, 0, 1, end, 1), 1000);
    assert_eq!(output, chunk(0x8001, true, 1, &[0, 0, 0, 22, 0, 0]));
    let output = carry_out(&mut transmission, &request(BLOCK_STATUS, 0, 1, 0, 0), 1000);
    assert_eq!(output, chunk(0x8001, true, 1, &[0, 0, 0, 22, 0, 0]));
}

#[test]
fn a_device_that_is_gone_fails_requests() {
    let registry = FakeRegistry::new();
    registry.store.destroy_pool(registry.device().pool()).unwrap();
    let input = [
        request(READ, 0, 1, 0, 4096),
        request(WRITE, 0, 2, 0, 4096),
        vec![1; 4096],
        request(FLUSH, 0, 3, 0, 0),
    ]
    .concat();
    let output = carry_out(&mut transmission(&registry, false), &input, 1000);
    assert_eq!(output, [simple(1, 5), simple(2, 5), simple(3, 5)].concat());
    // A simple reply that has begun can't be replaced by an error.
    let registry = FakeRegistry::new();
    let mut transmission = transmission(&registry, false);
    let mut output = Output::new(68 << 10);
    let long = request(READ, 0, 1, 0, 1 << 20);
    let (used, progress) = transmission.advance(&long, &mut output).unwrap();
    assert_eq!((used, progress), (28, Progress::NeedRoom));
    output.clear();
    registry.store.destroy_pool(registry.device().pool()).unwrap();
    assert!(transmission.advance(&[], &mut output).is_err());
}

#[test]
fn goodbye_ends() {
    let registry = FakeRegistry::new();
    let mut transmission = transmission(&registry, false);
    let input = [request(FLUSH, 0, 1, 0, 0), request(DISCONNECT, 0, 2, 0, 0), vec![0xff; 40]];
    let mut output = Output::new(68 << 10);
    let (_, progress) = transmission.advance(&input.concat(), &mut output).unwrap();
    assert_eq!(progress, Progress::End);
    assert_eq!(output.bytes(), simple(1, 0));
}

#[test]
fn a_write_beyond_all_bounds_ends_the_connection() {
    let registry = FakeRegistry::new();
    let mut output = Output::new(68 << 10);
    let long = request(WRITE, 0, 1, 0, (32 << 20) + 1);
    assert!(transmission(&registry, false).advance(&long, &mut output).is_err());
    assert!(transmission(&registry, false).advance(&[0; 28], &mut output).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The output does not depend on how the input is cut.
    #[test]
    fn cuts_do_not_matter(
        requests in prop::collection::vec(
            (0..9_u16, 0..4_u16, 0..66 * MIB, 0..30_000_u32), 1..8
        ),
        piece in 1..9000_usize,
        structured: bool,
    ) {
        let mut input = Vec::new();
        for (number, &(command, flags, offset, bytes)) in requests.iter().enumerate() {
            input.extend(request(command, flags & !2, number as u64, offset, bytes));
            if command == WRITE {
                input.extend((0..bytes).map(|at| (at % 253) as u8));
            }
        }
        let (one, two) = (FakeRegistry::new(), FakeRegistry::new());
        let whole = carry_out(&mut transmission(&one, structured), &input, usize::MAX / 2);
        let cut = carry_out(&mut transmission(&two, structured), &input, piece);
        prop_assert!(whole == cut);
    }

    /// Any input is answered or refused, without a panic.
    #[test]
    fn junk_is_survived(
        junk in prop::collection::vec(any::<u8>(), 0..400),
        option_number in 0..12_u32,
    ) {
        let registry = FakeRegistry::new();
        let input = [&FLAGS[..], &option(option_number, &junk), &junk].concat();
        let _ = haggle(&registry, TlsState::Off, &input);
        let _ = transmission(&registry, true).advance(&junk, &mut Output::new(68 << 10));
        let magic = [&[0x25, 0x60, 0x95, 0x13][..], &junk].concat();
        let _ = transmission(&registry, true).advance(&magic, &mut Output::new(68 << 10));
    }
}

/// A device that takes its time.
#[derive(Debug)]
struct Slow {
    inner: Arc<BlockDevice>,
    batch_max: usize,
}

const SLOW: Duration = Duration::from_millis(11);

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), spillway_block::Error> {
        thread::sleep(SLOW);
        self.inner.read(offset, data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), spillway_block::Error> {
        thread::sleep(SLOW);
        self.inner.write(offset, data)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        self.inner.write_zeroes(offset, bytes)
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), spillway_block::Error> {
        self.inner.deallocate(offset, bytes)
    }

    fn flush(&self) -> Result<(), spillway_block::Error> {
        self.inner.flush()
    }

    fn status(
        &self,
        offset: u64,
        bytes: u64,
        extents: &mut [Extent],
    ) -> Result<usize, spillway_block::Error> {
        self.inner.status(offset, bytes, extents)
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }
}

#[test]
fn requests_are_timed_by_kind() {
    use CommandKind::{Discard, Flush, Other, Read, Write};
    const KINDS: &[CommandKind] = &[Read, Write, Discard, Flush, Other];
    let end = 64 * MIB;
    let input = [
        request(WRITE, 0, 1, 0, 200_000),
        vec![7; 200_000],
        request(READ, 0, 2, 0, 200_000),
        request(WRITE, 0, 3, 0, 4096),
        vec![7; 4096],
        request(READ, 0, 4, 0, 4096),
        request(READ, 0, 5, 4096, 4096),
        request(READ, 0, 6, end, 4096),
        request(TRIM, 0, 7, 0, 4096),
        request(WRITE_ZEROES, 0, 8, 0, 4096),
        request(FLUSH, 0, 9, 0, 0),
        request(CACHE, 0, 10, 0, 4096),
        request(DISCONNECT, 0, 11, 0, 0),
    ]
    .concat();
    for (batch_max, piece) in [(1, 5000), (1, usize::MAX / 2), (8, usize::MAX / 2)] {
        let (registry, latencies) = (FakeRegistry::new(), Latencies::new(KINDS));
        let device = Arc::new(Slow { inner: registry.device(), batch_max });
        let session = Session { device, structured: false, allocation: false };
        let mut transmission = Transmission::new(session).recorded(latencies.recorder());
        carry_out(&mut transmission, &input, piece);
        let histograms = latencies.histograms();
        let counts: Vec<u64> = histograms.iter().map(|(_, it)| it.counts.iter().sum()).collect();
        assert_eq!(counts, [4, 2, 2, 1, 1], "{histograms:?}");
        // The device was asked for each of the long ones several times, which add up.
        for ((_, histogram), slow) in histograms.iter().zip([3, 2]) {
            let bucket = BOUNDS_NS.partition_point(|&bound| u128::from(bound) < SLOW.as_nanos());
            assert!(histogram.counts[bucket..].iter().sum::<u64>() >= slow, "{histogram:?}");
            let least = u128::from(slow + 2) * SLOW.as_nanos();
            assert!(u128::from(histogram.sum_ns) >= least, "{histogram:?}");
        }
    }
}
