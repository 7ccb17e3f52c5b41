//! The kernel's method: a memory limit on a control group, and swap on compressed memory.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io, process, thread, time};

use anyhow::{Context, ensure};

const DEVICE: &str = "/dev/zram0";
const SYSFS: &str = "/sys/block/zram0";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const GROUPS: &str = "/sys/fs/cgroup/memory";
/// `SWAP_FLAG_PREFER` and a priority above any other swap's.
const SWAP_FLAGS: libc::c_int = 0x8000 | 100;

/// A control group with swap on zram. Dropping it restores the machine.
pub struct Zram {
    group: PathBuf,
    undo: Vec<Undo>,
}

type Undo = Box<dyn FnOnce() -> io::Result<()>>;

impl Zram {
    /// Why this side can't run here, if it can't.
    pub fn unavailable() -> Option<String> {
        // SAFETY: the call has no arguments and can't fail.
        if unsafe { libc::geteuid() } != 0 {
            return Some("not root".into());
        }
        if !Path::new(GROUPS).join("memory.limit_in_bytes").exists() {
            return Some(format!("no version 1 memory control groups at {GROUPS}"));
        }
        match fs::read_to_string(format!("{SYSFS}/disksize")) {
            Err(_) => Some("no /dev/zram0 (modprobe zram)".into()),
            Ok(size) if size.trim() != "0" => Some("/dev/zram0 is in use".into()),
            Ok(_) => None,
        }
    }

    /// Sets both up: `limit_bytes` of memory, swap with LZ4, and `page_cluster` (the kernel reads 2^page_cluster pages
    /// per swap-in).
    pub fn set_up(limit_bytes: u64, page_cluster: u32) -> anyhow::Result<Self> {
        let group = Path::new(GROUPS).join(format!("spillway-bench-{}", process::id()));
        let mut zram = Self { group: group.clone(), undo: Vec::new() };

        let algorithms = fs::read_to_string(format!("{SYSFS}/comp_algorithm"))?;
        let before = algorithms.split(['[', ']']).nth(1).context("no algorithm chosen")?.to_owned();
        zram.change(format!("{SYSFS}/comp_algorithm"), "lz4", before)?;
        zram.write(format!("{SYSFS}/disksize"), "1G")?;
        zram.undo(|| fs::write(format!("{SYSFS}/reset"), "1"));

        let made = Command::new("mkswap").arg(DEVICE).output().context("mkswap")?;
        ensure!(made.status.success(), "mkswap: {}", String::from_utf8_lossy(&made.stderr));
        // SAFETY: the path ends in a zero byte and outlives the call.
        swap(|path| unsafe { libc::swapon(path, SWAP_FLAGS) })?;
        // SAFETY: as above.
        zram.undo(|| swap(|path| unsafe { libc::swapoff(path) }));

        let before = fs::read_to_string(PAGE_CLUSTER)?;
        zram.change(PAGE_CLUSTER, &page_cluster.to_string(), before.trim().to_owned())?;

        fs::create_dir(&group)?;
        let made = group.clone();
        zram.undo(move || remove_group(&made));
        zram.write(group.join("memory.swappiness"), "100")?;
        zram.write(group.join("memory.limit_in_bytes"), &limit_bytes.to_string())?;
        Ok(zram)
    }

    /// A command that joins the control group and then becomes `program`.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
        command.arg(self.group.join("cgroup.procs")).arg(program);
        command
    }

    /// zram's peak memory since it was set up, bytes.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("{SYSFS}/mm_stat");
        let text = fs::read_to_string(&path)?;
        let peak = text.split_whitespace().nth(4).context("mm_stat has no fifth figure")?;
        Ok(peak.parse()?)
    }

    /// Pages that the group's processes waited for since it was set up.
    pub fn misses(&self) -> anyhow::Result<u64> {
        let path = self.group.join("memory.stat");
        let text = fs::read_to_string(&path)?;
        let count = text.lines().find_map(|line| line.strip_prefix("total_pgmajfault "));
        Ok(count.context("memory.stat has no total_pgmajfault")?.trim().parse()?)
    }

    fn write(&mut self, path: impl AsRef<Path>, text: &str) -> anyhow::Result<()> {
        let path = path.as_ref();
        fs::write(path, text).with_context(|| format!("writing {text} to {}", path.display()))
    }

    fn change(&mut self, path: impl Into<PathBuf>, to: &str, from: String) -> anyhow::Result<()> {
        let path = path.into();
        self.write(&path, to)?;
        self.undo(move || fs::write(path, from));
        Ok(())
    }

    fn undo(&mut self, undo: impl FnOnce() -> io::Result<()> + 'static) {
        self.undo.push(Box::new(undo));
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        for undo in self.undo.drain(..).rev() {
            if let Err(error) = undo() {
                eprintln!("zram: putting the machine back as it was: {error}");
            }
        }
    }
}

fn swap(call: impl FnOnce(*const libc::c_char) -> libc::c_int) -> io::Result<()> {
    let path = CString::new(Path::new(DEVICE).as_os_str().as_bytes())?;
    if call(path.as_ptr()) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes a group. It is busy until the kernel has reaped its last process.
fn remove_group(group: &Path) -> io::Result<()> {
    for _ in 0..50 {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(time::Duration::from_millis(20));
            }
            done => return done,
        }
    }
    fs::remove_dir(group)
}
