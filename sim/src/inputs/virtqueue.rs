//! A disk that processes a hostile guest's memory.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spillway_store::{ClientConfig, Config, PageBuf, Store};
use spillway_types::PAGE_BYTES;
use spillway_vhost_user_blk::{DescriptorTable, Disk, DiskConfig, Kind, Service};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::Source;

/// Blocks of the disk: one group.
const BLOCKS: u64 = 64;
/// Bytes of the guest's memory: the input's, then zeros.
const MEMORY_BYTES: usize = 32 << 10;
/// Descriptors of the queue's table, at the start of memory.
const DESCRIPTORS: u16 = 16;

/// The first byte is the number of requests, followed by their heads. The rest is the guest's memory, which begins with
/// the descriptor table.
pub fn read(bytes: &[u8]) {
    let mut source = Source(bytes);
    let heads: Vec<u16> = (0..source.byte() % 8).map(|_| u16::from(source.byte())).collect();
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)])
        .expect("memory of our own");
    let given = source.take(MEMORY_BYTES);
    memory.write_slice(given, GuestAddress(0)).expect("no more than there is");
    let disk = disk();
    disk.zero(0, BLOCKS as usize).expect("a disk that works");
    let mut service = Service::new(Arc::clone(disk));
    let table = DescriptorTable { address: 0, length: DESCRIPTORS };
    for head in heads {
        service.serve(&memory, table, head);
    }
    let mut pages = vec![PageBuf::ZERO; BLOCKS as usize];
    disk.read(0, &mut pages).expect("a disk that works");
}

/// The disk for all inputs. Each input finds it empty.
fn disk() -> &'static Arc<Disk> {
    static DISK: OnceLock<Arc<Disk>> = OnceLock::new();
    DISK.get_or_init(|| {
        let store = Arc::new(Store::open(Config::embedded(4 << 20)).expect("a store"));
        // Only half of the disk fits into the store, so that some writes go to the file.
        let config = ClientConfig { target_pages: BLOCKS / 2, ..ClientConfig::default() };
        let client = store.add_client(config).expect("a client");
        let dir = std::env::temp_dir().join(format!("spillway-virtqueue-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a place for files");
        let disk = Disk::open(
            store,
            DiskConfig {
                name: "disk".into(),
                kind: Kind::Swap,
                client,
                bytes: BLOCKS * PAGE_BYTES as u64,
                backing: dir.join("file"),
                latency: Duration::ZERO,
            },
        );
        // Its files exist as long as they are open.
        std::fs::remove_dir_all(&dir).expect("our own files");
        Arc::new(disk.expect("a disk"))
    })
}
