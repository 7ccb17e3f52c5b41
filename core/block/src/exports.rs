//! The registry of devices, as frontends see it.

use std::io;
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};
use spillway_types::ClientId;

use crate::traits::Device;

/// A device that a client may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name, unique among the client's exports.
    pub name: String,
    /// The number of its pool, from 1. Unique in the store, and constant while the device exists. NVMe's namespace id.
    pub number: u32,
    /// Its length, bytes.
    pub bytes: u64,
}

/// The registry of block devices. The daemon keeps it; every block frontend queries it.
pub trait Exports: Send + Sync {
    /// The devices that a client may use.
    fn list(&self, client: ClientId) -> Vec<ExportInfo>;

    /// The device of a name, if the client may use it. Every caller gets the same [`Device`], because its locks
    /// serialize writes to parts of one page.
    fn open(&self, client: ClientId, name: &str) -> Option<Arc<dyn Device>>;
}

/// A registry without devices, for a target that serves pools alone.
#[derive(Clone, Copy, Debug)]
pub struct NoExports;

impl Exports for NoExports {
    fn list(&self, _client: ClientId) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, _client: ClientId, _name: &str) -> Option<Arc<dyn Device>> {
        None
    }
}

/// A random UUID (RFC 9562, version 4) for a new generation of a device. A kernel that reconnects to a device whose
/// contents are gone must not mistake it for the old one.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn fresh_uuid() -> io::Result<u128> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let random = u128::from_be_bytes(bytes);
    Ok(random & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62)
}
