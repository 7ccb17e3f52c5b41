//! Requests and responses about tmem disks.

use serde::{Deserialize, Serialize};

/// A tmem disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct DiskStatus {
    /// Its name.
    pub name: String,
    /// The client that owns its pages.
    pub client: String,
    /// `swap` or `cache`.
    pub kind: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// `no guest`: no QEMU is connected. `connected`: a QEMU is connected, but its guest does not use the disk.
    /// `attached`: a guest uses it. `refused`: the last connection was ended, and no guest has used the disk since.
    pub state: String,
    /// Why the last connection was ended; null unless the state is `refused`.
    pub reason: Option<String>,
    /// Seconds since the state began.
    pub state_s: u64,
    /// Its pages in the store; null if the store does not say.
    pub held_pages: Option<u64>,
    /// Those pages of a swap disk that the guest wrote ten minutes ago or earlier and has not read since the daemon
    /// started. A guest that returns no freed pages leaves dead pages among them.
    pub unread_pages: u64,
    /// Why a request last failed; null if none has since the daemon started.
    pub last_error: Option<String>,
    /// Seconds since that failure; null if there was none.
    pub last_error_s: Option<u64>,
    /// Its counters since the daemon started.
    pub statistics: DiskStatistics,
}

/// Counters of a tmem disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct DiskStatistics {
    /// Pages read from the store.
    pub store_read_pages: u64,
    /// Pages read from the backing file.
    pub file_read_pages: u64,
    /// Pages read where nothing was written.
    pub zero_read_pages: u64,
    /// Pages written to the store.
    pub store_written_pages: u64,
    /// Pages written to the backing file.
    pub file_written_pages: u64,
    /// Puts that the store refused.
    pub refused_pages: u64,
    /// Pages that the guest discarded or filled with zeros.
    pub discarded_pages: u64,
    /// Pages moved from the store to the backing file.
    pub demoted_pages: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Connections that were closed because the disk had a guest.
    pub refused_guests: u64,
}

/// An emptied disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct DiskEmptied {
    /// Its pages that were removed from the store.
    pub freed_pages: u64,
}
