//! A manager on the real kernel. The guest's memory is this process's own; the manager's threads never touch it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::pipe::pipe;
use spillway_guest_memory::{
    Claimed, Counter, Descriptors, Ending, Far, Guest, Layout, Manager, Map, Mark, PageLocation,
    Settings, check_registered,
};
use spillway_platform::uffd::{Uffd, feature, mode};
use spillway_store::{ClientConfig, Config, PoolSpec, Store};
use spillway_test_support::wait::until;

const PAGE: usize = 4096;
const PAGES: usize = 1024;
const LOCAL: u64 = 160 * PAGE as u64;

/// A guest's memory in this process.
struct Memory {
    address: usize,
    file: OwnedFd,
    uffd: OwnedFd,
}

impl Memory {
    fn new(modes: u64) -> Self {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let bytes = PAGES * PAGE;
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel finds room.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED, &file, 0)
        };
        let address = address.unwrap() as usize;
        let features = feature::PAGEFAULT_FLAG_WP | feature::EVENT_REMOVE;
        let uffd = Uffd::open(None, features).unwrap();
        uffd.register(address, bytes, modes).unwrap();
        // SAFETY: the number is that of a descriptor that nothing else owns.
        Self { address, file, uffd: unsafe { OwnedFd::from_raw_fd(uffd.number()) } }
    }

    fn word(&self, page: usize) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as the process lives, and used by atomic words alone.
        unsafe { &*((self.address + page * PAGE) as *const AtomicU64) }
    }

    fn layout(&self) -> Layout {
        let (address, bytes) = (self.address as u64, (PAGES * PAGE) as u64);
        let claimed = Claimed { address, bytes, offset: 0, page_bytes: PAGE as u64, file: 0 };
        Layout::check(&[claimed], &[bytes], true).unwrap()
    }

    fn remove(&self, page: usize) {
        let address = (self.address + page * PAGE) as *mut _;
        // SAFETY: the contents of a page that is used by atomic words alone become zeros.
        unsafe { rustix::mm::madvise(address, PAGE, Advice::LinuxRemove) }.unwrap();
    }

    fn resident(&self) -> u64 {
        rustix::fs::fstat(&self.file).unwrap().st_blocks as u64 * 512
    }
}

