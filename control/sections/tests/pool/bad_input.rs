//! Invalid settings, names, sizes and folders: each has an error line.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::common::{MIB, SECTION, TestFolder, TestMount};
use spillway_sections::{Backing, DEVICES_MAX, Error, GuestFile, Pool, Settings};

fn line(settings: &Settings) -> String {
    let line = Pool::open(settings).unwrap_err().to_string();
    assert!(!line.contains('\n') && !line.contains("  "), "{line:?}");
    line
}

#[test]
fn settings() {
    let folder = TestFolder::shm();
    let good = folder.settings(4);
    for dir in ["pool", "", "/", "/dev/shm/a,b", "/dev/shm/a\nb", "/dev/shm/..", "../x"] {
        let line = line(&Settings { dir: dir.into(), ..good.clone() });
        assert!(line.contains("can't be the section pool's folder"), "{dir}: {line}");
    }
    for section_bytes in [0, MIB, 3 * MIB, 2 * MIB + 1, SECTION + 4096] {
        let line = line(&Settings { section_bytes, ..good.clone() });
        assert!(line.ends_with("must be a multiple of 2 MiB, and not 0"), "{line}");
    }
    let small = line(&Settings { capacity_bytes: SECTION - 1, ..good.clone() });
    assert_eq!(small, "a section pool of 4194303 bytes: must hold at least one section of 4 MiB");
    let line = line(&Settings { capacity_bytes: 1 << 60, ..good.clone() });
    assert!(line.contains("mount it with a larger size="), "{line}");
    drop(Pool::open(&good).unwrap());
}

/// A daemon of guests runs, or ran: its files take up the room of the mount.
#[test]
fn what_a_pool_s_files_hold_needs_no_room_again() {
    let Some(mount) = TestMount::new(c"tmpfs", "size=24M") else { return };
    let folder = mount.folder();
    let settings = folder.settings(4);
    assert_eq!(settings.check().unwrap(), Backing::Tmpfs);
    let pool = Pool::open(&settings).unwrap();
    pool.create("a", GuestFile::Boot, 3 * SECTION).unwrap();
    drop(pool);
    assert_eq!(settings.check().unwrap(), Backing::Tmpfs);
    drop(Pool::open(&settings).unwrap());
    let larger = Settings { capacity_bytes: 7 * SECTION, ..settings };
    let line = line(&larger);
    assert!(line.contains("mount it with a larger size="), "{line}");
    assert_eq!(larger.check().unwrap_err().to_string(), line);
}

#[test]
fn a_folder_on_a_disk() {
    for dir in ["/proc/spillway", "/sys"] {
        let folder = TestFolder::shm();
        let line = line(&Settings { dir: dir.into(), ..folder.settings(4) });
        assert!(line.contains("neither on hugetlbfs nor on tmpfs"), "{line}");
        assert!(line.contains("/dev/hugepages") && line.contains("/dev/shm"), "{line}");
    }
    let here = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let there = here.join("pool-on-disk");
    let line = line(&Settings { dir: there.clone(), ..TestFolder::shm().settings(4) });
    assert!(line.contains("neither on hugetlbfs nor on tmpfs"), "{line}");
    assert!(!there.exists(), "it was not made first");
    // [`Backing::at`] reports the same without opening the pool.
    assert_eq!(Backing::at(&there).unwrap_err().to_string(), line);
    assert_eq!(
        Backing::at(&here).unwrap_err().to_string().split(" is").nth(1),
        line.split(" is").nth(1)
    );
    let folder = TestFolder::shm();
    assert_eq!(Backing::at(&folder.dir()).unwrap(), Backing::Tmpfs);
    assert!(!folder.dir().exists());
    assert!(
        Backing::at(&folder.dir().join("below"))
            .unwrap_err()
            .to_string()
            .starts_with("can't open ")
    );
    assert!(Backing::at(Path::new("/dev/shm/a,b")).is_err());
}

