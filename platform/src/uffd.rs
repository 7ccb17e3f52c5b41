//! userfaultfd(2): the kernel's page faults as messages, and the operations that answer them.
//!
//! Structures and numbers are those of `include/uapi/linux/userfaultfd.h`, Linux 6.8 and later.

use crate::PAGE_SIZE;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Bits of `uffdio_api.features`.
pub mod feature {
    /// Write-protection faults are reported, and marked as such.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// mremap sends an event.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// madvise that drops pages sends an event.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// munmap sends an event.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// A fault raises SIGBUS in the faulting thread.
    pub const SIGBUS: u64 = 1 << 7;
    /// A fault's message contains the thread's id.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Pages can be poisoned.
    pub const POISON: u64 = 1 << 14;
    /// Pages can be moved.
    pub const MOVE: u64 = 1 << 16;
}

/// The kinds of faults for which a range is registered.
pub mod mode {
    /// Faults on absent pages.
    pub const MISSING: u64 = 1;
    /// Writes to protected pages.
    pub const WP: u64 = 2;
}

const TYPE: u8 = 0xAA;
const API: u64 = 0xAA;

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
struct RegisterArg {
    range: Range,
    mode: u64,
    ioctls: u64,
}
/// UFFDIO_COPY and UFFDIO_MOVE take the same five words.
#[repr(C)]
struct TransferArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct WriteProtectArg {
    range: Range,
    mode: u64,
}
#[repr(C)]
struct PoisonArg {
    range: Range,
    mode: u64,
    updated: i64,
}

const OP_API: Opcode = opcode::read_write::<ApiArg>(TYPE, 0x3F);
const OP_REGISTER: Opcode = opcode::read_write::<RegisterArg>(TYPE, 0x00);
const OP_UNREGISTER: Opcode = opcode::read::<Range>(TYPE, 0x01);
const OP_WAKE: Opcode = opcode::read::<Range>(TYPE, 0x02);
const OP_COPY: Opcode = opcode::read_write::<TransferArg>(TYPE, 0x03);
const OP_MOVE: Opcode = opcode::read_write::<TransferArg>(TYPE, 0x05);
const OP_WRITE_PROTECT: Opcode = opcode::read_write::<WriteProtectArg>(TYPE, 0x06);
const OP_POISON: Opcode = opcode::read_write::<PoisonArg>(TYPE, 0x08);
const OP_NEW: Opcode = opcode::none(TYPE, 0x00);

const DONT_WAKE: u64 = 1;
const COPY_WRITE_PROTECTED: u64 = 2;
const PROTECT: u64 = 1;

/// The number of bytes that an operation finished, and the reason if it stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes from the start of the range that are finished.
    pub bytes: usize,
    /// The reason why it stopped; `None` if it finished.
    pub stopped: Option<Errno>,
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread touched a page.
    Fault {
        /// Address touched, rounded down to its page.
        address: usize,
        /// Whether the access was a write.
        write: bool,
        /// Whether the page is present and write-protected.
        protected: bool,
        /// The thread's id in its own pid namespace, with [`feature::THREAD_ID`]; else 0.
        thread: u32,
    },
    /// A range moved.
    Remap {
        /// The old address.
        from: usize,
        /// The new address.
        to: usize,
        /// Its old length, bytes.
        bytes: usize,
    },
    /// The contents of a range are about to be dropped; the mapping stays.
    Remove {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
    /// A range was unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
    /// An event that Spillway does not request.
    Other,
}

/// A userfaultfd, as a plain descriptor number, because tasks that use it share memory but not descriptor tables. It is
/// valid in the table in which it was opened and in copies of that table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uffd(RawFd);

impl Uffd {
    /// Opens a userfaultfd for this address space with these features, non-blocking and close-on-exec. `device` is a
    /// descriptor of `/dev/userfaultfd`, if one is open already.
    ///
    /// # Errors
    /// `PERM` or `ACCES` without the privilege; `INVAL` if the kernel lacks a feature.
    pub fn open(device: Option<BorrowedFd<'_>>, features: u64) -> Result<Self, Errno> {
        let descriptor = Self::descriptor(device)?;
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes one `ApiArg`.
        unsafe { ioctl(&descriptor, Updater::<OP_API, _>::new(&mut arg))? };
        Ok(Self(descriptor.into_raw_fd()))
    }

