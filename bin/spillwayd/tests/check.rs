//! `spillwayd --check` refuses what a start refuses, and changes nothing.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Resource, Rlimit, setrlimit};

/// A user and group without rights.
const NOBODY: u32 = 65534;

fn command(dir: &Path, text: &str) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_spillwayd")), dir, text)
}

/// The same by a user without rights, who can't open the folder of a build in root's home: from a copy in `dir`.
fn by_nobody(dir: &Path, text: &str) -> Command {
    let copy = dir.join("spillwayd");
    if !copy.exists() {
        // Not by this process: a test that starts a program meanwhile would hold the copy open for writing, and a file
        // that is being written can't be started.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_spillwayd")).arg(&copy).status();
        assert!(copied.unwrap().success());
    }
    let mut command = command_of(&copy, dir, text);
    command.uid(NOBODY).gid(NOBODY);
    command
}

fn command_of(program: &Path, dir: &Path, text: &str) -> Command {
    let config = dir.join("spillwayd.toml");
    fs::write(&config, text).unwrap();
    let mut command = Command::new(program);
    command.arg("--check").arg("--config").arg(&config);
    command.args(["--set", &format!("listen.dir={}", dir.join("run").display())]);
    command
}

fn check(dir: &Path, text: &str) -> Output {
    command(dir, text).output().unwrap()
}

fn refused(dir: &Path, text: &str, words: &[&str]) {
    says_refused(&check(dir, text), text, words);
}

/// What a start says that fails.
fn start(dir: &Path, text: &str) -> Output {
    let mut checked = command(dir, text);
    let checked = checked.arg("--set=process.keeper=false").arg("--set=store.capacity=16M");
    let args: Vec<_> = checked.get_args().filter(|word| *word != "--check").collect();
    Command::new(env!("CARGO_BIN_EXE_spillwayd")).args(args).output().unwrap()
}

fn says_refused(checked: &Output, text: &str, words: &[&str]) {
    let line = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(2), "{text}: {line}");
    assert_eq!(line.lines().count(), 1, "{text}: {line}");
    assert!(words.iter().all(|word| line.contains(word)), "{text}: {line}");
}

#[test]
fn what_a_start_refuses_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let small = dir.join("small");
    fs::write(&small, [0; 8192]).unwrap();
    let client = |name: &str, uid: u32| format!("[[client]]\nname = \"{name}\"\nuid = {uid}\n");
    let twice = client("a", 1) + &client("b", 1);
    refused(dir, &twice, &["client 'a' is known by the same identity"]);
    let block = |client: &str, size: &str| {
        format!("[[block]]\nname = \"big\"\nclient = \"{client}\"\nsize = \"{size}\"\n")
    };
    refused(dir, &block("nobody", "1M"), &["no client 'nobody'"]);
    let store = "[store]\ncapacity = \"64M\"\n".to_owned() + &client("a", 1);
    refused(dir, &(store.clone() + &block("a", "64M")), &["block 'big'", "store.capacity"]);
    refused(dir, "[store]\ncapacity = 5\n", &["store.capacity", "at least"]);
    refused(dir, "[memory]\nprograms = \"1K\"\n", &["memory.programs"]);
    let disk = |backing: &Path, rest: &str| {
        let backing = backing.display();
        format!(
            "{}[[disk]]\nname = \"d\"\nclient = \"a\"\nbacking = \"{backing}\"\n{rest}",
            client("a", 1)
        )
    };
    refused(dir, &disk(&dir.join("made"), ""), &["disk 'd'", "give the disk a size"]);
    refused(dir, &disk(&dir.join("no/made"), "size = \"1M\"\n"), &["disk 'd'", "no/made"]);
    refused(dir, &disk(&small, "size = \"1M\"\n"), &["disk 'd'", "enlarge the file"]);
    refused(
        dir,
        &disk(Path::new("/dev/null"), "size = \"1M\"\n"),
        &["disk 'd'", "no regular file"],
    );

    let good = store + &block("a", "32M") + &disk(&dir.join("made"), "size = \"1M\"\n");
    let good = good.replacen(&client("a", 1), "", 1);
    let checked = check(dir, &good);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(!dir.join("made").exists() && !dir.join("run").exists());
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether this process may give files to others and run programs as they would.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can run a program as another user");
    }
    root
}

