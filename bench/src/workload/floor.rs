//! The lower bound of a fault's cost: a userfaultfd handler that only copies the page in. One variant also keeps the
//! pages within a bound.
//!
//! There is no index, no choice and no accounting; pages lie in one array, raw or as LZ4 blocks. The kernel's interface
//! is declared here instead of taken from `spillway-platform`, so that the floor does not change with the code that is
//! compared with it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::{io, mem, ptr, thread};

use lz4_flex::block;

use crate::bound::Bound;
use crate::clock::{Clock, SharedTimes, Times};
use crate::pages::{self, Region};
use crate::spec::{Content, Floor as Wanted, Handler, PAGE, Spec};

const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_API: libc::Ioctl = read_write::<UffdioApi>(0x3F);
const UFFDIO_REGISTER: libc::Ioctl = read_write::<UffdioRegister>(0x00);
const UFFDIO_COPY: libc::Ioctl = read_write::<UffdioCopy>(0x03);
/// It has the same five words as a copy.
const UFFDIO_MOVE: libc::Ioctl = read_write::<UffdioCopy>(0x05);

/// `_IOWR(0xAA, number, T)` of the kernel's headers.
const fn read_write<T>(number: libc::Ioctl) -> libc::Ioctl {
    3 << 30 | (size_of::<T>() as libc::Ioctl) << 16 | 0xAA << 8 | number
}

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioCopy {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffd_msg`, as filled for a page fault.
#[repr(C)]
struct UffdMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// A buffer for an incoming page.
#[repr(C, align(4096))]
struct Frame([u8; PAGE]);

/// A running bare handler. It stays until the process ends.
pub struct Floor {
    descriptor: OwnedFd,
    first: usize,
    pages: usize,
    stored: Stored,
    bound: Option<Bound>,
    clock: Clock,
    times: SharedTimes,
}

/// The far pages.
enum Stored {
    Raw(Vec<u8>),
    Lz4 { blocks: Vec<u8>, ends: Vec<usize> },
}

/// The only handler of this process. A signal handler can find it only in a static variable.
static FLOOR: OnceLock<Floor> = OnceLock::new();

/// Fills the store, and pages `region`, all of it far, with a handler of this kind.
pub fn start(
    region: &Region,
    spec: &Spec,
    clock: Clock,
    wanted: Wanted,
) -> io::Result<&'static Floor> {
    let handler = wanted.handler;
    let stored = Stored::of(spec)?;
    warm_frames(region)?;
    let features = if handler == Handler::Signal { UFFD_FEATURE_SIGBUS } else { 0 };
    let floor = Floor {
        descriptor: open(features)?,
        first: region.address(),
        pages: region.pages(),
        stored,
        bound: wanted.local_pages.map(Bound::new).transpose()?,
        clock,
        times: SharedTimes::new(),
    };
    floor.register(region)?;
    let floor = FLOOR.get_or_init(|| floor);
    if let Some(bound) = &floor.bound {
        floor.register(bound.window())?;
        let content = spec.content;
        let move_out = |page, target| floor.move_out(page, target);
        thread::spawn(move || bound.evict(floor.pages, content, move_out));
    }
    match handler {
        Handler::Signal => take_sigbus()?,
        Handler::Thread => {
            for core in 0..thread::available_parallelism()?.get() {
                thread::spawn(move || read_faults(floor, core));
            }
        }
    }
    Ok(floor)
}

impl Floor {
    /// The time from reading each fault to having answered it.
    pub fn times(&self) -> Times {
        self.times.read()
    }

    fn register(&self, region: &Region) -> io::Result<()> {
        let mut register = UffdioRegister {
            start: region.address() as u64,
            bytes: (region.pages() * PAGE) as u64,
            mode: UFFDIO_REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        ioctl(self.descriptor.as_raw_fd(), UFFDIO_REGISTER, &mut register)
    }

    /// Moves a page to `target`, which must be empty.
    fn move_out(&self, page: usize, target: usize) {
        let from = (self.first + page * PAGE) as u64;
        loop {
            let mut move_one =
                UffdioCopy { to: target as u64, from, bytes: PAGE as u64, mode: 0, copied: 0 };
            match ioctl(self.descriptor.as_raw_fd(), UFFDIO_MOVE, &mut move_one) {
                Ok(()) => return,
                // The kernel is using the page: it is being faulted in or collected.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN)) => {
                    thread::yield_now();
                }
                Err(_) => std::process::abort(),
            }
        }
    }

    /// Brings in the page at `address`.
    fn answer(&self, address: usize) {
        let began = Clock::ticks();
        let page = (address - self.first) / PAGE;
        let came = match &self.stored {
            Stored::Raw(bytes) => self.copy(page, bytes[page * PAGE..].as_ptr()),
            Stored::Lz4 { blocks, ends } => {
                let begin = if page == 0 { 0 } else { ends[page - 1] };
                let mut frame = Frame([0; PAGE]);
                if block::decompress_into(&blocks[begin..ends[page]], &mut frame.0).is_err() {
                    std::process::abort();
                }
                self.copy(page, frame.0.as_ptr())
            }
        };
        if let Some(bound) = self.bound.as_ref().filter(|_| came) {
            bound.note(page);
        }
        self.times.add(self.clock.since_ns(began));
    }

    /// Returns whether this call brought the page in: two threads may miss the same one.
    fn copy(&self, page: usize, from: *const u8) -> bool {
        let mut copy = UffdioCopy {
            to: (self.first + page * PAGE) as u64,
            from: from as u64,
            bytes: PAGE as u64,
            mode: 0,
            copied: 0,
        };
        match ioctl(self.descriptor.as_raw_fd(), UFFDIO_COPY, &mut copy) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => false,
            // A signal handler can't return an error, and continuing would hang.
            Err(_) => std::process::abort(),
        }
    }
}

impl Stored {
    fn of(spec: &Spec) -> io::Result<Self> {
        let mut page = vec![0; PAGE];
        Ok(match spec.content {
            Content::Random => {
                let mut bytes = vec![0; spec.pages * PAGE];
                for (number, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
                    pages::fill(page, number, spec.content);
                }
                Self::Raw(bytes)
            }
            Content::Half => {
                let mut packed = vec![0; block::get_maximum_output_size(PAGE)];
                let (mut blocks, mut ends) = (Vec::new(), Vec::with_capacity(spec.pages));
                for number in 0..spec.pages {
                    pages::fill(&mut page, number, spec.content);
                    let length =
                        block::compress_into(&page, &mut packed).map_err(io::Error::other)?;
                    blocks.extend_from_slice(&packed[..length]);
                    ends.push(blocks.len());
                }
                Self::Lz4 { blocks, ends }
            }
        })
    }
}

/// Excludes the host's first allocation of the guest's frames from the measurement.
fn warm_frames(region: &Region) -> io::Result<()> {
    for page in 0..region.pages() {
        region.page(page)[0] = 1;
    }
    let bytes = region.pages() * PAGE;
    // SAFETY: the range is the whole mapping, whose content is not needed yet.
    if unsafe { libc::madvise(region.word(0).cast(), bytes, libc::MADV_DONTNEED) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn open(features: u64) -> io::Result<OwnedFd> {
    // SAFETY: the call takes only flags, and returns a new descriptor or -1.
    let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned the descriptor, and nothing else owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw as RawFd) };
    let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
    ioctl(descriptor.as_raw_fd(), UFFDIO_API, &mut api)?;
    Ok(descriptor)
}

fn ioctl<T>(descriptor: RawFd, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request number encodes the size of its argument's type, within which the kernel reads and writes.
    if unsafe { libc::ioctl(descriptor, request, ptr::from_mut(argument)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn read_faults(floor: &'static Floor, core: usize) {
    // SAFETY: all zeros is the empty set; the call reads it within its size.
    unsafe {
        let mut cores: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(core, &mut cores);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cores);
    }
    let descriptor = floor.descriptor.as_raw_fd();
    loop {
        // SAFETY: all zeros is a valid message, and the read stays within it.
        let (message, got) = unsafe {
            let mut message: UffdMessage = mem::zeroed();
            let to = (&raw mut message).cast();
            let got = libc::read(descriptor, to, size_of::<UffdMessage>());
            (message, got)
        };
        if got as usize == size_of::<UffdMessage>() && message.event == UFFD_EVENT_PAGEFAULT {
            floor.answer(message.address as usize);
        }
    }
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    match FLOOR.get() {
        Some(floor) if address >= floor.first => floor.answer(address),
        _ => std::process::abort(),
    }
}

fn take_sigbus() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; the handler uses only async-signal-safe operations.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
