//! What the log says: what the daemon listens on, and who changed what.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use spillway_types::PoolSpec;

use crate::daemon::{Daemon, READ_TOKEN, TOKEN, address, ask};

/// Says what no protocol has, and waits for the other end to hang up.
fn talk_nonsense(mut stream: impl Read + Write) {
    // Either may fail by the other end's hanging up.
    let _ = stream.write_all(&[0xff; 256]);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn strangers_do_not_fill_the_log() {
    const TIMES: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(dir.path());
    let ready = daemon.line(&[" ready "]);
    let [nvme, nbd] = ["nvme_tcp", "nbd_tcp"].map(|setting| address(&ready, setting).to_owned());
    let began = Instant::now();
    for _ in 0..TIMES {
        talk_nonsense(TcpStream::connect(&nvme).unwrap());
        talk_nonsense(TcpStream::connect(&nbd).unwrap());
        talk_nonsense(UnixStream::connect(dir.path().join("run/nbd.sock")).unwrap());
    }
    // One a second of each of two peers, and some more: it takes a slow machine long.
    let most = 8 + 2 * began.elapsed().as_secs() as usize;
    assert!(most < TIMES / 2, "it took too long for a test of this");
    daemon.stop();
    let lines = daemon.lines();
    let count = |word: &str| lines.lines().filter(|line| line.contains(word)).count();
    for (kind, ended) in [("NVMe/TCP", "INFO connection ended"), ("NBD", "NBD connection ended")] {
        assert!((1..=most).contains(&count(ended)), "{kind}: {lines}");
    }
    // Every connection is accounted for.
    let uid = rustix::process::getuid().as_raw();
    let left_out = |from: &str, kind: &str| -> usize {
        let peer = format!("peer={from} ");
        let of = lines.lines().filter(|line| line.contains(kind) && line.contains(&peer));
        let number = |line: &str| line.split_once("left_out=").unwrap().1.trim().parse::<usize>();
        of.map(|line| number(line).unwrap()).sum()
    };
    assert_eq!(left_out("127.0.0.1", "NVMe/TCP: more") + count(" connection ended peer="), TIMES);
    let nbd = left_out("127.0.0.1", "NBD: more") + left_out(&format!("uid {uid}"), "NBD: more");
    assert_eq!(nbd + count("NBD connection ended"), 2 * TIMES);
}

/// A host has any number of names, and makes any number of pools.
#[test]
fn clients_and_pools_that_come_by_themselves_do_not_fill_the_log() {
    const TIMES: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        format!("listen.dir={}", dir.path().join("run").display()),
        "listen.nvme_tcp=127.0.0.1:0".into(),
        "unnamed.hosts=true".into(),
        "store.capacity=64M".into(),
    ];
    let settings: Vec<_> = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let mut daemon = Daemon::start_with(dir.path(), &settings);
    let ready = daemon.line(&[" ready "]);
    let address = address(&ready, "nvme_tcp");
    let began = Instant::now();
    for number in 0..TIMES {
        let url = format!("nvme+tcp://{address}?host-nqn=nqn.2026-11.test:{number}");
        spillway_client::open(&url).unwrap().open_pool(PoolSpec::PERSISTENT).unwrap();
    }
    // One a second, one at the beginning, and the sum at the end.
    let most = began.elapsed().as_secs() as usize + 2;
    daemon.stop();
    let lines = daemon.lines();
    let told = |words: &str| -> (usize, usize) {
        let of: Vec<_> = lines.lines().filter(|line| line.contains(words)).collect();
        let others = |line: &&str| {
            let (_, rest) = line.split_once("others=").unwrap();
            rest.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        (of.len(), of.iter().map(others).sum())
    };
    let (clients, others) = told("added: it connected, and unnamed.hosts admits it");
    assert!((1..=most).contains(&clients) && clients + others <= TIMES, "{lines}");
    let (pools, others) = told(" is made");
    let (sums, rest) = told("NVMe/TCP: more lines about pools");
    assert!((1..=most).contains(&pools) && sums <= 1, "{lines}");
    assert_eq!(pools + others + rest, TIMES, "every pool is accounted for: {lines}");
}

#[test]
fn a_change_is_told_with_its_old_and_new_values() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("spillwayd.toml");
    let write = |rest: &str| {
        let run = dir.path().join("run");
        let text = format!("[listen]\ndir = \"{}\"\n[store]\ncapacity = \"64M\"\n", run.display());
        fs::write(&config, text + rest).unwrap();
    };
    write("[memory]\npolicy = \"greedy\"\n");
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let daemon = Daemon::start_with(dir.path(), &arguments);
    daemon.line(&[" ready "]);
    let told = |request: &str, body: &str, changed: Option<&str>| {
        let before = daemon.lines().len();
        let api = UnixStream::connect(dir.path().join("run/api.sock")).unwrap();
        let status = ask(api, request, "", body);
        assert!((200..300).contains(&status), "{status}");
        let lines = daemon.lines().split_off(before);
        let changed = changed.map(|changed| format!(" changed=\"{changed}\""));
        assert!(lines.contains("asked to change"), "{lines}");
        assert!(changed.as_ref().is_none_or(|changed| lines.contains(changed)), "{lines}");
        assert_eq!(changed.is_some(), lines.contains("changed="), "{lines}");
    };
    let alice = r#"{"name":"alice","identity":{"uid":12345},"target_pages":1024}"#;
    told("POST /v1/clients", alice, Some("client alice: uid 12345, cap 4.0 MiB"));
    let (target, path) = (r#"{"target_pages":2048}"#, "/v1/clients/alice");
    told(&format!("PUT {path}/target"), target, Some("cap 8.0 MiB (was 4.0 MiB)"));
    told(&format!("PUT {path}/target"), target, None);
    let all = "cap none (was 8.0 MiB), floor 64.0 KiB (was 0 B), weight 3 (was 1)";
    let change = r#"{"cap_pages":null,"floor_pages":16,"weight":3}"#;
    told(&format!("PATCH {path}"), change, Some(all));
    let utility = "policy utility, miss 500 us, fairness 20 %, interval 1000 ms";
    let slower = "policy greedy, interval 2000 ms (was greedy, interval 1000 ms)";
    told("PUT /v1/policy", r#"{"policy":"greedy","interval_ms":2000}"#, Some(slower));
    told(
        "PUT /v1/policy",
        r#"{"policy":"utility","miss_us":500,"fairness_percent":20,"interval_ms":1000}"#,
        Some(&format!("{utility} (was greedy, interval 2000 ms)")),
    );

    let pool = "persistent pool 1 of client alice, 0 B";
    told("POST /v1/pools", r#"{"client":"alice","lifetime":"persistent"}"#, Some(pool));
    told("DELETE /v1/pools/1", "", Some(pool));
    let disk = "block device disk of client alice, 1.0 MiB";
    let new_disk = r#"{"name":"disk","client":"alice","bytes":1048576}"#;
    told("POST /v1/blocks", new_disk, Some(disk));
    told("DELETE /v1/blocks/disk", "", Some(disk));

    write(
        "[memory]\npolicy = \"smart-alloc\"\np = 2.5\nthreshold = \"4M\"\ninterval_ms = 500\nprograms = \"32M\"\n\
         [unnamed]\ntarget = \"16M\"\n",
    );
    let lines = daemon.reload();
    for line in [
        format!(
            "policy smart-alloc, p 2.5 %, threshold 4.0 MiB, interval 500 ms (was {})",
            utility.strip_prefix("policy ").unwrap()
        ),
        "memory.programs 32.0 MiB (was none)".to_owned(),
        "unnamed clients: target 16.0 MiB (was none)".to_owned(),
    ] {
        assert!(lines.contains(&line), "{line}: {lines}");
    }
    let lines = daemon.reload();
    assert!(!lines.contains("(was"), "nothing has changed: {lines}");
}

#[test]
fn a_block_that_the_store_has_no_room_for_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("spillwayd.toml");
    let text = |size: &str| {
        format!(
            "[store]\ncapacity = \"64M\"\n[listen]\ndir = \"{}\"\n[[client]]\nname = \"a\"\nuid = 1\n\
             [[block]]\nname = \"thin\"\nclient = \"a\"\nsize = \"{size}\"\nreserve = false\n",
            dir.path().join("run").display()
        )
    };
    fs::write(&file, text("65M")).unwrap();
    let arguments = ["--config".to_owned(), file.display().to_string()];
    let daemon = Daemon::start_with(dir.path(), &arguments);
    daemon.line(&[" ready "]);
    daemon.line(&["WARN block 'thin' of 65.0 MiB is larger than the 64.0 MiB"]);
    fs::write(&file, text("65M").replace("thin", "other")).unwrap();
    assert!(daemon.reload().contains("WARN block 'other' of 65.0 MiB is larger"));
}

#[test]
fn the_log_says_what_is_listened_on_and_who_changed_what() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    let run = dir.path().join("run");
    let ready = daemon.line(&[" ready "]);
    for (name, socket) in
        [("ring", "spillway.sock"), ("programs", "programs.sock"), ("api", "api.sock")]
    {
        let place = format!("{name} {}", run.join(socket).display());
        assert!(ready.contains(&place), "{place}: {ready}");
    }
    assert!(ready.contains("nbd_tcp 127.0.0.1:") && !ready.contains("nvme_tls"), "{ready}");
    let address = address(&ready, "api_tcp");
    let unix = || UnixStream::connect(run.join("api.sock")).unwrap();
    let tcp = || TcpStream::connect(address).unwrap();
    let client =
        |name: &str, uid: u32| format!("{{\"name\":\"{name}\",\"identity\":{{\"uid\":{uid}}}}}");
    let by = format!("uid {} pid {}", rustix::process::getuid().as_raw(), std::process::id());
    assert_eq!(ask(unix(), "POST /v1/clients", "", &client("alice", 12345)), 201);
    daemon.line(&["INFO", "POST", "/v1/clients", "201", &by]);
    assert_eq!(ask(unix(), "DELETE /v1/clients/nobody", "", ""), 404);
    daemon.line(&["INFO", "DELETE", "/v1/clients/nobody", "404", &by]);

    assert_eq!(ask(tcp(), "POST /v1/clients", TOKEN, &client("bob", 12346)), 201);
    daemon.line(&["POST", "201", "127.0.0.1:", "api_token_file"]);
    assert_eq!(ask(tcp(), "DELETE /v1/clients/bob", READ_TOKEN, ""), 403);
    daemon.line(&["DELETE", "/v1/clients/bob", "403", "127.0.0.1:", "api_read_token_file"]);
    // Strangers do not fill the log.
    for _ in 0..200 {
        assert_eq!(ask(tcp(), "PUT /v1/stranger", "guessed-token-of-mine", ""), 401);
    }
    assert_eq!(ask(tcp(), "GET /v1/clients", TOKEN, ""), 200);
    assert_eq!(ask(unix(), "GET /v1/clients", "", ""), 200);
    assert_eq!(ask(unix(), "DELETE /v1/clients/alice", "", ""), 204);
    daemon.line(&["DELETE", "/v1/clients/alice", "204", &by]);

    let lines = daemon.lines();
    assert!(lines.matches("/v1/stranger").count() < 20, "{lines}");
    assert!(!lines.contains("GET"), "{lines}");
    for secret in [TOKEN, READ_TOKEN, "guessed"] {
        assert!(!lines.contains(secret), "{lines}");
    }
}
