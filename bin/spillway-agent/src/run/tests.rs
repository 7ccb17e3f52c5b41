//! The agent between a host at a socket and a kernel that consists of files, at times that the tests choose.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use spillway_guests::agent::Status;
use spillway_guests::line::Lines;
use spillway_test_support::wait;

use super::*;
use crate::options::StateFile;

mod asks;
mod jobs;
mod times;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 128 * MIB;
const RESERVE: u64 = 64 * MIB;
const MOST: u64 = 8192 * MIB;
/// The device's first block.
const FIRST: u64 = 32;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An agent in a guest of 1 GiB, half of it available. Its worker changes a block once a file `go` with the block's
/// number exists, or `go-all`.
struct Guest {
    agent: Agent,
    host: UnixStream,
    lines: Lines,
    folder: tempfile::TempDir,
}

impl Guest {
    fn new() -> Self {
        Self::with("none")
    }

    /// The same with a control group.
    fn with(cgroup: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        for (path, text) in [
            ("proc/zoneinfo", "Node 0, zone Normal\n  pages free 90000\n  managed 250000\n"),
            ("proc/vmstat", "workingset_refault_file 5\npswpin 6\noom_kill 7\n"),
            ("proc/pressure/memory", "some avg10=0.00 total=1234\nfull avg10=0.00 total=99\n"),
            ("proc/iomem", ""),
            ("proc/meminfo", ""),
            ("proc/sys/kernel/osrelease", "6.12\n"),
            ("proc/sys/kernel/random/boot_id", "boot\n"),
            ("proc/sys/vm/overcommit_memory", "0\n"),
            ("sys/kernel/rcu_expedited", "0\n"),
            ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
            ("sys/devices/system/memory/auto_online_blocks", "online\n"),
            ("sys/module/memory_hotplug/parameters/online_policy", "\n"),
            ("sys/fs/cgroup/users/memory.events", "high 0\n"),
            ("sys/fs/cgroup/users/memory.high", "max\n"),
            ("sys/fs/cgroup/users/memory.current", "104857600\n"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let options = Run {
            port: folder.path().join("no-port"),
            socket: folder.path().join("socket"),
            windows_port: folder.path().join("no-port"),
            hugetlbfs: "none".into(),
            ivshmem_uid: 0,
            cgroup: cgroup.into(),
            keep_overcommit: false,
            state: StateFile { path: folder.path().join("memory.high") },
            root: root.clone(),
        };
        let mut agent = Agent::new(&options).unwrap();
        let mut worker = Command::new("sh");
        let script = r#"cd "$0" || exit 1
            while read -r number word; do
                while [ ! -e "go$number" ] && [ ! -e go-all ]; do sleep 0.003; done
                case $word in offline) state=offline;; *) state=online;; esac
                file="sys/devices/system/memory/memory$number/state"
                echo $state >"$file.new" && mv "$file.new" "$file"
                echo "$number $word" >>moved
                echo ok
            done"#;
        worker.args(["-c", script]).arg(&root).stdin(Stdio::piped()).stdout(Stdio::piped());
        agent.mover = Mover::with(worker);
        let (port, host) = Port::pair();
        agent.port = port;
        host.set_nonblocking(true).unwrap();
        let guest = Self { agent, host, lines: Lines::default(), folder };
        guest.available(512);
        guest
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default().trim().to_owned()
    }

