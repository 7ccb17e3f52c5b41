//! `spillwayd --check` refuses what a start refuses, and changes nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn check(dir: &Path, text: &str) -> Output {
    let config = dir.join("spillwayd.toml");
    fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillwayd"));
    command.arg("--check").arg("--config").arg(&config);
    command.args(["--set", &format!("listen.dir={}", dir.join("run").display())]).output().unwrap()
}

fn refused(dir: &Path, text: &str, words: &[&str]) {
    let checked = check(dir, text);
    let line = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(2), "{text}: {line}");
    assert_eq!(line.lines().count(), 1, "{text}: {line}");
    assert!(words.iter().all(|word| line.contains(word)), "{text}: {line}");
}

#[test]
fn what_a_start_refuses_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let small = dir.join("small");
    fs::write(&small, [0; 8192]).unwrap();
    let client = |name: &str, uid: u32| format!("[[client]]\nname = \"{name}\"\nuid = {uid}\n");
    let twice = client("a", 1) + &client("b", 1);
    refused(dir, &twice, &["client 'a' is known by the same identity"]);
    let block = |client: &str, size: &str| {
        format!("[[block]]\nname = \"big\"\nclient = \"{client}\"\nsize = \"{size}\"\n")
    };
    refused(dir, &block("nobody", "1M"), &["no client 'nobody'"]);
    let store = "[store]\ncapacity = \"64M\"\n".to_owned() + &client("a", 1);
    refused(dir, &(store.clone() + &block("a", "64M")), &["block 'big'", "store.capacity"]);
    refused(dir, "[store]\ncapacity = 5\n", &["store.capacity", "at least"]);
    refused(dir, "[memory]\nprograms = \"1K\"\n", &["memory.programs"]);
    let disk = |backing: &Path, rest: &str| {
        let backing = backing.display();
        format!(
            "{}[[disk]]\nname = \"d\"\nclient = \"a\"\nbacking = \"{backing}\"\n{rest}",
            client("a", 1)
        )
    };
    refused(dir, &disk(&dir.join("made"), ""), &["disk 'd'", "give the disk a size"]);
    refused(dir, &disk(&dir.join("no/made"), "size = \"1M\"\n"), &["disk 'd'", "no/made"]);
    refused(dir, &disk(&small, "size = \"1M\"\n"), &["disk 'd'", "enlarge the file"]);
    refused(
        dir,
        &disk(Path::new("/dev/null"), "size = \"1M\"\n"),
        &["disk 'd'", "no regular file"],
    );

    let good = store + &block("a", "32M") + &disk(&dir.join("made"), "size = \"1M\"\n");
    let good = good.replacen(&client("a", 1), "", 1);
    let checked = check(dir, &good);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(!dir.join("made").exists() && !dir.join("run").exists());
}

#[test]
fn an_address_that_other_hosts_reach_in_the_clear_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let token = dir.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&token, mode).unwrap();
    for (address, is_told) in [
        ("0.0.0.0:8430", true),
        ("[::]:8430", true),
        ("192.0.2.1:8430", true),
        ("127.0.0.1:8430", false),
        ("[::1]:8430", false),
    ] {
        let token = token.display();
        let text = format!("[listen]\napi_tcp = \"{address}\"\napi_token_file = \"{token}\"\n");
        let unguarded = check(dir, &text);
        let lines = String::from_utf8_lossy(&unguarded.stderr).into_owned();
        assert_eq!(unguarded.status.success(), !is_told, "{address}: {lines}");
        if is_told {
            assert_eq!(lines.lines().count(), 1, "{lines}");
            for words in [address, "in the clear", "listen.api_tls", "listen.api_tcp_guarded"] {
                assert!(lines.contains(words), "{lines}");
            }
        }
        let checked = check(dir, &format!("{text}api_tcp_guarded = true\n"));
        let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{address}: {lines}");
        let told = lines.starts_with(&format!("warning: listen.api_tcp {address} "));
        assert!(
            told == is_told && lines.lines().count() == usize::from(is_told),
            "{address}: {lines}"
        );
        assert!(!is_told || lines.contains("in the clear"), "{address}: {lines}");
    }
}

#[test]
fn the_http_interface_inside_tls_needs_keys_and_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let token = dir.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let token = format!("api_token_file = \"{}\"\n", token.display());
    for (rest, words) in [
        ("", "listen.api_tls needs listen.api_token_file"),
        (&token, "listen.api_tls 0.0.0.0:8431 needs tls_certificate and tls_key"),
    ] {
        let checked = check(dir, &format!("[listen]\napi_tls = \"0.0.0.0:8431\"\n{rest}"));
        let lines = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(!checked.status.success() && lines.lines().count() == 1, "{lines}");
        assert!(lines.contains(words), "{lines}");
    }
}

#[test]
fn files_of_lending_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let made = Command::new("sh")
        .arg("-ec")
        .arg(
            "for name in 'a.example' 'a:b'; do case $name in a:b) kind=URI; file=nameless;; *) kind=DNS; file=a;; esac
             openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=a \
                -addext subjectAltName=$kind:$name -keyout $file.key -out $file.pem; done",
        )
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let secret = dir.join("secret");
    fs::write(&secret, "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:\n").unwrap();
    fs::write(dir.join("nonsense"), "DHHC-1:00:\n").unwrap();
    let config = |name: &str, secret: &str| {
        let dir = dir.display();
        format!(
            "[store]\ncapacity = \"64M\"\n[listen]\nnvme_tls = \"127.0.0.1:0\"\n\
             tls_certificate = \"{dir}/{name}.pem\"\ntls_key = \"{dir}/{name}.key\"\ntls_clients = \"{dir}/a.pem\"\n\
             [lend]\nroles = \"lend\"\nlisten = \"127.0.0.1:0\"\nsecret_file = \"{dir}/{secret}\"\n\
             [[peer]]\nname = \"b.example\"\naddress = \"127.0.0.1:4422\"\n"
        )
    };
    for name in ["a.key", "nameless.key", "secret"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        fs::set_permissions(dir.join(name), mode).unwrap();
    }
    let checked = check(dir, &config("a", "secret"));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let nameless = ["listen.tls_certificate", "nameless.pem", "no DNS name"];
    refused(dir, &config("nameless", "secret"), &nameless);
    refused(dir, &config("missing", "secret"), &["listen.tls_*", "missing.pem"]);
    refused(dir, &config("a", "none"), &["can't read lend.secret_file", "none"]);
    refused(dir, &config("a", "nonsense"), &["lend.secret_file", "nonsense", "DHHC-1:00:"]);
}
