//! The interface between frontends and block devices.

use core::cell::Cell;
use core::fmt::Debug;

use spillway_types::PAGE_BYTES;

use crate::error::Error;
use crate::extent::Extent;
use crate::geometry::Geometry;

/// A block device as frontends see it: any range of bytes can be read and written.
///
/// Any number of threads may send requests. A write is visible to every read that begins after the write has
/// returned. When two writes overlap in time and range, each shared byte comes from either of them.
pub trait Device: Send + Sync + Debug {
    /// Its size, block size and identity.
    fn geometry(&self) -> Geometry;

    /// Length in bytes.
    fn bytes(&self) -> u64 {
        self.geometry().bytes
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::Range`], and any failure of the device.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error>;

    /// Stores bytes.
    ///
    /// # Errors
    /// [`Error::Range`], in which case nothing was written. After any other error, any part of the range may have been
    /// written.
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

    /// Makes completed writes as durable as the device can.
    ///
    /// # Errors
    /// The device is gone.
    fn flush(&self) -> Result<(), Error>;

    /// Reports which parts of a range are stored. Fills `extents` from the front and returns how many it filled.
    /// Adjacent extents differ in `stored`. The first begins at `offset`; the last may end before the range does.
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

    /// The number of requests that is worth sending in one [`Self::batch`]: 1 for a local device, more for a device
    /// that sends requests over a network.
    fn batch_max(&self) -> usize {
        1
    }

    /// Executes requests in any order. Sets [`Request::failed`] in each.
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

/// A read or a write of a [`Device::batch`].
#[derive(Debug)]
pub struct Request<'a> {
    /// Offset on the device, bytes.
    pub offset: u64,
    /// Its bytes.
    pub data: Data<'a>,
    /// Whether it failed.
    pub failed: Cell<bool>,
}

impl<'a> Request<'a> {
    /// A request that was not sent yet.
    pub const fn new(offset: u64, data: Data<'a>) -> Self {
        Self { offset, data, failed: Cell::new(false) }
    }
}

/// The bytes of a [`Request`].
#[derive(Debug)]
pub enum Data<'a> {
    /// Buffer for a read.
    Read(&'a mut [u8]),
    /// Bytes to write.
    Write(&'a [u8]),
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::geometry::BlockSize;

    /// A device in memory that implements only the required methods.
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
