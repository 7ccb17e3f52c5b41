//! Guests' windows: rings whose region lies in a guest's own memory. The caller forwards their wake-ups to and from the
//! guest.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use spillway_serving::Refusal;
use spillway_types::{Admitted, Identity};
use spillway_wire::ring::{Geometry, Hello, Reason, VERSION};

use crate::connection::{Ended, Link, Shared, exchange};
use crate::region::Region;
use crate::server::{OpenConnection, STACK_BYTES, Seat, Server, reason};

/// Number of the first window. Accepted connections have smaller numbers.
const FIRST: u64 = 1 << 63;

/// A served window.
#[derive(Debug)]
pub struct Attached {
    /// The sizes granted to the window's ring.
    pub geometry: Geometry,
    /// The number of the server's run; see [`spillway_wire::ring::Welcome::Granted`].
    pub instance: u64,
    /// Carries wake-ups both ways, each a message of [`spillway_wire::ring::WAKE`]. The server closes its end after it
    /// has unmapped the region, never before.
    pub socket: OwnedFd,
    state: Arc<AttachedState>,
}

#[derive(Debug, Default)]
struct AttachedState {
    stop: AtomicBool,
    is_cut: AtomicBool,
    is_broken: AtomicBool,
}

impl Attached {
    /// Ends the ring, even if its client continues to submit commands. Once the region is unmapped, the server's end of
    /// [`Self::socket`] is closed.
    pub fn end(&self) {
        self.state.stop.store(true, Ordering::Relaxed);
        // The reading side stays open: its end of file tells when the region is unmapped.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// [`Self::end`] without the program's wish: it may still be there and come back, so the pools that it bound stay
    /// for longer.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Relaxed);
        self.end();
    }

    /// Whether it ended because its client broke the protocol. Valid once the server's end of [`Self::socket`] is
    /// closed.
    pub fn is_broken(&self) -> bool {
        self.state.is_broken.load(Ordering::Relaxed)
    }
}

impl Server {
    /// Serves a ring for the client with this name, in the region that `map` returns.
    ///
    /// # Errors
    /// The reason of the refusal, as for a client that connects.
    pub fn attach(
        &self,
        client: &str,
        hello: Hello,
        map: impl FnOnce(Geometry) -> io::Result<Region>,
    ) -> Result<Attached, Reason> {
        if hello.version != VERSION {
            return Err(Reason::Version);
        }
        if self.open.sockets().len() >= self.connections_max {
            self.open.counts.refuse(Refusal::Full);
            return Err(Reason::Connections);
        }
        let admitted = self.access.admit(Identity::Client(client)).map_err(reason)?;
        let number = FIRST | self.windows.fetch_add(1, Ordering::Relaxed);
        let (client, open) = (admitted.client, self.open.clone());
        let seat = Seat { number, client, open, access: self.access.clone() };
        let shared = self.shared.clone();
        let geometry = shared.account.grant(admitted, hello).ok_or(Reason::Limits)?;
        let granted = Granted { shared: shared.clone(), admitted, geometry };
        let failed = |error: io::Error| {
            tracing::warn!(client = client.0, %error, "a guest's window can't be served");
            Reason::Failed
        };
        let region = map(geometry).map_err(failed)?;
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) =
            socketpair(kind.0, kind.1, kind.2, None).map_err(|errno| failed(errno.into()))?;
        let ours = Arc::new(ours);
        let connection = OpenConnection { socket: ours.clone(), uid: None };
        self.open.insert(number, connection);
        let (instance, state) = (shared.instance, Arc::<AttachedState>::default());
        let own = state.clone();
        let serve = move || {
            // The order of these drops matters: the region is unmapped before the socket closes.
            let _seat = seat;
            let socket = ours;
            let region = region;
            let poll = granted.shared.poll_window;
            let link = Link { socket: &socket, poll, stop: &own.stop, is_cut: &own.is_cut };
            let ended = exchange(&granted.shared, admitted, &region, link);
            drop(region);
            drop(granted);
            match ended {
                Ok(()) => {}
                // A guest can cause this at any rate, so the caller decides whether to log it.
                Err(Ended::Protocol(_)) => own.is_broken.store(true, Ordering::Relaxed),
                Err(ended) => {
                    tracing::warn!(client = client.0, ?ended, "a guest's window is closed")
                }
            }
        };
        let thread = thread::Builder::new().name(format!("window-{}", number & !FIRST));
        thread.stack_size(STACK_BYTES).spawn(serve).map_err(failed)?;
        Ok(Attached { geometry, instance, socket: theirs, state })
    }
}

/// A window's grant. Dropping it returns the grant.
struct Granted {
    shared: Arc<Shared>,
    admitted: Admitted,
    geometry: Geometry,
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.shared.account.give_back(self.admitted.client, self.geometry);
    }
}