#[test]
fn a_directory_of_sockets_that_others_can_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    set_mode(dir, 0o755);
    let run = dir.join("run");
    fs::create_dir(&run).unwrap();
    set_mode(&run, 0o777);
    refused(dir, "", &["every user may write", "run"]);
    let disk = "[[client]]\nname = \"a\"\n[[disk]]\nname = \"d\"\nclient = \"a\"\n";
    let elsewhere = format!("socket = \"{}/elsewhere/d.sock\"\n", dir.display());
    fs::create_dir(dir.join("elsewhere")).unwrap();
    set_mode(&dir.join("elsewhere"), 0o1777);
    set_mode(&run, 0o755);
    let disk = format!("{disk}backing = \"{}/made\"\nsize = \"1M\"\n", dir.display());
    assert!(check(dir, &disk).status.success());
    refused(dir, &(disk + &elsewhere), &["every user may write", "elsewhere"]);
    if !is_root() {
        return;
    }
    chown(&run, Some(1000), None).unwrap();
    let other = "[process]\nuser = \"daemon\"\n";
    for checked in [check(dir, other), by_nobody(dir, other).output().unwrap()] {
        says_refused(&checked, other, &["belongs to user 1000", "user 1,"]);
    }
}

/// What a check says that passes.
fn passed(checked: &Output) -> String {
    let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{lines}");
    lines
}

#[test]
fn where_a_unit_may_start_the_daemon_as_another_user_there_is_a_warning() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    set_mode(dir, 0o755);
    let run = dir.join("run");
    fs::create_dir(&run).unwrap();
    let warned = |text: &str, words: &[&str]| {
        let lines = passed(&by_nobody(dir, text).output().unwrap());
        let start = "warning: a start by this user is refused: ";
        assert!(lines.starts_with(start) && lines.lines().count() == 1, "{lines}");
        assert!(words.iter().all(|words| lines.contains(words)), "{lines}");
    };
    // A unit with User=.
    chown(&run, Some(1000), None).unwrap();
    warned("", &["run belongs to user 1000", "user 65534"]);
    assert_eq!(passed(&check(dir, "")), "", "a unit that root starts");
    // A unit that root starts.
    chown(&run, Some(1), None).unwrap();
    let other = "[process]\nuser = \"daemon\"\n";
    warned(other, &["process.user is 1, but user 65534", "only root"]);
    assert_eq!(passed(&check(dir, other)), "");
    // A start tells the same, and is refused.
    let mut start = Command::new(dir.join("spillwayd"));
    start.args(["--set", &format!("listen.dir={}", run.display()), "--config"]);
    start.arg(dir.join("spillwayd.toml")).uid(NOBODY).gid(NOBODY);
    says_refused(&start.output().unwrap(), other, &["process.user is 1, but user 65534"]);
}

#[test]
fn a_path_at_which_no_socket_can_be_is_refused_and_its_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let run = dir.join("run");
    fs::create_dir(&run).unwrap();
    let keys = run.join("keys");
    fs::write(&keys, "bytes").unwrap();
    let api = |path: &str| format!("[listen]\napi = \"{path}\"\n");
    refused(dir, &api("keys"), &["run/keys", "it is no socket"]);
    says_refused(&start(dir, &api("keys")), "a start", &["run/keys", "it is no socket"]);
    assert_eq!(fs::read_to_string(&keys).unwrap(), "bytes");
    refused(dir, &api("keys/api.sock"), &["run/keys/api.sock", "Not a directory"]);
    refused(dir, &api(&"x".repeat(108)), &["xxx", "too long"]);
}

#[test]
fn a_start_that_fails_leaves_no_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let run = dir.join("run");
    fs::create_dir(&run).unwrap();
    let found = || {
        let names = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    // After the Unix sockets of the front ends come those of TCP, and then the disks are opened.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = format!("[listen]\nnbd_tcp = \"{}\"\n", taken.local_addr().unwrap());
    let disk = format!(
        "[[client]]\nname = \"a\"\n[[disk]]\nname = \"d\"\nclient = \"a\"\nsize = \"1M\"\n\
         backing = \"{}/no/made\"\n",
        dir.display()
    );
    for (text, words) in [(&tcp, "can't listen on 127.0.0.1"), (&disk, "no/made")] {
        let started = start(dir, text);
        let lines = String::from_utf8_lossy(&started.stderr).into_owned();
        assert!(!started.status.success() && lines.contains(words), "{lines}");
        assert!(found().is_empty(), "{text}: {:?}", found());
    }
    // The socket of another daemon stays.
    let other = UnixListener::bind(run.join("api.sock")).unwrap();
    says_refused(&start(dir, ""), "a start", &["api.sock", "is in use"]);
    assert_eq!(found(), ["api.sock"]);
    drop(other);
}

