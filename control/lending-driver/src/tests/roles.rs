//! What a host does that may only lend, only borrow, or both.

use std::time::Duration;

use spillway_lending::{Body, MemBorReq, Mode, Reason, Roles};

use super::kernel::TOTAL_BYTES;
use super::{B, C, Rig, SLAB_BYTES, client_registry, loan, settings};
use crate::lender::free_kept;
use crate::settings::Settings;

const SECOND: Duration = Duration::from_secs(1);

/// Has host b ask for a slab; what it hears.
async fn asked_by_b(rig: &Rig) -> Body {
    let before = rig.hosts.sent(B).len();
    let request = MemBorReq {
        loan: loan(B, 1),
        sequence: 1,
        slabs: 1,
        slab_bytes: SLAB_BYTES,
        mode: Mode::FanOut,
        holds: None,
    };
    rig.say(B, Body::MemBorReq(request));
    rig.until(|| rig.hosts.sent(B).len() > before).await;
    rig.hosts.sent(B).pop().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_host_that_only_lends_asks_nobody_however_short_its_memory_is() {
    let rig = Rig::start(Settings { borrows: false, ..settings() }).await;
    rig.pass(SECOND).await;
    assert_ne!(rig.own.borrow().spare_bytes, 0);
    rig.kernel.set_available(TOTAL_BYTES / 10);
    rig.pass(30 * SECOND).await;
    assert_eq!((rig.hosts.sent(B).len(), rig.hosts.sent(C).len()), (0, 0));
    assert_eq!(rig.status().role, "neutral");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_only_borrows_offers_nothing() {
    let rig = Rig::start(Settings { lends: false, ..settings() }).await;
    rig.pass(5 * SECOND).await;
    assert_eq!((rig.own.borrow().spare_bytes, rig.status().spare_bytes), (0, 0));
    rig.borrow(1, C).await;
    assert_eq!(rig.status().role, "borrower");
}

#[tokio::test(start_paused = true)]
async fn a_host_of_one_role_at_a_time_does_not_lend_while_it_borrows() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, C).await;
    rig.pass(SECOND).await;
    assert_eq!(rig.own.borrow().spare_bytes, 0);
    let answer = asked_by_b(&rig).await;
    assert!(matches!(&answer, Body::MemBorRej(it) if it.reason == Reason::Busy), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_host_of_both_roles_lends_from_its_store_while_it_borrows() {
    let mut both = settings();
    both.machine.roles = Roles::Both;
    let rig = Rig::start(both).await;
    rig.borrow(1, C).await;
    rig.pass(SECOND).await;
    assert_ne!(rig.own.borrow().spare_bytes, 0);
    let answer = asked_by_b(&rig).await;
    let Body::MemBorAck(ack) = &answer else { panic!("{answer:?}") };
    assert_eq!(ack.access.address, "192.0.2.9:4420");
    let status = rig.status();
    assert_eq!((status.role.as_str(), status.lent_bytes), ("both", SLAB_BYTES));
    assert_eq!(rig.shared.lender.loans().len(), 1);
}

#[test]
fn loans_that_the_store_kept_are_freed_where_nothing_is_lent_any_more() {
    let registry = client_registry(32 << 20);
    let loan = |borrower: &str| spillway_directory::Loan {
        borrower: borrower.to_owned(),
        number: 1,
        slabs: 1,
        slab_bytes: SLAB_BYTES,
        is_block: false,
    };
    registry.create_loan(&loan(B)).unwrap();
    registry.create_loan(&loan(C)).unwrap();
    free_kept(&registry);
    assert!(registry.loans().is_empty());
}
