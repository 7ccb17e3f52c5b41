//! What a guest finds, from its side of the protocol.

mod attachment;
mod driver;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::SealFlags;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{FrontendReq, VhostUserConfigFlags, VhostUserHeaderFlag};

use crate::driver::*;

#[test]
fn a_guest_reads_what_it_wrote() {
    let host = Host::new();
    let mut frontend = host.connect();
    let mut guest = Guest::new();
    guest.attach(&mut frontend);
    let data: Vec<u8> = (0..8192_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    assert_eq!(guest.ask(OUT, 8, &data, 0), 0);
    assert_eq!(guest.read(8, 8192), data);
    assert_eq!(host.disk.statistics().store_writes, 2);
    assert!(guest.call.read().is_ok(), "completions are told");
    // A sector, across the end of a block.
    assert_eq!(guest.ask(OUT, 15, &[9; 1024], 0), 0);
    let mut expected = data.clone();
    expected[7 * 512..9 * 512].fill(9);
    assert_eq!(guest.read(8, 8192), expected);
    assert_eq!(guest.ask(DISCARD, 0, &range(8, 8), 0), 0);
    expected[..4096].fill(0);
    assert_eq!(guest.read(8, 8192), expected);
    assert_eq!(guest.ask(WRITE_ZEROES, 0, &range(17, 2), 0), 0);
    expected[9 * 512..11 * 512].fill(0);
    assert_eq!(guest.read(8, 8192), expected);
    assert_eq!(guest.ask(FLUSH, 0, &[0], 0), 0);
    assert_eq!(guest.ask(GET_ID, 0, &[], 20), 0);
    assert_eq!(guest.data(0, 20), b"swap-of-a-guest-with");
    assert_eq!(guest.ask(IN, BLOCKS * 8, &[], 512), 1, "beyond the end");
    assert_eq!(guest.ask(77, 0, &[], 512), 2, "no such request");
    let latencies = host.disk.latencies().histograms().into_iter();
    let counts: Vec<(&str, u64)> =
        latencies.map(|(kind, it)| (kind.name(), it.counts.iter().sum())).collect();
    let expected = [("read", 4), ("write", 2), ("discard", 2), ("flush", 1), ("other", 3)];
    assert_eq!(counts, expected, "each request is timed");
    drop(frontend);
}

#[test]
fn the_device_says_what_it_is() {
    let host = Host::new();
    let mut frontend = host.connect();
    assert_eq!(frontend.get_queue_num().unwrap(), 4);
    let asked = [0; 60];
    let (_, space) = frontend.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &asked).unwrap();
    assert_eq!(space[..8], (BLOCKS * 8).to_le_bytes());
    assert_eq!(space[34..36], 4_u16.to_le_bytes());
}

#[test]
fn memory_that_could_vanish_is_refused() {
    let host = Host::new();
    for (file, bytes) in [
        (memory(SealFlags::GROW), MEMORY_BYTES),
        (tempfile::tempfile().unwrap(), 4096),
        (memory(SealFlags::SHRINK), 2 * MEMORY_BYTES),
    ] {
        let frontend = host.connect();
        assert!(frontend.set_mem_table(&[region(&file, bytes)]).is_err());
    }
    let mut guest = Guest::new();
    guest.attach(&mut host.connect());
}

#[test]
fn what_was_in_flight_is_carried_out_by_the_next() {
    let host = Host::new();
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    assert_eq!(guest.ask(OUT, 8, &[1; 4096], 0), 0);
    drop(frontend);
    // The daemon was killed with three requests in flight. The first is in the used ring, but not recorded as
    // completed.
    // The other two overlap; the one with the lower counter came first.
    let heads = [(1, 16, 2_u8), (2, 24, 3), (3, 24, 4)]
        .map(|(slot, sector, byte)| guest.request(slot, OUT, sector, &[byte; 4096], 0));
    heads.iter().for_each(|&head| guest.offer(head));
    let (_, inflight) = guest.inflight.as_ref().unwrap();
    for (head, counter) in [(heads[0], 10_u64), (heads[1], 12), (heads[2], 11)] {
        let at = 16 + 16 * u64::from(head);
        inflight.write_all_at(&counter.to_le_bytes(), at + 8).unwrap();
        inflight.write_all_at(&[1], at).unwrap();
    }
    inflight.write_all_at(&heads[0].to_le_bytes(), 12).unwrap();
    guest.memory.write_all_at(&2_u16.to_le_bytes(), USED + 2).unwrap();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    guest.wait();
    assert_eq!(guest.status(1), 0xff, "it was done before");
    assert_eq!((guest.status(2), guest.status(3)), (0, 0));
    assert_eq!(guest.read(24, 4096), [3; 4096], "the one with the higher counter came last");
    assert_eq!(guest.read(8, 4096), [1; 4096]);
}

