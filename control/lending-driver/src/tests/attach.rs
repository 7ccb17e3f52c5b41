//! A device is made, or nothing of it is left.

use std::time::Duration;

use spillway_api::LendOrder;
use spillway_lending::{Body, Mode};

use super::lenders::Answer;
use super::{B, Rig, SLAB_BYTES, settings};
use crate::settings::{DeviceUse, Settings};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_device_that_cannot_be_made_is_told_with_the_reason_and_leaves_nothing() {
    for call in ["attach", "keep_free", "swap_on"] {
        let rig = Rig::start(settings()).await;
        rig.list(&[B]).await;
        rig.kernel.fail(call, "the kernel does not want to");
        rig.order(LendOrder::Borrow(2 * SLAB_BYTES)).await.unwrap();
        rig.until(|| rig.log.has("can't create a device: the kernel does not want to device=0"))
            .await;
        let status = rig.status();
        assert_eq!((status.devices.len(), status.borrowed.len()), (0, 0), "{call}");
        assert!(rig.shared.borrower.devices().is_empty(), "{call}");
        // The lender may have its memory back.
        let is_end = |body: &Body| matches!(body, Body::MemBorFin(_));
        rig.until(|| rig.hosts.sent(B).iter().any(is_end)).await;
        rig.until(|| rig.pools.connected() == 0).await;
        assert!(rig.kernel.disks().is_empty(), "{call}");
        assert_eq!(rig.kernel.count("detach"), usize::from(call != "attach"), "{call}");
        assert_eq!(rig.kernel.calls().last().unwrap(), "restore_free ", "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_the_kernel_swaps_onto_is_kept_whatever_swapon_said() {
    let rig = Rig::start(settings()).await;
    rig.kernel.fail("swap_on", "the answer was lost");
    rig.kernel.add_swap("/dev/nbd0");
    rig.borrow(1, B).await;
    assert_eq!(rig.kernel.disks().len(), 1);
    assert!(rig.log.has("the device is in use"));
}

#[tokio::test(start_paused = true)]
async fn the_kernel_waits_longer_than_the_device_ever_takes() {
    let rig = Rig::start(settings()).await;
    rig.borrow(2, B).await;
    // 64 late requests of 2 s, two batches that wait for a lease of 30 s, and 30 s.
    let expected = ["attach 218s", "keep_free 1048576 true", "swap_on /dev/nbd0"];
    assert_eq!(rig.kernel.calls(), expected);
    assert_eq!(rig.kernel.disks()[0].bytes(), 2 * SLAB_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_device_for_others_is_served_on_a_socket_and_nothing_is_swapped_onto() {
    let rig = Rig::start(Settings { device: DeviceUse::Socket, ..settings() }).await;
    rig.order(LendOrder::Borrow(SLAB_BYTES)).await.unwrap();
    rig.until(|| rig.states() == ["attached"]).await;
    assert_eq!(rig.kernel.calls(), ["serve /run/spillway/lend-0.sock"]);
    rig.order(LendOrder::Return).await.unwrap();
    rig.until(|| rig.states().is_empty()).await;
    assert_eq!((rig.kernel.count("swap_off"), rig.kernel.disks().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_does_nothing_to_this_host() {
    let rig = Rig::start(Settings { dry_run: true, ..settings() }).await;
    rig.order(LendOrder::Borrow(SLAB_BYTES)).await.unwrap();
    rig.until(|| rig.states() == ["attached"]).await;
    rig.order(LendOrder::Return).await.unwrap();
    rig.until(|| rig.states().is_empty()).await;
    assert_eq!((rig.kernel.calls(), rig.pools.connected()), (vec!["restore_free ".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn in_direct_mode_the_kernel_connects_and_is_disconnected_when_it_cannot_swap() {
    let mut direct = settings();
    direct.machine.mode = Mode::Direct;
    let rig = Rig::start(direct).await;
    rig.kernel.fail("swap_on", "no");
    rig.order(LendOrder::Borrow(SLAB_BYTES)).await.unwrap();
    rig.until(|| rig.log.has("can't create a device: no")).await;
    let calls = rig.kernel.calls();
    assert_eq!(calls[0], "connect 192.0.2.1:4420 nqn.2014-08.test:lender");
    assert_eq!(calls[2..], ["swap_on /dev/nvme0n1", "disconnect /dev/nvme0n1", "restore_free "]);
}

#[tokio::test(start_paused = true)]
async fn a_loan_that_is_lost_while_its_device_is_made_gets_no_page() {
    for call in ["attach", "swap_on"] {
        let rig = Rig::start(settings()).await;
        rig.list(&[B]).await;
        rig.kernel.hang(call);
        rig.order(LendOrder::Borrow(SLAB_BYTES)).await.unwrap();
        rig.until(|| rig.kernel.count(call) == 1).await;
        rig.hosts.set(B, Answer::Forgets);
        rig.push(11 * SECOND).await;
        rig.until(|| rig.log.has("the loan is lost")).await;
        let is_end = |body: &Body| matches!(body, Body::MemBorFin(_));
        rig.until(|| rig.hosts.sent(B).iter().any(is_end)).await;
        rig.kernel.let_go();
        rig.until(|| rig.states() == ["attached"]).await;
        assert!(rig.kernel.disks()[0].write(0, &[7; 4096]).is_err(), "{call}: the loan has ended");
        assert_eq!(rig.pools.pages(B), 0, "{call}");
    }
}
