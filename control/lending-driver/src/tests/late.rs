//! Lenders that answer late.

use std::thread;
use std::time::Duration;

use spillway_api::LendOrder;
use spillway_fanout::{Cause, Effect, Loss};
use spillway_lending::{Backup, Body, Event, MemLenFin};

use super::lenders::{Answer, Late};
use super::{B, C, Rig, SLAB_BYTES, host, loan, settings};
use crate::settings::Settings;

const SECOND: Duration = Duration::from_secs(1);

/// The number of the loan of a lender.
fn number(rig: &Rig, lender: &str) -> u64 {
    let borrowed = rig.status().borrowed;
    let its = borrowed.iter().find(|loan| loan.lender == lender).unwrap();
    u64::from_str_radix(&its.loan, 16).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_slab_that_moves_to_a_slow_lender_holds_up_no_renewal() {
    // So much that no request is late by the clock on the wall.
    let patient = Settings { request_timeout: 600 * SECOND, ..settings() };
    let rig = Rig::start(patient).await;
    rig.borrow(1, B).await;
    rig.kernel.disks()[0].write(0, &[7; 4096]).unwrap();
    rig.pools.set_late(C, Late::Hangs);
    rig.list(&[B, C]).await;
    let recalled = loan("a.test", number(&rig, B));
    rig.say(B, Body::MemLenFin(MemLenFin { loan: recalled, deadline_ms: 600_000 }));
    rig.until(|| rig.pools.hanging(C) != 0).await;
    let before = (rig.hosts.renewals(B), rig.hosts.renewals(C));
    rig.push(60 * SECOND).await;
    for (host, before) in [(B, before.0), (C, before.1)] {
        assert!((5..=6).contains(&(rig.hosts.renewals(host) - before)), "{host}");
    }
    assert_eq!((rig.pools.pages(B), rig.pools.pages(C)), (1, 0));
    rig.pools.let_go();
    rig.until(|| rig.status().borrowed.iter().all(|loan| loan.lender == C)).await;
    assert_eq!(rig.pools.pages(C), 1);
    let mut read = [0; 4096];
    rig.kernel.disks()[0].read(0, &mut read).unwrap();
    assert_eq!(read, [7; 4096]);
}

#[tokio::test(start_paused = true)]
async fn a_page_waits_for_the_only_lender_that_has_it_and_operators_see_that() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.pools.set_late(B, Late::Loses);
    let disk = rig.kernel.disks().remove(0);
    let writer = thread::spawn(move || disk.write(0, &[7; 4096]));
    rig.until(|| rig.status().borrowed[0].health == "slow").await;
    let device = rig.status().devices.remove(0);
    assert_eq!((device.health.as_str(), device.waits, device.slabs_single), ("slow", 1, 1));
    rig.pools.let_go();
    rig.until(|| rig.status().borrowed[0].health != "slow").await;
    assert!(writer.join().unwrap().is_ok());
    assert_eq!((rig.pools.pages(B), rig.status().devices[0].errors), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lender_whose_pages_come_late_is_slow_until_it_answers() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    let holder = number(&rig, B);
    let loss = Loss { holder, slab: 0, cause: Cause::NoAnswer, effect: Effect::Wait };
    rig.shared.health.pages_failed(&loss);
    let loan = format!("lender=b.test address=\"192.0.2.1:7000\" loan=\"{holder:016x}\"");
    let wait =
        "pages wait: it did not answer in time; there is no other copy, so requests wait for it";
    assert!(rig.log.has(&format!("{wait} {loan} slab=0")), "{}", rig.log);
    assert!(rig.log.has("the host is slow: for a page it did not answer in time"));
    let status = rig.status();
    let health = |status: &spillway_api::types::LendStatus| {
        let (loan, device) = (&status.borrowed[0].health, &status.devices[0].health);
        (loan.clone(), device.clone())
    };
    assert_eq!(health(&status), ("slow".to_owned(), "slow".to_owned()));
    rig.shared.health.pages_answered(holder, 3 * SECOND);
    assert!(
        rig.log.has(&format!("pages continue: it answers again after 3.0s {loan}")),
        "{}",
        rig.log
    );
    assert_ne!(health(&rig.status()).0, "slow");
}

#[tokio::test(start_paused = true)]
async fn a_forget_that_outlasts_its_limit_is_logged_with_lender_and_address() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.borrow(1, C).await;
    let lost = number(&rig, B);
    rig.pools.set_late(B, Late::Hangs);
    let disk = rig.kernel.disks().remove(0);
    let writer = thread::spawn(move || disk.write(0, &[7; 4096]));
    rig.until(|| rig.pools.hanging(B) != 0).await;
    // The loan is gone: the machine has the driver forget it, while a page is on its way.
    rig.hosts.set(B, Answer::Forgets);
    rig.push(11 * SECOND).await;
    assert!(rig.log.has("the loan is lost"), "{}", rig.log);
    let line = format!(
        "a loan ends while pages are in flight to it or to the local file \
         loan=\"a.test/{lost:016x}\" lender=\"b.test\" address=\"192.0.2.1:7000\""
    );
    assert!(!rig.log.has("a loan ends while"), "{}", rig.log);
    // Three requests of 2 s, and 2 s.
    let before = rig.hosts.renewals(C);
    rig.push(9 * SECOND).await;
    assert!(rig.log.has(&line), "{line}\n{}", rig.log);
    rig.push(30 * SECOND).await;
    assert_eq!(rig.log.count("a loan ends while"), 1);
    assert!(rig.hosts.renewals(C) - before >= 3, "the other loan goes on");
    rig.pools.let_go();
    rig.until(|| writer.is_finished()).await;
    assert_eq!(rig.shared.health.lender(lost), Some(host(B)));
}

