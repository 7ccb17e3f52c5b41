//! A C program that makes every call, linked both ways, over the stores of this host.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use spillway_ring::Server;
use spillway_store::{ClientConfig, Store};
use spillway_test_support::access::OneClient;

/// System libraries that the archive needs.
const NEEDED: [&str; 5] = ["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"];
const HEADER: &str = include_str!("../include/spillway.h");

/// A file that cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = [own.parent().unwrap(), own.parent().unwrap().parent().unwrap()];
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", own.display()))
}

fn run(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles a program of this folder against a library in `folder`. Returns the program's path.
fn compile(folder: &Path, source: &str, name: &str, link: &[&OsStr]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(name);
    let mut arguments: Vec<&OsStr> =
        ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"].map(OsStr::new).to_vec();
    let (source, include) = (here.join("tests").join(source), here.join("include"));
    arguments.extend([source.as_os_str(), "-I".as_ref(), include.as_os_str()]);
    arguments.extend(["-o".as_ref(), program.as_os_str()]);
    arguments.extend(link);
    run("cc", &arguments);
    program
}

#[test]
fn a_c_program_makes_every_call_of_both_libraries() {
    let folder = tempfile::tempdir().unwrap();
    // As installed: the linker's name and the loader's name.
    let library = built("libspillway.so");
    for name in ["libspillway.so", "libspillway.so.0"] {
        std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
    }
    let rpath = format!("-Wl,-rpath,{}", folder.path().display());
    let search = format!("-L{}", folder.path().display());
    let link = [OsStr::new(&search), "-lspillway".as_ref(), rpath.as_ref()];
    let dynamic = compile(folder.path(), "program.c", "dynamic", &link);
    let archive = built("libspillway.a");
    let link = [&[archive.as_os_str()][..], &NEEDED.map(OsStr::new)].concat();
    let whole = compile(folder.path(), "program.c", "static", &link);
    let needs = run("readelf", &["-d".as_ref(), dynamic.as_os_str()]);
    assert!(needs.contains("[libspillway.so.0]"), "{needs}");

    let store = Arc::new(Store::open(spillway_store::Config::embedded(256 << 20)).unwrap());
    for (number, program) in [dynamic, whole].into_iter().enumerate() {
        let client = store.add_client(ClientConfig::default()).unwrap();
        store.authorise(client, 0xab01 << 112).unwrap();
        // One path each: until its exec, a child that another test starts holds the first listener open.
        let socket = folder.path().join(format!("ring{number}.sock"));
        let listener = Server::bind(&socket).unwrap();
        let open = Arc::new(OneClient::new(client));
        let _server =
            Server::start(listener, store.clone(), open, spillway_ring::Config::default()).unwrap();
        for url in ["embed:?capacity=128M".to_owned(), format!("ring:{}", socket.display())] {
            let said = run(program.to_str().unwrap(), &[OsStr::new(&url)]);
            assert_eq!(said, "all calls are right\n");
        }
        store.remove_client(client).unwrap();
    }
}

/// Replies to successive calls, to each in a different way. The last gets no reply.
fn agent(listener: &UnixListener) {
    let next = || listener.accept().unwrap().0;
    let hear = |stream: &UnixStream| {
        let mut call = String::new();
        BufReader::new(stream).read_line(&mut call).unwrap();
        call
    };
    for (expected, reply) in [
        ("{\"need\":{\"bytes\":536870912}}\n", "{\"answer\":{\"granted_bytes\":536870912}}\n"),
        ("{\"give\":{\"bytes\":314572800}}\n", "{\"answer\":{\"granted_bytes\":268435456}}\n"),
        (
            "{\"need\":{\"bytes\":1}}\n",
            "{\"answer\":{\"granted_bytes\":0,\"why\":\"the pool is dry\"}}\n",
        ),
        ("{\"need\":{\"bytes\":2}}\n", "what?\n"),
        ("{\"need\":{\"bytes\":3}}\n", ""),
    ] {
        let mut stream = next();
        assert_eq!(hear(&stream), expected);
        stream.write_all(reply.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    next().shutdown(Shutdown::Both).unwrap();
    let silent = next();
    hear(&silent);
    // Until the program has ended.
    assert_eq!((&silent).read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_c_program_asks_the_agent_of_a_guest() {
    let folder = tempfile::tempdir().unwrap();
    let archive = built("libspillway.a");
    let link = [&[archive.as_os_str()][..], &NEEDED.map(OsStr::new)].concat();
    let program = compile(folder.path(), "guest.c", "guest", &link);
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let agent = std::thread::spawn(move || agent(&listener));
    let said = run(program.to_str().unwrap(), &[socket.as_os_str()]);
    assert_eq!(said, "all answers are right\n");
    agent.join().unwrap();
}

#[test]
fn the_header_has_what_the_library_exports() {
    let symbols =
        run("nm", &["-D".as_ref(), "--defined-only".as_ref(), built("libspillway.so").as_os_str()]);
    let exported: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split(" T ").nth(1)).collect();
    let words = HEADER.split(|c: char| !(c.is_ascii_alphanumeric() || "_(".contains(c)));
    let declared: BTreeSet<&str> = words
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("spillway_"))
        .collect();
    assert_eq!(exported, declared);
}
