//! What the commands ask a daemon, and what they print of its answers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use spillway_api::types::{Health, LendMemory, LendStatus, LentLoan, StoreStatus, Version, VmList};

/// Stands in a document for how often it was asked for.
const TIMES: &str = "1234567";

/// A daemon that answers a GET with a document, and every other request with its body.
struct Daemon {
    dir: tempfile::TempDir,
    /// The bodies that were sent, with method and path.
    sent: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Daemon {
    fn start(documents: Vec<(&'static str, String)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let sent = Arc::<Mutex<Vec<_>>>::default();
        let told = Arc::clone(&sent);
        thread::spawn(move || {
            let mut times = HashMap::new();
            for stream in listener.incoming() {
                answer(stream.unwrap(), &documents, &told, &mut times);
            }
        });
        Self { dir, sent }
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let socket = self.dir.path().join("api.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
        command.args(arguments).arg("--api").arg(socket).output().unwrap()
    }

    /// What a command prints that succeeds.
    fn command(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The only request with a body since the last call.
    fn sent(&self) -> (String, Value) {
        let mut sent = self.sent.lock().unwrap();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }
}

/// Answers the requests of a connection.
fn answer(
    stream: UnixStream,
    documents: &[(&str, String)],
    told: &Mutex<Vec<(String, Value)>>,
    times: &mut HashMap<String, u32>,
) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut request, mut length) = (String::new(), 0);
        if reader.read_line(&mut request).unwrap() == 0 {
            return;
        }
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(count) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = count.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let wanted: Vec<_> = request.split(' ').take(2).collect();
        if wanted[0] == "GET" {
            let found = documents.iter().find(|(path, _)| *path == wanted[1]);
            let document = &found.unwrap_or_else(|| panic!("{request}")).1;
            let times = times.entry(wanted[1].to_owned()).or_default();
            *times += 1;
            body = document.replace(TIMES, &times.to_string()).into_bytes();
        } else {
            let sent = serde_json::from_slice(&body).unwrap();
            told.lock().unwrap().push((wanted.join(" "), sent));
        }
        write!(reader.get_mut(), "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())
            .unwrap();
        reader.get_mut().write_all(&body).unwrap();
    }
}

#[test]
fn a_parameter_of_a_policy_that_is_not_given_keeps_its_value() {
    let smart = Daemon::start(vec![(
        "/v1/policy",
        r#"{"policy":"smart-alloc","p":0.75,"threshold_pages":100,"interval_ms":2500}"#.to_owned(),
    )]);
    for (arguments, policy) in [
        (&["smart-alloc", "--threshold", "64M"][..], json!({"p": 0.75, "threshold_pages": 16384})),
        (&["smart-alloc", "--p", "3"], json!({"p": 3.0, "threshold_pages": 100})),
        (
            &["smart-alloc", "--interval", "1s"],
            json!({"p": 0.75, "threshold_pages": 100, "interval_ms": 1000}),
        ),
        (&["smart-alloc", "--threshold", "none"], json!({"p": 0.75})),
        // Another policy gets its own.
        (&["utility", "--miss", "500us"], json!({"miss_us": 500})),
        (&["greedy"], json!({})),
    ] {
        smart.command(&[&["policy", "set"], arguments].concat());
        let mut expected = policy;
        expected["policy"] = arguments[0].into();
        assert_eq!(smart.sent(), ("PUT /v1/policy".to_owned(), expected), "{arguments:?}");
    }
    let utility = Daemon::start(vec![(
        "/v1/policy",
        r#"{"policy":"utility","miss_us":500,"fairness_percent":100,"interval_ms":1000}"#
            .to_owned(),
    )]);
    for (arguments, policy) in [
        (
            &["--miss", "1ms"][..],
            json!({"policy": "utility", "miss_us": 1000, "fairness_percent": 100}),
        ),
        (&["--fairness", "0"], json!({"policy": "utility", "miss_us": 500, "fairness_percent": 0})),
    ] {
        utility.command(&[&["policy", "set", "utility"], arguments].concat());
        assert_eq!(utility.sent(), ("PUT /v1/policy".to_owned(), policy), "{arguments:?}");
    }
}

/// A daemon that has no clients, and a store of 1000 bytes.
fn daemon_with_a_store(memory_bytes: u64, lending: &LendStatus) -> Daemon {
    let version =
        Version { version: "1.2.3".into(), commit: None, api: 1, host: "a".into(), pid: 7 };
    let health = Health {
        serving: true,
        uptime_seconds: 9,
        restarts: 0,
        memory_locked: true,
        kept_by: "nobody".into(),
    };
    let store = StoreStatus { capacity_bytes: 1000, memory_bytes, ..StoreStatus::default() };
    Daemon::start(vec![
        ("/v1/version", json!(version).to_string()),
        ("/v1/health", json!(health).to_string()),
        ("/v1/store", json!(store).to_string()),
        ("/v1/lending", json!(lending).to_string()),
        ("/v1/vms", json!(VmList::default()).to_string()),
        ("/v1/clients", "[]".into()),
        ("/v1/disks", "[]".into()),
    ])
}

#[test]
fn top_prints_json_where_json_is_asked_for() {
    let off = LendStatus { role: "off".into(), ..LendStatus::default() };
    let daemon = daemon_with_a_store(1, &off);
    let shown = daemon.command(&["top", "-b", "-n", "2", "-d", "100ms", "-o", "json"]);
    let stat: Value = serde_json::from_str(&daemon.command(&["stat", "-o", "json"])).unwrap();
    let samples: Vec<Value> =
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(samples, [stat.clone(), stat]);
    // A terminal gets no JSON.
    let refused = daemon.output(&["top", "-o", "json"]);
    let line = String::from_utf8(refused.stderr).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&told["type"], refused.status.code()), (&"urn:spillway:usage".into(), Some(2)));
    assert!(told["detail"].as_str().unwrap().contains("--batch"), "{line}");
}

#[test]
fn top_prints_what_it_has_looked_at_last() {
    let off = LendStatus { role: "off".into(), ..LendStatus::default() };
    let daemon = daemon_with_a_store(TIMES.parse().unwrap(), &off);
    let shown = daemon.command(&["top", "-b", "-n", "2", "-d", "100ms", "-o", "json"]);
    let used = |line| serde_json::from_str::<Value>(line).unwrap()["store"]["memory_bytes"].clone();
    // The first look is for the rates.
    assert_eq!(shown.lines().map(used).collect::<Vec<_>>(), [json!(2), json!(3)]);
}

#[test]
fn what_is_nearly_full_does_not_look_full() {
    let mut lending = LendStatus { host: "a".into(), role: "lender".into(), ..Default::default() };
    lending.memory = LendMemory {
        total_bytes: 1_000_003,
        used_bytes: 998_702,
        upper_bytes: 999_002,
        lower_bytes: 850_002,
        ..LendMemory::default()
    };
    lending.lent.push(LentLoan::default());
    let daemon = daemon_with_a_store(999, &lending);
    let commands = [&["stat"][..], &["top", "-b", "-n", "1", "-d", "100ms"], &["lend", "status"]];
    for command in commands {
        let shown = daemon.command(command);
        let full = shown.contains("of 1000 B (99.9%)") || command[0] == "lend";
        let lends = shown.contains(
            "memory 99.87% used (borrows above 99.9%, gives back below 85%); \
             lent 0 B in 1 loan, borrowed 0 B in 0 loans, ",
        );
        assert!(full && lends, "{command:?}: {shown}");
    }
}
