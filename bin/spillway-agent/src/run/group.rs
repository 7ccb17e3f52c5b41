//! The agent's settings in the guest's kernel: the control group's limit, and how much programs may map.

use std::path::{Path, PathBuf};

use crate::high::High;
use crate::options::Run;
use crate::overcommit;

/// The control group that must not use up the reserve.
#[derive(Debug)]
pub(super) struct Group {
    root: PathBuf,
    pub(super) name: PathBuf,
    kept: PathBuf,
}

impl Group {
    /// None if the agent watches no group.
    pub(super) fn of(options: &Run) -> Option<Self> {
        let (root, name) = (options.root.clone(), options.cgroup.clone());
        (name.as_os_str() != "none").then(|| Self { root, name, kept: options.state.path.clone() })
    }

    pub(super) fn open(&self) -> std::io::Result<High> {
        High::open(&self.root, &self.name, &self.kept)
    }
}

/// Lets programs map more than the guest has now: the guest grows when they touch the memory.
pub(super) fn allow_large_mappings(root: &Path) {
    match overcommit::allow(root) {
        Ok(true) => eprintln!(
            "spillway-agent: vm.overcommit_memory is 1 now: at 0 a mapping larger than the guest is refused, though the guest can grow"
        ),
        Ok(false) => {}
        Err(error) => eprintln!("spillway-agent: vm.overcommit_memory is unchanged: {error}"),
    }
}
