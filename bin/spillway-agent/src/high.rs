//! memory.high of the users' control group as a second trigger. The agent keeps it where the group would start to use
//! up the reserve. When the group reaches it, the kernel wakes the agent at once, even between two samples.
//!
//! It is an alarm, not a limit. The kernel throttles a group above it, so the agent raises it first. It stays raised
//! until enough memory is available again, whatever the host answers.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::parse;

/// The kernel's value for no limit.
const MAX: &str = "max";
/// How long it stays raised after an alarm.
const RAISED_TIME: Duration = Duration::from_secs(2);
/// Least distance above the group's use. A lower value would make this process reclaim when it
/// writes it.
const ROOM_LEAST: u64 = 32 << 20;
/// A smaller change is not written.
const STEP: u64 = 8 << 20;

/// The group's memory.high, and its former value.
#[derive(Debug)]
pub struct High {
    file: PathBuf,
    current: PathBuf,
    events: File,
    seen: u64,
    /// The value that the service manager set last; none means no limit.
    former: Option<u64>,
    /// The value that the agent set, while it is in force.
    own: Option<u64>,
    raised_until: Duration,
    /// The file with the former value, to restore it after a kill.
    kept: PathBuf,
}

impl High {
    /// The group `name` below `root`.
    ///
    /// # Errors
    /// It does not exist, or its memory.high can't be written.
    pub fn open(root: &Path, name: &Path, kept: &Path) -> io::Result<Self> {
        let folder = root.join("sys/fs/cgroup").join(name);
        let events = File::open(folder.join("memory.events"))?;
        put_back(kept)?;
        let file = folder.join("memory.high");
        let mut high = Self {
            former: limit(&fs::read_to_string(&file)?),
            current: folder.join("memory.current"),
            file,
            events,
            seen: 0,
            own: None,
            raised_until: Duration::ZERO,
            kept: kept.to_owned(),
        };
        high.seen = high.count();
        Ok(high)
    }

    /// The descriptor to poll.
    pub fn interest(&self) -> PollFd<'_> {
        PollFd::new(&self.events, PollFlags::PRI)
    }

    /// Whether the group has reached the limit since the last call. If so, it is raised first.
    pub fn alarm(&mut self, now: Duration) -> bool {
        let count = self.count();
        let is_new = count > self.seen;
        self.seen = count;
        if is_new && self.own.is_some() {
            self.raised_until = now + RAISED_TIME;
            self.raise();
            return true;
        }
        false
    }

    /// Moves the limit to where the group leaves just the reserve, or removes it if little more than the reserve is
    /// left. If another process wrote a value meanwhile, that is the value to restore, and the agent's limits stay
    /// below it.
    pub fn follow(&mut self, now: Duration, available: u64, reserve: u64) {
        let Ok(text) = fs::read_to_string(&self.file) else { return };
        let is = limit(&text);
        if self.own.is_none() || is != self.own {
            (self.former, self.own) = (is, None);
        }
        let used = fs::read_to_string(&self.current).unwrap_or_default();
        let Ok(used) = used.trim().parse::<u64>() else { return };
        let room = available.saturating_sub(reserve);
        let wanted = used.saturating_add(room) / parse::PAGE_BYTES * parse::PAGE_BYTES;
        let is_useful = room >= ROOM_LEAST && self.former.is_none_or(|former| wanted < former);
        if now < self.raised_until || !is_useful {
            if self.own.is_some() {
                self.raise();
            }
        } else if self.own.is_none_or(|own| own.abs_diff(wanted) >= STEP) {
            self.set(wanted);
        }
    }

    /// Restores the former limit.
    pub fn raise(&mut self) {
        if fs::write(&self.file, text(self.former)).is_ok() {
            self.own = None;
            // Nothing is left to restore.
            let _ = fs::remove_file(&self.kept);
        }
    }

    fn set(&mut self, bytes: u64) {
        if self.own.is_none() {
            let line = format!("{}\n{}\n", self.file.display(), text(self.former));
            if fs::write(&self.kept, line).is_err() {
                return;
            }
        }
        if fs::write(&self.file, bytes.to_string()).is_ok() {
            self.own = Some(bytes);
        }
    }

    fn count(&self) -> u64 {
        let mut bytes = [0; 512];
        let held = self.events.read_at(&mut bytes, 0).unwrap_or(0);
        parse::keyed(std::str::from_utf8(&bytes[..held]).unwrap_or_default(), "high")
    }
}

impl Drop for High {
    fn drop(&mut self) {
        if self.own.is_some() {
            self.raise();
        }
    }
}

/// Restores the limit that a killed agent left changed.
///
/// # Errors
/// It can't be written.
pub fn put_back(kept: &Path) -> io::Result<()> {
    let Ok(text) = fs::read_to_string(kept) else { return Ok(()) };
    if let Some((file, value)) = text.split_once('\n') {
        fs::write(file, value.trim())?;
    }
    fs::remove_file(kept)
}

fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn text(limit: Option<u64>) -> String {
    limit.map_or_else(|| MAX.to_owned(), |bytes| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Group {
        root: tempfile::TempDir,
    }

    impl Group {
        fn new() -> Self {
            let group = Self { root: tempfile::tempdir().unwrap() };
            fs::create_dir_all(group.path("")).unwrap();
            group.put("memory.events", "low 0\nhigh 3\n");
            group.put("memory.high", "max\n");
            group.used(100);
            group
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join("sys/fs/cgroup/user.slice").join(name)
        }

        fn put(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
        }

        fn used(&self, mib: u64) {
            self.put("memory.current", &(mib * MIB).to_string());
        }

        fn high(&self) -> Option<u64> {
            let text = fs::read_to_string(self.path("memory.high")).unwrap();
            limit(&text).map(|bytes| bytes / MIB)
        }

        fn open(&self) -> High {
            High::open(self.root.path(), Path::new("user.slice"), &self.kept()).unwrap()
        }

        fn kept(&self) -> PathBuf {
            self.root.path().join("kept")
        }
    }

    fn follow(high: &mut High, now: u64, available: u64) {
        high.follow(Duration::from_secs(now), available * MIB, 64 * MIB);
    }

    #[test]
    fn it_leaves_the_reserve_and_moves_with_what_is_available() {
        let group = Group::new();
        let mut high = group.open();
        follow(&mut high, 1, 400);
        assert_eq!(group.high(), Some(436));
        follow(&mut high, 2, 396);
        assert_eq!(group.high(), Some(436), "a small change is not written");
        follow(&mut high, 3, 300);
        assert_eq!(group.high(), Some(336));
        assert!(group.kept().exists());
        drop(high);
        assert_eq!(group.high(), None);
        assert!(!group.kept().exists());
    }

    #[test]
    fn an_alarm_raises_it_and_it_stays_raised_for_a_while() {
        let group = Group::new();
        let mut high = group.open();
        follow(&mut high, 1, 400);
        assert!(!high.alarm(Duration::from_secs(2)));
        group.put("memory.events", "low 0\nhigh 4\n");
        assert!(high.alarm(Duration::from_secs(2)));
        assert_eq!(group.high(), None);
        assert!(!high.alarm(Duration::from_secs(2)));
        follow(&mut high, 3, 400);
        assert_eq!(group.high(), None);
        follow(&mut high, 4, 400);
        assert_eq!(group.high(), Some(436));
        follow(&mut high, 5, 90);
        assert_eq!(group.high(), None, "there is hardly more than the reserve");
    }

    #[test]
    fn what_somebody_else_sets_is_kept() {
        let group = Group::new();
        let mut high = group.open();
        follow(&mut high, 1, 400);
        group.put("memory.high", &(300 * MIB).to_string());
        follow(&mut high, 2, 400);
        assert_eq!(group.high(), Some(300), "a lower limit stays");
        group.put("memory.high", "max");
        follow(&mut high, 3, 400);
        assert_eq!(group.high(), Some(436), "and is set again where the manager took it away");
        group.put("memory.high", &(1000 * MIB).to_string());
        follow(&mut high, 4, 300);
        assert_eq!(group.high(), Some(336));
        drop(high);
        assert_eq!(group.high(), Some(1000));
    }

    #[test]
    fn a_kill_leaves_what_puts_it_back() {
        let group = Group::new();
        let mut high = group.open();
        follow(&mut high, 1, 400);
        std::mem::forget(high);
        assert_eq!(group.high(), Some(436));
        let high = group.open();
        assert_eq!((group.high(), high.former), (None, None));
        put_back(&group.kept()).unwrap();
    }

    #[test]
    fn no_group_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(
            High::open(root.path(), Path::new("user.slice"), &root.path().join("kept")).is_err()
        );
    }

    /// Its limit, in bytes.
    fn bytes(group: &Group) -> Option<u64> {
        limit(&fs::read_to_string(group.path("memory.high")).unwrap())
    }

    #[test]
    fn the_limit_is_whole_pages_and_there_is_none_below_the_least_room() {
        let reserve = 64 * MIB;
        for (used, room, high) in [
            (100 * MIB, ROOM_LEAST, Some(100 * MIB + ROOM_LEAST)),
            (100 * MIB, ROOM_LEAST - 1, None),
            (100 * MIB + 1, ROOM_LEAST + 4094, Some(100 * MIB + ROOM_LEAST)),
            (100 * MIB + 1, ROOM_LEAST + 4095, Some(100 * MIB + ROOM_LEAST + 4096)),
        ] {
            let group = Group::new();
            group.put("memory.current", &used.to_string());
            let mut opened = group.open();
            opened.follow(Duration::from_secs(1), reserve + room, reserve);
            assert_eq!(bytes(&group), high, "{used} {room}");
        }
    }

    #[test]
    fn a_change_of_a_step_is_written_up_and_down_and_a_smaller_one_is_not() {
        let group = Group::new();
        let mut high = group.open();
        let mut limit_at = |available: u64| {
            high.follow(Duration::from_secs(1), available, 64 * MIB);
            bytes(&group).unwrap() - 436 * MIB
        };
        assert_eq!(limit_at(400 * MIB), 0);
        assert_eq!(limit_at(408 * MIB - 4096), 0);
        assert_eq!(limit_at(408 * MIB), 8 * MIB);
        assert_eq!(limit_at(400 * MIB + 4096), 8 * MIB);
        assert_eq!(limit_at(400 * MIB), 0);
    }

    #[test]
    fn it_stays_raised_for_two_seconds_to_the_moment_and_a_foreign_limit_is_no_alarm() {
        let group = Group::new();
        let mut high = group.open();
        group.put("memory.events", "high 4\n");
        assert!(!high.alarm(Duration::from_secs(1)), "the limit is not this one's");
        follow(&mut high, 1, 400);
        group.put("memory.events", "high 5\n");
        assert!(high.alarm(Duration::from_secs(2)));
        let end = Duration::from_secs(4);
        high.follow(end - Duration::from_nanos(1), 400 * MIB, 64 * MIB);
        assert_eq!(group.high(), None);
        high.follow(end, 400 * MIB, 64 * MIB);
        assert_eq!(group.high(), Some(436));
    }
}