#[tokio::test(start_paused = true)]
async fn many_forgets_that_hang_hold_up_no_renewal_of_other_loans() {
    let lost = ["d.test", "e.test", "f.test", "g.test"];
    let mut many = Settings { request_timeout: 2 * SECOND, ..settings() };
    many.machine.devices_max = 5;
    let rig = Rig::start(many).await;
    for host in [C].iter().chain(&lost) {
        rig.borrow(1, host).await;
    }
    let mut writers = Vec::new();
    for (disk, host) in rig.kernel.disks().into_iter().skip(1).zip(lost) {
        rig.pools.set_late(host, Late::Hangs);
        writers.push(thread::spawn(move || disk.write(0, &[7; 4096])));
        rig.until(|| rig.pools.hanging(host) != 0).await;
    }
    let before = rig.hosts.renewals(C);
    lost.iter().for_each(|host| rig.hosts.set(host, Answer::Forgets));
    // A lease, and what was left of a third of it.
    rig.push(40 * SECOND).await;
    assert_eq!(rig.log.count("the loan is lost"), 4, "{}", rig.log);
    assert_eq!(rig.log.count("a loan ends while pages are in flight"), 4, "{}", rig.log);
    let borrowed = rig.status().borrowed;
    let states: Vec<_> = borrowed.iter().map(|it| (&*it.lender, &*it.state)).collect();
    assert_eq!(states, [(C, "held")], "{}", rig.log);
    assert!((3..=5).contains(&(rig.hosts.renewals(C) - before)));
    rig.pools.let_go();
    rig.until(|| writers.iter().all(thread::JoinHandle::is_finished)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lender_learns_of_the_end_when_no_page_is_in_flight_to_it() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    let its = loan("a.test", number(&rig, B));
    rig.pools.set_late(B, Late::Hangs);
    let disk = rig.kernel.disks().remove(0);
    let writer = thread::spawn(move || disk.write(0, &[7; 4096]));
    rig.until(|| rig.pools.hanging(B) != 0).await;
    rig.hosts.set(B, Answer::Forgets);
    let is_end = |body: &&Body| matches!(body, Body::MemBorFin(fin) if fin.loan == its);
    let ends = || rig.hosts.sent(B).iter().filter(is_end).count();
    rig.push(11 * SECOND).await;
    rig.until(|| rig.log.has("the loan is lost")).await;
    rig.push(4 * SECOND).await;
    assert_eq!(ends(), 0);
    // The operator sees all of it meanwhile.
    assert!(rig.status().borrowed.is_empty() && rig.states() == ["attached"]);
    rig.pools.let_go();
    rig.until(|| ends() == 1).await;
    rig.until(|| writer.is_finished()).await;
    assert!(!rig.log.has("a loan ends while"), "{}", rig.log);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_beside_the_end_of_the_lease_renews_it() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.hosts.set(B, Answer::Silent);
    rig.push(29 * SECOND).await;
    rig.answer_at_the_end_of_the_lease(|| {}).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_beside_a_reading_of_the_memory_renews_the_lease() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.hosts.set(B, Answer::Silent);
    rig.push(27 * SECOND).await;
    rig.kernel.hang("memory");
    rig.push(2 * SECOND).await;
    let beside = || {
        rig.kernel.let_go();
        // The reading ends on a thread of its own.
        thread::sleep(Duration::from_millis(100));
    };
    rig.answer_at_the_end_of_the_lease(beside).await;
}

impl Rig {
    /// B answers the last request for a loan. The driver gets its next turn after the lease would have ended, and after
    /// `beside`.
    async fn answer_at_the_end_of_the_lease(&self, beside: impl Fn()) {
        let asked = self.hosts.sent(B).into_iter().rev().find_map(|body| match body {
            Body::MemBorReq(request) => Some(request),
            _ => None,
        });
        self.say(B, super::lenders::grant(&asked.unwrap()));
        beside();
        tokio::time::advance(2 * SECOND).await;
        self.push(SECOND).await;
        assert!(!self.log.has("the loan is lost"), "{}", self.log);
        let borrowed = &self.status().borrowed[0];
        assert!(borrowed.state == "held" && borrowed.lease_ms > 15_000, "{borrowed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_does_not_tell_its_memory_holds_up_no_renewal() {
    let rig = Rig::start(settings()).await;
    rig.borrow(1, B).await;
    rig.kernel.hang("memory");
    let before = rig.hosts.renewals(B);
    rig.push(60 * SECOND).await;
    assert!((5..=6).contains(&(rig.hosts.renewals(B) - before)), "{}", rig.log);
    assert_eq!(rig.status().borrowed[0].state, "held");
}

/// A host with a device of three slabs, whose copies are with B and C.
async fn with_three_mirrored_slabs() -> Rig {
    let mut mirrored = settings();
    mirrored.machine.backup = Backup::Mirror;
    let rig = Rig::start(mirrored).await;
    rig.order(LendOrder::Borrow(3 * SLAB_BYTES)).await.unwrap();
    rig.until(|| rig.states() == ["attached"]).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn all_lost_copies_of_a_device_are_one_event() {
    let rig = with_three_mirrored_slabs().await;
    assert_eq!(rig.status().devices[0].slabs_mirrored, 3);
    rig.pools.set_late(C, Late::Refuses);
    rig.kernel.disks()[0].write(0, &[7; 4096]).unwrap();
    let lost = rig.shared.borrower.lost_places();
    let [Event::LostPlaces { lost, .. }] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!(lost.iter().map(|it| it.slab).collect::<Vec<_>>(), [0, 1, 2]);
    rig.until(|| rig.status().devices[0].slabs_single == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_slab_of_which_a_copy_has_missed_a_write_has_one_copy_until_it_is_there() {
    let rig = with_three_mirrored_slabs().await;
    rig.pools.set_late(C, Late::Loses);
    rig.kernel.disks()[0].write(SLAB_BYTES, &[7; 4096]).unwrap();
    let device = &rig.status().devices[0];
    let slabs = (device.slabs_mirrored, device.slabs_single, device.slabs_unreachable);
    assert_eq!((slabs, device.behind_pages), ((2, 1, 0), 1), "{}", rig.log);
    rig.pools.let_go();
    rig.until(|| rig.status().devices[0].slabs_mirrored == 3).await;
    assert_eq!(rig.status().devices[0].behind_pages, 0);
}