#[test]
fn two_listeners_at_one_place_are_refused_by_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    refused(dir, "[listen]\nresp = \"nbd.sock\"\n", &["listen.nbd and listen.resp", "nbd.sock"]);
    let disk = "[[client]]\nname = \"a\"\n[[disk]]\nname = \"d\"\nclient = \"a\"\nsize = \"1M\"\n";
    let disk = format!("{disk}backing = \"{}/made\"\nsocket = \"api.sock\"\n", dir.display());
    refused(dir, &disk, &["listen.api and disk 'd'", "api.sock"]);
    let on_tcp = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        format!("[listen]\nnbd_tcp = \"{address}\"\nresp_tcp = \"{address}\"\n")
    };
    refused(dir, &on_tcp(20_000), &["listen.nbd_tcp and listen.resp_tcp", "127.0.0.1:20000"]);
    assert!(check(dir, &on_tcp(0)).status.success(), "the kernel gives each another port");
}

#[test]
fn a_disk_s_files_are_looked_into() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    set_mode(dir, 0o755);
    let (backing, map) = (dir.join("made"), dir.join("made.map"));
    let text = format!(
        "[[client]]\nname = \"a\"\n[[disk]]\nname = \"d\"\nclient = \"a\"\nbacking = \"{}\"\n",
        backing.display()
    );
    fs::write(&backing, vec![0; 1 << 20]).unwrap();
    let header = |version: u64, blocks: u64| {
        let words = [version, blocks, 0, 0, 0].map(u64::to_le_bytes).concat();
        fs::write(&map, [&b"SPILLDSK"[..], &words, &[0; 8192]].concat()).unwrap();
    };
    header(1, 256);
    let before = fs::read(&map).unwrap();
    let checked = check(dir, &text);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert_eq!(fs::read(&map).unwrap(), before);
    header(2, 256);
    refused(dir, &text, &["disk 'd'", "made.map", "another version"]);
    header(1, 255);
    refused(dir, &text, &["disk 'd'", "made.map", "another size"]);
    if !is_root() {
        return;
    }
    header(1, 256);
    let as_nobody = || by_nobody(dir, &text).output().unwrap();
    set_mode(&backing, 0o666);
    set_mode(&map, 0o600);
    says_refused(&as_nobody(), &text, &["disk 'd'", "made.map", "Permission denied"]);
    set_mode(&map, 0o666);
    set_mode(&backing, 0o600);
    says_refused(&as_nobody(), &text, &["disk 'd'", "made: Permission denied"]);
    // Nor may it be a file that it can only read.
    set_mode(&backing, 0o644);
    says_refused(&as_nobody(), &text, &["disk 'd'", "made: Permission denied"]);
    fs::remove_file(&backing).unwrap();
    let text = text + "size = \"1M\"\n";
    let checked = by_nobody(dir, &text).output().unwrap();
    says_refused(&checked, &text, &["disk 'd'", "made: Permission denied"]);
}

#[test]
fn what_a_start_with_these_groups_and_limits_refuses_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = "[store]\ncapacity = \"64M\"\n[process]\nlock_memory = \"on\"\n[[client]]\nname = \"a\"\n\
         [[disk]]\nname = \"d\"\nclient = \"a\"\nbacking = \"/tmp/none\"\nsize = \"1M\"\ngid = 12345\n";
    if !is_root() {
        return;
    }
    set_mode(dir, 0o755);
    let checked = check(dir, text);
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
    let mut limited = by_nobody(dir, text);
    let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    // SAFETY: after the fork, it only makes one system call.
    unsafe { limited.pre_exec(move || Ok(setrlimit(Resource::Memlock, limit)?)) };
    let checked = limited.output().unwrap();
    let lines = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && lines.lines().count() == 2, "{lines}");
    let all = |words: &[&str]| {
        lines.lines().any(|line| {
            line.starts_with("warning: a start by this user is refused: ")
                && words.iter().all(|word| line.contains(word))
        })
    };
    assert!(all(&["disk 'd'", "d.vhost.sock to group 12345"]), "{lines}");
    assert!(all(&["can't lock memory", "1.0 MiB"]), "{lines}");
}

