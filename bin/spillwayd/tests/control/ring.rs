//! The places of the ring, which the users of a host share.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use spillway_client::{Ring, RingOptions};

use crate::daemon::{Daemon, refused};

/// A user without rights.
const NOBODY: u32 = 65534;
/// Connections that one user may have.
const OF_USER_MAX: usize = 256;

#[test]
fn one_user_leaves_places_of_the_ring_to_others() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can connect as another user");
        return;
    }
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let settings = [
        format!("listen.dir={}", dir.path().join("run").display()),
        "store.capacity=64M".to_owned(),
        "unnamed.users=all".to_owned(),
        "unnamed.connections_max=4096".to_owned(),
        "unnamed.operations_max=1048576".to_owned(),
        "unnamed.bytes_max=1T".to_owned(),
    ];
    let settings: Vec<_> = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let daemon = Daemon::start_with(dir.path(), &settings);
    daemon.line(&[" ready "]);
    let path = dir.path().join("run/spillway.sock");
    let options = RingOptions { depth: 1, connections_max: 1, ..RingOptions::default() };
    let connect = || Ring::connect_with(&path, options);
    let held = thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Of this thread only.
            let nobody = Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let held: Vec<_> = (0..OF_USER_MAX).map(|_| connect().unwrap()).collect();
            let error = connect().unwrap_err().to_string();
            assert!(error.contains("as many connections"), "{error}");
            held
        });
        other.join().unwrap()
    });
    daemon.line(&["WARN", &format!("uid={NOBODY}"), "that one user may have"]);
    assert_eq!(refused(dir.path(), "ring", "peer"), 1.0);
    assert!(connect().is_ok(), "another user has places");
    drop(held);
}
