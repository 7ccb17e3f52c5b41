//! Requests in a batch get the same replies as requests one by one.

mod support;

use std::sync::Arc;

use proptest::prelude::*;
use spillway_block::{Device, Error, Extent, Geometry};
use spillway_block_store::BlockDevice;
use spillway_nbd::{Output, Progress, Session, Transmission};
use support::*;

/// A device on which some pages fail, with or without support for batches.
#[derive(Debug)]
struct Spotty {
    inner: Arc<BlockDevice>,
    batch_max: usize,
}

impl Spotty {
    /// Fails for every 7th page.
    fn check(offset: u64) -> Result<(), Error> {
        if (offset / 4096) % 7 == 3 { Err(Error::NoCopy(offset / 4096)) } else { Ok(()) }
    }
}

impl Device for Spotty {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        Self::check(offset)?;
        self.inner.read(offset, data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        Self::check(offset)?;
        self.inner.write(offset, data)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.inner.write_zeroes(offset, bytes)
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.inner.deallocate(offset, bytes)
    }

    fn flush(&self) -> Result<(), Error> {
        self.inner.flush()
    }

    fn status(&self, offset: u64, bytes: u64, extents: &mut [Extent]) -> Result<usize, Error> {
        self.inner.status(offset, bytes, extents)
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }
}

/// All replies to `input`, which arrives in pieces of `piece` bytes.
fn answers(batch_max: usize, structured: bool, input: &[u8], piece: usize) -> Vec<u8> {
    let device = Arc::new(Spotty { inner: FakeRegistry::new().device(), batch_max });
    let session = Session { device, structured, allocation: false };
    let mut transmission = Transmission::new(session);
    let (mut output, mut all) = (Output::new(80 << 10), Vec::new());
    let (mut start, mut end) = (0, 0);
    loop {
        let (used, progress) = transmission.advance(&input[start..end], &mut output).unwrap();
        start += used;
        all.extend_from_slice(output.bytes());
        output.clear();
        if progress == Progress::NeedInput {
            if end == input.len() {
                return all;
            }
            end = input.len().min(end + piece);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_is_answered_like_single_requests(
        requests in proptest::collection::vec((0..8_u8, 0..30_u64, 1..20_000_u32, 0..3_u16), 1..60),
        structured: bool,
        piece in prop_oneof![Just(usize::MAX / 2), 1_000..200_000_usize],
    ) {
        let mut input = Vec::new();
        for (cookie, (kind, page, bytes, flags)) in (0..).zip(requests) {
            // Writes do not overlap each other. A read may read what an earlier request wrote.
            let offset = page * 32 * 4096 + 4096 * (cookie % 7);
            match kind {
                0..=3 => input.extend(request(READ, flags * 4 % 3, cookie, offset, bytes)),
                4..=6 => {
                    let offset = offset + MIB * 8;
                    input.extend(request(WRITE, flags % 2, cookie, offset, bytes));
                    input.extend((0..bytes).map(|byte| (byte as u8) ^ cookie as u8));
                }
                _ => input.extend(request(FLUSH, 0, cookie, 0, 0)),
            }
        }
        let alone = answers(1, structured, &input, piece);
        let together = answers(32, structured, &input, piece);
        prop_assert!(alone == together);
    }
}
