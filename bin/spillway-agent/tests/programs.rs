//! Programs send requests to a running agent. The test is its host, at the other end of a pseudo terminal.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use spillway_guest::{Answer, Call, Error, Reply, ask, give, need};
use spillway_guests::agent::{FromGuest, FromHost, Profile, VERSION};
use spillway_test_support::wait::until;

const MIB: u64 = 1 << 20;
/// Far longer than any step here takes, even on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Opens a pseudo terminal that the link points to: the host's end, which closes when the host goes away, and the
/// guest's end.
fn open_port(link: &Path) -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let host: OwnedFd = openpt(flags).unwrap();
    unlockpt(&host).unwrap();
    let name = ptsname(&host, Vec::new()).unwrap().into_string().unwrap();
    let port = File::options().read(true).write(true).open(&name).unwrap();
    let mut raw = tcgetattr(&port).unwrap();
    raw.make_raw();
    tcsetattr(&port, OptionalActions::Now, &raw).unwrap();
    let _ = fs::remove_file(link);
    symlink(name, link).unwrap();
    (File::from(host), port)
}

/// An agent in a guest of 1 GiB, with fake kernel files.
struct Guest {
    agent: Child,
    socket: PathBuf,
    host: File,
    heard: BufReader<File>,
    /// Without it, the agent's port would sometimes be closed.
    _port: File,
    folder: tempfile::TempDir,
}

