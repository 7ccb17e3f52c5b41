//! Keys, certificates and tokens that are replaced while the daemon runs, in its sandbox.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS12;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use spillway_client::{Get, Key, PoolSpec, Put, Store};
use spillway_test_support::certificates::Authority;
use spillway_test_support::wait::{PATIENCE, until, until_some};
use spillway_tls::{ClientSettings, Files, ServerSettings, Versions};

use crate::daemon::{Daemon, READ_TOKEN, TOKEN, address, ask};

/// The client's name, in its certificate.
const CLIENT: &str = "b.example";
/// A secret for NVMe, and another.
const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const OTHER_SECRET: &str = "DHHC-1:00:M1cw6kjPIIKDgkPZiRp9PyeIUilO2E17hxGn2JbCACmG3Jf6:";

/// Puts a certificate for `names` and its key into the place of `certificate` and `key`; the certificate.
fn sign(authority: &Authority, names: &[&str], certificate: &Path, key: &Path) -> Vec<u8> {
    let signed = authority.sign(names);
    replace(certificate, &signed.pem());
    replace(key, &signed.key_pem());
    signed.der().to_vec()
}

/// Puts a file into the place of another, as whoever renews keys does.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

/// A folder with keys, and a configuration that names them.
pub struct Host {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Host {
    pub fn new() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap(), authority: Authority::new() };
        // Apart, so that each must be in the daemon's reach for itself.
        for folder in ["config", "tls", "archive", "tokens", "secrets", "host", "nvme"] {
            fs::create_dir(host.path(folder)).unwrap();
        }
        replace(&host.path("tls/clients"), &host.authority.pem());
        replace(&host.path("ours"), &host.authority.pem());
        replace(&host.path("tokens/token"), TOKEN);
        replace(&host.path("tokens/read"), READ_TOKEN);
        host
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The daemon's keys lie elsewhere, as some programs that renew keys have it.
    pub fn renew(&self, number: u32, name: &str) -> Vec<u8> {
        let [certificate, key] =
            ["cert", "key"].map(|kind| self.path(&format!("archive/{kind}{number}")));
        let signed = sign(&self.authority, &[name, "127.0.0.1"], &certificate, &key);
        for (link, file) in [("tls/cert", certificate), ("tls/key", key)] {
            let new = self.path("tls/link");
            symlink(Path::new("..").join(file.strip_prefix(self.dir.path()).unwrap()), &new)
                .unwrap();
            fs::rename(&new, self.path(link)).unwrap();
        }
        signed
    }

    pub fn start(&self, rest: &str) -> Daemon {
        let file = self.configure(rest);
        Daemon::start_with(self.dir.path(), &["--config".into(), file.display().to_string()])
    }

    /// Writes a configuration.
    pub fn configure(&self, rest: &str) -> PathBuf {
        let text = "[store]\ncapacity = \"64M\"\n[listen]\ndir = \"DIR/run\"\nnvme_tls = \"127.0.0.1:0\"\n\
                    tls_certificate = \"DIR/tls/cert\"\ntls_key = \"DIR/tls/key\"\ntls_clients = \"DIR/tls/clients\"\n\
                    api_tcp = \"127.0.0.1:0\"\napi_token_file = \"DIR/tokens/token\"\napi_read_token_file = \"DIR/tokens/read\"\n";
        let text = format!("{text}{rest}").replace("DIR", &self.dir.path().display().to_string());
        let file = self.path("config/spillwayd.toml");
        fs::write(&file, text).unwrap();
        file
    }

    /// Files of a client that `authority` has signed.
    fn client(&self, authority: &Authority, name: &str) -> Files {
        let (certificate, key) = (self.path("client.cert"), self.path("client.key"));
        sign(authority, &[name], &certificate, &key);
        Files { certificate, key, authority: Some(self.path("ours")) }
    }

