//! What the driver reads of this host's memory, and tells of it.

use std::time::Duration;

use super::kernel::TOTAL_BYTES;
use super::{B, Rig, settings};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn spare_memory_is_told_when_it_changes_and_only_then() {
    let rig = Rig::start(settings()).await;
    let mut own = rig.own.clone();
    rig.pass(SECOND).await;
    let first = own.borrow_and_update().spare_bytes;
    assert_ne!(first, 0);
    assert_eq!(rig.status().spare_bytes, first);
    rig.pass(10 * SECOND).await;
    assert!(!own.has_changed().unwrap(), "it is as it was");
    // Less than the store has room for.
    rig.kernel.set_available(TOTAL_BYTES / 4);
    rig.pass(SECOND).await;
    assert!(own.has_changed().unwrap());
    let second = own.borrow_and_update().spare_bytes;
    assert!(second < first && second != 0, "{second} {first}");
    rig.pass(10 * SECOND).await;
    assert!(!own.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn memory_that_cannot_be_read_is_a_line_of_the_log_and_time_goes_on() {
    for call in ["memory", "swaps"] {
        let rig = Rig::start(settings()).await;
        rig.borrow(1, B).await;
        let before = (rig.hosts.renewals(B), rig.log.count("can't read this host's memory"));
        assert_eq!(before.1, 0);
        rig.kernel.fail(call, "the file is gone");
        rig.pass(60 * SECOND).await;
        let lines = rig.log.count("can't read this host's memory: the file is gone");
        assert!(lines >= 59, "once a period: {lines}");
        let renewals = rig.hosts.renewals(B) - before.0;
        assert!((5..=6).contains(&renewals), "{call}: leases are renewed by the clock");
        assert_eq!(rig.states(), ["attached"], "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn memory_that_is_short_for_long_enough_is_borrowed() {
    let rig = Rig::start(settings()).await;
    rig.kernel.set_available(TOTAL_BYTES / 10);
    rig.pass(4 * SECOND).await;
    let status = rig.status();
    assert_eq!((status.role.as_str(), status.devices.len()), ("borrower", 1), "{}", rig.log);
    assert_eq!(status.memory.used_bytes, TOTAL_BYTES - TOTAL_BYTES / 10);
}