impl Guest {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nCached: 9 kB\n"),
            ("proc/zoneinfo", "Node 0, zone Normal\n  pages free 90000\n  managed 250000\n"),
            ("proc/vmstat", "oom_kill 0\n"),
            ("proc/iomem", ""),
            ("proc/self/oom_score_adj", "0"),
            ("sys/devices/system/memory/block_size_bytes", "8000000"),
            ("sys/devices/system/memory/auto_online_blocks", "online"),
        ] {
            let path = folder.path().join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let socket = folder.path().join("run/socket");
        let (host, port) = open_port(&folder.path().join("port"));
        let agent = Command::new(env!("CARGO_BIN_EXE_spillway-agent"))
            .args(["run", "--cgroup", "none", "--port"])
            .arg(folder.path().join("port"))
            .arg("--socket")
            .arg(&socket)
            .arg("--root")
            .arg(folder.path().join("root"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let heard = BufReader::new(host.try_clone().unwrap());
        let guest = Self { agent, socket, host, heard, _port: port, folder };
        until("the agent to listen", || guest.socket.exists());
        guest
    }

    /// Adds a block of a virtio-mem device in this state.
    fn plug(&self, state: &str) {
        let root = self.folder.path().join("root");
        let block = root.join("sys/devices/system/memory/memory32");
        fs::create_dir_all(&block).unwrap();
        fs::write(block.join("state.new"), state).unwrap();
        fs::rename(block.join("state.new"), block.join("state")).unwrap();
        let line = "100000000-107ffffff : System RAM (virtio_mem)\n";
        fs::write(root.join("proc/iomem"), line).unwrap();
    }

    /// Adds this many blocks of a virtio-mem device, online and movable. Returns their state files.
    fn plug_movable(&self, blocks: u64) -> Vec<PathBuf> {
        let root = self.folder.path().join("root");
        let end = 0x1_0000_0000 + blocks * 128 * MIB - 1;
        let line = format!("100000000-{end:x} : System RAM (virtio_mem)\n");
        fs::write(root.join("proc/iomem"), line).unwrap();
        let block = |number: u64| {
            let block = root.join(format!("sys/devices/system/memory/memory{}", 32 + number));
            fs::create_dir_all(&block).unwrap();
            fs::write(block.join("valid_zones"), "Movable\n").unwrap();
            fs::write(block.join("state"), "online\n").unwrap();
            block.join("state")
        };
        (0..blocks).map(block).collect()
    }

    fn say(&mut self, message: &FromHost) {
        self.host.write_all(&message.encode()).unwrap();
    }

    fn say_hello(&mut self) {
        self.say(&FromHost::Hello {
            version: VERSION,
            interval_ms: 60_000,
            reserve_bytes: 64 * MIB,
            most_bytes: 8192 * MIB,
            profile: Profile::ReturnsAll,
        });
    }

    /// The host goes away, and another one connects.
    fn change_host(&mut self) {
        let (host, port) = open_port(&self.folder.path().join("port"));
        self.heard = BufReader::new(host.try_clone().unwrap());
        (self.host, self._port) = (host, port);
    }

    fn greet(&mut self) {
        self.say_hello();
        while !matches!(self.hear(), Some(FromGuest::Hello { .. })) {}
        // The limit of programs' requests is known after a sample.
        let start = Instant::now();
        while !matches!(self.status(), Reply::Status { host: true, reserve_bytes, .. } if reserve_bytes > 0)
        {
            assert!(start.elapsed() < LONG, "the agent does not take the hello");
        }
    }

    fn status(&self) -> Reply {
        ask(&self.socket, &Call::Status, LONG).unwrap()
    }

    fn hear(&mut self) -> Option<FromGuest> {
        let mut line = Vec::new();
        self.heard.read_until(b'\n', &mut line).unwrap();
        FromGuest::decode(line.strip_suffix(b"\n").unwrap()).ok()
    }

    /// The agent's next request to the host: id, bytes, whether it is a need.
    fn asked(&mut self) -> (u64, u64, bool) {
        loop {
            match self.hear() {
                // The host has time to ask others, and there is time left to change the size.
                Some(FromGuest::Need { id, bytes, urgent: false, wait_ms: 15_000 }) => {
                    return (id, bytes, true);
                }
                Some(FromGuest::Give { id, bytes }) => return (id, bytes, false),
                _ => {}
            }
        }
    }

    /// The id of the next request for the guest itself.
    fn next_need(&mut self) -> u64 {
        loop {
            if let Some(FromGuest::Need { id, .. }) = self.hear() {
                return id;
            }
        }
    }

    fn answer(&mut self, id: u64, granted_bytes: u64, why: Option<&str>) {
        self.say(&FromHost::Answer { id, granted_bytes, why: why.map(Into::into) });
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

#[test]
fn a_program_hears_what_the_host_grants_refuses_and_takes() {
    let mut guest = Guest::start();
    let answer = need(&guest.socket, MIB, LONG).unwrap();
    assert_eq!((answer.granted_bytes, answer.why.as_deref()), (0, Some("the host is not there")));
    guest.greet();

    let socket = guest.socket.clone();
    let program = thread::spawn(move || {
        let granted = need(&socket, 512 * MIB, LONG).unwrap();
        let refused = need(&socket, 256 * MIB, LONG).unwrap();
        (granted, refused, give(&socket, 300 * MIB, LONG).unwrap())
    });
    let (id, bytes, is_need) = guest.asked();
    assert_eq!((bytes, is_need), (512 * MIB, true));
    guest.answer(id, 512 * MIB, None);
    let (id, ..) = guest.asked();
    guest.answer(id, 0, Some("the pool is dry"));
    let (id, bytes, is_need) = guest.asked();
    assert_eq!((bytes, is_need), (300 * MIB, false));
    guest.answer(id, 256 * MIB, None);
    let (granted, refused, taken) = program.join().unwrap();
    assert_eq!(granted, Answer { granted_bytes: 512 * MIB, why: None });
    assert_eq!(refused, Answer { granted_bytes: 0, why: Some("the pool is dry".into()) });
    assert_eq!(taken.granted_bytes, 256 * MIB);
}

#[test]
fn the_host_hears_how_the_guest_is_and_when_new_memory_is_online() {
    let mut guest = Guest::start();
    guest.greet();
    while !matches!(guest.hear(), Some(FromGuest::Status(_))) {}
    // The next regular status would come in a minute.
    guest.say(&FromHost::Report { id: 7 });
    let said = [guest.hear(), guest.hear()];
    assert!(matches!(said[0], Some(FromGuest::Status(_))), "{said:?}");
    assert_eq!(said[1], Some(FromGuest::Reported { id: 7 }));
    guest.say(&FromHost::Arrive { id: 8, bytes: 128 * MIB, timeout_ms: 60_000 });
    thread::sleep(Duration::from_millis(50));
    guest.plug("online");
    assert_eq!(guest.hear(), Some(FromGuest::Arrived { id: 8, bytes: 128 * MIB }));
    // The agent does not wait for memory that stays offline.
    guest.plug("offline");
    guest.say(&FromHost::Arrive { id: 9, bytes: 128 * MIB, timeout_ms: 100 });
    assert_eq!(guest.hear(), Some(FromGuest::Arrived { id: 9, bytes: 0 }));
}

#[test]
fn what_is_set_offline_leaves_the_guest_its_reserve() {
    let mut guest = Guest::start();
    let states = guest.plug_movable(5);
    guest.greet();
    // 512 MiB are available, and the reserve is 64: three blocks of 128 may go offline.
    guest.say(&FromHost::Offline { id: 5, bytes: 640 * MIB, timeout_ms: 2000 });
    let offlined = loop {
        if let Some(FromGuest::Offlined { id, bytes }) = guest.hear() {
            break (id, bytes / MIB);
        }
    };
    assert_eq!(offlined, (5, 384));
    let is_offline = |state: &&PathBuf| fs::read_to_string(state).unwrap().trim() == "offline";
    assert_eq!(states.iter().filter(is_offline).count(), 3);
}

#[test]
fn a_program_is_told_when_the_host_it_waits_for_goes() {
    let mut guest = Guest::start();
    guest.greet();
    let socket = guest.socket.clone();
    let program = thread::spawn(move || need(&socket, 128 * MIB, LONG).unwrap());
    guest.asked();
    guest.change_host();
    let answer = program.join().unwrap();
    assert_eq!((answer.granted_bytes, answer.why.as_deref()), (0, Some("the host is gone")));
}

/// After five refusals the agent would wait 8 s before the next request.
#[test]
fn a_host_that_is_new_is_asked_at_once_whatever_the_one_before_said() {
    let mut guest = Guest::start();
    guest.greet();
    // The agent holds the file open.
    let path = guest.folder.path().join("root/proc/meminfo");
    let short = b"MemTotal: 1048576 kB\nMemAvailable:  32768 kB\nCached: 9 kB\n";
    File::options().write(true).open(path).unwrap().write_all(short).unwrap();
    for _ in 0..5 {
        let id = guest.next_need();
        guest.answer(id, 0, Some("the pool is dry"));
    }
    guest.change_host();
    let start = Instant::now();
    guest.say_hello();
    guest.next_need();
    assert!(start.elapsed() < Duration::from_secs(5), "after {:?}", start.elapsed());
}

#[test]
fn a_slow_host_and_an_agent_that_is_killed_keep_nobody() {
    let mut guest = Guest::start();
    guest.greet();
    let start = Instant::now();
    let late = need(&guest.socket, 128 * MIB, Duration::from_millis(200));
    assert!(matches!(late, Err(Error::Timeout)) && start.elapsed() < LONG, "{late:?}");
    // The program of that answer has ended; the next program gets its own answer.
    let (id, ..) = guest.asked();
    let socket = guest.socket.clone();
    let program = thread::spawn(move || (need(&socket, 256 * MIB, LONG), need(&socket, MIB, LONG)));
    guest.answer(id, 128 * MIB, None);
    let (id, bytes, _) = guest.asked();
    assert_eq!(bytes, 256 * MIB);
    guest.answer(id, bytes, None);
    guest.asked();
    guest.agent.kill().unwrap();
    guest.agent.wait().unwrap();
    let (second, third) = program.join().unwrap();
    assert_eq!(second.unwrap().granted_bytes, 256 * MIB);
    assert!(matches!(third, Err(Error::Lost)), "{third:?}");
    assert!(matches!(need(&guest.socket, MIB, LONG), Err(Error::Connect { .. })));
}