    /// The certificate that a server at `address` shows.
    fn shown(&self, address: &str) -> Vec<u8> {
        let files = self.client(&self.authority, CLIENT);
        let settings = ClientSettings::load(&files, &self.path("ours"), "127.0.0.1").unwrap();
        let mut connection = settings.connection().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).unwrap();
        }
        connection.peer_certificates().unwrap()[0].to_vec()
    }

    /// Whether a server takes a client that knows no later version.
    fn speaks_tls12(&self, address: &str) -> bool {
        let Files { certificate, key, .. } = self.client(&self.authority, CLIENT);
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap());
        let name = "127.0.0.1".try_into().unwrap();
        let mut connection = ClientConnection::new(Arc::new(config.unwrap()), name).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        while connection.is_handshaking() {
            if connection.complete_io(&mut stream).is_err() {
                return false;
            }
        }
        true
    }

    fn open(&self, authority: &Authority, address: &str) -> Result<Box<dyn Store>, String> {
        let Files { certificate, key, authority } = self.client(authority, CLIENT);
        let url = format!(
            "nvme+tls://{address}?certificate={}&key={}&authority={}",
            certificate.display(),
            key.display(),
            authority.unwrap().display()
        );
        spillway_client::open(&url).map_err(|error| error.to_string())
    }
}

const CLIENT_SECTION: &str = "[[client]]\nname = \"b\"\ncertificate = \"b.example\"\n";

#[test]
fn new_connections_are_shown_the_certificate_that_a_reload_finds() {
    let host = Host::new();
    let first = host.renew(1, "a.example");
    let listeners = "resp_tls = \"127.0.0.1:0\"\napi_tls = \"127.0.0.1:0\"\n";
    let daemon = host.start(&format!("{listeners}{CLIENT_SECTION}"));
    let ready = daemon.line(&[" ready "]);
    let all = ["nvme_tls", "resp_tls", "api_tls"].map(|setting| address(&ready, setting));
    let address = all[0];
    assert!(all.iter().all(|address| host.shown(address) == first));
    let store = host.open(&host.authority, address).unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    assert_eq!(store.put(pool, Key::new(1, 2), &[5; 4096]).unwrap(), Put::Stored);
    let before = connected_to(address);

    let lines = daemon.reload();
    assert!(!lines.contains("renewed"), "nothing was replaced: {lines}");
    let second = host.renew(2, "a.example");
    assert!(host.shown(address) == first, "until the reload");
    let lines = daemon.reload();
    let renewed: Vec<_> = lines.lines().filter(|line| line.contains("renewed")).collect();
    assert!(
        renewed.len() == 1
            && renewed[0].contains("listen.tls_certificate, listen.tls_key")
            && !renewed[0].contains("tls_clients"),
        "{lines}"
    );
    assert!(all.iter().all(|address| host.shown(address) == second));
    // Whoever was connected still is.
    let mut read = [0; 4096];
    assert_eq!(store.get(pool, Key::new(1, 2), &mut read).unwrap(), Get::Hit(4096));
    assert!(!before.is_empty() && before.iter().all(|port| connected_to(address).contains(port)));
}

/// Ports from which there are connections to a local address.
fn connected_to(address: &str) -> Vec<String> {
    let (_, port) = address.rsplit_once(':').unwrap();
    let peer = format!("0100007F:{:04X}", port.parse::<u16>().unwrap());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let columns = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let open = columns.filter(|columns| columns[2] == peer && columns[3] == "01");
    open.map(|columns| columns[1].to_owned()).collect()
}

#[test]
fn clients_are_vouched_for_by_whom_a_reload_finds() {
    let host = Host::new();
    host.renew(1, "a.example");
    let daemon = host.start(CLIENT_SECTION);
    let ready = daemon.line(&[" ready "]);
    let address = address(&ready, "nvme_tls");
    let other = Authority::new();
    assert!(host.open(&host.authority, address).is_ok());
    assert!(host.open(&other, address).is_err());
    replace(&host.path("tls/clients"), &other.pem());
    let lines = daemon.reload();
    assert!(lines.contains("renewed") && lines.contains("listen.tls_clients"), "{lines}");
    assert!(host.open(&other, address).is_ok());
    let refused = host.open(&host.authority, address).err().unwrap();
    assert!(refused.contains("does not accept this client's certificate"), "{refused}");
}

