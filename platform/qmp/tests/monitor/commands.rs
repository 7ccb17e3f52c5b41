//! The commands that the client sends, and how it decodes the answers.

use std::path::Path;

use serde_json::{Value, json};
use spillway_qmp::{Backend, Error, MemoryDevice, MemorySize, NewDevice, RunState};
use spillway_test_support::wait::{after_ms, soon};

use crate::fake::{FakeMonitor, ask};

#[test]
fn answers_are_read_as_what_qemu_sends() {
    let devices = json!([
        {"type": "dimm", "data": {"id": "d0", "addr": 1, "size": 1, "slot": 0, "node": 0, "memdev": "/objects/m", "hotplugged": true, "hotpluggable": true}},
        {"type": "virtio-pmem", "data": {"id": "p0", "memaddr": 0, "size": 1, "memdev": "/objects/m"}},
        {"type": "virtio-mem", "data": {"max-size": 8, "memdev": "/objects/s0", "id": "vm0", "block-size": 2, "memaddr": 4294967296u64, "node": 1, "requested-size": 6, "size": 4}},
        {"type": "virtio-mem", "data": {"max-size": 8, "memdev": "/objects/s1", "block-size": 2, "memaddr": 0, "node": 0, "requested-size": 0, "size": 0}},
    ]);
    let fake = FakeMonitor::new(move |mut peer| {
        let none = Value::Null;
        peer.expect("query-name", &none, &json!({"name": "db1"}));
        peer.expect("query-name", &none, &json!({}));
        peer.expect("query-uuid", &none, &json!({"UUID": "12ab"}));
        peer.expect(
            "query-status",
            &none,
            &json!({"status": "running", "singlestep": false, "running": true}),
        );
        peer.expect(
            "query-memory-size-summary",
            &none,
            &json!({"base-memory": 512, "plugged-memory": 3}),
        );
        peer.expect("query-memory-size-summary", &none, &json!({"base-memory": 512}));
        peer.expect("query-memory-devices", &none, &devices);
        let (path, property) = ("/machine/peripheral/vm0", "requested-size");
        peer.expect(
            "qom-set",
            &json!({"path": path, "property": property, "value": 9}),
            &json!({}),
        );
        peer.expect("qom-get", &json!({"path": path, "property": "size"}), &json!(7));
        peer.expect("qom-get", &json!({"path": path, "property": "prealloc"}), &json!(true));
        peer.expect("qom-get", &json!({"path": path, "property": "size"}), &json!("seven"));
        peer.wait();
    });
    let mut monitor = fake.connect();
    assert_eq!(monitor.vm_name(soon()).unwrap().as_deref(), Some("db1"));
    assert_eq!(monitor.vm_name(soon()).unwrap(), None);
    assert_eq!(monitor.vm_uuid(soon()).unwrap(), "12ab");
    let state = RunState { running: true, state: "running".to_owned() };
    assert_eq!(monitor.status(soon()).unwrap(), state);
    let sizes = [
        MemorySize { base_bytes: 512, plugged_bytes: 3 },
        MemorySize { base_bytes: 512, plugged_bytes: 0 },
    ];
    assert_eq!(sizes.map(|_| monitor.memory_size(soon()).unwrap()), sizes);
    let first = MemoryDevice {
        id: Some("vm0".to_owned()),
        memdev: "s0".to_owned(),
        node: 1,
        size_bytes: 4,
        requested_bytes: 6,
        max_bytes: 8,
        block_bytes: 2,
    };
    let second = MemoryDevice {
        id: None,
        memdev: "s1".to_owned(),
        node: 0,
        size_bytes: 0,
        requested_bytes: 0,
        ..first.clone()
    };
    assert_eq!(monitor.memory_devices(soon()).unwrap(), [first, second]);
    monitor.set_requested_size("vm0", 9, soon()).unwrap();
    assert_eq!(monitor.size("vm0", soon()).unwrap(), 7);
    assert!(monitor.device_prealloc("vm0", soon()).unwrap());
    let error = monitor.size("vm0", soon()).unwrap_err();
    assert!(matches!(error, Error::Garbage { .. }), "{error}");
    assert!(matches!(ask(&mut monitor), Err(Error::Closed)));
    drop(monitor);
    fake.finish();
}

