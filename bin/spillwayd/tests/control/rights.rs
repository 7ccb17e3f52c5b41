//! The rights that a daemon keeps while it runs, whoever starts it.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use spillway_client::{Ring, RingOptions};
use spillway_test_support::wait::until;

use crate::daemon::{Daemon, TOKEN, address, answer, refused, value};

/// As /proc shows an empty set.
const NO_CAPABILITIES: &str = "0000000000000000";
/// A user and group without rights.
const NOBODY: u32 = 65534;

#[test]
fn capabilities_are_dropped_and_files_that_are_out_of_reach_then_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    fs::write(file("password"), "secret").unwrap();
    fs::set_permissions(file("password"), Permissions::from_mode(0o400)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(file("password"), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let text = "[store]\ncapacity = \"64M\"\n[listen]\ndir = \"DIR/run\"\n\
                [[client]]\nname = \"b\"\npassword_file = \"DIR/password\"\n";
    let text = text.replace("DIR", &dir.path().display().to_string());
    fs::write(file("spillwayd.toml"), text).unwrap();
    let config = file("spillwayd.toml").display().to_string();
    let daemon = Daemon::start_with(dir.path(), &["--config".to_owned(), config]);
    let ready = daemon.line(&[" ready "]);

    let api = UnixStream::connect(file("run/api.sock")).unwrap();
    let version = answer(api, "GET /v1/version", "", "");
    let (_, rest) = version.split_once("\"pid\":").unwrap();
    let pid = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    // Memory stays locked beyond a limit that the daemon may not raise, as in some containers.
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let is_limited =
        !limits.lines().any(|it| it.starts_with("Max locked memory") && it.contains("unlimited"));
    let (kept, mask) = match is_root && is_limited && ready.contains("memory_locked=true") {
        true => ("cap_ipc_lock", "0000000000004000"),
        false => ("none", NO_CAPABILITIES),
    };
    let user = rustix::process::geteuid();
    assert!(ready.contains(&format!("user={user} capabilities=\"{kept}\"")), "{ready}");
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for (set, mask) in [
            ("CapPrm", mask),
            ("CapEff", mask),
            ("CapInh", NO_CAPABILITIES),
            ("CapAmb", NO_CAPABILITIES),
        ] {
            assert!(status.contains(&format!("{set}:\t{mask}\n")), "{set}: {status}");
        }
    }

    if is_root {
        daemon.line(&["WARN", "/password can't be read again"]);
        let lines = daemon.reload_process(pid.parse().unwrap());
        assert!(lines.contains("not reloaded") && lines.contains("/password"), "{lines}");
        chown(file("password"), Some(0), Some(0)).unwrap();
    } else {
        assert!(!daemon.lines().contains("can't be read again"), "{}", daemon.lines());
    }
    let lines = daemon.reload_process(pid.parse().unwrap());
    assert!(lines.contains("configuration reloaded"), "{lines}");
}

#[test]
fn a_daemon_that_root_starts_changes_to_the_user_of_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings =
        ["store.capacity=64M", "process.user=nobody", &format!("listen.dir={}", run.display())];
    let arguments: Vec<_> =
        settings.iter().flat_map(|setting| ["--set".into(), (*setting).to_owned()]).collect();
    if !rustix::process::geteuid().is_root() {
        let daemon = Daemon::start_with(dir.path(), &arguments);
        daemon.line(&["process.user is 65534", "only root can change to another user"]);
        return;
    }
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start_with(dir.path(), &arguments);
    daemon.line(&[" ready ", "user=65534 capabilities=\"none\"", "kept_by=\"keeper\""]);
    let api = run.join("api.sock");
    assert_eq!(fs::metadata(&api).unwrap().uid(), NOBODY);
    let version = answer(UnixStream::connect(api).unwrap(), "GET /v1/version", "", "");
    let (_, rest) = version.split_once("\"pid\":").unwrap();
    let pid = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let keeper = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap();
    for status in [&status, &fs::read_to_string(format!("/proc/{keeper}/status")).unwrap()] {
        for ids in ["Uid", "Gid"] {
            assert!(status.contains(&format!("{ids}:\t65534\t65534\t65534\t65534\n")), "{status}");
        }
        assert!(status.contains("Groups:\t \n"), "{status}");
    }
}