#[test]
fn a_file_that_is_broken_leaves_all_as_it_was() {
    let host = Host::new();
    let first = host.renew(1, "a.example");
    let daemon = host.start(CLIENT_SECTION);
    let ready = daemon.line(&[" ready "]);
    let (tls, api) = (address(&ready, "nvme_tls"), address(&ready, "api_tcp"));
    let status = |token| ask(TcpStream::connect(api).unwrap(), "GET /v1/clients", token, "");
    const NEW: &str = "fedcba9876543210-all";
    replace(&host.path("tokens/token"), NEW);
    // A key of another certificate; no certificate at all; none that may be read.
    let other_key = host.authority.sign(&[]).key_pem();
    let good = fs::read_to_string(host.path("tls/key")).unwrap();
    for (file, text, words) in [
        ("archive/key1", other_key.as_str(), "not the key of the certificate"),
        ("archive/key1", "nothing", "tls/key"),
        ("tls/clients", "", "no certificate in it"),
        ("tokens/token", "short", "at least 16 characters"),
        ("tokens/token", READ_TOKEN, "make another"),
    ] {
        let was = fs::read_to_string(host.path(file)).unwrap();
        replace(&host.path(file), text);
        let lines = daemon.reload();
        let errors: Vec<_> = lines.lines().filter(|line| line.contains("not reloaded")).collect();
        assert!(errors.len() == 1 && errors[0].contains(words), "{words}: {lines}");
        assert!(!lines.contains("renewed"), "{lines}");
        assert!(host.shown(tls) == first);
        assert_eq!((status(TOKEN), status(NEW)), (200, 401), "the new one waits");
        replace(&host.path(file), &was);
    }
    assert_eq!(fs::read_to_string(host.path("tls/key")).unwrap(), good);
    let lines = daemon.reload();
    assert!(lines.contains("renewed") && lines.contains("listen.api_token_file"), "{lines}");
    assert_eq!((status(TOKEN), status(NEW)), (401, 200));
    let log = daemon.lines();
    for secret in [NEW, TOKEN, "PRIVATE", "short\n"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn what_the_store_refuses_leaves_all_as_it_was() {
    const NEW: &str = "fedcba9876543210-all";
    let host = Host::new();
    let first = host.renew(1, "a.example");
    replace(&host.path("secrets/password"), "one");
    let client = "[[client]]\nname = \"b\"\npassword_file = \"DIR/secrets/password\"\n";
    let daemon = host.start(client);
    let ready = daemon.line(&[" ready "]);
    let (tls, api) = (address(&ready, "nvme_tls"), address(&ready, "api_tcp"));
    let status = |request, token| ask(TcpStream::connect(api).unwrap(), request, token, "");
    // Everything is new, and a device does not fit into the store, after another one that does.
    let file = host.path("config/spillwayd.toml");
    let was = fs::read_to_string(&file).unwrap();
    let device =
        |name, size| format!("[[block]]\nname = \"{name}\"\nclient = \"c\"\nsize = \"{size}\"\n");
    let more = format!(
        "[[client]]\nname = \"c\"\nuid = 4711\n{}{}",
        device("fits", "8M"),
        device("large", "1G")
    );
    replace(&file, &format!("{was}{more}"));
    replace(&host.path("secrets/password"), "two");
    replace(&host.path("tokens/token"), NEW);
    let second = host.renew(2, "a.example");
    let lines = daemon.reload();
    assert!(lines.contains("not reloaded") && !lines.contains("renewed"), "{lines}");
    let socket = host.path("run/resp.sock");
    for (request, code) in [("GET /v1/clients/b", 200), ("GET /v1/clients/c", 404)] {
        assert_eq!(status(request, TOKEN), code, "{request}");
    }
    assert_eq!(status("GET /v1/clients", NEW), 401);
    assert_eq!(auth(&socket, "one"), "+OK\r\n");
    assert!(host.shown(tls) == first);
    // Without the device that does not fit, the same is taken.
    replace(&file, &format!("{was}{}", more.replace("1G", "4M")));
    let lines = daemon.reload();
    assert!(lines.contains("renewed"), "{lines}");
    assert_eq!((status("GET /v1/clients/c", NEW), status("GET /v1/clients", TOKEN)), (200, 401));
    assert_eq!(auth(&socket, "two"), "+OK\r\n");
    assert!(host.shown(tls) == second);
}

#[test]
fn a_setting_that_names_another_file_keeps_no_other_from_being_read() {
    const NEW: &str = "fedcba9876543210-all";
    let host = Host::new();
    let first = host.renew(1, "a.example");
    let daemon = host.start("");
    let ready = daemon.line(&[" ready "]);
    let (tls, api) = (address(&ready, "nvme_tls"), address(&ready, "api_tcp"));
    let status = |token| ask(TcpStream::connect(api).unwrap(), "GET /v1/clients", token, "");
    let file = host.path("config/spillwayd.toml");
    let text = fs::read_to_string(&file).unwrap();
    for (old, new) in [("tokens/read", "tokens/other"), ("tls/clients", "ours")] {
        replace(&file, &fs::read_to_string(&file).unwrap().replace(old, new));
    }
    replace(&host.path("tokens/other"), "fedcba9876543210-read");
    replace(&host.path("tokens/token"), NEW);
    host.renew(2, "a.example");
    for round in 0..2 {
        let lines = daemon.reload();
        assert_eq!((status(TOKEN), status(NEW)), (401, 200), "in round {round}");
        assert_eq!(status(READ_TOKEN), 200, "its file needs a restart, in round {round}");
        assert!(lines.contains("tls_key and tls_clients were not read again"), "{lines}");
        assert!(host.shown(tls) == first, "in round {round}");
    }
    replace(&file, &text);
    let lines = daemon.reload();
    assert!(lines.contains("listen.tls_certificate, listen.tls_key"), "{lines}");
    assert!(host.shown(tls) != first);
}

#[test]
fn after_a_reload_too_what_is_ours_speaks_tls_1_3_alone() {
    let host = Host::new();
    host.renew(1, "a.example");
    let daemon = host.start("resp_tls = \"127.0.0.1:0\"\n");
    let ready = daemon.line(&[" ready "]);
    for round in 1..3 {
        assert!(host.speaks_tls12(address(&ready, "resp_tls")), "in round {round}");
        assert!(!host.speaks_tls12(address(&ready, "nvme_tls")), "in round {round}");
        host.renew(1 + round, "a.example");
        assert!(daemon.reload().contains("renewed"));
    }
}

#[test]
fn the_old_token_is_refused_and_the_new_one_taken() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path());
    let ready = daemon.line(&[" ready "]);
    let api = address(&ready, "api_tcp");
    let status = |token| ask(TcpStream::connect(api).unwrap(), "GET /v1/clients", token, "");
    let [all, read] = ["fedcba9876543210-all", "fedcba9876543210-read"];
    replace(&dir.path().join("token"), all);
    replace(&dir.path().join("read-token"), read);
    assert_eq!([TOKEN, READ_TOKEN, all, read].map(status), [200, 200, 401, 401]);
    let lines = daemon.reload();
    assert!(lines.contains("api_token_file, listen.api_read_token_file"), "{lines}");
    assert_eq!([TOKEN, READ_TOKEN, all, read].map(status), [401, 401, 200, 200]);
    let change = |token| ask(TcpStream::connect(api).unwrap(), "DELETE /v1/clients/x", token, "");
    assert_eq!([all, read].map(change), [404, 403]);
}