#[test]
fn backends_are_files_or_not() {
    let fake = FakeMonitor::new(|mut peer| {
        let mut backend = |kind: &str, path: Option<&str>| {
            let get = |property| json!({"path": "/objects/s0", "property": property});
            peer.expect("qom-get", &get("type"), &json!(kind));
            if let Some(path) = path {
                peer.expect("qom-get", &get("mem-path"), &json!(path));
            }
            peer.expect("qom-get", &get("size"), &json!(4096));
            peer.expect("qom-get", &get("share"), &json!(true));
            peer.expect("qom-get", &get("prealloc"), &json!(false));
        };
        backend("memory-backend-file", Some("/dev/shm/x"));
        backend("memory-backend-memfd", None);
    });
    let mut monitor = fake.connect();
    let file = Backend {
        kind: "memory-backend-file".to_owned(),
        path: Some("/dev/shm/x".into()),
        size_bytes: 4096,
        share: true,
        prealloc: false,
    };
    assert_eq!(monitor.backend("s0", soon()).unwrap(), file);
    let memfd = Backend { kind: "memory-backend-memfd".to_owned(), path: None, ..file };
    assert_eq!(monitor.backend("s0", soon()).unwrap(), memfd);
    fake.finish();
}

#[test]
fn a_refused_device_takes_its_backend_along() {
    let fake = FakeMonitor::new(|mut peer| {
        let backend = json!({"qom-type": "memory-backend-file", "id": "s1", "mem-path": "/dev/shm/d", "size": 1 << 30, "share": true, "prealloc": false, "reserve": false});
        let device = json!({"driver": "virtio-mem-pci", "id": "vm1", "memdev": "s1", "bus": "rp1", "addr": "1", "node": 0, "block-size": 128 << 20, "requested-size": 0, "prealloc": true});
        peer.expect("object-add", &backend, &json!({}));
        peer.expect("device_add", &device, &json!({}));
        peer.expect("object-add", &backend, &json!({}));
        let request = peer.hear();
        assert_eq!(request["arguments"], device);
        let error = json!({"class": "GenericError", "desc": "Bus 'rp1' not found"});
        peer.say(&json!({"error": error, "id": request["id"]}).to_string());
        peer.expect("object-del", &json!({"id": "s1"}), &json!({}));
    });
    let mut monitor = fake.connect();
    let path = Path::new("/dev/shm/d");
    let device = NewDevice {
        id: "vm1",
        memdev: "s1",
        path,
        bytes: 1 << 30,
        block_bytes: 128 << 20,
        bus: "rp1",
        slot: 1,
        node: 0,
    };
    monitor.add_device(&device, soon()).unwrap();
    let refused = monitor.add_device(&device, soon()).unwrap_err();
    assert!(refused.to_string().contains("Bus 'rp1' not found"), "{refused}");
    fake.finish();
}

#[test]
fn a_device_that_may_still_come_keeps_its_backend() {
    let fake = FakeMonitor::new(|mut peer| {
        let request = peer.hear();
        assert_eq!(request["execute"], "object-add");
        peer.answer(&request, &json!({}));
        assert_eq!(peer.hear()["execute"], "device_add");
        peer.expect("query-status", &Value::Null, &json!({}));
    });
    let mut monitor = fake.connect();
    let path = Path::new("/dev/shm/d");
    let device = NewDevice {
        id: "a",
        memdev: "b",
        path,
        bytes: 1,
        block_bytes: 1,
        bus: "c",
        slot: 0,
        node: 0,
    };
    let late = monitor.add_device(&device, after_ms(100)).unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    ask(&mut monitor).unwrap();
    fake.finish();
}
