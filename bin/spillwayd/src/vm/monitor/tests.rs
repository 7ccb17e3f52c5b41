//! What the driver makes of a monitor's answers, beside a QEMU that is slow to speak and talks of other things in between.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};
use spillway_test_support::wait::until_some;

use super::*;
use crate::config::Way;
use crate::vm::attached::{Attached as Way2Vm, Seen};

const S: u64 = 2 << 20;
const BOOT_BYTES: u64 = 64 * S;
const DEVICE_BYTES: u64 = 16 * S;

/// How it says what it says.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Plain,
    /// A few bytes at a time, with a pause.
    Slow,
    /// Events before and behind each answer, in the same write.
    Chatty,
}

/// A QEMU of virtio-mem devices, whose answers the test changes.
struct Qemu {
    manner: Manner,
    machine: &'static str,
    acpi: &'static str,
    has_balloon: bool,
    /// What a property is, by object and property, where it is not as usual.
    properties: Vec<(&'static str, &'static str, Value)>,
    /// As QEMU lists them.
    devices: Vec<Value>,
    /// The command that is refused.
    refuses: &'static str,
    /// Commands that it was given but for questions: name and arguments.
    done: Vec<(String, Value)>,
    stream: Option<UnixStream>,
}

fn device(id: &str, memdev: &str, size: u64, requested: u64, max: u64) -> Value {
    json!({ "type": "virtio-mem", "data": {
        "id": id, "memdev": format!("/objects/{memdev}"), "node": 0, "size": size, "max-size": max,
        "requested-size": requested, "block-size": S, "memaddr": 0,
    }})
}

struct Setup {
    qemu: Arc<Mutex<Qemu>>,
    pool: Pool,
    folder: tempfile::TempDir,
}

impl Setup {
    /// The first device has 5 of 16 sections and is asked to have 6, of which 7 are set aside.
    fn new(manner: Manner) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = spillway_sections::Settings {
            dir: folder.path().join("pool"),
            capacity_bytes: 32 * S,
            section_bytes: S,
            group: None,
        };
        let pool = Pool::open(&settings).unwrap();
        pool.create("vm", GuestFile::Device(1), DEVICE_BYTES).unwrap();
        pool.create("vm", GuestFile::Device(2), 2 * DEVICE_BYTES).unwrap();
        pool.reserve("vm", 1, 7 * S).unwrap();
        let listener = UnixListener::bind(folder.path().join("qmp")).unwrap();
        let qemu = Arc::new(Mutex::new(Qemu {
            manner,
            machine: "pc-i440fx-7.2-machine",
            acpi: "auto",
            has_balloon: false,
            properties: Vec::new(),
            devices: vec![device("spillway1", "spillway-mem1", 5 * S, 6 * S, DEVICE_BYTES)],
            refuses: "",
            done: Vec::new(),
            stream: None,
        }));
        let (served, dir) = (qemu.clone(), folder.path().join("pool/vm"));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                serve(&served, &dir, stream);
            }
        });
        Self { qemu, pool, folder }
    }

    fn qemu(&self) -> MutexGuard<'_, Qemu> {
        self.qemu.lock().unwrap()
    }

    fn connect(&self) -> anyhow::Result<(Attached, Facts)> {
        Attached::connect("vm", &self.folder.path().join("qmp"), &self.pool)
    }

    /// Why it can't be attached.
    fn problem(&self) -> String {
        self.connect().err().expect("it is attached").to_string()
    }

    fn path(&self, file: GuestFile) -> PathBuf {
        self.pool.path("vm", file).unwrap()
    }
}

/// Answers until the connection ends.
fn serve(qemu: &Mutex<Qemu>, dir: &Path, mut stream: UnixStream) -> Option<()> {
    let manner = qemu.lock().unwrap().manner;
    say(&mut stream, manner, &json!({ "QMP": { "version": {}, "capabilities": [] } }))?;
    qemu.lock().unwrap().stream = stream.try_clone().ok();
    for line in BufReader::new(stream.try_clone().ok()?).lines() {
        let asked: Value = serde_json::from_str(&line.ok()?).ok()?;
        let mut answer = qemu.lock().unwrap().answer(dir, &asked);
        answer["id"] = asked["id"].clone();
        say(&mut stream, manner, &answer)?;
    }
    Some(())
}

fn say(stream: &mut UnixStream, manner: Manner, message: &Value) -> Option<()> {
    let is_answer = message["QMP"].is_null();
    let event = "{\"event\": \"NIC_RX_FILTER_CHANGED\", \"data\": {}}\r\n";
    let around = if manner == Manner::Chatty && is_answer { event } else { "" };
    let text = format!("{around}{message}\r\n{around}");
    if manner != Manner::Slow {
        return stream.write_all(text.as_bytes()).ok();
    }
    for part in text.as_bytes().chunks(9) {
        stream.write_all(part).ok()?;
        thread::sleep(Duration::from_micros(200));
    }
    Some(())
}