#[test]
fn a_folder_that_can_t_be_made_or_used() {
    let folder = TestFolder::shm();
    let dir = folder.dir();
    let open = |dir: PathBuf| line(&Settings { dir, ..folder.settings(4) });
    assert!(open(dir.join("below")).starts_with("can't open "));
    fs::write(&dir, "").unwrap();
    assert!(open(dir.clone()).ends_with("it is not a folder, or a symbolic link to one"));
    fs::remove_file(&dir).unwrap();
    symlink("/dev/shm", &dir).unwrap();
    assert!(open(dir.clone()).ends_with("it is not a folder, or a symbolic link to one"));
    fs::remove_file(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    for mode in [0o770, 0o707] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        assert!(open(dir.clone()).ends_with("others than its owner can write to it"));
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    folder.pool(4);
}

#[test]
fn names_numbers_and_sizes() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    for name in ["", ".", "..", "../x", "a/b", "a b", &"x".repeat(65)] {
        let asked = [
            pool.create(name, GuestFile::Boot, SECTION).map(drop),
            pool.path(name, GuestFile::Boot).map(drop),
            pool.reserve(name, 1, SECTION).map(drop),
            pool.settle_device(name, 1, 0).map(drop),
            pool.clear(name).map(drop),
        ];
        for result in asked {
            let line = result.unwrap_err().to_string();
            assert!(line.contains("is no guest's name: 1 to 64 of"), "{line}");
        }
    }
    for number in [0, DEVICES_MAX + 1, 255] {
        let error = pool.create("vm", GuestFile::Device(number), SECTION).unwrap_err();
        assert_eq!(error.to_string(), format!("device {number}: a guest has devices 1 to 16"));
        assert!(matches!(pool.reserve("vm", number, SECTION), Err(Error::DeviceNumber { .. })));
    }
    for bytes in [0, 1, MIB, 3 * MIB] {
        let error = pool.create("vm", GuestFile::Boot, bytes).unwrap_err();
        assert!(error.to_string().ends_with("must be a multiple of 2 MiB, and not 0"), "{error}");
    }
    for bytes in [0, 2 * MIB, SECTION + 2 * MIB] {
        let error = pool.create("vm", GuestFile::Device(1), bytes).unwrap_err();
        assert!(error.to_string().ends_with("must be a multiple of 4 MiB, and not 0"), "{error}");
    }
    for absent in
        [pool.reserve("vm", 1, SECTION).map(drop), pool.settle_device("vm", 1, 0).map(drop)]
    {
        assert!(absent.unwrap_err().to_string().ends_with("pool/vm/device"));
    }
    pool.create("vm", GuestFile::Boot, 2 * MIB).unwrap();
    assert!(matches!(pool.reserve("vm", 1, SECTION), Err(Error::NoFile { .. })));
    pool.create("vm", GuestFile::Device(1), SECTION).unwrap();
    for bytes in [0, 4096, MIB, u64::MAX, u64::MAX - MIB + 1] {
        assert!(matches!(pool.reserve("vm", 1, bytes), Err(Error::Unaligned { .. })), "{bytes}");
    }
    let most = u64::MAX - (2 * MIB - 1);
    assert!(matches!(pool.reserve("vm", 1, most), Err(Error::BeyondBound { .. })));
    assert!(matches!(pool.create("vx", GuestFile::Boot, most), Err(Error::Dry { .. })));
    assert_eq!(pool.usage().used_bytes, 2 * MIB);
}

/// Opens a pool whose folder was spoiled, beside a guest `vm`.
fn foreign(spoil: impl FnOnce(&Path)) -> String {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    pool.create("vm", GuestFile::Boot, 2 * MIB).unwrap();
    drop(pool);
    spoil(&folder.dir());
    let line = line(&folder.settings(4));
    assert!(line.contains(" can't be part of the section pool: "), "{line}");
    line
}

#[test]
fn what_is_not_the_pool_s() {
    let line = foreign(|dir| fs::write(dir.join("notes"), "").unwrap());
    assert!(line.ends_with("it is no guest's folder"), "{line}");
    let line = foreign(|dir| fs::create_dir(dir.join("a b")).unwrap());
    assert!(line.ends_with("it has no guest's name"), "{line}");
    let line = foreign(|dir| symlink("vm", dir.join("other")).unwrap());
    assert!(line.ends_with("it is no guest's folder"), "{line}");
    let line = foreign(|dir| fs::write(dir.join("vm/swap"), "").unwrap());
    assert!(line.ends_with("it is neither boot memory nor a device"), "{line}");
    let line = foreign(|dir| symlink("boot", dir.join("vm/device")).unwrap());
    assert!(line.ends_with("it is a symbolic link"), "{line}");
    let line = foreign(|dir| fs::hard_link(dir.join("vm/boot"), dir.join("vm/device")).unwrap());
    assert!(line.ends_with("it has a second name"), "{line}");
    let line = foreign(|dir| fs::create_dir(dir.join("vm/device")).unwrap());
    assert!(line.ends_with("it is not a file"), "{line}");
    let line = foreign(|dir| {
        let mode = rustix::fs::Mode::RUSR;
        let fifo = dir.join("vm/device");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    });
    assert!(line.ends_with("it is not a file"), "{line}");
    let line = foreign(|dir| {
        fs::set_permissions(dir.join("vm"), fs::Permissions::from_mode(0o777)).unwrap();
    });
    assert!(line.ends_with("others than its owner can write to it"), "{line}");
    if !geteuid().is_root() {
        println!("skipped: files of other users, which only root can make");
        return;
    }
    for path in ["", "vm", "vm/boot"] {
        let line = foreign(|dir| chown(dir.join(path), Some(1), None).unwrap());
        assert!(line.ends_with("it belongs to another user"), "{path}: {line}");
    }
}

#[test]
fn a_file_that_was_replaced_under_the_pool_is_not_followed() {
    let folder = TestFolder::shm();
    let pool = folder.pool(4);
    let path = pool.create("vm", GuestFile::Device(1), SECTION).unwrap();
    let target = folder.dir().with_file_name("target");
    fs::write(&target, "not the pool's").unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&target, &path).unwrap();
    for result in [
        pool.reserve("vm", 1, SECTION).map(drop),
        pool.settle_device("vm", 1, 0).map(drop),
        pool.clear("vm").map(drop),
    ] {
        assert!(matches!(result, Err(Error::Foreign { .. })));
    }
    assert_eq!(fs::read(&target).unwrap(), b"not the pool's");
    assert_eq!(pool.usage().used_bytes, 0);
}
