//! Lines of the log about clients that come and go. In a process of its own: tracing remembers whether anybody reads a
//! line, and threads of other tests would tell it that nobody does.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use spillway_directory::{ClientRegistry, Journal, Policy, Users};
use spillway_store::{Config, Store};
use spillway_types::{Access, Identity, Limits};

const POLICY: Policy = Policy {
    users: Users::All,
    hosts: false,
    exposed: false,
    target_pages: 100,
    limits: Limits { connections_max: 2, operations_max: 8, bytes_max: 1 << 20 },
    grace_s: 0,
};

/// Whoever reads the log may take long, and nobody connects while the registry is locked.
#[test]
fn no_line_about_a_visit_holds_the_registry_up() {
    let store = Arc::new(Store::open(Config::embedded(16 << 20)).unwrap());
    let journal = Journal::create(16 << 20).unwrap();
    let registry = Arc::new(ClientRegistry::open(store, journal, POLICY).unwrap());
    let (lines, asked) = (Arc::new(AtomicU32::new(0)), Arc::clone(&registry));
    let counted = Arc::clone(&lines);
    let writer = move || {
        let (registry, (done, answer)) = (Arc::clone(&asked), mpsc::channel());
        thread::spawn(move || done.send(registry.refusals()));
        let answered = answer.recv_timeout(Duration::from_secs(20));
        assert!(answered.is_ok(), "the registry is locked while a line is written");
        counted.fetch_add(1, Ordering::Relaxed);
        io::sink()
    };
    let log = tracing_subscriber::fmt().with_writer(writer).finish();
    tracing::subscriber::with_default(log, || {
        let client = registry.admit(Identity::Peer { uid: 9, gid: 9, pid: 1 }).unwrap().client;
        assert_eq!(lines.load(Ordering::Relaxed), 1, "it came");
        registry.leave(client);
        registry.expire();
        assert_eq!(lines.load(Ordering::Relaxed), 2, "it went");
    });
}
