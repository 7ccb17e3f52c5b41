//! What the agent sets in the guest's kernel for the sake of programs: the control group's limit, and how much they may map.

use std::path::{Path, PathBuf};

use crate::cli::Run;
use crate::high::High;
use crate::overcommit;

/// The control group that must not use up the reserve.
#[derive(Debug)]
pub(super) struct Group {
    root: PathBuf,
    pub(super) name: PathBuf,
    kept: PathBuf,
}

impl Group {
    /// None where the agent is to watch no group.
    pub(super) fn of(options: &Run) -> Option<Self> {
        let (root, name) = (options.root.clone(), options.cgroup.clone());
        (name.as_os_str() != "none").then(|| Self { root, name, kept: options.state.path.clone() })
    }

    pub(super) fn open(&self) -> std::io::Result<High> {
        High::open(&self.root, &self.name, &self.kept)
    }
}

/// A program may map more than the guest has now: the memory comes when it is touched.
pub(super) fn allow_large_mappings(root: &Path) {
    match overcommit::allow(root) {
        Ok(true) => eprintln!(
            "spillway-agent: vm.overcommit_memory is 1 now: at 0 a mapping larger than the guest is refused, though the guest can grow"
        ),
        Ok(false) => {}
        Err(error) => eprintln!("spillway-agent: vm.overcommit_memory stays as it is: {error}"),
    }
}
