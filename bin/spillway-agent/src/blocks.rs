//! Memory blocks: the units in which the kernel sets memory online and offline.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use spillway_guests::agent::Profile;

/// The kernel's directory of memory blocks.
const BLOCKS: &str = "sys/devices/system/memory";
/// The kernel's setting for new blocks.
const HOTPLUG: &str = "sys/module/memory_hotplug/parameters";
/// Movable memory for each 100 of kernel memory, if the kernel may also use part of the new memory. This is the
/// kernel's default for virtio-mem.
const MOVABLE_RATIO: &str = "301";

/// The blocks of a machine.
#[derive(Clone, Debug)]
pub struct Blocks {
    root: PathBuf,
    folder: PathBuf,
    bytes: u64,
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Online; all its pages can be moved elsewhere.
    Movable,
    /// Online, also for the kernel: it can't be returned.
    Kernel,
    /// Offline.
    Offline,
    /// Changing its state.
    Changing,
}

/// Requested state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Offline.
    Offline,
    /// Online for movable pages.
    Movable,
    /// Online by the kernel's policy.
    Online,
}

impl Wish {
    /// The kernel's name for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Movable => "online_movable",
            Self::Online => "online",
        }
    }
}

impl Blocks {
    /// The blocks below `root`.
    ///
    /// # Errors
    /// The kernel has no memory hotplug.
    pub fn open(root: &Path) -> io::Result<Self> {
        let folder = root.join(BLOCKS);
        let text = fs::read_to_string(folder.join("block_size_bytes"))?;
        let bytes = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16);
        let bytes = bytes.ok().filter(|bytes| bytes.is_power_of_two());
        let bytes = bytes.ok_or_else(|| io::Error::other("block_size_bytes is not a size"))?;
        Ok(Self { root: root.to_owned(), folder, bytes })
    }

    /// Bytes of a block.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file to read and set a block's state.
    pub fn state_file(&self, number: u64) -> PathBuf {
        self.folder.join(format!("memory{number}/state"))
    }

    /// Those that lie wholly in `ranges`, from the highest to the lowest, as virtio-mem unplugs them.
    pub fn within(&self, ranges: &[Range<u64>]) -> Vec<(u64, BlockState)> {
        let whole = |range: &Range<u64>| range.start.div_ceil(self.bytes)..range.end / self.bytes;
        let mut numbers: Vec<u64> = ranges.iter().flat_map(whole).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers.dedup();
        numbers.into_iter().filter_map(|number| Some((number, self.state(number)?))).collect()
    }

    /// How much of `ranges` is online, bytes.
    pub fn online_within(&self, ranges: &[Range<u64>]) -> u64 {
        let of_block = |range: &Range<u64>, number: u64| {
            let is_online =
                matches!(self.state(number), Some(BlockState::Movable | BlockState::Kernel));
            let (from, to) = (number * self.bytes, (number + 1) * self.bytes);
            if is_online { range.end.min(to) - range.start.max(from) } else { 0 }
        };
        let numbers = |range: &Range<u64>| range.start / self.bytes..range.end.div_ceil(self.bytes);
        let of_range = |range| numbers(range).map(|number| of_block(range, number)).sum::<u64>();
        ranges.iter().map(of_range).sum()
    }

    /// The state of a block; none if it does not exist.
    pub fn state(&self, number: u64) -> Option<BlockState> {
        let state = fs::read_to_string(self.state_file(number)).ok()?;
        Some(match state.trim() {
            "offline" => BlockState::Offline,
            "online" => {
                let zones = self.folder.join(format!("memory{number}/valid_zones"));
                let zones = fs::read_to_string(zones).unwrap_or_default();
                if zones.trim() == "Movable" { BlockState::Movable } else { BlockState::Kernel }
            }
            _ => BlockState::Changing,
        })
    }

    /// Makes new memory go online automatically, as the profile says. Returns what was set, and whether new blocks
    /// stayed offline before.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn go_online(&self, profile: Profile) -> io::Result<(String, bool)> {
        let auto = self.folder.join("auto_online_blocks");
        let before = fs::read_to_string(&auto).unwrap_or_default().trim().to_owned();
        let set = |path: PathBuf, value: &str| {
            fs::write(&path, value).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })
        };
        let mut said = match profile {
            Profile::ReturnsAll => {
                set(auto, Wish::Movable.word())?;
                "new memory goes online as movable: all of it can be returned".to_owned()
            }
            Profile::GrowsFar => {
                let hotplug = self.root.join(HOTPLUG);
                set(hotplug.join("auto_movable_ratio"), MOVABLE_RATIO)?;
                set(hotplug.join("online_policy"), "auto-movable")?;
                set(auto, Wish::Online.word())?;
                format!(
                    "new memory also goes online for the kernel (auto-movable, {MOVABLE_RATIO} %): \
                     the kernel's part is not given back"
                )
            }
        };
        if before == Wish::Offline.word() {
            said += "; it stayed offline before, which stalls at 1 GiB";
        }
        Ok((said, before == Wish::Offline.word()))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Bytes of a block of the fake machine.
    pub const BLOCK: u64 = 128 << 20;

    /// A fake machine's blocks: number, state, zones.
    pub fn fake(blocks: &[(u64, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(BLOCKS);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("block_size_bytes"), "8000000\n").unwrap();
        fs::write(folder.join("auto_online_blocks"), "offline\n").unwrap();
        let hotplug = root.path().join(HOTPLUG);
        fs::create_dir_all(&hotplug).unwrap();
        for (number, state, zones) in blocks {
            let block = folder.join(format!("memory{number}"));
            fs::create_dir(&block).unwrap();
            fs::write(block.join("state"), format!("{state}\n")).unwrap();
            fs::write(block.join("valid_zones"), format!("{zones}\n")).unwrap();
        }
        root
    }

    #[test]
    fn blocks_of_virtio_mem_come_from_the_top_and_boot_memory_never() {
        let root = fake(&[
            (0, "online", "DMA32"),
            (32, "online", "Movable"),
            (33, "online", "Normal"),
            (34, "offline", "Normal Movable"),
            (35, "going-offline", "Movable"),
        ]);
        let blocks = Blocks::open(root.path()).unwrap();
        let ranges = [32 * BLOCK..34 * BLOCK, 34 * BLOCK..37 * BLOCK];
        let expected = [
            (35, BlockState::Changing),
            (34, BlockState::Offline),
            (33, BlockState::Kernel),
            (32, BlockState::Movable),
        ];
        assert_eq!(blocks.within(&ranges), expected);
        assert_eq!(blocks.online_within(&ranges), 2 * BLOCK);
    }

    #[test]
    fn a_block_that_is_a_devices_in_part_is_left_alone() {
        let root = fake(&[(32, "online", "Movable"), (33, "online", "Movable")]);
        let blocks = Blocks::open(root.path()).unwrap();
        let half = 32 * BLOCK + BLOCK / 2..34 * BLOCK;
        assert_eq!(blocks.within(std::slice::from_ref(&half)), [(33, BlockState::Movable)]);
        assert_eq!(blocks.online_within(&[half]), BLOCK + BLOCK / 2);
    }

    #[test]
    fn what_ends_within_a_block_is_online_with_it() {
        let root =
            fake(&[(32, "online", "Movable"), (33, "online", "Normal"), (34, "offline", "")]);
        let blocks = Blocks::open(root.path()).unwrap();
        let quarter = BLOCK / 4;
        for (range, online) in [
            (32 * BLOCK..33 * BLOCK + quarter, BLOCK + quarter),
            (33 * BLOCK + quarter..33 * BLOCK + 2 * quarter, quarter),
            (33 * BLOCK + quarter..34 * BLOCK + quarter, 3 * quarter),
            (32 * BLOCK..33 * BLOCK, BLOCK),
            (34 * BLOCK..34 * BLOCK + quarter, 0),
        ] {
            let ranges = [range];
            assert_eq!(blocks.online_within(&ranges), online, "{ranges:?}");
        }
        let range = 32 * BLOCK..33 * BLOCK + quarter;
        let whole = blocks.within(std::slice::from_ref(&range));
        assert_eq!(whole, [(32, BlockState::Movable)], "the other is not its alone");
    }

    #[test]
    fn each_profile_sets_what_new_memory_is_for() {
        let root = fake(&[]);
        let blocks = Blocks::open(root.path()).unwrap();
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        let (said, stayed_offline) = blocks.go_online(Profile::ReturnsAll).unwrap();
        assert!(stayed_offline && said.contains("stayed offline before"), "{said}");
        assert_eq!(read(&format!("{BLOCKS}/auto_online_blocks")), "online_movable");
        let (_, stayed_offline) = blocks.go_online(Profile::GrowsFar).unwrap();
        assert!(!stayed_offline);
        assert_eq!(read(&format!("{BLOCKS}/auto_online_blocks")), "online");
        assert_eq!(read(&format!("{HOTPLUG}/online_policy")), "auto-movable");
        assert_eq!(read(&format!("{HOTPLUG}/auto_movable_ratio")), "301");
    }
}