impl Qemu {
    fn answer(&mut self, dir: &Path, asked: &Value) -> Value {
        let (command, arguments) = (asked["execute"].as_str().unwrap(), &asked["arguments"]);
        if !command.starts_with("query") && command != "qom-get" && command != "qmp_capabilities" {
            self.done.push((command.to_owned(), arguments.clone()));
        }
        let refused = json!({ "error": { "class": "GenericError", "desc": "no" } });
        if command == self.refuses {
            return refused;
        }
        let answer = match command {
            "query-memory-devices" => {
                let dimm = json!({ "type": "dimm", "data": { "id": "d" } });
                std::iter::once(dimm).chain(self.devices.clone()).collect()
            }
            "query-memory-size-summary" => json!({ "base-memory": BOOT_BYTES }),
            "query-balloon" if !self.has_balloon => return refused,
            "qom-get" => {
                let path = arguments["path"].as_str().unwrap();
                self.property(dir, path, arguments["property"].as_str().unwrap())
            }
            "human-monitor-command" => {
                let line = arguments["command-line"].as_str().unwrap();
                let address = u64::from_str_radix(line.strip_prefix("gpa2hva 0x").unwrap(), 16);
                let address = address.unwrap();
                json!(if address < BOOT_BYTES {
                    let at = 0x7f00_0000_0000 + address;
                    format!("Host virtual address for {address:#x} ({BOOT}) is {at:#x}\r\n")
                } else {
                    format!("No memory is mapped at address {address:#x}\r\n")
                })
            }
            "device_add" => {
                let [id, memdev] = ["id", "memdev"].map(|it| arguments[it].as_str().unwrap());
                // It lists the newest first.
                self.devices.insert(0, device(id, memdev, 0, 0, 4 * S));
                json!({})
            }
            _ => json!({}),
        };
        json!({ "return": answer })
    }

    fn property(&self, dir: &Path, path: &str, property: &str) -> Value {
        let mut own = self.properties.iter();
        if let Some((.., value)) = own.find(|it| path.ends_with(it.0) && it.1 == property) {
            return value.clone();
        }
        match (path, property) {
            ("/machine", "type") => json!(self.machine),
            ("/machine", "acpi") => json!(self.acpi),
            (_, "type") => json!("memory-backend-file"),
            (_, "mem-path") if path.ends_with(BOOT) => json!(dir.join("boot")),
            (_, "mem-path") => {
                let number = path.strip_prefix("/objects/spillway-mem").unwrap();
                let number = if number == "1" { "" } else { number };
                json!(dir.join(format!("device{number}")))
            }
            (_, "size") => json!(DEVICE_BYTES),
            _ => json!(true),
        }
    }
}

#[test]
fn what_a_vm_has_is_read_in_the_order_of_its_files_however_qemu_speaks() {
    for manner in [Manner::Plain, Manner::Slow, Manner::Chatty] {
        let setup = Setup::new(manner);
        let second = device("spillway2", "spillway-mem2", 0, S, 2 * DEVICE_BYTES);
        setup.qemu().devices.insert(0, second);
        let (mut attached, facts) = setup.connect().unwrap();
        let first = Device {
            max_bytes: DEVICE_BYTES,
            size_bytes: 5 * S,
            requested_bytes: 6 * S,
            set_aside_bytes: 7 * S,
        };
        let second = Device {
            max_bytes: 2 * DEVICE_BYTES,
            size_bytes: 0,
            requested_bytes: S,
            set_aside_bytes: 0,
        };
        assert_eq!(facts, Facts { boot_bytes: BOOT_BYTES, devices: vec![first, second] });
        let max = [0, 1, 2].map(|device| attached.max_bytes(device));
        assert_eq!(max, [DEVICE_BYTES, 2 * DEVICE_BYTES, 0]);
        assert_eq!([0, 1, 2].map(|device| attached.file(device)), [1, 2, 0]);
        assert_eq!(attached.sizes().unwrap(), [(5 * S, 6 * S), (0, S)]);
        setup.qemu().devices.remove(1);
        assert_eq!(attached.sizes().unwrap(), [(0, 0), (0, S)], "one has gone");
    }
}

