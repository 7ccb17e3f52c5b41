//! The sandbox: the running daemon gives up the system calls and files that it does not need.
//!
//! A peer that takes over the daemon can then not start a program, open other files, or connect to
//! other hosts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use spillway_fanout::BackupFile;

use crate::config::Config;
use crate::keys::{self, parent};

/// The newest Landlock version used here; older kernels enforce what they support.
const LANDLOCK: ABI = ABI::V6;

/// Files that a borrower reads before it swaps.
const LENDING_READS: [&str; 3] = ["/proc/meminfo", "/proc/swaps", "/sys/devices/virtual/block"];

/// System calls that the daemon makes once it runs. Others fail with EPERM.
#[rustfmt::skip]
const CALLS: [i64; 105] = [
    libc::SYS_accept, libc::SYS_accept4, libc::SYS_arch_prctl, libc::SYS_bind, libc::SYS_brk,
    libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_clone,
    libc::SYS_clone3, libc::SYS_close, libc::SYS_close_range, libc::SYS_dup,
    libc::SYS_dup3, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_epoll_wait, libc::SYS_eventfd2, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_fadvise64, libc::SYS_fallocate, libc::SYS_fcntl,
    libc::SYS_fdatasync, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_futex,
    libc::SYS_futex_waitv, libc::SYS_getcpu, libc::SYS_getdents64,
    libc::SYS_getegid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getpeername,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getrandom, libc::SYS_getrlimit,
    libc::SYS_getsockname, libc::SYS_getsockopt, libc::SYS_gettid, libc::SYS_gettimeofday,
    libc::SYS_getuid, libc::SYS_ioctl, libc::SYS_listen, libc::SYS_lseek,
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
    libc::SYS_statx, libc::SYS_sysinfo, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_uname, libc::SYS_unlink, libc::SYS_unlinkat,
    libc::SYS_write, libc::SYS_writev,
];

/// The directory in which the kernel reports the memory available to the section pool.
const POOL_READS: [&str; 2] = ["/proc/meminfo", "/sys/kernel/mm/hugepages"];

/// Enters the sandbox. It also covers all threads that are started later. Goes on without the parts that an outer filter
/// or the kernel refuses, with a line in the log for each.
///
/// # Errors
/// The rules can't be made.
pub fn enter(config: &Config, file: Option<&Path>) -> anyhow::Result<()> {
    let go_on = |what: &str, outcome: anyhow::Result<()>| {
        if let Err(error) = outcome {
            tracing::warn!("can't restrict {what}: {error:#}; the daemon runs less confined");
        }
    };
    let filter = filter(config)?;
    // Landlock restricts the calling thread and its children: there are no others yet.
    go_on("files (process.sandbox)", restrict_files(config, file));
    let applied = seccompiler::apply_filter(&filter).map_err(anyhow::Error::from);
    go_on("system calls (process.sandbox)", applied);
    Ok(())
}