#[test]
fn the_section_pool_is_looked_into() {
    let pool = PathBuf::from(format!("/dev/shm/spillway-check-{}", std::process::id()));
    let dir = tempfile::tempdir().unwrap();
    let text = |capacity: &str| {
        format!(
            "[store]\ncapacity = \"64M\"\n[sections]\ndir = \"{}\"\ncapacity = \"{capacity}\"\n\
             [[vm]]\nname = \"v\"\nqmp = \"/nowhere\"\nboot = \"256M\"\nmost = \"256M\"\n",
            pool.display()
        )
    };
    let checked = check(dir.path(), &text("256M"));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(!pool.exists());
    refused(dir.path(), &text("15T"), &["sections: the mount of", "15728640 MiB"]);
    fs::create_dir(&pool).unwrap();
    fs::create_dir(pool.join("gone")).unwrap();
    for (mode, words) in [(0o777, Some("others than its owner")), (0o700, None)] {
        set_mode(&pool, mode);
        let checked = check(dir.path(), &text("256M"));
        let lines = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.success(), words.is_none(), "{lines}");
        assert!(words.is_none_or(|words| lines.contains(words)), "{lines}");
    }
    assert!(pool.join("gone").exists(), "a check removes nothing");
    fs::remove_dir_all(&pool).unwrap();
}

#[test]
fn an_address_that_other_hosts_reach_in_the_clear_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let token = dir.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&token, mode).unwrap();
    for (address, is_told) in [
        ("0.0.0.0:8430", true),
        ("[::]:8430", true),
        ("192.0.2.1:8430", true),
        ("127.0.0.1:8430", false),
        ("[::1]:8430", false),
    ] {
        let token = token.display();
        let text = format!("[listen]\napi_tcp = \"{address}\"\napi_token_file = \"{token}\"\n");
        let unguarded = check(dir, &text);
        let lines = String::from_utf8_lossy(&unguarded.stderr).into_owned();
        assert_eq!(unguarded.status.success(), !is_told, "{address}: {lines}");
        if is_told {
            assert_eq!(lines.lines().count(), 1, "{lines}");
            for words in [address, "in the clear", "listen.api_tls", "listen.api_tcp_guarded"] {
                assert!(lines.contains(words), "{lines}");
            }
        }
        let checked = check(dir, &format!("{text}api_tcp_guarded = true\n"));
        let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{address}: {lines}");
        let told = lines.starts_with(&format!("warning: listen.api_tcp {address} "));
        assert!(
            told == is_told && lines.lines().count() == usize::from(is_told),
            "{address}: {lines}"
        );
        assert!(!is_told || lines.contains("in the clear"), "{address}: {lines}");
    }
}

#[test]
fn a_block_that_the_store_has_no_room_for_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = |size: &str, store: &str| {
        format!(
            "[store]\ncapacity = \"64M\"\n{store}[[client]]\nname = \"a\"\nuid = 1\n\
             [[block]]\nname = \"thin\"\nclient = \"a\"\nsize = \"{size}\"\nreserve = false\n"
        )
    };
    let disk = format!("disk = \"{}\"\ndisk_capacity = \"64M\"\n", dir.display());
    let lent = "[sections]\ndir = \"/dev/shm/spillway-check-none\"\ncapacity = \"256M\"\nlend = \"64M\"\n\
                [[vm]]\nname = \"v\"\nqmp = \"/nowhere\"\nboot = \"256M\"\nmost = \"256M\"\n";
    let told = ["block 'thin' of 128.0 MiB", "64.0 MiB", "store.capacity"];
    for (size, store, words) in [
        ("64M", "", None),
        ("128M", "", Some(told)),
        ("128M", lent, None),
        ("128M", &disk, None),
        ("192M", &disk, Some(["block 'thin' of 192.0 MiB", "128.0 MiB", "store.disk_capacity"])),
    ] {
        let checked = check(dir, &text(size, store));
        let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
        if lines.contains("memory (tmpfs)") {
            println!("skipped: the temporary files of this host lie in memory");
            continue;
        }
        assert!(checked.status.success(), "{size} {store}: {lines}");
        assert_eq!(lines.lines().count(), usize::from(words.is_some()), "{size} {store}: {lines}");
        let has_all = words.is_none_or(|words| words.iter().all(|word| lines.contains(word)));
        assert!(has_all, "{size} {store}: {lines}");
    }
}

