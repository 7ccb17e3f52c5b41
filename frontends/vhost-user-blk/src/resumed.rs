//! A connection of a QEMU that does not negotiate anew.
//!
//! QEMU 7.2 negotiates when it connects, but not when the connection before ended while its guest used no queue: while
//! the VM was paused or no driver was bound. It goes on with the features that it has negotiated before. So a connection
//! starts with all protocol features that the disk offers; whoever negotiates overrides them.
//!
//! QEMU 7.2 then also does not notice that a further connection ends. It sets the new one up when the VM is paused and
//! goes on.

use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::io::DupFlags;
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::{FrontendReq, VhostUserVirtioFeatures};

use crate::connection::{Connection, protocol_features};

/// A message's header: the request, the flags and the size of the payload, each a native u32.
const HEADER_BYTES: usize = 12;
/// The version of the protocol, in a header's flags.
const VERSION: u32 = 1;

/// The handler of a connection, to which all protocol features of the disk are negotiated.
///
/// # Errors
/// If there are no descriptors left.
pub fn handler(
    stream: UnixStream,
    connection: Arc<Mutex<Connection>>,
) -> io::Result<BackendReqHandler<Mutex<Connection>>> {
    let offered = protocol_features().bits();
    // The vhost crate takes features only from messages, so these come from this side of a pair.
    let (mut asking, served) = UnixStream::pair()?;
    let mut handler = BackendReqHandler::from_stream(served, connection);
    let with_protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    for message in [
        message(FrontendReq::GET_FEATURES, &[]),
        message(FrontendReq::SET_PROTOCOL_FEATURES, &offered.to_ne_bytes()),
        message(FrontendReq::SET_FEATURES, &with_protocol.to_ne_bytes()),
    ] {
        asking.write_all(&message)?;
        handler.handle_request().map_err(io::Error::other)?;
    }
    asking.read_exact(&mut [0; HEADER_BYTES + size_of::<u64>()])?;
    replace(&handler, &stream)?;
    Ok(handler)
}

fn message(request: FrontendReq, payload: &[u8]) -> Vec<u8> {
    let header = [request as u32, VERSION, payload.len() as u32];
    header.into_iter().flat_map(u32::to_ne_bytes).chain(payload.iter().copied()).collect()
}

/// Makes the handler's descriptor refer to `stream`.
fn replace(handler: &BackendReqHandler<Mutex<Connection>>, stream: &UnixStream) -> io::Result<()> {
    // SAFETY: the handler owns this open descriptor and outlives `its`, which does not close it. Only what the
    // descriptor refers to changes, to a socket of the same kind.
    let mut its = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(handler.as_raw_fd()) });
    Ok(rustix::io::dup3(stream, &mut its, DupFlags::CLOEXEC)?)
}