fn filter(config: &Config) -> anyhow::Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|&call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, sockets(config)?);
    if connects(config) {
        rules.insert(libc::SYS_connect, Vec::new());
    }
    // Only to itself, as abort(3) does.
    let me = u64::from(std::process::id());
    let to_itself = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, me)?;
    let to_itself = SeccompRule::new(vec![to_itself])?;
    rules.insert(libc::SYS_kill, vec![to_itself.clone()]);
    rules.insert(libc::SYS_tgkill, vec![to_itself]);
    // Threads that accept connections lower their own nice values.
    let of_thread = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
    let own = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_setpriority, vec![SeccompRule::new(vec![of_thread, own])?]);
    rules.insert(libc::SYS_getpriority, Vec::new());
    if config.lend.borrows() {
        // The local file of a borrowed device, which one process has to itself.
        rules.insert(libc::SYS_open, Vec::new());
        rules.insert(libc::SYS_flock, Vec::new());
        // Its page-out threads use the kernel's reserve.
        rules.insert(libc::SYS_sched_setscheduler, Vec::new());
    }
    if !config.disks.is_empty() {
        // The threads of their queues shorten their own time slices.
        let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
        let own = SeccompRule::new(vec![own])?;
        rules.insert(libc::SYS_sched_getattr, vec![own.clone()]);
        rules.insert(libc::SYS_sched_setattr, vec![own]);
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

/// Whether it connects to anything: to other hosts, or to monitors of guests.
fn connects(config: &Config) -> bool {
    config.lend.is_on() || !config.vms.is_empty()
}

/// The sockets that it makes. Those on which it listens are bound earlier.
fn sockets(config: &Config) -> anyhow::Result<Vec<SeccompRule>> {
    /// The bits of socket(2)'s second argument that are no flags.
    const KIND: u64 = 0xf;
    let equals = |argument, operator, value: i32| {
        let value = u64::from(value.unsigned_abs());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let family = |family| equals(0, SeccompCmpOp::Eq, family);
    let mut rules = Vec::new();
    if config.vms.is_empty() && !config.lend.borrows() {
        // Each message to the service manager uses a new socket.
        let datagrams = equals(1, SeccompCmpOp::MaskedEq(KIND), libc::SOCK_DGRAM)?;
        rules.push(SeccompRule::new(vec![family(libc::AF_UNIX)?, datagrams])?);
    } else {
        // Monitors of guests; the sockets of borrowed devices, which are made when there is something to borrow.
        rules.push(SeccompRule::new(vec![family(libc::AF_UNIX)?])?);
    }
    if config.lend.is_on() {
        for other_hosts in [libc::AF_INET, libc::AF_INET6] {
            rules.push(SeccompRule::new(vec![family(other_hosts)?])?);
        }
    }
    Ok(rules)
}

/// What it can't reach outside of the sandbox: other processes by signals, and Unix sockets with abstract names, unless
/// its service manager or a guest's monitor may have one.
fn scopes(config: &Config) -> BitFlags<Scope> {
    let manager = std::env::var_os("NOTIFY_SOCKET");
    let is_abstract = manager.is_some_and(|name| name.as_encoded_bytes().starts_with(b"@"));
    match is_abstract || !config.vms.is_empty() {
        true => Scope::Signal.into(),
        false => Scope::Signal | Scope::AbstractUnixSocket,
    }
}

fn restrict_files(config: &Config, file: Option<&Path>) -> anyhow::Result<()> {
    let files = AccessFs::from_all(LANDLOCK);
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let changes = AccessFs::from_all(LANDLOCK) & !AccessFs::Execute;
    let content = AccessFs::ReadFile | AccessFs::WriteFile;
    // Lenders' addresses come in their messages.
    let net = match config.lend.is_on() {
        true => AccessNet::BindTcp.into(),
        false => AccessNet::BindTcp | AccessNet::ConnectTcp,
    };
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)?
        .handle_access(net)?
        .scope(scopes(config))?
        .create()?
        .add_rules(path_beneath_rules(read_again(config, file), reads))?
        .add_rules(path_beneath_rules(changed(config), changes))?
        .add_rules(path_beneath_rules(devices(config), content))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        tracing::warn!(
            "no Landlock, because of this kernel or an outer filter: the daemon can open any file of its user"
        );
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

/// Directories of the files of guests' devices, which QEMU may create after the daemon has started.
fn devices(config: &Config) -> Vec<PathBuf> {
    let files = config.vms.iter().filter_map(|vm| vm.device(&config.listen));
    files.map(|path| parent(&path)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
    use std::process::Command;
    use std::thread;

    use rustix::io::Errno;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::config::{LendRoles, Vm, read};

    /// The outcomes of a connection to a Unix socket, of a datagram to one, and of a signal to another process, on a
    /// thread that `restrict` has restricted.
    fn tried(restrict: impl FnOnce() + Send) -> [Result<(), Option<i32>>; 3] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name| dir.path().join(name);
        let _listener = UnixListener::bind(at("stream")).unwrap();
        let _manager = UnixDatagram::bind(at("datagram")).unwrap();
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&other);
        let code = |error: std::io::Error| error.raw_os_error();
        let outcomes = thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                restrict();
                let told = UnixDatagram::unbound();
                [
                    UnixStream::connect(at("stream")).map(drop).map_err(code),
                    told.and_then(|it| it.send_to(b"a", at("datagram"))).map(drop).map_err(code),
                    kill_process(pid, Signal::CONT).map_err(|errno| Some(errno.raw_os_error())),
                ]
            });
            restricted.join().unwrap()
        });
        other.kill().unwrap();
        other.wait().unwrap();
        outcomes
    }

    #[test]
    fn the_daemon_reaches_no_other_process_unless_a_part_needs_it() {
        const REFUSED: Result<(), Option<i32>> = Err(Some(Errno::PERM.raw_os_error()));
        let config = |change: &dyn Fn(&mut Config)| {
            let mut config = read(None, &[]).unwrap();
            change(&mut config);
            config
        };
        let filtered = |config: Config| {
            tried(move || seccompiler::apply_filter(&filter(&config).unwrap()).unwrap())
        };
        let lends = config(&|config| config.lend.roles = LendRoles::Lend);
        let borrows = config(&|config| config.lend.roles = LendRoles::Borrow);
        let grows = config(&|config| config.vms.push(Vm::default()));
        assert_eq!(filtered(config(&|_| {})), [REFUSED, Ok(()), REFUSED]);
        assert_eq!(filtered(lends), [REFUSED, Ok(()), REFUSED]);
        assert_eq!(filtered(borrows), [Ok(()), Ok(()), REFUSED]);
        assert_eq!(filtered(grows), [Ok(()), Ok(()), REFUSED]);
    }

    #[test]
    fn landlock_keeps_signals_inside_where_the_kernel_can() {
        let config = read(None, &[]).unwrap();
        let [.., signal] = tried(|| restrict_files(&config, None).unwrap());
        if landlock_version() >= 6 {
            assert_eq!(signal, Err(Some(Errno::PERM.raw_os_error())));
        }
    }

    #[test]
    fn landlock_keeps_from_sockets_with_abstract_names_unless_a_guest_may_have_one() {
        if landlock_version() < 6 {
            println!("skipped: this kernel's Landlock has no scopes");
            return;
        }
        let name = format!("spillway-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let connected = |config: Config| {
            let connect = || {
                restrict_files(&config, None).unwrap();
                let connected = UnixStream::connect_addr(&address);
                connected.map(drop).map_err(|error| error.raw_os_error())
            };
            thread::scope(|scope| scope.spawn(connect).join().unwrap())
        };
        let mut config = read(None, &[]).unwrap();
        let refused = Err(Some(Errno::PERM.raw_os_error()));
        assert_eq!(connected(config.clone()), refused);
        config.lend.roles = LendRoles::Both;
        assert_eq!(connected(config.clone()), refused);
        config.vms.push(Vm::default());
        assert_eq!(connected(config), Ok(()));
    }

    fn landlock_version() -> i64 {
        const VERSION: u32 = 1;
        // SAFETY: with this flag and no ruleset, the call only returns the version.
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0_usize, 0_usize, VERSION) }
    }
}