#[test]
fn a_limit_on_open_files_that_one_listener_could_use_up_is_told() {
    let start = |limit: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
        command.args(["--set", "store.capacity=64M", "--set"]);
        command.arg(format!("listen.dir={}", dir.path().join("run").display()));
        if let Some(limit) = limit {
            let limit = Rlimit { current: Some(limit / 2), maximum: Some(limit) };
            // SAFETY: after the fork, it only makes one system call.
            unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?)) };
        }
        let daemon = Daemon::start_by(&mut command, dir.path());
        daemon.line(&[" ready "]);
        (daemon.lines(), dir)
    };
    let (lines, _dir) = start(Some(4096));
    assert!(lines.contains("the limit on open files is 4096, and all connections"), "{lines}");
    const ENOUGH: u64 = 20_000;
    if getrlimit(Resource::Nofile).maximum.is_none_or(|limit| limit >= ENOUGH) {
        let (lines, _dir) = start(None);
        assert!(!lines.contains("the limit on open files"), "{lines}");
    }
}

#[test]
fn a_flood_at_a_low_limit_on_open_files_leaves_descriptors_for_other_listeners() {
    let own = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: own, maximum: own }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::write(dir.path().join("token"), TOKEN).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
    for setting in [
        format!("listen.dir={}", run.display()),
        format!("listen.api_token_file={}", dir.path().join("token").display()),
        "listen.api_tcp=127.0.0.1:0".into(),
        "listen.resp_tcp=127.0.0.1:0".into(),
        "store.capacity=64M".into(),
    ] {
        command.args(["--set", &setting]);
    }
    let limit = Rlimit { current: Some(1024), maximum: Some(1024) };
    // SAFETY: after the fork, it only makes one system call.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?)) };
    let daemon = Daemon::start_by(&mut command, dir.path());
    let ready = daemon.line(&[" ready "]);
    // Hosts that say nothing, of which each may keep as many connections as a host may.
    let from = |host: u8, setting| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
        let to: SocketAddr = address(&ready, setting).parse().unwrap();
        connect(&socket, &to).unwrap();
        socket
    };
    let hosts = (2..8).flat_map(|host| [host; 200]);
    let _flood: Vec<_> = hosts
        .map(|host| from(host, "resp_tcp"))
        .chain((2..8).flat_map(|host| [host; 30]).map(|host| from(host, "api_tcp")))
        .collect();
    until("the flood to be counted", || {
        let limited = |front_end| refused(dir.path(), front_end, "displaced") > 0.0;
        limited("resp") && limited("http")
    });
    assert!(Ring::connect_with(&run.join("spillway.sock"), RingOptions::default()).is_ok());
    assert!(value(dir.path(), "process_open_fds") < 1024.0);
    let lines = daemon.lines();
    assert!(!lines.contains("accept"), "{lines}");
}

