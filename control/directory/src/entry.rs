//! A client's entry in the registry.

use std::time::Instant;

use spillway_store::Flushed;
use spillway_types::{ClientId, Limits, PoolId};

use crate::arrival::Arrival;
use crate::error::Error;
use crate::journal::ClientRecord;
use crate::settings::{Bounds, ClientSettings, NAME_BYTES_MAX, Secret, Who};
use crate::views::Origin;

/// The last settings from the source that named the client; the operator may have changed them
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) target_pages: u64,
    pub(crate) floor_pages: u64,
    pub(crate) weight: u32,
}

impl Asked {
    pub(crate) fn of(settings: &ClientSettings) -> Self {
        let ClientSettings { target_pages, floor_pages, weight, .. } = *settings;
        Self { target_pages, floor_pages, weight }
    }
}

/// A client of the store that has a name.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) id: ClientId,
    pub(crate) who: Who,
    pub(crate) origin: Origin,
    pub(crate) secret: Option<Secret>,
    pub(crate) asked: Asked,
    /// Its cap; its target is at most that.
    pub(crate) cap_pages: u64,
    pub(crate) floor_pages: u64,
    pub(crate) weight: u32,
    pub(crate) limits: Limits,
    pub(crate) domain: Option<u32>,
    pub(crate) shared: Vec<u128>,
    pub(crate) connections: u32,
    /// When its last connection ended, or the registry was opened.
    pub(crate) idle_since: Instant,
    /// Whether its pools are being imported.
    pub(crate) importing: bool,
    /// Whether its pools are being exported.
    pub(crate) exporting: bool,
    /// What an import has brought.
    pub(crate) arrival: Arrival,
    /// Whether it is frozen for an export.
    pub(crate) frozen: bool,
    /// Whether another daemon has all that it stores: it stays frozen, also over a restart.
    pub(crate) moved: bool,
    /// Recorded flushes while it moves.
    pub(crate) moving: Move,
}

impl Entry {
    pub(crate) fn new(id: ClientId, origin: Origin, settings: &ClientSettings) -> Self {
        Self {
            name: settings.name.clone(),
            id,
            who: settings.who.clone(),
            origin,
            secret: settings.secret.clone(),
            asked: Asked::of(settings),
            cap_pages: settings.target_pages,
            floor_pages: settings.floor_pages,
            weight: settings.weight,
            limits: settings.limits,
            domain: settings.domain,
            shared: settings.shared.clone(),
            connections: 0,
            idle_since: Instant::now(),
            importing: false,
            exporting: false,
            arrival: Arrival::None,
            frozen: false,
            moved: false,
            moving: Move::default(),
        }
    }

    /// A client from a record. `target_pages` is its present target, which becomes its cap if the
    /// record is from before there were caps.
    pub(crate) fn from_record(record: ClientRecord, target_pages: u64) -> Self {
        let (floor_pages, weight) = (record.floor_pages.unwrap_or(0), record.weight.unwrap_or(1));
        Self {
            id: record.client(),
            limits: record.limits(),
            name: record.name,
            who: record.who,
            origin: record.origin,
            secret: record.secret,
            asked: Asked {
                target_pages: record.target_pages,
                floor_pages: record.asked_floor_pages.unwrap_or(floor_pages),
                weight: record.asked_weight.unwrap_or(weight),
            },
            cap_pages: record.cap_pages.unwrap_or(target_pages),
            floor_pages,
            weight,
            domain: record.domain,
            shared: record.shared,
            connections: 0,
            idle_since: Instant::now(),
            importing: false,
            exporting: false,
            // What had arrived of an import that was cut off was removed.
            arrival: match record.arrival {
                Arrival::Complete => Arrival::Complete,
                Arrival::None | Arrival::Begun => Arrival::None,
            },
            frozen: record.moved,
            moved: record.moved,
            // The flushes since its export were in the memory of the daemon that was killed.
            moving: Move { overflown: record.moved, ..Move::default() },
        }
    }

    /// What bounds its target.
    pub(crate) fn bounds(&self) -> Bounds {
        let Self { cap_pages, floor_pages, weight, .. } = *self;
        Bounds { cap_pages, floor_pages, weight }
    }

    pub(crate) fn record(&self) -> ClientRecord {
        ClientRecord {
            name: self.name.clone(),
            id: self.id.0,
            who: self.who.clone(),
            origin: self.origin,
            secret: self.secret.clone(),
            target_pages: self.asked.target_pages,
            asked_floor_pages: Some(self.asked.floor_pages),
            asked_weight: Some(self.asked.weight),
            cap_pages: Some(self.cap_pages),
            floor_pages: Some(self.floor_pages),
            weight: Some(self.weight),
            connections_max: self.limits.connections_max,
            operations_max: self.limits.operations_max,
            bytes_max: self.limits.bytes_max,
            domain: self.domain,
            shared: self.shared.clone(),
            arrival: self.arrival,
            moved: self.moved,
        }
    }
}

/// State of a client while it moves.
#[derive(Debug, Default)]
pub(crate) struct Move {
    /// Flushes since the export, in order.
    pub(crate) rest: Vec<Flushed>,
    /// Whether there were more than can be recorded, or some were lost.
    pub(crate) overflown: bool,
    /// Pools that were exported or imported, by their number in the stream.
    pub(crate) numbers: Vec<(u32, PoolId)>,
}

/// Validates a name from outside.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._:@+-".contains(c);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(good) {
        return Ok(());
    }
    Err(Error::Name(name.chars().take(NAME_BYTES_MAX).collect()))
}
