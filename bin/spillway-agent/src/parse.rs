//! Parses the kernel's files in /proc. A missing line counts as zero, because kernels differ.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// The kernel's name for memory of virtio-mem devices in /proc/iomem.
const VIRTIO_MEM: &str = "System RAM (virtio_mem)";

/// /proc/meminfo, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// MemTotal.
    pub total: u64,
    /// MemAvailable.
    pub available: u64,
    /// Cached: the page cache.
    pub cached: u64,
    /// Shmem: the part of it that is not cache, but memory of programs and tmpfs.
    pub shared: u64,
    /// SwapTotal.
    pub swap_total: u64,
    /// SwapTotal less SwapFree.
    pub swap_used: u64,
}

/// The zones that the kernel can use for its own structures: all except Movable and Device. In
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelZones {
    /// Free pages.
    pub free: u64,
    /// Managed pages.
    pub managed: u64,
}

/// Counters of /proc/vmstat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vmstat {
    /// workingset_refault of all kinds.
    pub refaults: u64,
    /// pswpin.
    pub swap_ins: u64,
    /// oom_kill.
    pub kills: u64,
}

/// Reads /proc/meminfo.
pub fn meminfo(text: &str) -> Meminfo {
    let mut found = Meminfo::default();
    let mut swap_free = 0;
    for (name, rest) in text.lines().filter_map(|line| line.split_once(':')) {
        let field = match name {
            "MemTotal" => &mut found.total,
            "MemAvailable" => &mut found.available,
            "Cached" => &mut found.cached,
            "Shmem" => &mut found.shared,
            "SwapTotal" => &mut found.swap_total,
            "SwapFree" => &mut swap_free,
            _ => continue,
        };
        *field = first_number(rest).saturating_mul(1024);
    }
    found.swap_used = found.swap_total.saturating_sub(swap_free);
    found
}

/// Reads /proc/zoneinfo.
pub fn zoneinfo(text: &str) -> KernelZones {
    let mut found = KernelZones::default();
    let mut is_kernels = false;
    for line in text.lines() {
        if let Some((_, zone)) = line.strip_prefix("Node ").and_then(|rest| rest.split_once("zone"))
        {
            is_kernels = !matches!(zone.trim(), "Movable" | "Device");
            continue;
        }
        let line = line.trim_start();
        if !is_kernels {
            continue;
        }
        if let Some(pages) = line.strip_prefix("pages free ") {
            found.free = found.free.saturating_add(pages_to_bytes(first_number(pages)));
        } else if let Some(pages) = line.strip_prefix("managed ") {
            found.managed = found.managed.saturating_add(pages_to_bytes(first_number(pages)));
        }
    }
    found
}

/// Reads /proc/vmstat.
pub fn vmstat(text: &str) -> Vmstat {
    let mut found = Vmstat::default();
    for (name, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
        let field = match name {
            "pswpin" => &mut found.swap_ins,
            "oom_kill" => &mut found.kills,
            _ if name.starts_with("workingset_refault") => &mut found.refaults,
            _ => continue,
        };
        *field = field.saturating_add(first_number(rest));
    }
    found
}

/// Reads /proc/pressure/memory: microseconds for which some task waited.
pub fn stalled_us(text: &str) -> u64 {
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|line| line.rsplit_once("total="));
    total.map_or(0, |(_, number)| first_number(number))
}

/// Reads /proc/iomem: where the memory of virtio-mem devices lies. All addresses are zero if they are read without the
/// privilege to see them.
pub fn virtio_mem(text: &str) -> Vec<Range<u64>> {
    let entry = |line: &str| {
        let (range, name) = line.trim().split_once(" : ")?;
        let (first, last) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let range = number(first)?..number(last)?.checked_add(1)?;
        (name == VIRTIO_MEM && range.start > 0 && range.start < range.end).then_some(range)
    };
    text.lines().filter_map(entry).collect()
}

/// A count of a flat-keyed file of a control group, such as memory.events.
pub fn keyed(text: &str, key: &str) -> u64 {
    let found = text.lines().filter_map(|line| line.split_once(' ')).find(|(name, _)| *name == key);
    found.map_or(0, |(_, number)| first_number(number))
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn pages_to_bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:         443840 kB\nMemFree:  9 kB\nMemAvailable:     340720 kB\n\
                    Cached:  4108 kB\nShmem: 8 kB\nSwapTotal:  100 kB\nSwapFree:  60 kB\nHugePages_Total:  0\n";
        let found = meminfo(text);
        assert_eq!(found.total, 443_840 << 10);
        assert_eq!(found.available, 340_720 << 10);
        assert_eq!((found.cached, found.shared), (4108 << 10, 8 << 10));
        assert_eq!((found.swap_total, found.swap_used), (100 << 10, 40 << 10));
    }

    #[test]
    fn zones_of_the_kernel_are_all_but_movable() {
        let zone = |name, free, managed| {
            format!(
                "Node 0, zone   {name}\n  per-node stats\n      nr_free_pages 7\n  pages free     {free}\n\
                 \x20       min      23\n        managed  {managed}\n      nr_free_pages {free}\n"
            )
        };
        let text = zone("DMA", 1, 10)
            + &zone("DMA32", 2, 20)
            + &zone("Normal", 4, 40)
            + &zone("Movable", 8, 80)
            + &zone("Device", 16, 160);
        let pages = |count| count * PAGE_BYTES;
        assert_eq!(zoneinfo(&text), KernelZones { free: pages(7), managed: pages(70) });
    }

    #[test]
    fn refaults_are_summed_over_their_kinds() {
        let new = "workingset_refault_anon 3\nworkingset_refault_file 4\npswpin 5\noom_kill 6\n";
        assert_eq!(vmstat(new), Vmstat { refaults: 7, swap_ins: 5, kills: 6 });
        assert_eq!(vmstat("workingset_refault 9\n").refaults, 9);
    }

    #[test]
    fn pressure_is_that_of_some_tasks() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 total=99\n";
        assert_eq!(stalled_us(text), 1234);
        assert_eq!(stalled_us(""), 0);
    }

    #[test]
    fn memory_of_virtio_mem_is_found_in_iomem() {
        let text = "00100000-1ffdffff : System RAM\n100000000-17fffffff : virtio0\n\
                    \x20 100000000-11fffffff : System RAM (virtio_mem)\n";
        assert_eq!(virtio_mem(text).first(), Some(&(0x1_0000_0000..0x1_2000_0000)));
        assert_eq!(virtio_mem("  00000000-00000000 : System RAM (virtio_mem)\n"), []);
    }

    #[test]
    fn events_of_a_control_group_are_found_by_their_whole_name() {
        assert_eq!(keyed("low 0\nhigh 12\nmax 0\noom 0\n", "high"), 12);
        assert_eq!(keyed("higher 3\n", "high"), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s).{0,400}") {
            let _ = (meminfo(&text), zoneinfo(&text), vmstat(&text), stalled_us(&text), virtio_mem(&text));
        }

        #[test]
        fn any_lines_that_look_right_are_read(
            words in proptest::collection::vec("(Node 0, zone|Normal|Movable|pages free|managed|MemTotal:|some total=|[0-9]{1,25}|[0-9a-f]{1,17}-[0-9a-f]{1,17} : System RAM \\(virtio_mem\\)|\n| ){1,5}", 0..40)
        ) {
            let text = words.concat();
            let _ = (meminfo(&text), zoneinfo(&text), vmstat(&text), stalled_us(&text), virtio_mem(&text));
        }
    }
}
