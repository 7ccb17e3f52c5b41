//! Notifies the service manager that the agent is ready and alive. If the agent hangs, the manager restarts it and
//! restores memory.high, which no one else would raise.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager's socket.
#[derive(Debug, Default)]
pub struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// The watchdog interval.
    every: Option<Duration>,
    next: Duration,
}

impl Manager {
    /// The manager that started this process, if any.
    pub fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name);
        let us = variable("WATCHDOG_USEC").and_then(|us| us.to_str()?.parse().ok());
        let to = variable("NOTIFY_SOCKET").and_then(|path| connect(&path));
        // Twice as often as required.
        Self { to, every: us.map(|us| Duration::from_micros(us) / 2), next: Duration::ZERO }
    }

    /// Reports that the agent is ready.
    pub fn ready(&self) {
        self.say(b"READY=1");
    }

    /// Reports that the agent is alive. Call it at least once a second.
    pub fn alive(&mut self, now: Duration) {
        if let Some(every) = self.every.filter(|_| now >= self.next) {
            self.next = now + every;
            self.say(b"WATCHDOG=1");
        }
    }

    fn say(&self, text: &[u8]) {
        if let Some((socket, address)) = &self.to {
            // If the message is lost, the manager restarts the agent.
            let _ = socket.send_to_addr(text, address);
        }
    }
}

fn connect(path: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(path),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_that_the_agent_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let every = Some(Duration::from_secs(5));
        let mut told = Manager { to: connect(path.as_os_str()), every, next: Duration::ZERO };
        let hears = || {
            let mut bytes = [0; 32];
            manager.recv(&mut bytes).map(|count| bytes[..count].to_vec()).ok()
        };
        told.ready();
        assert_eq!(hears().unwrap(), b"READY=1");
        for (now, is_due) in [(1, true), (5, false), (6, true), (7, false)] {
            told.alive(Duration::from_secs(now));
            assert_eq!(hears(), is_due.then(|| b"WATCHDOG=1".to_vec()), "{now}");
        }
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        let mut nobody = Manager::default();
        nobody.ready();
        nobody.alive(Duration::from_secs(1));
    }
}
