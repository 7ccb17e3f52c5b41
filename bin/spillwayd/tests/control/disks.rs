//! Tmem disks, as the HTTP interface, the log and the metrics show them.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use spillway_test_support::wait::until;

use crate::daemon::{Daemon, answer, ask};

const CONFIG: &str = r#"
[[client]]
name = "vm"
[[disk]]
name = "swap"
client = "vm"
size = "1M"
"#;

#[test]
fn a_disk_s_guest_is_shown_and_a_second_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    let backing = dir.path().join("vm.swap");
    fs::write(&config, format!("{CONFIG}backing = \"{}\"\n", backing.display())).unwrap();
    let run = format!("listen.dir={}", dir.path().join("run").display());
    let config = config.to_str().unwrap();
    let arguments = ["--config", config, "--set", &run, "--set", "store.capacity=64M"];
    let daemon = Daemon::start_with(dir.path(), &arguments.map(str::to_owned));
    daemon.line(&[" ready "]);
    let api = || UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
    let disk = || UnixStream::connect(dir.path().join("run/swap.vhost.sock")).unwrap();
    let shown = || answer(api(), "GET /v1/disks", "", "");
    let state = |state: &str| {
        let what = fmt::from_fn(|f| write!(f, "the state {state}: {}", shown()));
        let wanted = format!("\"state\":\"{state}\",");
        until(what, || shown().contains(&wanted));
    };
    let told = r#"[{"name":"swap","client":"vm","kind":"swap","bytes":1048576,"state":"no guest","reason":null,"#;
    let held = r#""held_pages":0,"unread_pages":0,"last_error":null,"last_error_s":null"#;
    assert!(shown().contains(told) && shown().contains(held), "{}", shown());

    let guest = disk();
    state("connected");
    let mut second = disk();
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "it is closed");
    daemon.line(&["a second connection was refused", "disk=\"swap\"", "give each guest a disk"]);
    assert!(shown().contains("\"refused_guests\":1"), "{}", shown());
    let metrics = answer(api(), "GET /metrics", "", "");
    for line in ["_refused_guests_total{disk=\"swap\"} 1\n", "_attached{disk=\"swap\"} 0\n"] {
        assert!(metrics.contains(&format!("\nspillway_disk{line}")), "{metrics}");
    }
    let empty = || answer(api(), "POST /v1/disks/swap/empty", "", "");
    assert!(empty().contains("a guest is connected to it"), "{}", empty());
    drop(guest);
    state("no guest");

    // No message of vhost-user.
    let mut stranger = disk();
    stranger.write_all(&[0xff; 12]).unwrap();
    state("refused");
    assert!(!shown().contains("\"reason\":null"), "{}", shown());
    assert!(empty().contains("may come back"), "{}", empty());
    assert_eq!(ask(api(), "POST /v1/disks/other/empty", "", ""), 404);
    let pool = answer(api(), "DELETE /v1/pools/1", "", "");
    assert!(pool.contains("409 ") && pool.contains("spillway disk empty swap"), "{pool}");
    until("the guest to be gone for long enough", || empty().contains("200 OK"));
    daemon.line(&["asked to change", "by=uid ", "changed=\"disk swap: 0 B freed\""]);
    assert_eq!(daemon.lines().matches(" freed").count(), 1, "{}", daemon.lines());
}
