//! Operators' orders, and why they are refused.

use spillway_api::{LendOrder, Lending as _};

use super::kernel::TOTAL_BYTES;
use super::{B, Rig, SLAB_BYTES, settings};
use crate::kernel::HelperState;
use crate::settings::Settings;

const BORROW: LendOrder = LendOrder::Borrow(SLAB_BYTES);

#[tokio::test(start_paused = true)]
async fn a_host_that_only_lends_refuses_to_borrow() {
    let rig = Rig::start(Settings { borrows: false, ..settings() }).await;
    let line = "lend.roles of this host is \"lend\": it does not borrow";
    assert_eq!(rig.order(BORROW).await, Err(line.to_owned()));
    assert_eq!((rig.order(LendOrder::Return).await, rig.hosts.sent(B).len()), (Ok(()), 0));
}

#[tokio::test(start_paused = true)]
async fn an_order_that_the_machine_does_not_follow_is_refused_with_its_reason() {
    let rig = Rig::start(settings()).await;
    rig.order(LendOrder::Drain).await.unwrap();
    let drained = "this host is drained; resume it first";
    assert_eq!(rig.order(BORROW).await, Err(drained.to_owned()));
    assert!(rig.log.has(&format!("can't borrow: {drained}")));
    rig.order(LendOrder::Resume).await.unwrap();
    rig.kernel.hang("attach");
    rig.order(BORROW).await.unwrap();
    rig.until(|| rig.kernel.count("attach") == 1).await;
    let changing = "a device is being borrowed or returned; try again when that is done";
    assert_eq!(rig.order(BORROW).await, Err(changing.to_owned()));
    rig.kernel.let_go();
    rig.until(|| rig.states() == ["attached"]).await;
    assert_eq!(rig.order(BORROW).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_order_for_part_of_a_slab_borrows_all_of_it() {
    let rig = Rig::start(settings()).await;
    rig.order(LendOrder::Borrow(SLAB_BYTES + 1)).await.unwrap();
    rig.until(|| rig.states() == ["attached"]).await;
    assert_eq!(rig.status().devices[0].bytes, 2 * SLAB_BYTES);
}

#[tokio::test(start_paused = true)]
async fn orders_that_the_driver_has_no_time_for_are_refused() {
    let rig = Rig::start(settings()).await;
    let lending = rig.lending();
    // The driver gets no turn before the first wait.
    let answers: Vec<_> = (0..17).map(|_| lending.handle.order(LendOrder::Resume)).collect();
    let mut lines = Vec::new();
    for answer in answers {
        lines.push(answer.await.unwrap());
    }
    let refused = lines.pop();
    assert_eq!(refused, Some(Err("too many orders wait; try again".to_owned())));
    assert!(lines.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_borrowed_while_the_helper_could_not_return_it() {
    let rig = Rig::start(settings()).await;
    let second = std::time::Duration::from_secs(1);
    for (helper, name, line, why) in [
        (
            HelperState::Gone,
            "gone",
            "the helper has ended",
            "the helper is gone; restart the daemon",
        ),
        (HelperState::Silent, "silent", "the helper does not answer", "the helper does not answer"),
    ] {
        rig.kernel.set_helper(helper);
        rig.pass(3 * second).await;
        assert_eq!((rig.log.count(line), rig.status().helper.as_str()), (1, name), "{}", rig.log);
        assert_eq!(rig.order(BORROW).await, Err(why.to_owned()));
        // Nor under pressure.
        rig.kernel.set_available(TOTAL_BYTES / 10);
        rig.pass(10 * second).await;
        assert!(rig.status().devices.is_empty() && rig.hosts.sent(B).is_empty());
        rig.kernel.set_available(TOTAL_BYTES / 2);
    }
    rig.kernel.set_helper(HelperState::Ok);
    rig.until(|| rig.log.has("the helper answers again")).await;
    rig.order(BORROW).await.unwrap();
    rig.until(|| rig.states() == ["attached"]).await;
}
