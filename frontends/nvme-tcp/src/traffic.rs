//! How much the host of a controller reads and writes, for the controller's health log.

use std::sync::atomic::{AtomicU64, Ordering};

use spillway_serving::CommandKind;
use spillway_wire::log_page::Health;

/// Counts the commands that have ended, whether they succeeded or not, and the bytes of their data.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Traffic {
    /// Counts a command with `bytes` of data. The length of a value that a pool returns is not known here, so the
    /// bytes of gets and puts are not counted.
    pub(crate) fn count(&self, kind: CommandKind, bytes: u32) {
        let (commands, data) = match kind {
            CommandKind::Read => (&self.reads, Some(&self.read_bytes)),
            CommandKind::Get => (&self.reads, None),
            CommandKind::Write => (&self.writes, Some(&self.written_bytes)),
            CommandKind::Put => (&self.writes, None),
            _ => return,
        };
        commands.fetch_add(1, Ordering::Relaxed);
        if let Some(data) = data {
            data.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Health {
        Health {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            hours: 0,
        }
    }
}