    fn put(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    /// Sets the available memory of the 1 GiB, in MiB. The page cache has 96 MiB, 32 of them shared.
    fn available(&self, mib: u64) {
        self.memory(1024, mib);
    }

    fn memory(&self, total_mib: u64, available_mib: u64) {
        let (total, available) = (total_mib << 10, available_mib << 10);
        let text = format!(
            "MemTotal: {total} kB\nMemAvailable: {available} kB\nCached: 98304 kB\nShmem: 32768 kB\n\
             SwapTotal: 2048 kB\nSwapFree: 1024 kB\n"
        );
        self.put("proc/meminfo", &text);
    }

    /// Sets the device's blocks, from the first: 'm' is movable, 'k' the kernel's, 'o' offline, 'c' changing.
    fn plug(&self, kinds: &str) {
        let end = (FIRST + kinds.len() as u64) * BLOCK - 1;
        let line = format!("{:x}-{end:x} : System RAM (virtio_mem)\n", FIRST * BLOCK);
        self.put("proc/iomem", &line);
        for (number, kind) in (FIRST..).zip(kinds.chars()) {
            let folder = format!("sys/devices/system/memory/memory{number}");
            fs::create_dir_all(self.path(&folder)).unwrap();
            let (state, zones) = match kind {
                'm' => ("online", "Movable"),
                'k' => ("online", "Normal"),
                'o' => ("offline", "Normal Movable"),
                _ => ("going-offline", "Movable"),
            };
            self.put(&format!("{folder}/state"), state);
            self.put(&format!("{folder}/valid_zones"), zones);
        }
    }

    /// Allows the worker to change a block.
    fn go(&self, number: u64) {
        self.put(&format!("go{number}"), "");
    }

    fn go_all(&self) {
        self.put("go-all", "");
    }

    /// The worker's commands and changes, in order.
    fn moved(&self) -> Vec<String> {
        self.read("moved").lines().map(str::to_owned).collect()
    }

    fn say(&mut self, message: &FromHost) {
        self.host.write_all(&message.encode()).unwrap();
    }

    fn hello(&mut self, interval_ms: u32) {
        self.hello_for(interval_ms, Profile::ReturnsAll);
    }

    fn hello_for(&mut self, interval_ms: u32, profile: Profile) {
        let (reserve_bytes, most_bytes) = (RESERVE, MOST);
        let version = VERSION;
        self.say(&FromHost::Hello { version, interval_ms, reserve_bytes, most_bytes, profile });
    }

    /// The host goes away, and a new one connects. Returns the agent's messages in the turn that notices.
    fn change_host(&mut self, now: Duration) -> Vec<FromGuest> {
        self.host.shutdown(std::net::Shutdown::Both).unwrap();
        let said = self.turn(now);
        let (port, host) = Port::pair();
        host.set_nonblocking(true).unwrap();
        (self.agent.port, self.host, self.lines) = (port, host, Lines::default());
        said
    }

    /// Runs a turn. Returns the agent's messages.
    fn turn(&mut self, now: Duration) -> Vec<FromGuest> {
        self.agent.turn(now);
        self.heard()
    }

    fn heard(&mut self) -> Vec<FromGuest> {
        let (mut said, mut bytes) = (Vec::new(), [0; 8192]);
        while let Ok(count) = self.host.read(&mut bytes) {
            if count == 0 {
                break;
            }
            self.lines
                .push(&bytes[..count], |line| said.push(FromGuest::decode(line.unwrap()).unwrap()));
        }
        said
    }

    /// Runs turns at this time until the worker's result makes the agent send a message.
    fn until_said(&mut self, now: Duration) -> Vec<FromGuest> {
        wait::until_some("something to be said", || {
            Some(self.turn(now)).filter(|said| !said.is_empty())
        })
    }

    /// Runs turns at this time until a condition holds.
    fn until(&mut self, now: Duration, holds: impl Fn(&Self) -> bool) {
        wait::until("it to come to that", || {
            let is_so = holds(self);
            if !is_so {
                self.turn(now);
            }
            is_so
        });
    }

    /// Sends the hello of a host that wants a status once a minute.
    fn greeted(&mut self, now: Duration) {
        self.hello(60_000);
        let said = self.turn(now);
        assert!(matches!(said[..], [FromGuest::Hello { .. }, FromGuest::Status(_)]), "{said:?}");
    }

    fn status(&self, available_mib: u64, offline_blocks: u64) -> FromGuest {
        FromGuest::Status(Status {
            total_bytes: 1024 * MIB,
            available_bytes: available_mib * MIB,
            kernel_free_bytes: 90_000 * 4096,
            kernel_bytes: 250_000 * 4096,
            cached_bytes: 96 * MIB,
            swap_used_bytes: MIB,
            offline_bytes: offline_blocks * BLOCK,
            stalled_us: 1234,
            refaults: 5,
            swap_ins: 6,
            kills: 7,
        })
    }
}
