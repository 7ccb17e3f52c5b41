//! Prints the lines that pagers leave in the shared page.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use spillway_pager::place_of;
use spillway_pager::tree::{Notice, Tree};
use spillway_pager::unpaged::SANITIZERS;
use spillway_pager::unserved::FUNCTIONS;

use crate::units::{pages_to_bytes, show_size};

/// Takes every waiting message and returns its line, without the `spillway: ` prefix.
pub fn take(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for message in &tree.messages {
        let kind = message.kind.load(Ordering::Acquire);
        if kind < 2 {
            continue;
        }
        let pid = message.pid.load(Ordering::Relaxed);
        let value = message.value.load(Ordering::Relaxed);
        message.kind.store(0, Ordering::Release);
        lines.push(format!("process {pid}: {}", text(kind - 1, value)));
    }
    lines
}

fn text(kind: u32, value: u64) -> String {
    let is = |notice: Notice| kind == notice as u32;
    let errno = || {
        let error = std::io::Error::from_raw_os_error(i32::try_from(value).unwrap_or(0));
        crate::program::plain(&error)
    };
    if is(Notice::StoreFull) {
        let above = show_size(pages_to_bytes(i64::try_from(value).unwrap_or(i64::MAX / 4096)));
        format!("the store takes no more: {above} stay above --local; raise --store or give --disk")
    } else if is(Notice::DiskFailed) {
        let cure = if value == Errno::FBIG.raw_os_error() as u64 {
            "raise ulimit -f"
        } else {
            "free space in --disk"
        };
        format!("the disk tier takes no more ({}): {cure}", errno())
    } else if is(Notice::Corrupt) {
        format!("the page at {value:#x} came back damaged and is not served: SIGBUS")
    } else if is(Notice::NoUserfaultfd) {
        format!("userfaultfd was refused ({}): it runs unpaged; see spillway doctor", errno())
    } else if is(Notice::NoPager) {
        let hint = if value == Errno::NOMEM.raw_os_error() as u64 {
            "; it reserves address space for the store: raise ulimit -v and ulimit -d, or give a smaller --store"
        } else {
            ""
        };
        format!("the pager could not start ({}): it runs unpaged{hint}", errno())
    } else if is(Notice::ByThreads) {
        let function = usize::try_from(value).ok().and_then(|k| FUNCTIONS.get(k)).unwrap_or(&"?");
        format!(
            "it uses {function}, which --faults signal can't serve: threads answer its faults, and those of other \
             programs like it"
        )
    } else if is(Notice::MlockAll) {
        "it called mlockall: nothing is locked, its memory stays pageable; mlock single ranges instead".to_owned()
    } else if is(Notice::ForkRefused) {
        format!("its child could not be paged ({}) and was stopped before it ran", errno())
    } else if is(Notice::NoRoomForChild) {
        let limit = if value == Errno::NOMEM.raw_os_error() as u64 {
            "ulimit -v"
        } else {
            "ulimit -u, or pids.max of the control group"
        };
        format!("fork failed ({}): there is no room for the child's pager; raise {limit}", errno())
    } else if is(Notice::Unpaged) {
        let sanitizer = usize::try_from(value).ok().and_then(|kind| SANITIZERS.get(kind));
        let is = sanitizer.map_or("valgrind".to_owned(), |(_, name)| format!("built with {name}"));
        format!("it is {is}, which can't be paged: it runs unpaged, and others like it do too")
    } else if is(Notice::Broken) {
        let (source, line) = place_of(value);
        format!(
            "the pager can't go on ({source}:{line}): the process was killed, nothing is lost to others; this is a fault in \
             Spillway: report this line and what spillway --version says"
        )
    } else if is(Notice::GuestRamShared) {
        "it wanted to share paged guest memory with another process, and got EPERM".to_owned()
    } else if is(Notice::BladeDown) {
        "the blade does not answer".to_owned()
    } else if is(Notice::MirrorDown) {
        "the mirror does not answer".to_owned()
    } else if is(Notice::BladeBack) {
        "the blade answers again".to_owned()
    } else if is(Notice::MirrorBack) {
        "the mirror answers again".to_owned()
    } else if is(Notice::Stall) {
        format!("pages waited {value} ms for the blade")
    } else if is(Notice::Gone) {
        format!(
            "the page at {value:#x} is gone with the blade, and perhaps others: SIGBUS; --mirror \
             keeps a second copy"
        )
    } else {
        format!("notice {kind} with value {value}, from a newer library")
    }
}

#[cfg(test)]
mod tests {
    use spillway_pager::tree::MESSAGES;

    use super::*;
    use crate::run::tests::settings;
    use crate::shared_tree::SharedTree;

    #[test]
    fn messages_are_printed_once_and_their_place_is_free_again() {
        let tree = SharedTree::new(&settings()).unwrap();
        for round in 0..3 {
            for _ in 0..MESSAGES {
                tree.notify(Notice::StoreFull, 7, 256);
            }
            tree.notify(Notice::Corrupt, 7, 0x1000);
            let lines = take(&tree);
            assert_eq!(lines.len(), MESSAGES, "round {round}");
            assert!(lines[0].contains("process 7") && lines[0].contains("1.0 MiB"), "{lines:?}");
            assert!(take(&tree).is_empty());
        }
    }

    #[test]
    fn errnos_are_words() {
        assert!(text(Notice::DiskFailed as u32, 28).contains("No space left"));
        assert!(text(Notice::Corrupt as u32, 0x2000).contains("0x2000"));
    }
}
