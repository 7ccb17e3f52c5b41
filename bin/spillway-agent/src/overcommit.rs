//! The kernel's overcommit heuristic.
//!
//! By default (vm.overcommit_memory = 0) Linux refuses a mapping that is larger than all memory and swap
//! (`__vm_enough_memory`, mm/util.c). In a guest that can grow, this would refuse a program that maps all its memory in
//! one piece, such as a Java heap or a database's buffers, although the guest grows as soon as the memory is touched.

use std::fs;
use std::io;
use std::path::Path;

const FILE: &str = "proc/sys/vm/overcommit_memory";
/// The kernel uses its heuristic.
const GUESS: &str = "0";
/// The kernel refuses nothing.
const ALWAYS: &str = "1";

/// Makes the kernel refuse no mapping, if it uses the heuristic now. Leaves strict accounting (2) as it is. Returns
/// whether something was changed.
///
/// # Errors
/// The kernel refuses it.
pub fn allow(root: &Path) -> io::Result<bool> {
    let file = root.join(FILE);
    let guesses = fs::read_to_string(&file)?.trim() == GUESS;
    if guesses {
        fs::write(file, ALWAYS)?;
    }
    Ok(guesses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guess_ends_and_other_settings_stay() {
        let root = tempfile::tempdir().unwrap();
        assert!(allow(root.path()).is_err());
        let file = root.path().join(FILE);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (before, after, changed) in
            [("0\n", "1", true), ("1\n", "1\n", false), ("2\n", "2\n", false)]
        {
            fs::write(&file, before).unwrap();
            assert_eq!(allow(root.path()).unwrap(), changed);
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }
}
