//! An agent of a guest in this process, for tests: a memfd is the guest's memory.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use spillway_ring::{Attached, Region, Server};
use spillway_wire::ring::{
    Geometry, Hello, PART_VERSION, VERSION, WAKE, WINDOW_PAGE_BYTES, Welcome,
};

const PAGE: u64 = WINDOW_PAGE_BYTES as u64;

/// Lends one window, whose pages lie in reverse order in the guest's memory, and forwards wake-ups.
pub struct Agent {
    pub path: PathBuf,
    pub thread: JoinHandle<Option<Attached>>,
    _folder: tempfile::TempDir,
}

impl Agent {
    pub fn start(server: &Arc<Server>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let server = server.clone();
        let thread = thread::spawn(move || {
            let (mut program, _) = listener.accept().unwrap();
            let mut bytes = [0; Hello::BYTES];
            program.read_exact(&mut bytes).unwrap();
            let hello = Hello::decode(&bytes).unwrap();
            assert_eq!(hello.version, PART_VERSION);
            let hello = Hello { version: VERSION, ..hello };
            let pages = Geometry::new(hello.depth, hello.data_bytes).unwrap().window_pages() as u64;
            // The host and the program map the same file, in which the window starts at the second page.
            let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&memory, (1 + pages) * PAGE).unwrap();
            let offsets: Vec<u64> = (1..=pages).map(|at| at * PAGE).collect();
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
    let bytes = Welcome::Part { geometry, instance, first: NonZeroU32::MIN }.encode();
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