/// What RESP answers to AUTH.
fn auth(socket: &Path, password: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(format!("AUTH b {password}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 256];
    let length = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[test]
fn secrets_and_passwords_are_read_again() {
    let host = Host::new();
    host.renew(1, "a.example");
    for (name, text) in [("secrets/password", "one"), ("nvme/own", SECRET), ("host/c", SECRET)] {
        replace(&host.path(name), text);
    }
    let daemon = host.start(
        "nvme_tcp = \"127.0.0.1:0\"\nnvme_tcp_secret_file = \"DIR/nvme/own\"\n\
         [[client]]\nname = \"b\"\npassword_file = \"DIR/secrets/password\"\n\
         [[client]]\nname = \"c\"\nnqn = \"nqn.2014-08.org.example:c\"\nsecret_file = \"DIR/host/c\"\n",
    );
    let ready = daemon.line(&[" ready "]);
    let socket = host.path("run/resp.sock");
    let nvme = address(&ready, "nvme_tcp").to_owned();
    let open = |secret: &str| {
        replace(&host.path("own"), secret);
        let file = host.path("own");
        let nqn = "nqn.2014-08.org.example:c";
        let url = format!("nvme+tcp://{nvme}?host-nqn={nqn}&secret-file={}", file.display());
        spillway_client::open(&url).map(drop).is_ok()
    };
    assert_eq!(auth(&socket, "one"), "+OK\r\n");
    assert!(open(SECRET) && !open(OTHER_SECRET));
    for (name, text) in
        [("secrets/password", "two"), ("nvme/own", OTHER_SECRET), ("host/c", OTHER_SECRET)]
    {
        replace(&host.path(name), text);
    }
    let lines = daemon.reload();
    for word in ["client 'b'", "client 'c'", "listen.nvme_tcp_secret_file"] {
        assert!(lines.lines().any(|it| it.contains("renewed") && it.contains(word)), "{lines}");
    }
    let lines = daemon.reload();
    assert!(!lines.contains("renewed"), "they are in use now: {lines}");
    assert_eq!(auth(&socket, "two"), "+OK\r\n");
    assert!(auth(&socket, "one").starts_with("-WRONGPASS"), "{}", auth(&socket, "one"));
    assert!(!open(SECRET) && open(OTHER_SECRET));
    // The other kind of nonsense.
    replace(&host.path("nvme/own"), "DHHC-1:00:nonsense:");
    let lines = daemon.reload();
    assert!(lines.contains("not reloaded") && lines.contains("nvme_tcp_secret_file"), "{lines}");
    assert!(!lines.contains("nonsense") && !daemon.lines().contains("M1cw6kj"), "{lines}");
}

/// A host that the daemon asks what it can spare; it sees by which certificate.
struct OtherHost {
    listener: TcpListener,
    settings: ServerSettings,
}

impl OtherHost {
    fn new(host: &Host) -> Self {
        let (certificate, key) = (host.path("peer.cert"), host.path("peer.key"));
        sign(&host.authority, &["peer.test"], &certificate, &key);
        let files = Files { certificate, key, authority: Some(host.path("ours")) };
        let settings = ServerSettings::load(&files, Versions::Tls13).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, settings }
    }

    /// The certificate of the next connection; none if the daemon has given that up, because it waited for too long.
    fn asked_by(&self) -> Option<Vec<u8>> {
        let mut stream = until_some("a question", || match self.listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut connection = self.settings.connection().unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).ok()?;
        }
        Some(connection.peer_certificates()?[0].to_vec())
    }

    fn asked_by_soon(&self, certificate: &[u8]) {
        until("the certificate to be shown", || self.asked_by().as_deref() == Some(certificate));
    }
}

#[test]
fn lending_goes_on_with_new_keys_of_the_same_name() {
    let host = Host::new();
    let first = host.renew(1, "a.example");
    let other = OtherHost::new(&host);
    let lend = format!(
        "[lend]\nroles = \"both\"\ndevice = \"socket\"\nlisten = \"127.0.0.1:0\"\nregistry_ms = 100\n\
         secret_file = \"DIR/secrets/lend\"\n[[peer]]\nname = \"peer.test\"\naddress = \"{}\"\n",
        other.listener.local_addr().unwrap()
    );
    replace(&host.path("secrets/lend"), SECRET);
    let daemon = host.start(&lend);
    let ready = daemon.line(&[" ready "]);
    let address = address(&ready, ", lend");
    assert!(host.shown(address) == first);
    other.asked_by_soon(&first);
    let second = host.renew(2, "a.example");
    replace(&host.path("secrets/lend"), OTHER_SECRET);
    let lines = daemon.reload();
    let renewed = lines.lines().find(|line| line.contains("renewed")).unwrap();
    assert!(renewed.contains("tls_certificate") && renewed.contains("lend.secret_file"), "{lines}");
    assert!(host.shown(address) == second);
    other.asked_by_soon(&second);
    // Its name is what other hosts know it by.
    host.renew(3, "other.test");
    let lines = daemon.reload();
    assert!(lines.contains("not reloaded") && lines.contains("restart the daemon"), "{lines}");
    assert!(host.shown(address) == second);
}
