//! Moves.
use crate::device::Core;
use crate::error::Error;
use crate::slabs::Place;
impl Core {
    pub fn move_slab(&self, slab: u32, copy: usize, _place: Place) -> Result<(), Error> { Err(Error::NoSlab { slab, copy }) }
    pub fn forget(&self, holder: u64) -> Result<(), Error> { let _ = holder; Ok(()) }
}
