//! The sandbox: the running daemon gives up the system calls and files that it does not need.
//!
//! A peer that takes over the daemon can then not start a program, open other files, or connect to
//! other hosts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use spillway_fanout::BackupFile;

use crate::config::Config;
use crate::keys::{self, parent};

/// The newest Landlock version used here; older kernels enforce what they support.
const LANDLOCK: ABI = ABI::V5;

/// Files that a borrower reads before it swaps.
const LENDING_READS: [&str; 3] = ["/proc/meminfo", "/proc/swaps", "/sys/devices/virtual/block"];

/// System calls that the daemon makes once it runs. Others fail with EPERM.
#[rustfmt::skip]
const CALLS: [i64; 108] = [
    libc::SYS_accept, libc::SYS_accept4, libc::SYS_arch_prctl, libc::SYS_bind, libc::SYS_brk,
    libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_clone,
    libc::SYS_clone3, libc::SYS_close, libc::SYS_close_range, libc::SYS_connect, libc::SYS_dup,
    libc::SYS_dup3, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_epoll_wait, libc::SYS_eventfd2, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_fadvise64, libc::SYS_fallocate, libc::SYS_fcntl,
    libc::SYS_fdatasync, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_futex,
    libc::SYS_futex_waitv, libc::SYS_getcpu, libc::SYS_getdents64,
    libc::SYS_getegid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getpeername,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getrandom, libc::SYS_getrlimit,
    libc::SYS_getsockname, libc::SYS_getsockopt, libc::SYS_gettid, libc::SYS_gettimeofday,
    libc::SYS_getuid, libc::SYS_ioctl, libc::SYS_kill, libc::SYS_listen, libc::SYS_lseek,
    libc::SYS_madvise, libc::SYS_memfd_create, libc::SYS_membarrier, libc::SYS_mlock,
    libc::SYS_mlock2, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_munlock,
    libc::SYS_munmap, libc::SYS_nanosleep, libc::SYS_newfstatat, libc::SYS_openat,
    libc::SYS_pipe2, libc::SYS_poll, libc::SYS_ppoll, libc::SYS_prctl, libc::SYS_pread64,
    libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_prlimit64, libc::SYS_pwrite64,
    libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_read, libc::SYS_readlink, libc::SYS_readv,
    libc::SYS_recvfrom, libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_restart_syscall,
    libc::SYS_rseq, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_yield,
    libc::SYS_sendmmsg, libc::SYS_sendmsg, libc::SYS_sendto, libc::SYS_set_robust_list,
    libc::SYS_setsockopt, libc::SYS_shutdown, libc::SYS_sigaltstack, libc::SYS_socketpair,
    libc::SYS_statx, libc::SYS_sysinfo, libc::SYS_tgkill, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_uname, libc::SYS_unlink, libc::SYS_unlinkat,
    libc::SYS_write, libc::SYS_writev,
];

/// The directory in which the kernel reports the memory available to the section pool.
const POOL_READS: [&str; 2] = ["/proc/meminfo", "/sys/kernel/mm/hugepages"];

/// Enters the sandbox. It also covers all threads that are started later.
///
/// # Errors
/// The kernel refused a filter.
pub fn enter(config: &Config, file: Option<&Path>) -> anyhow::Result<()> {
    // Landlock restricts the calling thread and its children: there are no others yet.
    restrict_files(config, file).context("can't restrict files (process.sandbox)")?;
    seccompiler::apply_filter(&filter(config)?)
        .context("can't restrict system calls (process.sandbox)")
}

fn filter(config: &Config) -> anyhow::Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|&call| (call, Vec::new())).collect();
    // Sockets are bound earlier. Each message to the service manager uses a new Unix socket. Lending connects to
    // other hosts.
    let mut families = vec![libc::AF_UNIX];
    if config.lend.is_on() {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    let mut sockets = Vec::new();
    for family in families {
        let family = u64::from(family.unsigned_abs());
        let is_it = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family)?;
        sockets.push(SeccompRule::new(vec![is_it])?);
    }
    rules.insert(libc::SYS_socket, sockets);
    if config.lend.borrows() {
        // The local file of a borrowed device, which one process has to itself.
        rules.insert(libc::SYS_open, Vec::new());
        rules.insert(libc::SYS_flock, Vec::new());
        // Its page-out threads use the kernel's reserve.
        rules.insert(libc::SYS_sched_setscheduler, Vec::new());
    }
    if !config.vms.is_empty() {
        // The guests' memory files are created and removed.
        for call in [libc::SYS_mkdirat, libc::SYS_fchown, libc::SYS_fchmod, libc::SYS_flock] {
            rules.insert(call, Vec::new());
        }
    }
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(BpfProgram::try_from(filter)?)
}

fn restrict_files(config: &Config, file: Option<&Path>) -> anyhow::Result<()> {
    let files = AccessFs::from_all(LANDLOCK);
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let changes = AccessFs::from_all(LANDLOCK) & !AccessFs::Execute;
    // Lenders' addresses come in their messages.
    let net = match config.lend.is_on() {
        true => AccessNet::BindTcp.into(),
        false => AccessNet::BindTcp | AccessNet::ConnectTcp,
    };
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)?
        .handle_access(net)?
        .create()?
        .add_rules(path_beneath_rules(read_again(config, file), reads))?
        .add_rules(path_beneath_rules(changed(config), changes))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        tracing::warn!("this kernel has no Landlock: the daemon can open any file of its user");
    }
    Ok(())
}

/// Directories of the files that a reload reads, because editors replace files; and of the files that a borrower
/// reads.
fn read_again(config: &Config, file: Option<&Path>) -> Vec<PathBuf> {
    let mut dirs = keys::folders(config);
    dirs.extend(file.map(parent));
    if config.lend.borrows() {
        dirs.extend(LENDING_READS.map(PathBuf::from));
    }
    if !config.vms.is_empty() {
        dirs.extend(POOL_READS.map(PathBuf::from));
    }
    dirs
}

/// Directories in which the daemon creates or removes files.
fn changed(config: &Config) -> Vec<PathBuf> {
    let listen = &config.listen;
    let sockets = [&listen.ring, &listen.programs, &listen.nbd, &listen.resp, &listen.api];
    let sockets = sockets.into_iter().flatten().map(|path| config.listen.path(path));
    let sockets = sockets.filter_map(|path| path.parent().map(Path::to_owned));
    let disks = config.disks.iter().map(|disk| disk.socket(&config.listen));
    let disks = disks.filter_map(|path| path.parent().map(Path::to_owned));
    // The file of store.disk has no name, and is open already.
    let mut dirs: Vec<_> = sockets.chain(disks).collect();
    if config.lend.borrows() {
        dirs.extend(config.lend.backup_file.as_deref().map(|path| {
            match BackupFile::is_disk(path) {
                true => path.to_owned(),
                false => parent(path),
            }
        }));
        dirs.extend(config.listen.dir.clone());
    }
    if !config.vms.is_empty() {
        dirs.extend(config.sections.dir.clone());
    }
    dirs
}