/// The kernel shows a thread's slice, which threads can set since Linux 6.12.
#[test]
fn a_queue_s_thread_has_a_short_slice() {
    let slice_ns = |task: &Path| {
        let shown = fs::read_to_string(task.join("sched")).ok()?;
        let line = shown.lines().find(|line| line.starts_with("se.slice "))?;
        line.split(':').nth(1)?.trim().parse::<u64>().ok()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release.split('.').map_while(|part| part.parse().ok()).collect();
    let Some(usual_ns) = slice_ns(Path::new("/proc/thread-self")) else { return };
    if version[..] < [6, 12][..] {
        return;
    }
    let host = Host::new();
    let mut frontend = host.connect();
    let mut guest = Guest::new();
    guest.attach(&mut frontend);
    guest.read(8, 512);
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_queue = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("disk-queue"))
    };
    let slices: Vec<u64> = tasks.filter(is_queue).filter_map(|task| slice_ns(&task)).collect();
    assert!(!slices.is_empty(), "no queue has a thread");
    // The threads of other tests' queues may be about to shorten theirs.
    assert!(slices.contains(&100_000), "{slices:?}, the usual is {usual_ns}");
}

/// QEMU connects so after the daemon has ended while the VM was paused.
#[test]
fn who_does_not_negotiate_anew_has_the_features_that_the_disk_offers() {
    let host = Host::new();
    let mut connection = UnixStream::connect(host.dir.path().join("socket")).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut ask = |request: FrontendReq, flags: u32, payload: &[u8]| {
        let header = [request as u32, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        connection.write_all(&[&header, payload].concat()).unwrap();
        let mut reply = [0; 20];
        connection.read_exact(&mut reply).unwrap();
        u64::from_ne_bytes(reply[12..].try_into().unwrap())
    };
    const VERSION: u32 = 1;
    assert_eq!(ask(FrontendReq::GET_QUEUE_NUM, VERSION, &[]), 4);
    let need_reply = VhostUserHeaderFlag::NEED_REPLY.bits();
    assert_eq!(ask(FrontendReq::RESET_DEVICE, VERSION | need_reply, &[]), 0, "it is done");
    // QEMU begins so when it stops a queue. The payload is the queue's number and the state.
    assert_eq!(ask(FrontendReq::SET_VRING_ENABLE, VERSION | need_reply, &[0; 8]), 0);
}

#[test]
fn a_hostile_guest_spoils_its_own_queue() {
    let host = Host::new();
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    // A circular chain, and one that leads out of the memory.
    guest.descriptor(0, HEADERS, 16, NEXT, 0);
    guest.offer(0);
    guest.descriptor(3, MEMORY_BYTES - 8, 16, NEXT, 4);
    guest.descriptor(4, HEADERS + 32, 1, WRITE, 0);
    guest.offer(3);
    guest.kick.write(1).unwrap();
    guest.wait();
    assert_eq!(guest.ask(OUT, 8, &[1; 512], 0), 0, "the queue goes on");
    // An impossible index: the queue stops, and the device can be set up again.
    guest.memory.write_all_at(&30_000_u16.to_le_bytes(), AVAILABLE + 2).unwrap();
    guest.kick.write(1).unwrap();
    drop(frontend);
    let mut guest = Guest::new();
    guest.attach(&mut host.connect());
    let mut frontend = host.connect();
    guest.inflight = None;
    guest.attach(&mut frontend);
    assert_eq!(guest.read(8, 512), [1; 512]);
}

#[test]
fn requests_into_memory_that_is_not_shared_fail_and_are_counted() {
    let host = Host::new();
    let mut guest = Guest::new();
    let mut frontend = host.connect();
    guest.attach(&mut frontend);
    let errors = || host.disk.statistics().errors;
    assert_eq!(guest.ask(OUT, 8, &[1; 512], 0), 0);
    assert_eq!(errors(), 0);
    assert_eq!(host.disk.last_error(), None);
    // Memory that was plugged in later and that QEMU does not share lies beyond the announced regions.
    for (number, (flags, status_at)) in
        [(NEXT, HEADERS + 32), (NEXT | WRITE, HEADERS + 32), (NEXT, MEMORY_BYTES)]
            .into_iter()
            .enumerate()
    {
        let head = guest.request(0, if flags == NEXT { OUT } else { IN }, 8, &[], 512);
        let data_at = if status_at == MEMORY_BYTES { DATA } else { MEMORY_BYTES };
        guest.descriptor(head + 1, data_at, 512, flags, head + 2);
        guest.descriptor(head + 2, status_at, 1, WRITE, 0);
        guest.offer(head);
        guest.kick.write(1).unwrap();
        guest.wait();
        let status = if status_at == MEMORY_BYTES { 0xff } else { 1 };
        assert_eq!(guest.status(0), status, "what the guest finds");
        assert_eq!(errors(), number as u64 + 1);
    }
    let why = || host.disk.last_error().unwrap().0;
    assert!(why().contains("0x400000 is not shared with this daemon"), "{}", why());
    assert_eq!(guest.ask(OUT, 8, &[2; 512], 0), 0);
    assert!(why().contains("0x400000"), "it stays when a later request succeeds");
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u32, u8),
    Read(u64, u32),
    Zero(u64, u32),
    Discard(u64, u32),
    Target(u64),
    Demote,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let span = (0..BLOCKS * 8, 1..300_u32)
        .prop_map(|(at, sectors)| (at, sectors.min((BLOCKS * 8 - at) as u32)));
    prop_oneof![
        5 => (span.clone(), any::<u8>()).prop_map(|((at, count), byte)| Step::Write(at, count, byte)),
        4 => span.clone().prop_map(|(at, count)| Step::Read(at, count)),
        1 => span.clone().prop_map(|(at, count)| Step::Zero(at, count)),
        1 => span.prop_map(|(at, count)| Step::Discard(at, count)),
        1 => prop_oneof![Just(0), 0..BLOCKS].prop_map(Step::Target),
        1 => Just(Step::Demote),
        1 => Just(Step::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Requests for any sectors, against an array of bytes.
    #[test]
    fn a_disk_is_an_array_of_sectors(steps in prop::collection::vec(step(), 1..40)) {
        let host = Host::new();
        let mut frontend = host.connect();
        let mut guest = Guest::new();
        guest.attach(&mut frontend);
        let mut model = vec![0; BLOCKS as usize * 4096];
        for step in steps {
            match step {
                Step::Write(at, count, byte) => {
                    let data: Vec<u8> =
                        (0..count * 512).map(|n| byte.wrapping_add((n >> 5) as u8)).collect();
                    assert_eq!(guest.ask(OUT, at, &data, 0), 0);
                    let start = at as usize * 512;
                    model[start..start + data.len()].copy_from_slice(&data);
                }
                Step::Read(at, count) => {
                    let start = at as usize * 512;
                    let found = guest.read(at, count * 512);
                    assert!(found == model[start..start + count as usize * 512], "{step:?}");
                }
                Step::Zero(at, count) => {
                    assert_eq!(guest.ask(WRITE_ZEROES, 0, &range(at, count), 0), 0);
                    model[at as usize * 512..][..count as usize * 512].fill(0);
                }
                Step::Discard(at, count) => {
                    assert_eq!(guest.ask(DISCARD, 0, &range(at, count), 0), 0);
                    // A discard leaves partial blocks as they are.
                    let (start, end) = (at.div_ceil(8), (at + u64::from(count)) / 8);
                    if start < end {
                        model[start as usize * 4096..end as usize * 4096].fill(0);
                    }
                }
                Step::Target(pages) => host.store.set_target(host.disk.client(), pages).unwrap(),
                Step::Demote => drop(host.disk.demote(50, None)),
                Step::Reconnect => {
                    drop(frontend);
                    frontend = host.connect();
                    guest.attach(&mut frontend);
                }
            }
        }
        for at in (0..BLOCKS * 8).step_by(240) {
            let start = at as usize * 512;
            assert!(guest.read(at, 240 * 512) == model[start..start + 240 * 512]);
        }
    }
}
