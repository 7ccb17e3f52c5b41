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
    /// What `host` was told last.
    is_host_there: Option<bool>,
}

impl Manager {
    /// The manager that started this process, if any.
    pub fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name);
        let us = variable("WATCHDOG_USEC").and_then(|us| us.to_str()?.parse().ok());
        let to = variable("NOTIFY_SOCKET").and_then(|path| connect(&path));
        // Twice as often as required.
        Self {
            to,
            every: us.map(|us| Duration::from_micros(us) / 2),
            next: Duration::ZERO,
            is_host_there: None,
        }
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

    /// Has `systemctl status` show whether the host's daemon is there.
    pub fn host(&mut self, is_there: bool) {
        if self.is_host_there.replace(is_there) != Some(is_there) {
            self.say(match is_there {
                true => b"STATUS=the host's daemon is connected",
                false => b"STATUS=waiting for the host's daemon",
            });
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
        let to = connect(path.as_os_str());
        let mut told = Manager { to, every, ..Manager::default() };
        let hears = || {
            let mut bytes = [0; 64];
            manager.recv(&mut bytes).map(|count| bytes[..count].to_vec()).ok()
        };
        told.ready();
        assert_eq!(hears().unwrap(), b"READY=1");
        for (now, is_due) in [(1, true), (5, false), (6, true), (7, false)] {
            told.alive(Duration::from_secs(now));
            assert_eq!(hears(), is_due.then(|| b"WATCHDOG=1".to_vec()), "{now}");
        }
        let (waits, is_there) = ("waiting for the host's daemon", "the host's daemon is connected");
        for (host, said) in
            [(false, Some(waits)), (false, None), (true, Some(is_there)), (false, Some(waits))]
        {
            told.host(host);
            assert_eq!(hears(), said.map(|it| format!("STATUS={it}").into_bytes()), "{host}");
        }
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        let mut nobody = Manager::default();
        nobody.ready();
        nobody.alive(Duration::from_secs(1));
    }
}
