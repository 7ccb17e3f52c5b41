//! What the kernel counted during the timed accesses: interrupts between processors, and context switches.

use std::path::Path;
use std::{fs, io, mem, process};

/// The interrupts that processors send each other: TLB flushes, calls of functions, wake-ups.
const INTERRUPTS: [&str; 3] = ["TLB:", "CAL:", "RES:"];

/// Sums since the machine, or the processes, started.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Interrupts of these three kinds, of the whole machine.
    pub interrupts: u64,
    /// Context switches of this process, its ended threads included, and of its siblings. Tasks that page it are
    /// siblings.
    pub switches: u64,
}

impl Counts {
    /// The sums now.
    pub fn now() -> io::Result<Self> {
        let interrupts = interrupts(&fs::read_to_string("/proc/interrupts")?);
        Ok(Self { interrupts, switches: own_switches()? + sibling_switches()? })
    }

    /// What came since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

fn interrupts(text: &str) -> u64 {
    let lines = text.lines().map(str::split_whitespace);
    lines
        .filter_map(|mut words| INTERRUPTS.contains(&words.next()?).then_some(words))
        .flat_map(|words| words.map_while(|word| word.parse::<u64>().ok()))
        .sum()
}

fn own_switches() -> io::Result<u64> {
    // SAFETY: zeros are a valid rusage.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: the call writes one rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((usage.ru_nvcsw + usage.ru_nivcsw) as u64)
}

fn sibling_switches() -> io::Result<u64> {
    let own = process::id();
    let mut sum = 0;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        if number.is_some_and(|number| number != own) && parent(&path) == Some(parent_of_own()) {
            let tasks = fs::read_dir(path.join("task")).into_iter().flatten().flatten();
            sum += tasks.map(|task| switches(&task.path())).sum::<u64>();
        }
    }
    Ok(sum)
}

fn parent_of_own() -> u64 {
    u64::from(std::os::unix::process::parent_id())
}

fn parent(process: &Path) -> Option<u64> {
    value(&fs::read_to_string(process.join("status")).ok()?, "PPid:")
}

/// Context switches of a task; none if it has ended.
fn switches(task: &Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]
        .map(|name| value(&status, name).unwrap_or(0))
        .iter()
        .sum()
}

fn value(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_summed_over_processors() {
        let text = "           CPU0       CPU1\n  0:          9          9   timer\n\
                    RES:         10         20   Rescheduling interrupts\n\
                    CAL:          1          2   Function call interrupts\n\
                    TLB:        300        400   TLB shootdowns\nLOC: 7 7 Local timer\n";
        assert_eq!(interrupts(text), 733);
    }

    #[test]
    fn a_process_that_waits_has_switched() {
        let before = Counts::now().expect("/proc");
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(Counts::now().expect("/proc").since(before).switches > 0);
    }
}