/// What becomes of a daemon to which one system call is refused.
enum Outcome {
    /// It runs, with this warning in its log.
    Runs(&'static str),
    /// It ends, with this line.
    Ends(&'static str),
}

/// Starts a daemon whose filter answers EPERM to `refused`, calls by number with a value of their first argument if it
/// matters. Containers and service managers run a program so.
fn start_refused(dir: &Path, refused: &[(i64, Option<u64>)], settings: &[&str]) -> Daemon {
    let rules = refused.iter().map(|&(call, argument)| {
        let is = |value| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
        let rule = |value| SeccompRule::new(vec![is(value).unwrap()]).unwrap();
        (call, argument.map(rule).into_iter().collect())
    });
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter =
        SeccompFilter::new(rules.collect(), SeccompAction::Allow, refuse, TargetArch::x86_64);
    let filter: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
    command.args(["--set", "store.capacity=64M", "--set"]);
    command.arg(format!("listen.dir={}", dir.join("run").display()));
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    // SAFETY: after the fork, it only makes two system calls.
    unsafe {
        command.pre_exec(move || seccompiler::apply_filter(&filter).map_err(io::Error::other));
    }
    Daemon::start_by(&mut command, dir)
}

#[test]
fn an_outer_filter_that_refuses_what_confines_the_daemon_does_not_end_it() {
    let refused = [
        libc::SYS_seccomp,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_restrict_self,
        libc::SYS_mlockall,
    ];
    let dir = tempfile::tempdir().unwrap();
    let daemon = start_refused(dir.path(), &refused.map(|call| (call, None)), &[]);
    daemon.line(&[" ready ", "memory_locked=false"]);
    for line in ["can't restrict system calls", "no Landlock", "can't lock memory"] {
        daemon.line(&["WARN", line]);
    }
    let api = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    assert!(answer(api, "GET /v1/version", "", "").contains("200 OK"));
}

#[test]
fn an_outer_filter_that_refuses_one_call_is_told_in_one_line() {
    use Outcome::{Ends, Runs};
    let is_root = rustix::process::geteuid().is_root();
    let (files, calls) = ("can't restrict files (process.sandbox)", "can't restrict system calls");
    let dumps = "can't disable core dumps: Operation not permitted";
    let user = "can't change to user 65534 (process.user): Operation not permitted";
    let (rights, change) = (&[][..], &["process.user=nobody"][..]);
    let prctl = |option: i32| (libc::SYS_prctl, Some(u64::from(option.unsigned_abs())));
    let call = |call: i64| (call, None);
    for (refused, settings, needs_root, outcome) in [
        (call(libc::SYS_seccomp), rights, false, Runs(calls)),
        (call(libc::SYS_landlock_create_ruleset), rights, false, Runs("no Landlock")),
        (call(libc::SYS_landlock_add_rule), rights, false, Runs(files)),
        (call(libc::SYS_landlock_restrict_self), rights, false, Runs(files)),
        (prctl(libc::PR_SET_NO_NEW_PRIVS), rights, false, Runs(calls)),
        (call(libc::SYS_mlockall), rights, false, Runs("can't lock memory")),
        (prctl(libc::PR_SET_DUMPABLE), rights, false, Ends(dumps)),
        (call(libc::SYS_prctl), rights, false, Ends(dumps)),
        (call(libc::SYS_prlimit64), rights, false, Ends(dumps)),
        (call(libc::SYS_capget), rights, false, Ends("can't read this process's capabilities")),
        (call(libc::SYS_capset), rights, true, Ends("can't drop capabilities: Operation not")),
        (call(libc::SYS_setgroups), change, true, Ends(user)),
        (call(libc::SYS_setgid), change, true, Ends(user)),
        (call(libc::SYS_setuid), change, true, Ends(user)),
    ] {
        if needs_root && !is_root {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let mut daemon = start_refused(dir.path(), &[refused], settings);
        match outcome {
            Runs(warning) => {
                daemon.line(&[" ready "]);
                daemon.line(&["WARN", warning]);
                let api = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
                assert!(answer(api, "GET /v1/version", "", "").contains("200 OK"), "{refused:?}");
            }
            Ends(line) => {
                assert_eq!(daemon.wait(), Some(1), "{refused:?}: {}", daemon.lines());
                let lines = daemon.lines();
                let ends: Vec<_> =
                    lines.lines().filter(|line| line.starts_with("spillwayd: ")).collect();
                assert!(matches!(ends[..], [end] if end.contains(line)), "{refused:?}: {lines}");
            }
        }
    }
}
