//! A device is given back: late, not at all, or at the end of the daemon.

use std::time::Duration;

use spillway_api::LendOrder;
use spillway_lending::{Body, MemBorReq, MemLenFin, Mode};

use super::lenders::Answer;
use super::{B, C, Rig, SLAB_BYTES, loan, settings};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_swapoff_that_outlasts_its_limit_is_visible_and_holds_up_no_renewal() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.kernel.set_swap_used(20 << 20);
    rig.kernel.hang("swap_off");
    rig.order(LendOrder::Return).await.unwrap();
    rig.until(|| rig.kernel.count("swap_off") == 1).await;
    // A minute, and a second for each 2 MiB.
    assert!(rig.kernel.calls().contains(&"swap_off /dev/nbd0 70s".to_owned()));
    let before = rig.hosts.renewals(B);
    rig.push(150 * SECOND).await;
    assert_eq!(rig.states(), ["detaching"]);
    // A lease of 30 s is renewed each third of it.
    assert!((14..=15).contains(&(rig.hosts.renewals(B) - before)));
    let borrowed = &rig.status().borrowed[0];
    assert!(borrowed.state == "held" && borrowed.lease_ms >= 19_000, "{borrowed:?}");
    rig.kernel.fail("swap_off", "swapoff took longer than 70 s");
    rig.kernel.let_go();
    let line = "can't return a device yet: swapoff took longer than 70 s device=0";
    rig.until(|| rig.log.has(line)).await;
    assert_eq!((rig.states(), rig.kernel.disks().len()), (vec!["attached".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_recall_that_a_hanging_swapoff_cannot_meet_ends_in_lines_of_the_log() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.borrow(1, C).await;
    rig.kernel.hang("swap_off");
    // Nobody else has memory, so that the slab of the loan can't move.
    rig.list(&[]).await;
    let recalled = rig.status().borrowed.into_iter().find(|loan| loan.lender == B).unwrap();
    let number = u64::from_str_radix(&recalled.loan, 16).unwrap();
    rig.hosts.set(B, Answer::Silent);
    rig.say(B, Body::MemLenFin(MemLenFin { loan: loan("a.test", number), deadline_ms: 60_000 }));
    rig.until(|| rig.kernel.count("swap_off") == 1).await;
    let before = rig.hosts.renewals(C);
    rig.push(29 * SECOND).await;
    assert!(rig.log.has("the lender wants it back") && !rig.log.has("the loan is lost"));
    // Its lease is over, and its pages are forgotten.
    rig.push(2 * SECOND).await;
    rig.until(|| rig.log.has("the loan is lost") && rig.pools.connected() == 1).await;
    rig.push(29 * SECOND).await;
    assert!(rig.log.has("no copy of a slab is left: programs whose pages were there are lost"));
    let devices = rig.status().devices;
    assert_eq!((devices[0].state.as_str(), devices[0].slabs_lost), ("detaching", 1));
    assert_eq!((devices[1].state.as_str(), devices[1].slabs_lost), ("attached", 0));
    assert!((5..=6).contains(&(rig.hosts.renewals(C) - before)));
}

#[tokio::test(start_paused = true)]
async fn a_device_that_cannot_be_swapped_off_stays_in_use_while_the_host_drains() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    let page = [7; 4096];
    rig.kernel.disks()[0].write(0, &page).unwrap();
    rig.kernel.fail("swap_off", "the kernel has no memory");
    let lending = rig.lending();
    let mut drained = Box::pin(lending.drain(SECOND));
    // Without its device this host's programs would be lost: it goes on trying, and the limit does not count.
    tokio::select! {
        () = &mut drained => panic!("it is not at rest"),
        () = rig.pass(60 * SECOND) => {}
    }
    assert!(rig.kernel.count("swap_off") >= 60 / 8, "{:?}", rig.kernel.calls());
    let lines = rig.log.count("can't return a device yet: the kernel has no memory device=0");
    assert_eq!(lines, rig.kernel.count("swap_off"));
    let status = rig.status();
    assert!(status.draining && status.devices[0].state == "attached", "{status:?}");
    assert_eq!(status.borrowed[0].state, "held");
    let mut read = [0; 4096];
    rig.kernel.disks()[0].read(0, &mut read).unwrap();
    assert_eq!(read, page);
    rig.kernel.heal("swap_off");
    drained.await;
    assert!(rig.kernel.disks().is_empty() && rig.shared.is_at_rest());
    assert!(rig.log.has("the device is returned"));
}

#[tokio::test(start_paused = true)]
async fn the_kernels_reserve_is_as_before_once_the_last_device_is_returned() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.borrow(1, C).await;
    // Nobody else has memory, so that the device of the loan is swapped off.
    rig.list(&[]).await;
    let recalled = rig.status().borrowed.into_iter().find(|loan| loan.lender == B).unwrap();
    let number = u64::from_str_radix(&recalled.loan, 16).unwrap();
    rig.say(B, Body::MemLenFin(MemLenFin { loan: loan("a.test", number), deadline_ms: 60_000 }));
    rig.until(|| rig.states() == ["attached"]).await;
    assert_eq!(rig.kernel.count("restore_free"), 0, "{:?}", rig.kernel.calls());
    rig.order(LendOrder::Return).await.unwrap();
    rig.until(|| rig.kernel.disks().is_empty()).await;
    rig.until(|| rig.kernel.count("restore_free") == 1).await;
}

#[tokio::test(start_paused = true)]
async fn pages_that_would_find_no_room_are_not_brought_back() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.kernel.set_swap_used(64 << 20);
    rig.kernel.set_available(72 << 20);
    // A mebibyte of another device is free. What is free on its own goes with it.
    rig.kernel.add_swap("/dev/sda2");
    rig.order(LendOrder::Return).await.unwrap();
    let line = "can't return a device yet: 64.0 MiB lie on /dev/nbd0, and 73.0 MiB are available \
                with other swap: free 7.0 MiB first, or add swap device=0";
    rig.until(|| rig.log.has(line)).await;
    assert_eq!(rig.kernel.count("swap_off"), 0);
    rig.kernel.set_available(79 << 20);
    rig.pass(8 * SECOND).await;
    assert_eq!((rig.kernel.count("swap_off"), rig.states().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_borrowers_no_longer_than_its_limit() {
    let rig = Rig::start(settings()).await;
    rig.pass(SECOND).await;
    let request = MemBorReq {
        loan: loan(B, 1),
        sequence: 1,
        slabs: 1,
        slab_bytes: SLAB_BYTES,
        mode: Mode::FanOut,
        holds: None,
    };
    rig.say(B, Body::MemBorReq(request));
    rig.until(|| rig.status().lent.iter().any(|loan| loan.state == "lent")).await;
    rig.lending().drain(5 * SECOND).await;
    assert!(rig.log.has("not all loans were returned in time"));
    assert!(rig.hosts.sent(B).iter().any(|body| matches!(body, Body::MemLenFin(_))));
    assert_eq!(rig.status().lent[0].state, "recalled");
}
