//! Removes expired keys that are not accessed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::keyspace::Keyspaces;
use crate::trouble::Trouble;
use crate::walk::walk;

/// Time between two sweeps.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Longest time of a sweep. All sweeps together use at most a tenth of a processor.
const SWEEP: Duration = Duration::from_millis(10);
/// Keys checked between two reads of the clock.
const LOT: usize = 200;

/// The cursor of each database. Databases without keys that expire are skipped.
#[derive(Debug, Default)]
pub struct Sweep {
    cursors: HashMap<(u64, u32), u64>,
}

impl Sweep {
    /// Continues where the last sweep ended, for a limited time.
    pub fn go_on(&mut self, keyspaces: &Keyspaces, now_ms: u64) {
        let began = Instant::now();
        let sweeps = |database: &Arc<Database>| {
            database.expiring.load(Ordering::Relaxed) > 0 && database.sweeps.load(Ordering::Relaxed)
        };
        let open: Vec<_> = keyspaces.open().into_iter().filter(sweeps).collect();
        self.cursors.retain(|&(client, number), _| {
            open.iter().any(|it| (it.client.0, it.number) == (client, number))
        });
        let share = SWEEP / open.len().max(1) as u32;
        for database in open {
            let cursor = self.cursors.entry((database.client.0, database.number)).or_default();
            let (began_its, mut first) = (Instant::now(), true);
            // One round over the database is enough.
            while (first || *cursor != 0) && began_its.elapsed() < share {
                first = false;
                match lot(&database, *cursor, now_ms) {
                    Ok(next) => *cursor = next,
                    Err(trouble) => {
                        tracing::debug!(%trouble, "keys that have expired stay");
                        break;
                    }
                }
            }
            if began.elapsed() >= SWEEP {
                return;
            }
        }
    }
}

/// Checks some keys, and removes expired ones.
fn lot(database: &Database, cursor: u64, now_ms: u64) -> Result<u64, Trouble> {
    let (mut looked, mut expired) = (0, Vec::new());
    let next = walk(database, cursor, |name, footer| {
        looked += 1;
        if footer.is_over(now_ms) {
            expired.push(name.to_vec());
        }
        looked < LOT
    })?;
    for name in expired {
        database.remove_expired(&name, now_ms)?;
    }
    Ok(next)
}
