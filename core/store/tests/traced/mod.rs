//! Stepping a process by ptrace, and what the memory that it shares holds after each instruction.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};

use spillway_store::PAGE_BYTES;

const CHILD: &str = "STEPS_CHILD";
/// Instructions after which all of the memory is looked at.
const LOOK_STEPS: u64 = 64;

/// The parts of a file that have memory.
pub type Image = Vec<(u64, Vec<u8>)>;

pub fn image(file: &OwnedFd) -> Image {
    use rustix::fs::{SeekFrom, seek};
    let mut parts = Image::new();
    let mut at = 0;
    while let Ok(data) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(data)).expect("hole");
        let mut bytes = vec![0; (at - data) as usize];
        assert_eq!(rustix::io::pread(file, &mut bytes, data).expect("read"), bytes.len());
        parts.push((data, bytes));
    }
    parts
}

/// A file of the same length and content, of a store's memory.
pub fn copy(file: &OwnedFd, image: &Image) -> OwnedFd {
    use rustix::fs::SealFlags;
    let copy = copy_of_any(file, image);
    rustix::fs::fcntl_add_seals(&copy, SealFlags::SHRINK | SealFlags::GROW).expect("seal");
    copy
}

/// A file of the same length and content, which may grow.
pub fn copy_of_any(file: &OwnedFd, image: &Image) -> OwnedFd {
    use rustix::fs::MemfdFlags;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let copy = rustix::fs::memfd_create("copy", flags).expect("memfd");
    let length = rustix::fs::fstat(file).expect("length").st_size;
    rustix::fs::ftruncate(&copy, length as u64).expect("length");
    for (at, bytes) in image {
        assert_eq!(rustix::io::pwrite(&copy, bytes, *at).expect("write"), bytes.len());
    }
    copy
}

/// A page of a file that is not empty: which file, where, and what is in it.
type Page = (usize, u64, Vec<u8>);

fn used_pages(images: &[Image]) -> Vec<Page> {
    let mut used = Vec::new();
    for (file, image) in images.iter().enumerate() {
        for (at, bytes) in image {
            for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
                if page.iter().any(|&byte| byte != 0) {
                    used.push((file, at + (number * PAGE_BYTES) as u64, page.to_vec()));
                }
            }
        }
    }
    used
}

/// A file that is looked at while another process writes to it.
struct Map(*const u8);

impl Map {
    fn new(file: &OwnedFd) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let length = rustix::fs::fstat(file).expect("length").st_size as usize;
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(at, length, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Self(start.expect("map").cast())
    }

    /// A page of the file, whose writer is stopped.
    fn page(&self, at: u64) -> &[u8] {
        // SAFETY: callers name pages within the file, which nobody writes to at the moment.
        unsafe { std::slice::from_raw_parts(self.0.add(at as usize), PAGE_BYTES) }
    }
}

/// Which children a wait is for: threads too, and none of another thread of this process.
const OWN: libc::c_int = libc::__WALL | libc::__WNOTHREAD;

/// Calls `check` for each number below `count`, on two threads, since stepping a child takes long.
pub fn each(count: usize, check: impl Fn(usize) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || (half..count).step_by(2).for_each(check));
        }
    });
}

/// Has a child carry out operation `number` instruction by instruction, and shows each state of the
/// memory, which the first `watched` files are. Gives the instructions and the states.
pub fn trace(
    files: &[OwnedFd],
    watched: usize,
    number: usize,
    mut visit: impl FnMut(&[Image]),
) -> (u64, u64) {
    let pass = |file: &OwnedFd| {
        let passed = file.as_fd().try_clone_to_owned().expect("duplicate");
        rustix::io::fcntl_setfd(&passed, rustix::io::FdFlags::empty()).expect("inherit");
        passed
    };
    let passed: Vec<OwnedFd> = files.iter().map(pass).collect();
    let numbers: Vec<String> = passed.iter().map(|file| file.as_raw_fd().to_string()).collect();
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{number},{}", numbers.join(",")))
        .stdout(Stdio::null())
        .spawn()
        .expect("child");
    let wait = |thread| {
        let mut status = 0;
        // SAFETY: the status is the only thing that is written.
        let stopped = unsafe { libc::waitpid(thread, &mut status, OWN) };
        assert!(stopped > 0 && libc::WIFSTOPPED(status), "the child ended: {status:#x}");
        (stopped, libc::WSTOPSIG(status))
    };
    // The thread that works stops itself before and after the operation.
    let (thread, _) = wait(-1);
    let (mut steps, mut states) = (0, 0);
    let maps: Vec<Map> = files[..watched].iter().map(Map::new).collect();
    let all = || -> Vec<Image> { files.iter().map(image).collect() };
    let mut last = all();
    let mut used = used_pages(&last[..watched]);
    loop {
        // SAFETY: the thread is stopped and traced by this one; its memory is its own business.
        let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, thread, 0, 0) };
        assert_eq!(stepped, 0);
        steps += 1;
        let ended = wait(thread).1 == libc::SIGSTOP;
        // Most instructions write nothing that is kept. Pages that were empty are looked at less
        // often: nothing leads to them before a page in use has changed.
        let changed = |(file, at, page): &Page| maps[*file].page(*at) != &page[..];
        if ended || steps % LOOK_STEPS == 0 || used.iter().any(changed) {
            let now = all();
            if now[..watched] != last[..watched] {
                states += 1;
                visit(&now);
                used = used_pages(&now[..watched]);
                last = now;
            }
        }
        if ended {
            break;
        }
    }
    child.kill().expect("kill");
    // The death of a traced thread is told to its tracer first.
    // SAFETY: nothing is written.
    unsafe { libc::waitpid(thread, std::ptr::null_mut(), OWN) };
    child.wait().expect("wait");
    (steps, states)
}

/// What the process that is stepped was given: the number of the operation, and the files. Nothing
/// when it is run as a test.
pub fn given() -> Option<(usize, Vec<OwnedFd>)> {
    let variable = std::env::var(CHILD).ok()?;
    let mut numbers = variable.split(',').map(|n| n.parse::<usize>().expect("number"));
    let number = numbers.next().expect("an operation");
    // SAFETY: the parent has passed these descriptors, and nobody else here has them.
    Some((number, numbers.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }).collect()))
}

/// Does what is to be stepped.
pub fn stepped(step: impl FnOnce()) {
    // SAFETY: being traced by the parent and stopping change no memory.
    let stop = || unsafe { libc::raise(libc::SIGSTOP) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) }, 0);
    stop();
    step();
    stop();
}
