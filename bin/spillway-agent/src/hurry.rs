//! Shortens the kernel's RCU grace periods while memory blocks go offline and are removed. For each block the kernel
//! waits for a grace period under a lock, some 12 ms; with `rcu_expedited` this takes a fraction of a millisecond. The
//! setting applies to the whole kernel, and each such wait interrupts the other processors, so it is set only during
//! the change.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::high::put_back;

/// The kernel's switch, while the agent has set it.
#[derive(Debug)]
pub struct Hurry {
    file: PathBuf,
    is_own: bool,
    until: Duration,
    /// The file with the former value, to restore it after a kill.
    kept: PathBuf,
}

impl Hurry {
    /// The switch below `root`. Restores it if a killed agent left it set. Without it in the kernel this does nothing.
    pub fn open(root: &Path, state: &Path) -> Self {
        let kept = kept(state);
        if let Err(error) = put_back(&kept) {
            eprintln!("spillway-agent: {}: {error}", kept.display());
        }
        Self {
            file: root.join("sys/kernel/rcu_expedited"),
            is_own: false,
            until: Duration::ZERO,
            kept,
        }
    }

    /// Sets it until a time, unless it is set already.
    pub fn begin(&mut self, until: Duration) {
        self.until = until;
        let is_unset = fs::read_to_string(&self.file).is_ok_and(|text| text.trim() == "0");
        let line = format!("{}\n0\n", self.file.display());
        if is_unset && fs::write(&self.kept, line).is_ok() {
            self.is_own = true;
            // If it can't be written, blocks go offline at the usual speed.
            let _ = fs::write(&self.file, "1");
        }
    }

    /// The latest time at which it is restored.
    pub fn deadline(&self) -> Option<Duration> {
        self.is_own.then_some(self.until)
    }

    /// Restores it when its time is over.
    pub fn look(&mut self, now: Duration) {
        if now >= self.until {
            self.end();
        }
    }

    /// Restores it.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_own) && fs::write(&self.file, "0").is_ok() {
            // Nothing is left to restore.
            let _ = fs::remove_file(&self.kept);
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.end();
    }
}

/// The file that keeps the former `rcu_expedited`. It lies beside `state`, which keeps the former `memory.high`.
pub fn kept(state: &Path) -> PathBuf {
    state.with_file_name("rcu_expedited")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(value: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("sys/kernel/rcu_expedited");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, value).unwrap();
        (root, file)
    }

    #[test]
    fn it_is_set_for_a_change_alone() {
        let (root, file) = root("0\n");
        let mut hurry = Hurry::open(root.path(), &root.path().join("state"));
        hurry.begin(Duration::from_secs(2));
        hurry.begin(Duration::from_secs(2));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        hurry.look(Duration::from_secs(1));
        assert_eq!(hurry.deadline(), Some(Duration::from_secs(2)));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        hurry.look(Duration::from_secs(2));
        assert_eq!(hurry.deadline(), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
        assert!(!root.path().join("rcu_expedited").exists());
        hurry.begin(Duration::from_secs(2));
        drop(hurry);
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
    }

    #[test]
    fn the_last_change_says_until_when() {
        let (root, _file) = root("0\n");
        let mut hurry = Hurry::open(root.path(), &root.path().join("state"));
        for seconds in [5, 2, 3] {
            hurry.begin(Duration::from_secs(seconds));
            assert_eq!(hurry.deadline(), Some(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn what_somebody_else_has_set_stays() {
        let (root, file) = root("1\n");
        let mut hurry = Hurry::open(root.path(), &root.path().join("state"));
        hurry.begin(Duration::from_secs(2));
        hurry.end();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1\n");
    }

    #[test]
    fn a_kill_leaves_what_puts_it_back() {
        let (root, file) = root("0\n");
        let state = root.path().join("state");
        let mut hurry = Hurry::open(root.path(), &state);
        hurry.begin(Duration::from_secs(2));
        std::mem::forget(hurry);
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        put_back(&kept(&state)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
    }

    #[test]
    fn a_kernel_without_it_is_not_hurried() {
        let root = tempfile::tempdir().unwrap();
        let mut hurry = Hurry::open(root.path(), &root.path().join("state"));
        hurry.begin(Duration::from_secs(2));
        hurry.end();
        assert!(!root.path().join("rcu_expedited").exists());
    }
}
