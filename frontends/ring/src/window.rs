//! Windows of guests: rings whose region lies in a guest's own memory, and whose wake-ups somebody carries to the guest.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use spillway_types::{Admitted, Identity};
use spillway_wire::ring::{Geometry, Hello, Reason, VERSION};

use crate::connection::{Ended, Shared, exchange};
use crate::region::Region;
use crate::server::{STACK_BYTES, Seat, Server, reason};

/// Windows are numbered apart from the connections that were accepted.
const FIRST: u64 = 1 << 63;

/// A window that is served.
#[derive(Debug)]
pub struct Attached {
    /// What the window's ring grants.
    pub geometry: Geometry,
    /// The number of the server's run; see [`spillway_wire::ring::Welcome::Granted`].
    pub instance: u64,
    /// Carries wake-ups both ways, [`spillway_wire::ring::WAKE`] in a message of its own. The server's end of it is closed
    /// once the region is unmapped, and not before.
    pub socket: OwnedFd,
    state: Arc<AttachedState>,
}

#[derive(Debug, Default)]
struct AttachedState {
    stop: AtomicBool,
    is_broken: AtomicBool,
}

impl Attached {
    /// Ends the ring, whatever its client still submits. [`Self::socket`] says when the region is unmapped.
    pub fn end(&self) {
        self.state.stop.store(true, Ordering::Relaxed);
        // The reading side stays open: its end is what tells.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Whether it has ended because its client broke the protocol. To be asked once the server's end of [`Self::socket`] is closed.
    pub fn is_broken(&self) -> bool {
        self.state.is_broken.load(Ordering::Relaxed)
    }
}

impl Server {
    /// Serves a ring in a region that `map` makes, for a client of this name.
    ///
    /// # Errors
    /// Why not, as a client that connects is told.
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
        self.open.sockets().insert(number, ours.clone());
        let (instance, state) = (shared.instance, Arc::<AttachedState>::default());
        let own = state.clone();
        let serve = move || {
            // In this order: the region is gone before the socket closes.
            let _seat = seat;
            let socket = ours;
            let region = region;
            let ended = exchange(&granted.shared, &socket, admitted, &region, &own.stop);
            drop(region);
            drop(granted);
            match ended {
                Ok(()) => {}
                // A guest can do so as often as it likes: whoever has attached the window says it.
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

/// Gives back what was granted when the window ends.
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