    /// All features that the kernel offers.
    ///
    /// # Errors
    /// As [`Uffd::open`].
    pub fn kernel_features() -> Result<u64, Errno> {
        let descriptor = Self::descriptor(None)?;
        let mut arg = ApiArg { api: API, features: 0, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes one `ApiArg`.
        unsafe { ioctl(&descriptor, Updater::<OP_API, _>::new(&mut arg))? };
        Ok(arg.features)
    }

    /// Opens `/dev/userfaultfd`, the device that creates userfaultfds.
    ///
    /// # Errors
    /// As open(2).
    pub fn device() -> Result<OwnedFd, Errno> {
        rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    fn descriptor(device: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        let from = |device: BorrowedFd<'_>| {
            // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a new descriptor. rustix's wrapper drops the
            // returned number, so this is a raw call.
            unsafe {
                let args =
                    [device.as_raw_fd() as usize, OP_NEW as usize, flags.bits() as usize, 0, 0, 0];
                crate::sys::syscall6(16, args)
                    .map(|fd| <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd as RawFd))
            }
        };
        if let Some(device) = device {
            return from(device);
        }
        match Self::device() {
            Ok(device) => from(rustix::fd::AsFd::as_fd(&device)),
            Err(error) => {
                let flags =
                    rustix::mm::UserfaultfdFlags::CLOEXEC | rustix::mm::UserfaultfdFlags::NONBLOCK;
                // SAFETY: this only creates a descriptor; later calls decide what it does to memory.
                unsafe { rustix::mm::userfaultfd(flags) }.map_err(|_| error)
            }
        }
    }

    /// The descriptor's number.
    #[must_use]
    pub fn number(self) -> RawFd {
        self.0
    }

    /// The userfaultfd with this descriptor number, which must be open.
    #[must_use]
    pub fn from_number(number: RawFd) -> Self {
        Self(number)
    }

    /// Borrows the descriptor, to poll it.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open as long as the task that uses it lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }

    fn call<const OP: Opcode, T>(self, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: each operation below pairs its opcode with its own argument structure. What they
        // do to memory is what the caller asked for: contents move or are filled, never freed.
        unsafe { ioctl(self.as_fd(), Updater::<OP, _>::new(arg)) }
    }

