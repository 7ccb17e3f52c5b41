//! Windows for programs of guests: the work of an agent and a daemon on a guest's memory, with a memfd instead.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use spillway_client::{Error, Get, Key, PoolSpec, Put, Ring, Store};
use spillway_ring::{Attached, Config, Region, Server};
use spillway_serving::Refusal;
use spillway_types::Limits;
use spillway_wire::ring::{Geometry, Hello, Reason, WAKE, WINDOW_PAGE_BYTES, Welcome};

use crate::daemon::{Daemon, LIMITS};

const PAGE: u64 = WINDOW_PAGE_BYTES as u64;

/// Lends one window, whose pages lie in reverse order in the guest's memory, and forwards wake-ups.
struct Agent {
    path: PathBuf,
    thread: JoinHandle<Option<Attached>>,
    _folder: tempfile::TempDir,
}

impl Agent {
    fn start(server: &Arc<Server>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let server = server.clone();
        let thread = thread::spawn(move || {
            let (mut program, _) = listener.accept().unwrap();
            let mut bytes = [0; Hello::BYTES];
            program.read_exact(&mut bytes).unwrap();
            let hello = Hello::decode(&bytes).unwrap();
            let pages = Geometry::new(hello.depth, hello.data_bytes).unwrap().window_pages() as u64;
            // The guest's file of the window, and its place in the guest's memory: here the same bytes at another
            // offset.
            let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&memory, pages * PAGE).unwrap();
            let offsets: Vec<u64> = (0..pages).map(|at| at * PAGE).collect();
            let map = |geometry| Region::map_guest(&memory, &offsets, geometry);
            match server.attach("guest", hello, map) {
                Err(reason) => {
                    program.write_all(&Welcome::Refused(reason).encode()).unwrap();
                    None
                }
                Ok(attached) => {
                    welcome(&program, &attached, &File::from(memory));
                    bridge(program, &attached);
                    Some(attached)
                }
            }
        });
        Self { path, thread, _folder: folder }
    }
}

fn welcome(program: &UnixStream, attached: &Attached, file: &File) {
    let (geometry, instance) = (attached.geometry, attached.instance);
    let bytes = Welcome::Granted { geometry, instance }.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(program, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
}

/// Forwards wake-ups both ways until the program has ended; then the agent ends the window on its behalf.
fn bridge(program: UnixStream, attached: &Attached) {
    let mut towards = program.try_clone().unwrap();
    let socket = attached.socket.try_clone().unwrap();
    let back = thread::spawn(move || {
        let mut byte = [0; 1];
        while matches!(recv(&socket, &mut byte, RecvFlags::empty()), Ok((_, 1))) {
            let _ = towards.write_all(&byte);
        }
    });
    let (mut program, mut byte) = (program, [0; 1]);
    while matches!(program.read(&mut byte), Ok(1)) {
        send(&attached.socket, &[WAKE], SendFlags::NOSIGNAL).unwrap();
    }
    attached.end();
    // The thread ends when the server ends its side and unmaps the region.
    back.join().unwrap();
}

fn server() -> (Daemon, Arc<Server>) {
    server_with(LIMITS)
}

fn server_with(limits: Limits) -> (Daemon, Arc<Server>) {
    let mut daemon = Daemon::for_one(limits);
    let server = Arc::new(daemon.server.take().unwrap());
    (daemon, server)
}

#[test]
fn values_of_all_lengths_go_through_a_window_and_its_end_is_seen() {
    let (daemon, server) = server();
    let agent = Agent::start(&server);
    let store = Ring::connect_from_guest(&agent.path, 2).unwrap();
    let pool = store.open_pool(PoolSpec::PERSISTENT).unwrap();
    for (index, bytes) in [1, 4095, 4096, 4097, 3 << 20].into_iter().enumerate() {
        let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + index) as u8).collect();
        let key = Key::new(1, index as u32);
        // Sometimes long enough for both sides to sleep.
        thread::sleep(Duration::from_millis(index as u64 % 2 * 5));
        assert_eq!(store.put(pool, key, &value).unwrap(), Put::Stored);
        let mut read = vec![0; bytes];
        assert_eq!(store.get(pool, key, &mut read).unwrap(), Get::Hit(bytes));
        assert_eq!(read, value);
    }
    let long = vec![0; 5 << 20];
    assert!(matches!(store.put(pool, Key::new(2, 0), &long), Err(Error::Length { .. })));
    drop(store);
    let attached = agent.thread.join().unwrap().unwrap();
    assert!(!attached.is_broken());
    assert_eq!(daemon.inside(), 0);
}

/// Serves a window of one page, with a memfd for the guest's memory.
fn attach(server: &Server, hello: Hello) -> Result<Attached, Reason> {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, PAGE).unwrap();
    server.attach("guest", hello, |geometry| Region::map_guest(&memory, &[0], geometry))
}

