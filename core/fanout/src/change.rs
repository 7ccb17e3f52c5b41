//! Requests.
use spillway_block::Request;
use crate::device::Core;
type Done = Result<(), spillway_block::Error>;
impl Core {
    pub fn batch(&self, requests: &mut [Request<'_>]) { for request in requests { request.failed.set(true); } }
    pub fn write_zeroes(&self, offset: u64, bytes: u64) -> Done { self.check(offset, bytes) }
    pub fn deallocate(&self, offset: u64, bytes: u64) -> Done { self.check(offset, bytes) }
}
