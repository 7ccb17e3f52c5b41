//! The peers of sockets under test.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use crate::wait;

/// A Unix socket. A thread of the test serves its first connection; later ones wait.
pub struct UnixServer<T> {
    path: PathBuf,
    served: JoinHandle<T>,
    _folder: TempDir,
}

impl<T: Send + 'static> UnixServer<T> {
    /// Lets `serve` serve the first connection. After this is dropped, it continues until the client has ended.
    ///
    /// # Panics
    /// If there is no temporary folder.
    pub fn start(serve: impl FnOnce(UnixStream) -> T + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let served = thread::spawn(move || serve(listener.accept().unwrap().0));
        Self { path, served, _folder: folder }
    }

    /// The path on which it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the connection was served. Returns the result of `serve`.
    ///
    /// # Panics
    /// If the thread panicked.
    pub fn finish(self) -> T {
        self.served.join().unwrap_or_else(|why| panic::resume_unwind(why))
    }
}

/// An address of this host without a listener.
///
/// # Panics
/// If there is no free port.
pub fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Listens on the address of a server that has just ended, whose port may be busy for a moment.
///
/// # Panics
/// If another process has the port.
pub fn listen_again(address: SocketAddr) -> TcpListener {
    wait::until_some("a port that is free again", || TcpListener::bind(address).ok())
}

/// Reads as many bytes as expected, and compares them.
///
/// # Panics
/// If they differ or do not arrive.
#[track_caller]
pub fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).unwrap();
    // Not assert_eq: values are long.
    let start = String::from_utf8_lossy(&read[..read.len().min(200)]);
    assert!(read == expected, "other bytes came: {start:?}");
}

/// Reads until the peer has closed, even by a reset. Returns the number of bytes.
///
/// # Errors
/// If it does not close before the stream's timeout, or the stream is non-blocking and not closed.
pub fn read_until_closed(stream: &mut impl Read) -> io::Result<usize> {
    let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes += read,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(bytes),
            Err(error) => return Err(error),
        }
    }
}

/// Whether [`read_until_closed`] reaches the end.
pub fn is_closed(stream: &mut impl Read) -> bool {
    read_until_closed(stream).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_server_serves_one_connection() {
        let server = UnixServer::start(|mut stream| {
            stream.write_all(b"hello, and more").unwrap();
            7
        });
        let mut stream = UnixStream::connect(server.path()).unwrap();
        expect(&mut stream, b"hello");
        assert_eq!(server.finish(), 7);
        assert_eq!(read_until_closed(&mut stream).unwrap(), ", and more".len());
    }

    #[test]
    fn what_is_open_is_not_closed() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert!(!is_closed(&mut ours));
        drop(theirs);
        assert!(is_closed(&mut ours));
    }

    #[test]
    #[should_panic(expected = "it is the server's")]
    fn its_panic_is_passed_on() {
        let server = UnixServer::start(|_| panic!("it is the server's"));
        let _stream = UnixStream::connect(server.path()).unwrap();
        server.finish();
    }

    #[test]
    fn an_address_is_free_again() {
        let address = unused_address();
        let listener = listen_again(address);
        assert_eq!(listener.local_addr().unwrap(), address);
    }
}
