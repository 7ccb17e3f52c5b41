//! A VM's thread for windows. The agent in the guest names guest memory or pages of an ivshmem device, the ring's server
//! maps them and serves their requests, and wake-ups go over the channel. Nothing from the guest is trusted: an address
//! must lie in the VM's boot memory or in the device's file, and the client is the one that the configuration names.

mod device;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_guests::window::{FromGuest, FromHost, VERSION, WINDOWS_MAX, WindowPlace};
use spillway_ring::{Attached, Region, Server};
use spillway_sections::GuestFile;
use spillway_wire::ring::{Geometry, Hello, Reason, WAKE, WINDOW_PAGE_BYTES};

use crate::vm::agent::Channel;
use crate::vm::shared::{Seen, Shared, WindowsShared};

/// Pause before a channel is connected again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait, so that the thread notices the end of the daemon.
const LOOK: Duration = Duration::from_millis(500);
/// A window that takes longer to close is logged: a command of its ring is still running.
const SLOW_END: Duration = Duration::from_secs(5);
/// Most wake-ups per read of a window.
const WAKES_MAX: usize = 16;

/// A mapped window.
struct Window {
    ring: Attached,
    place: WindowPlace,
    /// When its end was requested.
    ending: Option<Instant>,
    is_slow: bool,
}

impl Window {
    /// Ends it for its program.
    fn end(&mut self) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now());
            self.ring.end();
        }
    }

    /// Ends it though its program may still be there.
    fn cut(&mut self) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now());
            self.ring.cut();
        }
    }
}

/// The thread.
pub struct Windows {
    shared: Arc<Shared>,
    place: Arc<WindowsShared>,
    server: Option<Arc<Server>>,
    bell: UnixStream,
    channel: Option<Channel>,
    try_at: Instant,
    open: BTreeMap<u64, Window>,
    /// A hello whose reply waits for the end of all windows.
    nonce: Option<u64>,
    changes: u64,
    has_said_refused: bool,
    has_said_broken: bool,
    has_said_no_device: bool,
}

impl Windows {
    /// Serves windows through `server`, if there is one.
    pub fn new(
        shared: Arc<Shared>,
        place: Arc<WindowsShared>,
        server: Option<Arc<Server>>,
        bell: UnixStream,
    ) -> Self {
        Self {
            shared,
            place,
            server,
            bell,
            channel: None,
            try_at: Instant::now(),
            open: BTreeMap::new(),
            nonce: None,
            changes: 0,
            has_said_refused: false,
            has_said_broken: false,
            has_said_no_device: false,
        }
    }

    /// Runs until the daemon ends. Then ends all windows.
    pub fn run(mut self) {
        loop {
            if self.shared.stop.load(Ordering::Relaxed) {
                self.end_all();
                if self.open.is_empty() {
                    return;
                }
            }
            self.wait();
            self.look_at_vm();
            self.look_at_windows();
            self.look_at_channel();
        }
    }

    fn wait(&self) {
        let longest = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        if let Some(channel) = &self.channel {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, channel.has_waiting());
            flags.set(PollFlags::IN, !channel.is_over());
            if !flags.is_empty() {
                fds.push(PollFd::from_borrowed_fd(channel.as_fd(), flags));
            }
        }
        let sockets = self.open.values().map(|window| window.ring.socket.as_fd());
        fds.extend(sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // An interrupted wait is only shorter.
        let _ = poll(&mut fds, Some(&longest));
    }