fn manager(memory: &Memory, map: Map, store_bytes: u64) -> Manager {
    let store = Store::open(Config::embedded(store_bytes)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    let descriptors = Descriptors {
        uffd: memory.uffd.try_clone().unwrap(),
        files: vec![memory.file.try_clone().unwrap()],
        source: None,
    };
    let far = Far::new(Some((store, pool)), None);
    let guest = Guest::new(descriptors, memory.layout(), map, far).unwrap();
    Manager::new(guest, Settings { local_bytes: LOCAL, handlers: 2 }, |line| println!("{line}"))
}

#[test]
fn memory_is_kept_within_its_target_and_comes_back_as_it_was() {
    let memory = Memory::new(mode::MISSING | mode::WP);
    check_registered(std::os::fd::AsFd::as_fd(&memory.uffd), &memory.layout()).unwrap();
    let map = Map::new(PAGES as u64).unwrap();
    let seen = Map::adopt(map.file().try_clone().unwrap(), PAGES as u64).unwrap();
    let manager = manager(&memory, map, 32 << 20);
    let (monitor, monitor_end) = pipe().unwrap();
    let (supervisor, _supervisor_end) = pipe().unwrap();
    thread::scope(|scope| {
        // Dropped when an assertion fails, which ends the manager too.
        let _monitor_end = monitor_end;
        let runs = scope.spawn(|| manager.run(&monitor, &supervisor));
        for round in 1..4 {
            for page in 0..PAGES {
                let before = memory.word(page).load(Ordering::Relaxed);
                assert_eq!(before, if round == 1 { 0 } else { (page + round - 1) as u64 });
                memory.word(page).store((page + round) as u64, Ordering::Relaxed);
                assert!(memory.resident() <= LOCAL, "{} bytes resident", memory.resident());
            }
        }
        until("pages to leave ahead of need", || seen.place(7).is_far());
        memory.remove(7);
        assert_eq!(memory.word(7).load(Ordering::Relaxed), 0, "a removed page is zeros");
        until("the removal to be counted", || seen.counted(Counter::Removed) == 1);
        assert!(seen.counted(Counter::Evictions) > PAGES as u64);
        seen.set_mark(Mark::Leave, 1);
        assert_eq!(runs.join().unwrap(), Ending::Left);
    });
    assert_eq!(seen.far(), 0);
    for page in 0..PAGES {
        let expected = if page == 7 { 0 } else { (page + 3) as u64 };
        assert_eq!(memory.word(page).load(Ordering::Relaxed), expected, "without a manager");
    }
}

#[test]
fn a_full_store_leaves_pages_above_the_target_and_nothing_hangs() {
    let memory = Memory::new(mode::MISSING | mode::WP);
    let map = Map::new(PAGES as u64).unwrap();
    let seen = Map::adopt(map.file().try_clone().unwrap(), PAGES as u64).unwrap();
    let manager = manager(&memory, map, 1 << 20);
    let (monitor, monitor_end) = pipe().unwrap();
    let (supervisor, _supervisor_end) = pipe().unwrap();
    let mix = |page: usize, at: usize| {
        let mixed = (page * 512 + at + 1) as u64;
        (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ mixed << 7).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    };
    thread::scope(|scope| {
        let end = monitor_end;
        let runs = scope.spawn(|| manager.run(&monitor, &supervisor));
        for page in 0..PAGES {
            for at in 0..PAGE / 8 {
                // SAFETY: a word of a mapped page, as in `word`.
                let word =
                    unsafe { &*((memory.address + page * PAGE + at * 8) as *const AtomicU64) };
                word.store(mix(page, at), Ordering::Relaxed);
            }
        }
        assert!(seen.counted(Counter::Refusals) > 0 && memory.resident() > LOCAL);
        assert!((0..PAGES).all(|page| memory.word(page).load(Ordering::Relaxed) == mix(page, 0)));
        drop(end);
        assert_eq!(runs.join().unwrap(), Ending::Monitor);
    });
}

#[test]
fn what_a_dead_manager_left_half_done_is_made_good() {
    const PLACED: [usize; 3] = [0, 3, PAGES - 1];
    let memory = Memory::new(mode::MISSING | mode::WP);
    let map = Map::new(PAGES as u64).unwrap();
    let seen = Map::adopt(map.file().try_clone().unwrap(), PAGES as u64).unwrap();
    // The file has pages that the map calls far, as after a kill between two steps.
    for page in PLACED {
        rustix::io::pwrite(&memory.file, &[5; 8], (page * PAGE) as u64).unwrap();
        map.set_place(page as u64, PageLocation::Store);
    }
    // The guest's writers were blocked.
    Uffd::from_number(memory.uffd.as_raw_fd()).protect(memory.address, 8 * PAGE).unwrap();
    // The guest removed a page, and the manager was killed after it had read the message.
    map.set_place(9, PageLocation::Store);
    let words = [memory.address + 9 * PAGE, memory.address + 10 * PAGE];
    map.receive(|message| {
        message[0] = 0x15;
        message[8..16].copy_from_slice(&words[0].to_ne_bytes());
        message[16..24].copy_from_slice(&words[1].to_ne_bytes());
        Ok(())
    })
    .unwrap();
    let manager = manager(&memory, map, 8 << 20);
    let (monitor, monitor_end) = pipe().unwrap();
    let (supervisor, supervisor_end) = pipe().unwrap();
    thread::scope(|scope| {
        let _monitor_end = monitor_end;
        let runs = scope.spawn(|| manager.run(&monitor, &supervisor));
        until("the manager", || seen.mark(Mark::Ready) == 1);
        assert_eq!((seen.far(), seen.message()[0]), (0, 0));
        assert_eq!(memory.word(9).load(Ordering::Relaxed), 0);
        for page in PLACED {
            assert_eq!(memory.word(page).load(Ordering::Relaxed), u64::from_ne_bytes([5; 8]));
            memory.word(page).store(6, Ordering::Relaxed);
            assert_eq!(memory.word(page).load(Ordering::Relaxed), 6);
        }
        drop(supervisor_end);
        assert_eq!(runs.join().unwrap(), Ending::Orphaned);
    });
}

#[test]
fn memory_that_is_not_registered_for_write_protection_is_refused() {
    let memory = Memory::new(mode::MISSING);
    let refused = check_registered(std::os::fd::AsFd::as_fd(&memory.uffd), &memory.layout());
    assert!(refused.unwrap_err().to_string().contains("region 0 is not registered"));
}
