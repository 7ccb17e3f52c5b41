//! Ends a pager in an inconsistent state, and reports the place in the source.

use crate::pager::Pager;
use crate::tree::Notice;
use spillway_platform::process::Program;
use std::panic::Location;
use std::sync::atomic::Ordering;

/// The sources that call [`Pager::broken`]. A notice carries only a number: the index of the source here.
const SOURCES: [&str; 5] = [
    "pager/src/evict.rs",
    "pager/src/fault.rs",
    "pager/src/handler.rs",
    "pager/src/main_task.rs",
    "pager/src/retire.rs",
];

impl Pager {
    /// Kills the program rather than serve bytes that may be wrong. The notice names the caller's place in the source.
    #[track_caller]
    pub(crate) fn broken(&self) -> ! {
        let pid = self.slot.pid.load(Ordering::Relaxed);
        let at = Location::caller();
        self.tree.notify(Notice::Broken, pid, number(at.file(), at.line()));
        let own = self.processes.program.load(Ordering::Relaxed);
        if let Ok(program) = Program::open(own) {
            program.kill();
        }
        spillway_platform::sys::exit_process(1)
    }
}

/// A place in the source in a notice's form: the source and the line.
fn number(file: &str, line: u32) -> u64 {
    let source = SOURCES.iter().position(|source| file.ends_with(source));
    (source.unwrap_or(SOURCES.len()) as u64) << 32 | u64::from(line)
}

/// The source and the line of a [`Notice::Broken`].
#[must_use]
pub fn place_of(value: u64) -> (&'static str, u32) {
    let source = usize::try_from(value >> 32).ok().and_then(|at| SOURCES.get(at));
    (source.unwrap_or(&"pager/src"), value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_from_its_number() {
        assert_eq!(
            place_of(number("/home/a/spillway/pager/src/retire.rs", 232)),
            (SOURCES[4], 232)
        );
        assert_eq!(place_of(number("pager/src/evict.rs", 7)), ("pager/src/evict.rs", 7));
        assert_eq!(place_of(number("pager/src/other.rs", 7)), ("pager/src", 7));
    }

    #[test]
    fn every_source_that_can_end_a_pager_has_a_name() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut callers, mut folders) = (Vec::new(), vec![root.join("src")]);
        while let Some(folder) = folders.pop() {
            for source in std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()) {
                if source.is_dir() {
                    folders.push(source);
                    continue;
                }
                let text = std::fs::read_to_string(&source).unwrap();
                if text.contains(concat!("self.", "broken()")) {
                    let inside = source.strip_prefix(root).unwrap();
                    callers.push(format!("pager/{}", inside.display()));
                }
            }
        }
        callers.sort();
        assert_eq!(callers, SOURCES);
    }
}