    /// Ends all windows if the VM was reset or is gone.
    fn look_at_vm(&mut self) {
        let mut rings = [0; 64];
        while matches!(io::Read::read(&mut self.bell, &mut rings), Ok(count) if count > 0) {}
        let changes = self.place.seen().changes;
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.end_all();
        }
    }

    fn end_all(&mut self) {
        self.open.values_mut().for_each(Window::cut);
    }

    /// Forwards wake-ups to the guest, and reports windows that have ended.
    fn look_at_windows(&mut self) {
        let (mut wakes, mut ended) = (Vec::new(), Vec::new());
        for (&id, window) in &mut self.open {
            let mut byte = [0; 1];
            for _ in 0..WAKES_MAX {
                match recv(&window.ring.socket, &mut byte, RecvFlags::DONTWAIT) {
                    Ok((_, 0)) | Err(Errno::CONNRESET) => {
                        ended.push(id);
                        break;
                    }
                    Ok(_) => wakes.push(id),
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            let since = window.ending.filter(|since| since.elapsed() > SLOW_END);
            if since.is_some() && !std::mem::replace(&mut window.is_slow, true) {
                tracing::warn!(
                    "vm {}: window {id} is closing, but a command is still running: its guest waits for the pages",
                    self.shared.name
                );
            }
        }
        wakes.dedup();
        for id in wakes {
            self.tell(&FromHost::Wake { id });
        }
        for id in ended {
            let is_broken = self.open.remove(&id).is_some_and(|window| window.ring.is_broken());
            tracing::debug!("vm {}: window {id} is closed", self.shared.name);
            if is_broken && !std::mem::replace(&mut self.has_said_broken, true) {
                tracing::warn!(
                    "vm {}: a window is closed because its program violated the ring's protocol; further ones are not logged",
                    self.shared.name
                );
            }
            self.tell(&FromHost::Closed { id });
        }
        if self.open.is_empty()
            && let Some(nonce) = self.nonce.take()
        {
            let device = self.mark_device();
            self.tell(&FromHost::Cleared { nonce, device });
        }
    }

    fn look_at_channel(&mut self) {
        // The agent assumes that a host has nothing mapped on a new connection.
        let is_due = Instant::now() >= self.try_at && self.open.is_empty();
        if self.channel.is_none() && is_due && !self.shared.stop.load(Ordering::Relaxed) {
            self.try_at = Instant::now() + RETRY;
            // Without a VM no process listens there.
            self.channel = Channel::connect(&self.place.channel).ok();
            self.tell(&FromHost::Greet { version: VERSION });
        }
        let Some(channel) = &mut self.channel else { return };
        match channel.flush().and_then(|()| channel.read_as(FromGuest::decode)) {
            Ok(said) => {
                for said in said {
                    if self.channel.is_none() {
                        // A reply was lost: ignore the remaining messages, which would open windows without a
                        // program.
                        return;
                    }
                    self.hear(said);
                }
            }
            Err(_) => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        self.channel = None;
        self.nonce = None;
        self.try_at = Instant::now() + RETRY;
        self.end_all();
    }

    /// If a guest does not read and the buffer is full, the connection is restarted.
    fn tell(&mut self, said: &FromHost) {
        let Some(channel) = &mut self.channel else { return };
        if !matches!(channel.send(said.encode()), Ok(true)) {
            self.hang_up();
        }
    }

    fn hear(&mut self, said: FromGuest) {
        match said {
            FromGuest::Hello { nonce, .. } => {
                self.end_all();
                self.nonce = Some(nonce);
            }
            FromGuest::Open { id, place, depth, data_bytes } => {
                let hello = Hello { version: spillway_wire::ring::VERSION, depth, data_bytes };
                match self.open_window(id, place, hello) {
                    Ok(opened) => self.tell(&opened),
                    Err((reason, why)) => {
                        self.note_refused(reason, why.as_deref());
                        self.tell(&FromHost::Refused { id, reason: reason as u16, why });
                    }
                }
            }
            FromGuest::Close { id } => match self.open.get_mut(&id) {
                Some(window) => window.end(),
                None => self.tell(&FromHost::Closed { id }),
            },
            FromGuest::Wake { id } => {
                if let Some(window) = self.open.get(&id).filter(|it| it.ending.is_none()) {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    // A full socket contains wake-ups already.
                    let _ = send(&window.ring.socket, &[WAKE], flags);
                }
            }
        }
    }

    /// Maps and serves a window.
    fn open_window(
        &mut self,
        id: u64,
        place: WindowPlace,
        hello: Hello,
    ) -> Result<FromHost, (Reason, Option<String>)> {
        let refused = |why: &str| (Reason::NoWindows, Some(why.to_owned()));
        self.check(id, &place, hello).map_err(refused)?;
        let server = self.server.as_ref();
        let server = server.ok_or_else(|| refused("the daemon serves no ring (listen.ring)"))?;
        let (file, offsets) = self.find(&place).map_err(|why| refused(&why))?;
        let map = |geometry: Geometry| {
            // The client's limits may have reduced the ring.
            let offsets = offsets.get(..geometry.window_pages()).unwrap_or_default();
            Region::map_guest(&file?, offsets, geometry)
        };
        let ring = server.attach(&self.place.client, hello, map).map_err(|why| (why, None))?;
        let (depth, data_bytes) = (ring.geometry.depth(), ring.geometry.data_bytes());
        let instance = ring.instance;
        let pages = place.pages().len();
        tracing::debug!("vm {}: window {id} is open: {pages} pages", self.shared.name);
        self.open.insert(id, Window { ring, place, ending: None, is_slow: false });
        Ok(FromHost::Opened { id, depth, data_bytes, instance })
    }

    /// Writes a number to the device's file, by which the agent recognizes the device. None without a file; what is wrong
    /// with it is logged once.
    fn mark_device(&mut self) -> Option<u64> {
        match device::mark(self.place.device.as_deref()?) {
            Ok(number) => Some(number),
            Err(why) => {
                if !std::mem::replace(&mut self.has_said_no_device, true) {
                    tracing::warn!(
                        "vm {}: no windows in its ivshmem device: {why}",
                        self.shared.name
                    );
                }
                None
            }
        }
    }

    /// Checks a request against the open windows.
    fn check(&self, id: u64, place: &WindowPlace, hello: Hello) -> Result<(), &'static str> {
        if self.nonce.is_some() {
            return Err("windows of an earlier agent are still being closed");
        }
        if self.open.contains_key(&id) {
            return Err("a window with this number is open");
        }
        if self.open.len() >= WINDOWS_MAX {
            return Err("the guest has the maximum number of windows");
        }
        let (pages, geometry) = (place.pages(), Geometry::new(hello.depth, hello.data_bytes));
        if !geometry.is_ok_and(|geometry| geometry.window_pages() == pages.len()) {
            return Err("the window's length differs from its ring's");
        }
        let is_twice = |(at, page): (usize, &u64)| pages[..at].contains(page);
        let is_taken = self.open.values().any(|window| window.place.overlaps(place));
        if is_taken || pages.iter().enumerate().any(is_twice) {
            return Err("a page belongs to another window already");
        }
        Ok(())
    }

    /// The file that contains the pages, and where they lie in it.
    fn find(&self, place: &WindowPlace) -> Result<(io::Result<File>, Vec<u64>), String> {
        let Seen { memory, is_migrating, .. } = *self.place.seen();
        if is_migrating {
            return Err("the VM is migrating to another host".into());
        }
        let unknown = "the VM's monitor does not report where its memory lies";
        let memory = memory.ok_or(unknown)?;
        let pages = match place {
            WindowPlace::Pages(pages) => pages,
            WindowPlace::Device { pages, proof } => {
                let path = self.place.device.as_deref();
                let path = path.ok_or("the host's configuration names no ivshmem file")?;
                let (file, offsets) = device::find(path, pages, *proof)?;
                return Ok((Ok(file), offsets));
            }
        };
        let boot = memory.boot.ok_or(unknown)?;
        let offset = |page: &u64| boot.offset(page.checked_mul(WINDOW_PAGE_BYTES as u64)?);
        let offsets: Option<Vec<u64>> = pages.iter().map(offset).collect();
        let offsets = offsets.ok_or("a page does not lie in the VM's boot memory")?;
        let path = self.shared.pool.path(&self.shared.name, GuestFile::Boot);
        let open = |path| File::options().read(true).write(true).open(path);
        Ok((path.map_err(io::Error::other).and_then(open), offsets))
    }

    /// Logs the first refusal; a guest that repeats the request only gets an answer.
    fn note_refused(&mut self, reason: Reason, why: Option<&str>) {
        let (name, why) = (&self.shared.name, why.unwrap_or(reason.text()));
        if std::mem::replace(&mut self.has_said_refused, true) {
            tracing::debug!("vm {name}: a window is refused: {why}");
        } else {
            tracing::warn!("vm {name}: a window is refused: {why}");
        }
    }
}

#[cfg(test)]
mod tests;
