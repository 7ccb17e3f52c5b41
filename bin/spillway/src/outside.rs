//! Reports memory of paged programs outside the budget: its size and kinds, in one line.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use spillway_host::field_kib;
use spillway_pager::tree::Tree;

use crate::units::{PAGE_BYTES, pages_to_bytes, show_size};

/// Interval of the cheap check.
const INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two close checks, which walk the page tables of a process.
const PAUSE: Duration = Duration::from_secs(20);
/// Less than this is not reported, whatever the budget.
const LEAST_BYTES: u64 = 64 << 20;
/// Kinds that the line names.
const NAMED: usize = 2;

/// Watches for such memory, and reports it once per run.
pub struct Outside {
    next: Instant,
    said: bool,
}

impl Outside {
    /// The first check is due after an interval.
    pub fn new() -> Self {
        Self { next: Instant::now() + INTERVAL, said: false }
    }

    /// The line, the first time that the memory outside the budget exceeds the budget.
    pub fn look(&mut self, tree: &Tree) -> Option<String> {
        let now = Instant::now();
        if self.said || now < self.next {
            return None;
        }
        self.next = now + INTERVAL;
        let budget = tree.budget_pages.load(Relaxed).saturating_mul(PAGE_BYTES);
        let least = budget.max(LEAST_BYTES);
        let (pid, most) = tree
            .slots
            .iter()
            .map(|slot| {
                let pid = slot.pid.load(Relaxed);
                let store = u64::try_from(slot.store_bytes.load(Relaxed)).unwrap_or(0);
                (pid, rough(pid, pages_to_bytes(slot.resident_pages.load(Relaxed)) + store))
            })
            .max_by_key(|&(_, bytes)| bytes)?;
        if most <= least {
            return None;
        }
        self.next = now + PAUSE;
        let kinds = Kinds::read(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?);
        self.said = kinds.sum() > least;
        self.said.then(|| {
            format!(
                "process {pid}: {} of its memory can't be paged, beside --local {}: {}; \
                 docs/limits.md lists such memory",
                show_size(kinds.sum()),
                show_size(budget),
                kinds.text()
            )
        })
    }
}

/// Upper bound of a process's memory beside `managed` bytes: a shared page counts in full.
fn rough(pid: u32, managed: u64) -> u64 {
    if pid == 0 {
        return 0;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name| field_kib(&status, name).unwrap_or(0);
    (field("RssAnon:") + field("RssShmem:")).saturating_sub(managed)
}

/// Resident bytes by kind of mapping. A page that processes share counts proportionally.
#[derive(Debug, Default)]
struct Kinds(BTreeMap<String, u64>);

impl Kinds {
    /// Reads them from a process's smaps, without managed memory, the pager's own and files.
    fn read(smaps: &str) -> Self {
        let mut kinds = Self::default();
        let (mut header, mut pss_bytes) = ("", 0);
        for line in smaps.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                if let Some(kind) = kind_of(header, flags) {
                    *kinds.0.entry(kind).or_default() += pss_bytes;
                }
            } else if line.starts_with("Pss:") {
                pss_bytes = field_kib(line, "Pss:").unwrap_or(0);
            } else if !line.contains(':') || line.split(' ').next().is_some_and(|w| w.contains('-'))
            {
                header = line;
            }
        }
        kinds
    }

    fn sum(&self) -> u64 {
        self.0.values().sum()
    }

    /// The largest of them.
    fn text(&self) -> String {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let texts =
            all.iter().take(NAMED).map(|(kind, bytes)| format!("{} {kind}", show_size(**bytes)));
        texts.collect::<Vec<_>>().join(", ")
    }
}

/// The kind of one mapping, from the first and the last line that smaps has of it. None for memory that is
/// managed (registered with a userfaultfd), the pager's own (left out of dumps), or a file's.
fn kind_of(header: &str, flags: &str) -> Option<String> {
    let mut words = header.split_whitespace();
    let permissions = words.nth(1)?;
    let name = words.skip(3).collect::<Vec<_>>().join(" ");
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    if ["um", "uw", "dd", "io", "pf"].into_iter().any(has) || name.starts_with("/memfd:spillway") {
        return None;
    }
    let in_memory = ["/memfd:", "/dev/zero", "/SYSV", "/dev/shm/"];
    Some(match name.as_str() {
        _ if has("ht") => "in huge pages".to_owned(),
        _ if has("lo") => "in locked mappings".to_owned(),
        "/dev/zero (deleted)" => "in shared mappings".to_owned(),
        _ if in_memory.into_iter().any(|start| name.starts_with(start)) => {
            format!("in shared mappings ({})", name.trim_end_matches(" (deleted)"))
        }
        _ if name.starts_with('/') => return None,
        "[heap]" => "by brk".to_owned(),
        _ if name.starts_with("[stack") || has("gd") => "in stacks".to_owned(),
        _ if permissions.contains('x') => "for code".to_owned(),
        _ => "in small mappings, stacks and those made past the C library".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
Rss:                1024 kB
Pss:                1024 kB
VmFlags: rd wr mr mw me ac um uw 
7f1000000000-7f1010000000 rw-s 00000000 00:01 7                          /memfd:java_heap (deleted)
Pss:              200000 kB
Pss_Dirty:        200000 kB
VmFlags: rd wr sh mr mw me ms 
7f2000000000-7f2010000000 rw-p 00000000 00:00 0                          [heap]
Pss:                 300 kB
VmFlags: rd wr mr mw me ac 
7f3000000000-7f3010000000 r--p 00000000 08:01 99                         /usr/lib/libc.so.6
Pss:                 500 kB
VmFlags: rd mr mw me 
7f4000000000-7f4010000000 rw-p 00000000 00:00 0 
Pss:                9000 kB
VmFlags: rd wr mr mw me nr dd 
";

    #[test]
    fn managed_memory_files_and_the_pager_do_not_count() {
        let kinds = Kinds::read(SMAPS);
        assert_eq!(kinds.sum(), 200_300 << 10, "{kinds:?}");
        assert_eq!(
            kinds.text(),
            "195.3 MiB in shared mappings (/memfd:java_heap), 300.0 KiB by brk"
        );
    }
}