#[test]
fn a_floor_above_the_cap_is_refused_and_more_floors_than_room_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let client = |name: &str, uid: u32, rest: &str| {
        format!("[[client]]\nname = \"{name}\"\nuid = {uid}\n{rest}")
    };
    let bad = client("web", 1, "target = \"32M\"\nfloor = \"48M\"\n");
    refused(dir, &bad, &["client 'web'", "floor 48.0 MiB", "cap 32.0 MiB"]);
    let store = "[store]\ncapacity = \"64M\"\n";
    for (floors, told) in [(["32M", "32M"], false), (["32M", "33M"], true)] {
        let floor = |floor: &str| format!("target = \"{floor}\"\nfloor = \"{floor}\"\n");
        let [a, b] = floors.map(floor);
        let checked = check(dir, &(store.to_owned() + &client("a", 1, &a) + &client("b", 2, &b)));
        let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{lines}");
        assert_eq!(lines.lines().count(), usize::from(told), "{lines}");
        assert!(!told || lines.contains("65.0 MiB") && lines.contains("64.0 MiB"), "{lines}");
    }
}

#[test]
fn the_http_interface_inside_tls_needs_keys_and_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let token = dir.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let token = format!("api_token_file = \"{}\"\n", token.display());
    for (rest, words) in [
        ("", "listen.api_tls needs listen.api_token_file"),
        (&token, "listen.api_tls 0.0.0.0:8431 needs tls_certificate and tls_key"),
    ] {
        let checked = check(dir, &format!("[listen]\napi_tls = \"0.0.0.0:8431\"\n{rest}"));
        let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(!checked.status.success() && lines.lines().count() == 1, "{lines}");
        assert!(lines.contains(words), "{lines}");
    }
}

#[test]
fn files_of_lending_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let made = Command::new("sh")
        .arg("-ec")
        .arg(
            "for name in 'a.example' 'a:b'; do case $name in a:b) kind=URI; file=nameless;; *) kind=DNS; file=a;; esac
             openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=a \
                -addext subjectAltName=$kind:$name -keyout $file.key -out $file.pem; done",
        )
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let secret = dir.join("secret");
    fs::write(&secret, "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:\n").unwrap();
    fs::write(dir.join("nonsense"), "DHHC-1:00:\n").unwrap();
    let config = |name: &str, secret: &str| {
        let dir = dir.display();
        format!(
            "[store]\ncapacity = \"64M\"\n[listen]\nnvme_tls = \"127.0.0.1:0\"\n\
             tls_certificate = \"{dir}/{name}.pem\"\ntls_key = \"{dir}/{name}.key\"\ntls_clients = \"{dir}/a.pem\"\n\
             [lend]\nroles = \"lend\"\nlisten = \"127.0.0.1:0\"\nsecret_file = \"{dir}/{secret}\"\n\
             [[peer]]\nname = \"b.example\"\naddress = \"127.0.0.1:4422\"\n"
        )
    };
    for name in ["a.key", "nameless.key", "secret"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        fs::set_permissions(dir.join(name), mode).unwrap();
    }
    let checked = check(dir, &config("a", "secret"));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let nameless = ["listen.tls_certificate", "nameless.pem", "no DNS name"];
    refused(dir, &config("nameless", "secret"), &nameless);
    refused(dir, &config("missing", "secret"), &["listen.tls_*", "missing.pem"]);
    refused(dir, &config("a", "none"), &["can't read lend.secret_file", "none"]);
    refused(dir, &config("a", "nonsense"), &["lend.secret_file", "nonsense", "DHHC-1:00:"]);
}
