//! What a frontend asks of a block device, whatever lies behind it.

use core::cell::Cell;
use core::fmt::Debug;

use spillway_types::PAGE_BYTES;

use crate::error::Error;
use crate::extent::Extent;
use crate::geometry::Geometry;

/// A block device as frontends see it: any range of bytes can be read and written.
///
/// Requests go through `&self`, from any number of threads. A write is visible to every read that
/// begins after it returned. Of writes that overlap in time and place, either may win, byte by byte.
pub trait Device: Send + Sync + Debug {
    /// What it looks like from outside.
    fn geometry(&self) -> Geometry;

    /// Length in bytes.
    fn bytes(&self) -> u64 {
        self.geometry().bytes
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::Range`], and what keeps the device from it.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error>;

    /// Stores bytes.
    ///
    /// # Errors
    /// [`Error::Range`], before anything is written; else any part of the range may be written.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Makes a range read as zeros.
    ///
    /// # Errors
    /// As for [`Self::write`].
    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Error>;

    /// Gives the memory of the whole pages in a range back; they read as zeros. Parts of pages at its ends stay as
    /// they are, as NBD's trim and NVMe's deallocate allow.
    ///
    /// # Errors
    /// [`Error::Range`].
    fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), Error>;

    /// Makes completed writes as lasting as they get.
    ///
    /// # Errors
    /// When the device is gone.
    fn flush(&self) -> Result<(), Error>;

    /// Says what of a range is stored: fills `extents` from the front, neighbours unlike each other, and gives how many
    /// it filled. They begin at `offset` and may end before the range does.
    ///
    /// # Errors
    /// [`Error::Range`].
    fn status(&self, offset: u64, bytes: u64, extents: &mut [Extent]) -> Result<usize, Error>;

    /// Whether the device holds `data` at `offset`.
    ///
    /// # Errors
    /// As for [`Self::read`].
    fn compare(&self, offset: u64, data: &[u8]) -> Result<bool, Error> {
        let mut page = [0; PAGE_BYTES];
        let mut at = offset;
        for expected in data.chunks(PAGE_BYTES) {
            let found = &mut page[..expected.len()];
            self.read(at, found)?;
            if found != expected {
                return Ok(false);
            }
            at += expected.len() as u64;
        }
        Ok(true)
    }

    /// Requests that are worth making in one [`Self::batch`]. One for a device that answers at once; more where a
    /// request travels, and many can travel together.
    fn batch_max(&self) -> usize {
        1
    }

    /// Carries requests out in any order, and notes in each whether it was.
    fn batch(&self, requests: &mut [Request<'_>]) {
        for request in requests {
            let done = match &mut request.data {
                Data::Read(data) => self.read(request.offset, data),
                Data::Write(data) => self.write(request.offset, data),
            };
            request.failed.set(done.is_err());
        }
    }
}

/// A read or a write among others in a [`Device::batch`].
#[derive(Debug)]
pub struct Request<'a> {
    /// Where on the device.
    pub offset: u64,
    /// Its bytes.
    pub data: Data<'a>,
    /// Whether it could not be carried out.
    pub failed: Cell<bool>,
}

impl<'a> Request<'a> {
    /// A request that was not made yet.
    pub const fn new(offset: u64, data: Data<'a>) -> Self {
        Self { offset, data, failed: Cell::new(false) }
    }
}

/// The bytes of a [`Request`].
#[derive(Debug)]
pub enum Data<'a> {
    /// Room for what is read.
    Read(&'a mut [u8]),
    /// What is written.
    Write(&'a [u8]),
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::geometry::BlockSize;

    /// Bytes in memory, with the methods that the trait does not provide.
    #[derive(Debug)]
    struct Memory(Mutex<Vec<u8>>);

    impl Memory {
        fn range(&self, offset: u64, bytes: u64) -> Result<core::ops::Range<usize>, Error> {
            self.geometry().check(offset, bytes)?;
            Ok(offset as usize..(offset + bytes) as usize)
        }
    }

    impl Device for Memory {
        fn geometry(&self) -> Geometry {
            let bytes = self.0.lock().unwrap().len() as u64;
            Geometry { bytes, block_size: BlockSize::B4096, uuid: 1 }
        }

        fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
            let range = self.range(offset, data.len() as u64)?;
            data.copy_from_slice(&self.0.lock().unwrap()[range]);
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
            let range = self.range(offset, data.len() as u64)?;
            self.0.lock().unwrap()[range].copy_from_slice(data);
            Ok(())
        }

        fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Error> {
            self.write(offset, &vec![0; bytes as usize])
        }

        fn deallocate(&self, _: u64, _: u64) -> Result<(), Error> {
            Ok(())
        }

        fn flush(&self) -> Result<(), Error> {
            Ok(())
        }

        fn status(&self, _: u64, _: u64, _: &mut [Extent]) -> Result<usize, Error> {
            Ok(0)
        }
    }

    #[test]
    fn a_comparison_reads_each_page_of_its_range() {
        let bytes: Vec<u8> = (0..5 * PAGE_BYTES).map(|at| (at / PAGE_BYTES + at) as u8).collect();
        let device = Memory(Mutex::new(bytes.clone()));
        for (offset, length) in [(0, 5 * PAGE_BYTES), (100, 4 * PAGE_BYTES + 7), (4096, 1)] {
            let mut expected = bytes[offset..offset + length].to_vec();
            assert!(device.compare(offset as u64, &expected).unwrap());
            for at in (0..length).step_by(PAGE_BYTES / 2) {
                expected[at] ^= 1;
                assert!(!device.compare(offset as u64, &expected).unwrap(), "byte {at}");
                expected[at] ^= 1;
            }
        }
        assert!(matches!(device.compare(5 * 4096 - 1, &[0, 0]), Err(Error::Range)));
    }

    #[test]
    fn a_batch_carries_out_each_request_and_marks_those_that_failed() {
        let device = Memory(Mutex::new(vec![7; 2 * PAGE_BYTES]));
        let (mut read, mut beyond) = ([0; 3], [0; 3]);
        let mut requests = [
            Request::new(10, Data::Write(&[1, 2, 3])),
            Request::new(2 * 4096 - 1, Data::Read(&mut beyond)),
            Request::new(9, Data::Read(&mut read)),
        ];
        device.batch(&mut requests);
        let failed: Vec<_> = requests.iter().map(|it| it.failed.get()).collect();
        assert_eq!((failed, read), (vec![false, true, false], [7, 1, 2]));
    }
}
