//! What the blade tier needs of whatever carries values to a blade and back.

use core::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use spillway_types::Key;

/// A value on its way out.
#[derive(Clone, Copy, Debug)]
pub struct Parcel<'a> {
    /// Where it goes.
    pub key: Key,
    /// Its bytes, at most [`SEALED_BYTES_MAX`](super::SEALED_BYTES_MAX).
    pub value: &'a [u8],
}

/// A value that is wanted back.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Where it lies.
    pub key: Key,
    /// Takes its bytes; it is as long as the value.
    pub room: &'a mut [u8],
    /// What became of it; [`Carried::Lost`] before it was asked for.
    pub outcome: Carried,
}

/// What became of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It is there.
    Done,
    /// The blade takes no more: a normal answer.
    Refused,
    /// The blade answered that it has no such value, or one of another length.
    Missing,
    /// No answer came in time. The value may be there or not.
    Lost,
}

/// A way to a blade, which knows the blade's address and the run's pool on it.
///
/// Called from tasks without a C library's thread, several at once: no thread-local storage, no
/// allocation once it is connected. No call takes longer than the time-out that it was made with.
pub trait Carrier: Debug + Send + Sync {
    /// Stores values under keys that were never used; one outcome for each.
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]);

    /// Brings values back. A `patient` call tries to reconnect until the time-out; another gives up
    /// when the connection is seen to be broken.
    fn get(&self, wanted: &mut [Wanted<'_>], patient: bool);

    /// Removes values; false when that can't be known to have happened.
    fn flush(&self, keys: &[Key]) -> bool;

    /// Removes all values of an object; false when that can't be known to have happened.
    fn flush_object(&self, object: u64) -> bool;

    /// Removes all there is of the run; false when that can't be known to have happened.
    fn end_run(&self) -> bool;

    /// Whether the last that was heard of the blade is that it does not answer.
    fn is_down(&self) -> bool;

    /// Keeps the connection alive, and tries to come back from being down. To be called often, off
    /// the way of any page: connecting may take as long as the time-out.
    fn tend(&self);

    /// In a forked child: the connections are its parent's. It runs on a thread of the program, whose
    /// descriptors it leaves alone.
    fn forget_connections(&self);

    /// Numbers of descriptors of files in this process's pager that a child opens anew.
    fn descriptors(&self) -> Vec<u64>;

    /// Opens those files in a child's own descriptor table.
    ///
    /// # Errors
    /// What `open` says.
    fn reopen(&self, open: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()>;
}
