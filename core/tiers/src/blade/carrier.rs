//! The transport to a blade that the blade tier requires.

use core::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use spillway_types::Key;

/// A value to send.
#[derive(Clone, Copy, Debug)]
pub struct Parcel<'a> {
    /// Its key.
    pub key: Key,
    /// Its bytes, at most [`SEALED_BYTES_MAX`](super::SEALED_BYTES_MAX).
    pub value: &'a [u8],
}

/// A value to fetch.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Its key.
    pub key: Key,
    /// The buffer, as long as the value.
    pub room: &'a mut [u8],
    /// The outcome; [`Carried::Lost`] before the request.
    pub outcome: Carried,
}

/// The outcome for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It is there.
    Done,
    /// The blade answered that it does not do it. For a put that means that it is full: a normal answer.
    Refused,
    /// The blade answered that it has no such value, or one of another length.
    Missing,
    /// No answer came in time. The value may be there or not.
    Lost,
}

/// A transport to a blade, which knows the blade's address and the run's pool on it.
///
/// Called from tasks without a C library's thread, several at once: no thread-local storage, no
/// allocation once it is connected. No call takes longer than its timeout.
pub trait Carrier: Debug + Send + Sync {
    /// Stores values under keys that were never used; one outcome for each.
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]);

    /// Fetches values. A `patient` call tries to reconnect until the timeout; another gives up when
    /// the connection breaks.
    fn get(&self, wanted: &mut [Wanted<'_>], patient: bool);

    /// Removes values: [`Carried::Done`] if none of them is there any more, [`Carried::Refused`] if the blade answered
    /// that it did not remove one.
    fn flush(&self, keys: &[Key]) -> Carried;

    /// Removes all values of an object; false if the result is unknown.
    fn flush_object(&self, object: u64) -> bool;

    /// Removes all values of the run; false if the result is unknown.
    fn end_run(&self) -> bool;

    /// Whether the blade does not answer, as far as known.
    fn is_down(&self) -> bool;

    /// For how long it has been down, ns; 0 if it is not.
    fn down_ns(&self) -> u64;

    /// Whether the blade has answered that it has no such pool: no value that was there comes back.
    fn is_gone(&self) -> bool;

    /// Keeps the connection alive, and tries to reconnect when it is down. Call it often, outside
    /// the path of any page: connecting may take as long as the timeout.
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
