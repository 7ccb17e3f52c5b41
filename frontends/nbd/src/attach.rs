//! Devices of this process as disks of this host's kernel, through its own NBD driver.
//!
//! The kernel gets one end of each pair of Unix sockets, and a thread of this process serves the other. There is no
//! handshake and no listener, so no other process can interfere. The kernel may swap onto the disk, so running threads
//! allocate nothing and are marked as IO flushers (`spillway_platform::swap`). The caller must lock the process's
//! memory (mlockall) first.

use std::fmt::Debug;
use std::fs;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use spillway_block::Device;
use spillway_kernel_nbd::Disk;
use spillway_wire::nbd::export_flags;

use crate::buffer::{BYTES_MAX, Input, Output};
use crate::connection;
use crate::error::Error;
use crate::session::Session;
use crate::socket::Socket;
use crate::transmission::Transmission;

/// Bytes of a thread's stack. A fan-out device keeps a batch's state there.
const STACK_BYTES: usize = 512 << 10;
/// Longest time until the disk's node appears.
const NODE_WAIT: Duration = Duration::from_secs(5);

/// The process that attaches disks to the kernel: this one, or a privileged one.
pub trait Kernel: Send + Sync + Debug {
    /// As [`spillway_kernel_nbd::connect`].
    ///
    /// # Errors
    /// The kernel has no NBD driver or refuses.
    fn connect(&self, disk: &Disk, sockets: &[BorrowedFd<'_>]) -> Result<u32, Error>;

    /// As [`spillway_kernel_nbd::disconnect`].
    ///
    /// # Errors
    /// The kernel refuses.
    fn disconnect(&self, index: u32) -> Result<(), Error>;
}

/// This process, which needs CAP_SYS_ADMIN.
#[derive(Debug)]
pub struct Itself;

impl Kernel for Itself {
    fn connect(&self, disk: &Disk, sockets: &[BorrowedFd<'_>]) -> Result<u32, Error> {
        Ok(spillway_kernel_nbd::connect(disk, sockets)?)
    }

    fn disconnect(&self, index: u32) -> Result<(), Error> {
        Ok(spillway_kernel_nbd::disconnect(index)?)
    }
}

/// Settings of [`attach`].
#[derive(Clone, Debug)]
pub struct AttachSettings {
    /// Connections, each with a thread of its own, 1 to 64. The kernel distributes requests over them by processor,
    /// and a thread executes its received requests as a batch.
    pub connections: usize,
    /// Time without an answer after which the kernel fails a request, in whole seconds: longer than the device's
    /// longest stall.
    pub timeout: Duration,
}

impl Default for AttachSettings {
    fn default() -> Self {
        Self { connections: 2, timeout: Duration::from_secs(30) }
    }
}

/// A device that is attached as a disk of the kernel. Dropping this detaches it, but can't report errors.
#[derive(Debug)]
pub struct Attached {
    kernel: Arc<dyn Kernel>,
    index: Option<u32>,
    path: PathBuf,
    sockets: Vec<Arc<Socket>>,
    threads: Vec<JoinHandle<()>>,
}

/// Attaches `device` as a disk of this host's kernel, and returns when its node exists.
///
/// # Errors
/// [`Error::Kernel`] if the kernel has no NBD driver or refuses, [`Error::Flusher`] without CAP_SYS_RESOURCE,
/// [`Error::Attach`], [`Error::Io`].
pub fn attach(device: Arc<dyn Device>, settings: &AttachSettings) -> Result<Attached, Error> {
    attach_by(Arc::new(Itself), device, settings)
}

/// As [`attach`], through `kernel`.
///
/// # Errors
/// As [`attach`], and those of `kernel`.
pub fn attach_by(
    kernel: Arc<dyn Kernel>,
    device: Arc<dyn Device>,
    settings: &AttachSettings,
) -> Result<Attached, Error> {
    let geometry = device.geometry();
    let (path, sockets, threads) = (PathBuf::new(), Vec::new(), Vec::new());
    let mut attached = Attached { kernel, index: None, path, sockets, threads };
    let mut ours = Vec::new();
    for number in 0..settings.connections.clamp(1, spillway_kernel_nbd::SOCKETS_MAX) {
        let (kernels, served) = UnixStream::pair()?;
        ours.push(kernels);
        attached.serve(number, served, Arc::clone(&device))?;
    }
    let disk = Disk {
        bytes: geometry.bytes,
        block_bytes: geometry.block_size.bytes(),
        flags: flags(),
        timeout: settings.timeout,
    };
    let descriptors: Vec<_> = ours.iter().map(AsFd::as_fd).collect();
    let index = attached.kernel.connect(&disk, &descriptors)?;
    attached.index = Some(index);
    attached.path = PathBuf::from(format!("/dev/nbd{index}"));
    // The kernel holds its ends now.
    drop(ours);
    attached.wait_for_node(geometry.bytes)?;
    Ok(attached)
}

/// The disk's transmission flags.
const fn flags() -> u16 {
    export_flags::HAS_FLAGS
        | export_flags::SEND_FLUSH
        | export_flags::SEND_TRIM
        | export_flags::SEND_WRITE_ZEROES
        | export_flags::CAN_MULTI_CONN
}

impl Attached {
    /// The disk: `/dev/nbdN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Detaches the disk from the kernel, after its requests in flight are answered. The disk must not be in use: call
    /// swapoff first for a swap device.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses; the disk's threads have ended anyway.
    pub fn detach(mut self) -> Result<(), Error> {
        self.end()
    }

    fn serve(
        &mut self,
        number: usize,
        stream: UnixStream,
        device: Arc<dyn Device>,
    ) -> Result<(), Error> {
        let socket = Arc::new(Socket::unix(stream));
        let (told, hears) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(format!("nbd-disk-{number}"));
        let thread = thread.stack_size(STACK_BYTES).spawn({
            let socket = Arc::clone(&socket);
            move || {
                let flusher = spillway_platform::swap::serve_swap();
                let may = flusher.is_ok();
                // `Attached::serve` waits for it.
                let _ = told.send(flusher);
                if may {
                    serve(&socket, device);
                }
                socket.shutdown(Shutdown::Both);
            }
        })?;
        self.sockets.push(socket);
        self.threads.push(thread);
        let flusher = hears.recv().unwrap_or(Err(rustix::io::Errno::CHILD));
        flusher.map_err(|errno| Error::Flusher(errno.into()))
    }

    /// Waits until udev or devtmpfs has created the node and the driver has set the size, which it does last.
    fn wait_for_node(&self, bytes: u64) -> Result<(), Error> {
        let until = Instant::now() + NODE_WAIT;
        let name = self.path.file_name().unwrap_or_default();
        let size = Path::new("/sys/block").join(name).join("size");
        let there = || {
            let sectors = fs::read_to_string(&size).ok()?.trim().parse::<u64>().ok()?;
            (sectors * 512 == bytes && self.path.exists()).then_some(())
        };
        while there().is_none() {
            if Instant::now() > until {
                return Err(Error::Attach(self.path.clone()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        let done = match self.index.take() {
            Some(index) => self.kernel.disconnect(index),
            None => Ok(()),
        };
        for socket in &self.sockets {
            socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // The thread can't have panicked: a panic aborts the program.
            let _ = thread.join();
        }
        done
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "{} could not be detached", self.path.display());
        }
    }
}

/// Serves one connection until the kernel ends it.
fn serve(socket: &Socket, device: Arc<dyn Device>) {
    let session = Session { device, structured: false, allocation: false };
    let (mut input, mut output) = (Input::new(BYTES_MAX), Output::new(BYTES_MAX));
    let transmission = Transmission::new(session);
    if let Err(error) = connection::converse(transmission, &mut input, &mut output, socket) {
        tracing::info!(%error, "a connection of the kernel's ended");
    }
}