    /// Registers a range for the faults of `mode`, a combination of [`mode`]'s bits.
    ///
    /// # Errors
    /// `BUSY` if another userfaultfd has it, `INVAL` if its kind of mapping is not supported.
    pub fn register(self, start: usize, bytes: usize, mode: u64) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: bytes as u64 };
        self.call::<OP_REGISTER, _>(&mut RegisterArg { range, mode, ioctls: 0 })
    }

    /// Unregisters a range, and wakes the threads that wait there.
    ///
    /// # Errors
    /// As ioctl_userfaultfd(2).
    pub fn unregister(self, start: usize, bytes: usize) -> Result<(), Errno> {
        self.call::<OP_UNREGISTER, _>(&mut Range { start: start as u64, len: bytes as u64 })?;
        // The kernel wakes them before it unregisters the range. A fault that holds only its mapping's lock (Linux 6.6
        // and later) can occur between the two steps, and would sleep for ever.
        self.wake(start, bytes);
        Ok(())
    }

    /// Wakes the threads that wait for a page of the range; they fault again.
    pub fn wake(self, start: usize, bytes: usize) {
        let _ = self.call::<OP_WAKE, _>(&mut Range { start: start as u64, len: bytes as u64 });
    }

    /// Fills absent pages with a copy of `source`, write-protected if `protect` is set, and wakes the threads that wait
    /// for them.
    pub fn copy(self, target: usize, source: *const u8, bytes: usize, protect: bool) -> Done {
        let mode = if protect { COPY_WRITE_PROTECTED } else { 0 };
        self.transfer::<OP_COPY>(target, source as usize, bytes, mode)
    }

    /// Moves present pages to a range without pages, each page atomically. Wakes no thread.
    ///
    /// After `EXIST`, the page at which it stopped, and pages after it, may have *been* moved. If a page's entry
    /// changes meanwhile, `move_pages` of Linux 6.18 (mm/userfaultfd.c) keeps the `AGAIN` of its first attempt, moves
    /// the page in the second, takes that for a failure and tries again. For the same reason this does not allow holes
    /// in the source: on a hole, `move_pages` would try for ever.
    pub fn move_out(self, target: usize, source: usize, bytes: usize) -> Done {
        self.transfer::<OP_MOVE>(target, source, bytes, DONT_WAKE)
    }

    /// Moves one present page to an address without a page, and wakes the threads that wait there. `EXIST` means the
    /// same as for [`Uffd::move_out`]; it wakes no thread.
    pub fn move_in(self, target: usize, source: usize) -> Done {
        self.transfer::<OP_MOVE>(target, source, PAGE_SIZE, 0)
    }

    fn transfer<const OP: Opcode>(
        self,
        target: usize,
        source: usize,
        bytes: usize,
        mode: u64,
    ) -> Done {
        let (dst, src) = (target as u64, source as u64);
        let mut arg = TransferArg { dst, src, len: bytes as u64, mode, done: 0 };
        let stopped = self.call::<OP, _>(&mut arg).err();
        Done { bytes: if stopped.is_none() { bytes } else { arg.done.max(0) as usize }, stopped }
    }

    /// Allows writes to the range again, and wakes the threads that wait.
    ///
    /// # Errors
    /// `NOENT` if the range is not registered here, `AGAIN` while an event waits to be read.
    pub fn unprotect(self, start: usize, bytes: usize) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: bytes as u64 };
        self.call::<OP_WRITE_PROTECT, _>(&mut WriteProtectArg { range, mode: 0 })
    }

    /// Makes writes to present pages of the range fault.
    ///
    /// # Errors
    /// As [`Uffd::unprotect`].
    pub fn protect(self, start: usize, bytes: usize) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: bytes as u64 };
        self.call::<OP_WRITE_PROTECT, _>(&mut WriteProtectArg { range, mode: PROTECT })
    }

    /// Makes an absent page raise SIGBUS in every thread that touches it.
    ///
    /// # Errors
    /// As ioctl_userfaultfd(2).
    pub fn poison(self, start: usize) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: PAGE_SIZE as u64 };
        self.call::<OP_POISON, _>(&mut PoisonArg { range, mode: 0, updated: 0 })
    }

    /// Reads the next message.
    ///
    /// # Errors
    /// `AGAIN` if there is none.
    pub fn read(self) -> Result<Message, Errno> {
        let mut raw = [0u8; 32];
        self.read_raw(&mut raw)?;
        Ok(decode(&raw))
    }

    /// Reads the next message without decoding it.
    ///
    /// # Errors
    /// `AGAIN` if there is none.
    pub fn read_raw(self, raw: &mut [u8; 32]) -> Result<(), Errno> {
        rustix::io::read(self.as_fd(), raw).map(|_| ())
    }
}

/// Decodes a `struct uffd_msg`: an event number, seven reserved bytes, three words.
#[must_use]
pub fn decode(raw: &[u8; 32]) -> Message {
    let word = |at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().unwrap_or_default());
    let (first, second, third) = (word(8), word(16) as usize, word(24) as usize);
    match raw[0] {
        0x12 => Message::Fault {
            address: second & !(PAGE_SIZE - 1),
            write: first & 1 != 0,
            protected: first & 2 != 0,
            thread: third as u32,
        },
        0x14 => Message::Remap { from: first as usize, to: second, bytes: third },
        0x15 => Message::Remove { start: first as usize, end: second },
        0x16 => Message::Unmap { start: first as usize, end: second },
        _ => Message::Other,
    }
}
