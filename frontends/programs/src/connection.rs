//! The connection of one program: its messages and the answers.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_platform::sys::PeerCredentials;
use spillway_serving::{ConnectionCounts, Refusal};
use spillway_types::{ClientId, Denied, Programs, Registration};
use spillway_wire::programs::{Answer, Hello, REPORT_BYTES, Reason, VERSION, decode_report};

/// Most messages in [`WINDOW`]: ten times as many as the shortest interval needs.
const MESSAGES_MAX: u32 = 100;
const WINDOW: Duration = Duration::from_secs(1);

/// A connected supervisor.
#[derive(Debug)]
pub struct Connection {
    pub socket: OwnedFd,
    /// The server's number for it.
    pub number: u64,
    peer: PeerCredentials,
    /// The program, once it has sent its hello.
    pub program: Option<ClientId>,
    since: Instant,
    window: Instant,
    messages: u32,
}

/// Whether a connection continues.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// It continues.
    Stay,
    /// It ends, with a reason unless the program closed it.
    End(Option<&'static str>),
}

impl Connection {
    pub fn new(socket: OwnedFd, peer: PeerCredentials, number: u64) -> Self {
        let now = Instant::now();
        Self { socket, number, peer, program: None, since: now, window: now, messages: 0 }
    }

    pub fn pid(&self) -> i32 {
        self.peer.pid
    }

    pub fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// Whether its hello has not come within `timeout`.
    pub fn is_late(&self, timeout: Duration) -> bool {
        self.program.is_none() && self.since.elapsed() > timeout
    }

    /// Reads one message, if there is one, and answers it.
    pub fn serve(&mut self, programs: &dyn Programs, counts: &ConnectionCounts) -> Next {
        let mut bytes = [0; Hello::BYTES + 1];
        let flags = RecvFlags::DONTWAIT;
        let length = match recv(&self.socket, &mut bytes, flags) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Next::End(None),
            Ok((_, length)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Next::Stay,
            Err(_) => return Next::End(Some("its socket failed")),
        };
        if self.is_too_often() {
            return Next::End(Some("it reports too often"));
        }
        let message = &bytes[..length];
        let answer = match self.program {
            None => {
                let Some(answer) = self.greet(programs, counts, message) else {
                    return Next::End(Some("its first message is not a hello"));
                };
                answer
            }
            Some(program) => {
                let Ok(report) = <&[u8; REPORT_BYTES]>::try_from(message) else {
                    return Next::End(Some("its message is not a report"));
                };
                Answer::Orders(programs.report(program, decode_report(report)))
            }
        };
        // A program that does not read its answers is disconnected.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = send(&self.socket, &answer.encode(), flags);
        match answer {
            Answer::Refused(reason) => Next::End(Some(reason.text())),
            // It has ended after its report.
            Answer::Orders(_) if matches!(sent, Err(Errno::PIPE | Errno::CONNRESET)) => {
                Next::End(None)
            }
            Answer::Orders(_) if sent.is_err() => Next::End(Some("it reads no answers")),
            Answer::Orders(_) => Next::Stay,
        }
    }

    fn greet(
        &mut self,
        programs: &dyn Programs,
        counts: &ConnectionCounts,
        message: &[u8],
    ) -> Option<Answer> {
        let hello = Hello::decode(message).ok().filter(|_| message.len() == Hello::BYTES)?;
        if hello.version != VERSION {
            return Some(Answer::Refused(Reason::Version));
        }
        let PeerCredentials { pid, uid, gid } = self.peer;
        let who = Registration {
            uid,
            gid,
            pid,
            program: hello.program(),
            local_pages: hello.local_pages,
            budget_pages: hello.budget_pages,
        };
        Some(match programs.register(who) {
            Ok((program, orders)) => {
                self.program = Some(program);
                Answer::Orders(orders)
            }
            Err(Denied::Unknown) => Answer::Refused(Reason::Unknown),
            Err(Denied::Connections) => {
                counts.refuse(Refusal::Peer);
                Answer::Refused(Reason::Many)
            }
        })
    }

    fn is_too_often(&mut self) -> bool {
        if self.window.elapsed() > WINDOW {
            (self.window, self.messages) = (Instant::now(), 0);
        }
        self.messages += 1;
        self.messages > MESSAGES_MAX
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use spillway_platform::sys::peer_credentials;
    use spillway_types::{ClientId, Orders, ProgramCounters};
    use spillway_wire::programs::encode_report;

    use super::*;

    /// It admits every program.
    struct Open;

    const ORDERS: Orders = Orders { target_pages: 1, beyond_local: false, interval_ms: 1000 };

    impl Programs for Open {
        fn register(&self, _: Registration<'_>) -> Result<(ClientId, Orders), Denied> {
            Ok((ClientId(1), ORDERS))
        }

        fn report(&self, _: ClientId, _: ProgramCounters) -> Orders {
            ORDERS
        }

        fn leave(&self, _: ClientId) {}
    }

    #[test]
    fn a_program_that_ends_after_its_report_is_no_fault() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (own, other) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let peer = peer_credentials(&own).unwrap();
        let mut connection = Connection::new(own, peer, 1);
        let counts = ConnectionCounts::default();
        let hello = Hello::new("ends", 1).encode();
        send(&other, &hello, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(connection.serve(&Open, &counts), Next::Stay);
        // An answer that stays unread would end the connection before the report is read.
        recv(&other, &mut [0; 64], RecvFlags::empty()).unwrap();
        send(&other, &encode_report(&ProgramCounters::default()), SendFlags::NOSIGNAL).unwrap();
        drop(other);
        assert_eq!(connection.serve(&Open, &counts), Next::End(None));
    }
}