#[test]
fn a_size_is_asked_of_the_device_that_is_meant_in_bytes() {
    let setup = Setup::new(Manner::Chatty);
    let second = device("spillway2", "spillway-mem2", 0, 0, 2 * DEVICE_BYTES);
    setup.qemu().devices.insert(0, second);
    let (mut attached, _) = setup.connect().unwrap();
    attached.request(1, 3 * S).unwrap();
    attached.request(0, 0).unwrap();
    attached.request(2, S).unwrap();
    let set = |id: &str, value: u64| {
        let path = format!("/machine/peripheral/{id}");
        let arguments = json!({ "path": path, "property": "requested-size", "value": value });
        ("qom-set".to_owned(), arguments)
    };
    assert_eq!(setup.qemu().done, [set("spillway2", 3 * S), set("spillway1", 0)]);
    setup.qemu().refuses = "qom-set";
    assert!(matches!(attached.request(0, S), Err(Error::Refused { .. })));
}

#[test]
fn what_a_vm_needs_to_be_resized_is_named() {
    let with = |change: &dyn Fn(&mut Qemu)| {
        let setup = Setup::new(Manner::Plain);
        change(&mut setup.qemu());
        setup.problem()
    };
    let none = with(&|qemu| qemu.devices.clear());
    assert!(none.contains("no virtio-mem device") && none.contains("spillway vm args vm"));
    let micro = with(&|qemu| {
        qemu.devices.clear();
        qemu.machine = "microvm-machine";
    });
    assert!(micro.contains("is a microvm"), "{micro}");
    let nameless = with(&|qemu| qemu.devices[0]["data"]["id"] = Value::Null);
    assert!(nameless.contains("has no id"), "{nameless}");
    let property = |object, property, value: Value| {
        with(&|qemu| qemu.properties.push((object, property, value.clone())))
    };
    let foreign = property("spillway-mem1", "mem-path", json!("/elsewhere"));
    assert!(foreign.contains("in /elsewhere, which does not belong to vm 'vm'"), "{foreign}");
    let ram = property("spillway-mem1", "type", json!("memory-backend-ram"));
    assert!(ram.contains("in no file"), "{ram}");
    let private = property("spillway-mem1", "share", json!(false));
    assert!(private.contains("lacks share=on"), "{private}");
    // It is the device's own that counts, not the backend's.
    let late = property("peripheral/spillway1", "prealloc", json!(false));
    assert!(late.contains("lacks prealloc=on"), "{late}");
    let setup = Setup::new(Manner::Plain);
    setup.qemu().properties.push(("spillway-mem1", "prealloc", json!(false)));
    setup.connect().unwrap();
}

#[test]
fn a_further_device_has_the_next_number_and_a_file_of_its_size() {
    for manner in [Manner::Plain, Manner::Slow, Manner::Chatty] {
        let setup = Setup::new(manner);
        let (mut attached, _) = setup.connect().unwrap();
        // What an earlier try has left there has another size.
        let facts = attached.add_device("vm", &setup.pool, 4 * S).unwrap();
        let bytes: Vec<_> = facts.devices.iter().map(|it| (it.max_bytes, it.size_bytes)).collect();
        assert_eq!(bytes, [(DEVICE_BYTES, 5 * S), (4 * S, 0)]);
        assert_eq!([0, 1].map(|device| attached.max_bytes(device)), [DEVICE_BYTES, 4 * S]);
        assert_eq!([0, 1].map(|device| attached.file(device)), [1, 2]);
        let path = setup.path(GuestFile::Device(2));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * S);
        let done = setup.qemu().done.clone();
        let object = json!({
            "qom-type": "memory-backend-file", "id": "spillway-mem2", "mem-path": path, "size": 4 * S,
            "share": true, "prealloc": false, "reserve": false,
        });
        let device = json!({
            "driver": "virtio-mem-pci", "id": "spillway2", "memdev": "spillway-mem2", "bus": SLOTS,
            "addr": "1", "node": 0, "block-size": S, "requested-size": 0, "prealloc": true,
        });
        assert_eq!(done, [("object-add".to_owned(), object), ("device_add".to_owned(), device)]);
    }
}

#[test]
fn a_further_device_that_is_refused_leaves_no_file() {
    let bounds = |setup: &Setup| {
        let usage = setup.pool.usage();
        usage.guests["vm"].devices.iter().map(|(number, it)| (*number, it.bound_bytes)).collect()
    };
    for (refuses, done) in [
        ("object-add", &["object-add"][..]),
        ("device_add", &["object-add", "device_add", "object-del"]),
    ] {
        let setup = Setup::new(Manner::Plain);
        setup.qemu().refuses = refuses;
        let (mut attached, _) = setup.connect().unwrap();
        attached.add_device("vm", &setup.pool, 4 * S).unwrap_err();
        let commands: Vec<_> = setup.qemu().done.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(commands, done);
        let left: Vec<(u8, u64)> = bounds(&setup);
        assert_eq!(left, [(1, DEVICE_BYTES)]);
        assert!(!setup.path(GuestFile::Device(2)).exists());
    }
    for (machine, acpi, is_taken) in [
        ("pc-q35-7.2-machine", "off", false),
        ("pc-q35-7.2-machine", "auto", true),
        ("pc-q35-7.2-machine", "on", true),
        ("pc-i440fx-7.2-machine", "off", true),
    ] {
        let setup = Setup::new(Manner::Plain);
        (setup.qemu().machine, setup.qemu().acpi) = (machine, acpi);
        let (mut attached, _) = setup.connect().unwrap();
        let added = attached.add_device("vm", &setup.pool, 4 * S);
        assert_eq!(added.is_ok(), is_taken, "{machine} {acpi}");
        let left: Vec<(u8, u64)> = bounds(&setup);
        let second = if is_taken { 4 * S } else { 2 * DEVICE_BYTES };
        assert_eq!(left, [(1, DEVICE_BYTES), (2, second)], "{machine} {acpi}");
    }
}

