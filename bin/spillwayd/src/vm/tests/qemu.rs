//! A monitor that answers as QEMU does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{FallocateFlags, fallocate};
use spillway_sections::GuestFile;

use super::{BOOT, DEVICE, Driven, S};

/// Answers as QEMU does for a VM with one virtio-mem device, whose guest does at once what it is asked.
pub struct Qemu {
    pub path: PathBuf,
    pub requested: AtomicU64,
    /// What the guest does not give back, bytes.
    pub keeps: AtomicU64,
    /// A second device, if it has one.
    second: Option<PathBuf>,
    has_balloon: bool,
    /// How often it was to get a further device.
    pub widened: AtomicU64,
    /// It ends at the next command.
    pub hangs_up: AtomicBool,
    /// Further devices that it takes, where it does: id, backend, file.
    pub added: Option<Mutex<Vec<[String; 3]>>>,
    /// What its guest has not yet plugged of what it is to have, bytes.
    pub lacks: AtomicU64,
    /// Where it speaks to whoever has connected.
    stream: Mutex<Option<UnixStream>>,
}

impl Qemu {
    pub fn start(driven: &Driven) -> Arc<Self> {
        Self::with(driven, None)
    }

    pub fn with(driven: &Driven, second: Option<PathBuf>) -> Arc<Self> {
        Self { second, ..Self::of(driven) }.listen(driven)
    }

    pub fn that_takes(
        driven: &Driven,
        second: Option<PathBuf>,
        added: Option<Mutex<Vec<[String; 3]>>>,
    ) -> Arc<Self> {
        Self { second, added, ..Self::of(driven) }.listen(driven)
    }

    /// One whose guest has a balloon, or has none.
    pub fn ballooned(driven: &Driven, has_balloon: bool) -> Arc<Self> {
        Self { has_balloon, ..Self::of(driven) }.listen(driven)
    }

    /// One that does not listen yet.
    fn of(driven: &Driven) -> Self {
        let path = driven.shared.pool.create("vm", GuestFile::Device(1), DEVICE).unwrap();
        let (requested, keeps, widened, lacks) = Default::default();
        let (second, has_balloon, hangs_up, added, stream) = Default::default();
        Self {
            path,
            requested,
            keeps,
            second,
            has_balloon,
            widened,
            hangs_up,
            added,
            lacks,
            stream,
        }
    }

    fn listen(self, driven: &Driven) -> Arc<Self> {
        let qemu = Arc::new(self);
        let (listener, served) = (driven.listener("qmp"), qemu.clone());
        thread::spawn(move || served.serve(listener.accept().unwrap().0));
        qemu
    }

    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n").ok()?;
        let lines = BufReader::new(stream.try_clone().ok()?).lines();
        *self.stream.lock().unwrap() = stream.try_clone().ok();
        for line in lines {
            let asked: serde_json::Value = serde_json::from_str(&line.ok()?).ok()?;
            if self.hangs_up.load(Ordering::Relaxed) {
                return None;
            }
            let mut answer = match asked["execute"].as_str() {
                Some("query-balloon") if !self.has_balloon => {
                    serde_json::json!({ "error": { "class": "DeviceNotActive", "desc": "none" } })
                }
                _ => serde_json::json!({ "return": self.answer(&asked) }),
            };
            if let Some(id) = asked.get("id") {
                answer["id"] = id.clone();
            }
            stream.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
        }
        Some(())
    }

    /// Touches what the guest has, and punches what it has not, as QEMU does.
    pub fn plug(&self, size: u64) {
        let file = std::fs::File::options().write(true).open(&self.path).unwrap();
        for section in (0..size).step_by(S as usize) {
            file.write_all_at(&[1], section).unwrap();
        }
        if size < DEVICE {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, mode, size, DEVICE - size).unwrap();
        }
    }

    /// The guest starts anew: its memory is gone, and it has still to plug what it was asked to have.
    pub fn reset(&self) {
        self.lacks.store(self.requested.load(Ordering::Relaxed), Ordering::Relaxed);
        self.plug(0);
        self.tell(&serde_json::json!({ "event": "RESET", "data": {} }));
    }

    /// The device has another size, of which nobody was told.
    pub fn change(&self, size: u64) {
        self.requested.store(size, Ordering::Relaxed);
        self.plug(size);
    }

    pub fn tell(&self, event: &serde_json::Value) {
        let mut stream = self.stream.lock().unwrap();
        stream.as_mut().unwrap().write_all(format!("{event}\r\n").as_bytes()).unwrap();
    }

    fn answer(&self, asked: &serde_json::Value) -> serde_json::Value {
        use serde_json::json;
        match asked["execute"].as_str().unwrap() {
            "query-memory-devices" => {
                let requested = self.requested.load(Ordering::Relaxed);
                let lacks = self.lacks.load(Ordering::Relaxed);
                let size = requested.max(self.keeps.load(Ordering::Relaxed)) - lacks;
                let device = |id: &str, memdev: &str, size, requested| {
                    json!({ "type": "virtio-mem", "data": {
                        "id": id, "memdev": memdev, "node": 0, "size": size, "max-size": DEVICE,
                        "requested-size": requested, "block-size": S, "memaddr": 0,
                    }})
                };
                let second = self.second.iter().map(|_| device("n", "/objects/c", 0, 0));
                let added = self.added.iter().flat_map(|it| it.lock().unwrap().clone());
                let added = added.filter(|it| !it[0].is_empty());
                let added =
                    added.map(|[id, memdev, _]| device(&id, &format!("/objects/{memdev}"), 0, 0));
                [device("m", "/objects/b", size, requested)]
                    .into_iter()
                    .chain(second)
                    .chain(added)
                    .collect()
            }
            "query-memory-size-summary" => json!({ "base-memory": BOOT, "plugged-memory": 0 }),
            "qom-get" => match asked["arguments"]["property"].as_str().unwrap() {
                "type" => json!("memory-backend-file"),
                "mem-path" if asked["arguments"]["path"] == "/objects/c" => json!(self.second),
                "mem-path" => {
                    let asked = asked["arguments"]["path"].as_str().unwrap();
                    let added = self.added.iter().flat_map(|it| it.lock().unwrap().clone());
                    let mut added = added.filter(|it| asked == format!("/objects/{}", it[1]));
                    added.next().map_or(json!(self.path), |it| json!(it[2]))
                }
                "size" => json!(DEVICE),
                _ => json!(true),
            },
            "qom-set" => {
                let bytes = asked["arguments"]["value"].as_u64().unwrap();
                self.requested.store(bytes, Ordering::Relaxed);
                self.plug(bytes.max(self.keeps.load(Ordering::Relaxed)));
                json!({})
            }
            "object-add" => {
                self.widened.fetch_add(1, Ordering::Relaxed);
                let text = |name: &str| asked["arguments"][name].as_str().unwrap().to_owned();
                if let Some(added) = &self.added {
                    added.lock().unwrap().push([String::new(), text("id"), text("mem-path")]);
                }
                json!({})
            }
            "device_add" => {
                let id = asked["arguments"]["id"].as_str().unwrap().to_owned();
                if let Some(added) = &self.added {
                    added.lock().unwrap().last_mut().unwrap()[0] = id;
                }
                json!({})
            }
            _ => json!({}),
        }
    }
}
