//! Changes to the machine that are undone: settings of the kernel, swap, and a control group with a memory limit.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io, process, thread, time};

use anyhow::{Context, ensure};

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const GROUPS: &str = "/sys/fs/cgroup/memory";
/// `SWAP_FLAG_PREFER` and a priority above any other swap's.
const SWAP_FLAGS: libc::c_int = 0x8000 | 100;

/// A control group, and the changes to the machine. Dropping it restores the machine.
#[derive(Default)]
pub struct Machine {
    group: PathBuf,
    undo: Vec<Undo>,
}

type Undo = Box<dyn FnOnce() -> io::Result<()>>;

/// How a program swaps.
#[derive(Clone, Copy)]
pub struct SwapSettings {
    /// Memory of the control group, bytes.
    pub limit_bytes: u64,
    /// The kernel reads 2^page_cluster pages per swap-in.
    pub page_cluster: u32,
}

/// Why no program can be limited here, if that is so.
pub fn unavailable() -> Option<String> {
    // SAFETY: the call has no arguments and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".into());
    }
    let has_groups = Path::new(GROUPS).join("memory.limit_in_bytes").exists();
    (!has_groups).then(|| format!("no version 1 memory control groups at {GROUPS}"))
}

/// Writes to a file of the kernel.
pub fn write(path: impl AsRef<Path>, text: &str) -> anyhow::Result<()> {
    let path = path.as_ref();
    fs::write(path, text).with_context(|| format!("writing {text} to {}", path.display()))
}

impl Machine {
    /// Writes a setting. `from` is its value before.
    pub fn change(
        &mut self,
        path: impl Into<PathBuf>,
        to: &str,
        from: String,
    ) -> anyhow::Result<()> {
        let path = path.into();
        write(&path, to)?;
        self.undo(move || fs::write(path, from));
        Ok(())
    }

    /// Does this when it is dropped, before what was given earlier.
    pub fn undo(&mut self, undo: impl FnOnce() -> io::Result<()> + 'static) {
        self.undo.push(Box::new(undo));
    }

    /// Swaps to a device or file, and makes the control group.
    pub fn swap_on(&mut self, place: &Path, settings: SwapSettings) -> anyhow::Result<()> {
        let made = Command::new("mkswap").arg(place).output().context("mkswap")?;
        ensure!(made.status.success(), "mkswap: {}", String::from_utf8_lossy(&made.stderr));
        // SAFETY: the path ends in a zero byte and outlives the call.
        swap(place, |path| unsafe { libc::swapon(path, SWAP_FLAGS) })
            .with_context(|| format!("swapping to {}", place.display()))?;
        let swapped = place.to_owned();
        // SAFETY: as above.
        self.undo(move || swap(&swapped, |path| unsafe { libc::swapoff(path) }));

        let before = fs::read_to_string(PAGE_CLUSTER)?.trim().to_owned();
        self.change(PAGE_CLUSTER, &settings.page_cluster.to_string(), before)?;

        let group = Path::new(GROUPS).join(format!("spillway-bench-{}", process::id()));
        fs::create_dir(&group)?;
        self.group = group.clone();
        self.undo(move || remove_group(&group));
        write(self.group.join("memory.swappiness"), "100")?;
        write(self.group.join("memory.limit_in_bytes"), &settings.limit_bytes.to_string())
    }

    /// A command that joins the control group and then becomes `program`.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
        command.arg(self.group.join("cgroup.procs")).arg(program);
        command
    }

    /// Pages that the group's processes have waited for.
    pub fn misses(&self) -> anyhow::Result<u64> {
        let path = self.group.join("memory.stat");
        let text = fs::read_to_string(&path)?;
        let count = text.lines().find_map(|line| line.strip_prefix("total_pgmajfault "));
        Ok(count.context("memory.stat has no total_pgmajfault")?.trim().parse()?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for undo in self.undo.drain(..).rev() {
            if let Err(error) = undo() {
                eprintln!("putting the machine back as it was: {error}");
            }
        }
    }
}

fn swap(place: &Path, call: impl FnOnce(*const libc::c_char) -> libc::c_int) -> io::Result<()> {
    let path = CString::new(place.as_os_str().as_bytes())?;
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