#[test]
fn windows_lie_in_boot_memory_that_is_the_pools_and_stays() {
    let layout = |change: &dyn Fn(&mut Qemu)| {
        let setup = Setup::new(Manner::Plain);
        change(&mut setup.qemu());
        let (mut attached, facts) = setup.connect().unwrap();
        let layout = attached
            .prepare_windows()
            .and_then(|()| attached.layout("vm", &setup.pool, facts.boot_bytes));
        let done = std::mem::take(&mut setup.qemu().done);
        layout.map(|layout| (layout, done))
    };
    let (found, done) = layout(&|_| {}).unwrap();
    assert_eq!(found.offset(BOOT_BYTES - S), Some(BOOT_BYTES - S));
    assert_eq!(found.offset(BOOT_BYTES), None);
    // QEMU is to tell of a move before anything is looked for.
    let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
    assert_eq!(done[0], ("migrate-set-capabilities".to_owned(), events));
    let balloon = layout(&|qemu| qemu.has_balloon = true).unwrap_err();
    assert!(balloon.contains("balloon"), "{balloon}");
    for (property, value) in [("share", json!(false)), ("mem-path", json!("/elsewhere"))] {
        let other =
            layout(&|qemu| qemu.properties.push((BOOT, property, value.clone()))).unwrap_err();
        assert!(other.contains("differs from what `spillway vm args vm` prints"), "{other}");
    }
}

/// Looks at what a VM tells until something is seen, or the look fails.
fn look(attached: &mut Way2Vm) -> Result<Seen, String> {
    let is_any = |seen: &Seen| seen.resets > 0 || seen.has_changed || seen.is_migrating.is_some();
    until_some("something to be seen", || {
        let look = attached.look();
        look.as_ref().map_or(true, is_any).then_some(look)
    })
}

#[test]
fn what_a_vm_tells_by_itself_is_seen_once_and_a_flood_is_an_end() {
    let setup = Setup::new(Manner::Plain);
    let way = Way::Monitor(setup.folder.path().join("qmp"));
    let (mut attached, _) = Way2Vm::connect("vm", &way, &setup.pool).unwrap();
    let tell = |text: &str| {
        let mut qemu = setup.qemu();
        qemu.stream.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    };
    let event = |name: &str, data: Value| format!("{}\r\n", json!({ "event": name, "data": data }));
    let status = |status: &str| event("MIGRATION", json!({ "status": status }));
    let reset = event("RESET", json!({}));
    tell(&[status("active"), reset.clone(), reset.clone(), status("failed")].concat());
    let seen = look(&mut attached).unwrap();
    assert_eq!((seen.resets, seen.is_migrating, seen.has_changed), (2, Some(false), false));
    tell(&event("MEMORY_DEVICE_SIZE_CHANGE", json!({ "id": "spillway1", "size": S })));
    let seen = look(&mut attached).unwrap();
    assert_eq!((seen.resets, seen.is_migrating, seen.has_changed), (0, None, true));
    let seen = attached.look().unwrap();
    assert_eq!((seen.resets, seen.is_migrating, seen.has_changed), (0, None, false));
    // More than are kept: a reset may be among what is lost.
    tell(&(0..300).map(|_| event("OTHER", json!({}))).collect::<String>());
    tell(&reset);
    assert!(look(&mut attached).unwrap_err().contains("more events than fit"));
}

#[test]
fn a_reset_before_the_vm_was_read_is_in_what_was_read() {
    let setup = Setup::new(Manner::Chatty);
    let way = Way::Monitor(setup.folder.path().join("qmp"));
    let (mut attached, _) = Way2Vm::connect("vm", &way, &setup.pool).unwrap();
    assert_eq!(attached.look().unwrap().resets, 0);
    // What comes between a command and its answer is kept for the next look.
    setup.qemu().stream.as_mut().unwrap().write_all(b"{\"event\": \"RESET\"}\r\n").unwrap();
    attached.sizes().unwrap();
    assert_eq!(attached.look().unwrap().resets, 1);
}