/// Ends a window, and waits until all of it is gone.
fn end(attached: &Attached) {
    attached.end();
    let mut byte = [0; 1];
    while matches!(recv(&attached.socket, &mut byte, RecvFlags::empty()), Ok((_, 1))) {}
}

#[test]
fn a_program_whose_ring_breaks_the_protocol_loses_its_window() {
    let (_daemon, server) = server();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, PAGE).unwrap();
    let map = |geometry| Region::map_guest(&memory, &[0], geometry);
    let attached = server.attach("guest", hello, map).unwrap();
    rustix::io::pwrite(&memory, &1000_u32.to_le_bytes(), 0).unwrap();
    send(&attached.socket, &[WAKE], SendFlags::NOSIGNAL).unwrap();
    let mut byte = [0; 1];
    while matches!(recv(&attached.socket, &mut byte, RecvFlags::empty()), Ok((_, 1))) {}
    assert!(attached.is_broken());
}

#[test]
fn a_window_that_is_kept_busy_ends_all_the_same() {
    let (daemon, server) = server();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, PAGE).unwrap();
    let map = |geometry| Region::map_guest(&memory, &[0], geometry);
    let attached = server.attach("guest", hello, map).unwrap();
    let guest = Region::map_window(&memory, attached.geometry).unwrap();
    let busy = thread::spawn(move || {
        // Commands of zeros, as fast as the server takes them. It answers them with an error.
        for count in 1..u32::MAX {
            guest.submitted().store(count, std::sync::atomic::Ordering::SeqCst);
            let start = std::time::Instant::now();
            while guest.completion(count - 1).is_none() {
                if start.elapsed() > Duration::from_millis(500) {
                    return;
                }
                if guest.server_asleep().load(std::sync::atomic::Ordering::SeqCst) != 0 {
                    thread::yield_now();
                }
            }
        }
    });
    thread::sleep(Duration::from_millis(20));
    end(&attached);
    assert_eq!(daemon.inside(), 0);
    busy.join().unwrap();
}

#[test]
fn a_window_for_which_there_is_no_memory_is_refused() {
    let (daemon, server) = server();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let none = |_| Err(std::io::ErrorKind::InvalidInput.into());
    assert_eq!(server.attach("guest", hello, none).unwrap_err(), Reason::Failed);
    assert_eq!(daemon.inside(), 0);
    assert_eq!(server.connections(), 0);
    let hello = Hello { version: 7, ..hello };
    assert_eq!(server.attach("guest", hello, none).unwrap_err(), Reason::Version);
}

#[test]
fn a_window_beyond_the_ring_s_connections_is_refused_and_counted() {
    let mut daemon = Daemon::with(LIMITS, Config::of(1));
    let server = daemon.server.take().unwrap();
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let first = attach(&server, hello).unwrap();
    let counts = || (server.counts().open(), server.counts().refused(Refusal::Full));
    assert_eq!(counts(), (1, 0));
    assert_eq!(attach(&server, hello).unwrap_err(), Reason::Connections);
    assert_eq!(counts(), (1, 1));
    end(&first);
    assert_eq!(daemon.inside(), 0);
}

#[test]
fn windows_that_failed_leave_the_client_its_limits() {
    // Enough for one ring.
    let limits = Limits { operations_max: 64, bytes_max: 4096, ..LIMITS };
    let (_daemon, server) = server_with(limits);
    let hello = Hello { version: 1, depth: 64, data_bytes: 4096 };
    let none = |_| Err(std::io::ErrorKind::InvalidInput.into());
    for _ in 0..3 {
        assert_eq!(server.attach("guest", hello, none).unwrap_err(), Reason::Failed);
    }
    let attached = attach(&server, hello).unwrap();
    assert_eq!((attached.geometry.depth(), attached.geometry.data_bytes()), (64, 4096));
    assert_eq!(attach(&server, hello).unwrap_err(), Reason::Limits);
    end(&attached);
}

#[test]
fn rings_that_come_and_go_leave_the_client_its_limits() {
    let (_daemon, server) = server_with(Limits { bytes_max: 32 << 10, ..LIMITS });
    // Not a whole number of pages.
    let hello = Hello { version: 1, depth: 8, data_bytes: 10_000 };
    let stays = attach(&server, hello).unwrap();
    assert_eq!(stays.geometry.data_bytes(), 8192);
    for _ in 0..10 {
        let attached = attach(&server, hello).unwrap();
        assert_eq!(attached.geometry, stays.geometry);
        end(&attached);
    }
    let rest = attach(&server, Hello { data_bytes: 32 << 10, ..hello }).unwrap();
    assert_eq!(rest.geometry.data_bytes(), 24 << 10);
    [stays, rest].iter().for_each(end);
}
