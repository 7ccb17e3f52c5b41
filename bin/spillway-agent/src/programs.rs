//! Serves programs of the guest that request or return memory, over a Unix socket. The kernel identifies them.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use spillway_guests::call::{Call, Reply};
use spillway_guests::line::LINE_BYTES_MAX;

use crate::port::readable;
use crate::quota::Quota;
use crate::watch::Ask;
use crate::window::Borrower;
use spillway_wire::ring::Hello;

/// The most programs connected at the same time.
pub const CLIENTS_MAX: usize = 32;
/// The most of one user, so that no user takes all connections.
pub const CLIENTS_OF_USER_MAX: usize = 8;
/// Time limit for a program to send its request, and to read the reply.
pub const TALK_TIME: Duration = Duration::from_secs(2);

/// Time limit for the host, which answers when the memory is available.
pub const CALL_TIME: Duration = Duration::from_secs(30);

/// The part of it in which the host may wait for other guests' memory, before it changes the guest's size.
pub const NEED_TIME: Duration = Duration::from_secs(15);

/// A call that goes to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its connection, for [`Programs::answer`].
    pub client: u64,
    /// The request.
    pub ask: Ask,
}

/// The socket and the connections.
#[derive(Debug)]
pub struct Programs {
    listener: UnixListener,
    clients: Vec<ProgramClient>,
    /// Programs that want a window, which the windows' thread takes over.
    borrowers: Vec<Borrower>,
    quota: Quota,
    next: u64,
}

/// State of a program's connection.
#[derive(Debug)]
enum Heard {
    Call(Call),
    /// It wants a window: it has sent a ring client's hello.
    Window(Hello),
}

#[derive(Debug)]
struct ProgramClient {
    id: u64,
    user: u32,
    stream: UnixStream,
    line: Vec<u8>,
    state: ProgramState,
    until: Duration,
}

#[derive(Debug)]
enum ProgramState {
    /// The program sends its request.
    Asks,
    /// The request was sent to the host.
    Waits(u64),
    /// The reply is being sent; this byte is next.
    Hears(Vec<u8>),
    Done,
}

impl Programs {
    /// Listens at `path`, for all users.
    ///
    /// # Errors
    /// Another agent listens there, or the directory can't be written.
    pub fn listen(path: &Path) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there"));
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // The socket is renamed once all users may connect, and replaces that of a killed agent.
        let hidden = path.with_extension("new");
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden)?;
        listener.set_nonblocking(true)?;
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o666))?;
        fs::rename(&hidden, path)?;
        Ok(Self {
            listener,
            clients: Vec::new(),
            borrowers: Vec::new(),
            quota: Quota::default(),
            next: 0,
        })
    }

    /// The descriptors to poll.
    pub fn interest(&self) -> impl Iterator<Item = PollFd<'_>> {
        let clients = self.clients.iter().filter_map(|client| {
            let flags = match client.state {
                ProgramState::Asks => PollFlags::IN,
                ProgramState::Hears(_) => PollFlags::OUT,
                // Poll would report a closed connection again and again until the answer arrives.
                ProgramState::Waits(_) | ProgramState::Done => return None,
            };
            Some(PollFd::new(&client.stream, flags))
        });
        std::iter::once(readable(&self.listener)).chain(clients)
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Duration> {
        self.clients.iter().map(|client| client.until).min()
    }

    /// Reads requests, and returns the calls that the host must answer. `status` is the reply to a status request.
    pub fn go_on(&mut self, now: Duration, mut status: impl FnMut() -> Reply) -> Vec<Wanted> {
        self.accept(now);
        let mut wanted = Vec::new();
        for client in &mut self.clients {
            if matches!(client.state, ProgramState::Asks) {
                match client.read() {
                    Ok(None) => {}
                    Ok(Some(Heard::Window(hello))) => {
                        // Without a free descriptor, the program finds the connection closed.
                        let stream = client.stream.try_clone();
                        let user = client.user;
                        self.borrowers.extend(stream.map(|stream| Borrower {
                            user,
                            stream,
                            hello,
                        }));
                        client.state = ProgramState::Done;
                    }
                    Ok(Some(Heard::Call(Call::Status))) => client.reply(now, &status()),
                    Ok(Some(Heard::Call(Call::Need { bytes }))) => {
                        let ask = Ask::Need { bytes, urgent: false };
                        wanted.extend(client.want(now, ask, bytes, &mut self.quota));
                    }
                    Ok(Some(Heard::Call(Call::Give { bytes }))) => {
                        wanted.extend(client.want(now, Ask::Give { bytes }, 0, &mut self.quota));
                    }
                    Err(why) => client.refuse(now, why),
                }
            }
            if now >= client.until {
                match client.state {
                    ProgramState::Waits(bytes) => {
                        self.quota.refund(client.user, bytes);
                        client.refuse(now, "the host does not answer".into());
                    }
                    _ => client.state = ProgramState::Done,
                }
            }
            client.write();
        }
        self.clients.retain(|client| !matches!(client.state, ProgramState::Done));
        wanted
    }

    /// Programs that have requested a window since the last call.
    pub fn borrowers(&mut self) -> Vec<Borrower> {
        std::mem::take(&mut self.borrowers)
    }

    /// The host's answer to a call; the program may be gone.
    pub fn answer(&mut self, now: Duration, client: u64, granted: u64, why: Option<String>) {
        if let Some(client) = self.clients.iter_mut().find(|it| it.id == client) {
            if let ProgramState::Waits(bytes) = client.state {
                self.quota.refund(client.user, bytes.saturating_sub(granted));
            }
            client.reply(now, &Reply::Answer { granted_bytes: granted, why });
            client.write();
        }
    }

    /// Whether one more program of a user may connect.
    fn has_place(&self, user: u32) -> bool {
        let of_user = self.clients.iter().filter(|it| it.user == user).count();
        self.clients.len() < CLIENTS_MAX && (user == 0 || of_user < CLIENTS_OF_USER_MAX)
    }

    fn accept(&mut self, now: Duration) {
        while let Ok((stream, _)) = self.listener.accept() {
            let (Ok(who), Ok(())) = (socket_peercred(&stream), stream.set_nonblocking(true)) else {
                continue;
            };
            let user = who.uid.as_raw();
            let (id, until) = (self.next, now + TALK_TIME);
            self.next += 1;
            let mut client = ProgramClient {
                id,
                user,
                stream,
                line: Vec::new(),
                state: ProgramState::Asks,
                until,
            };
            if !self.has_place(user) {
                // A new connection has buffer space for the line with the reason.
                client.refuse(now, "too many programs make requests at the same time".into());
                client.write();
                continue;
            }
            self.clients.push(client);
        }
    }
}

impl ProgramClient {
    /// A call, once it is complete.
    fn read(&mut self) -> Result<Option<Heard>, String> {
        let mut bytes = [0; LINE_BYTES_MAX];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    self.state = ProgramState::Done;
                    return Ok(None);
                }
                Ok(count) => self.line.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error.to_string()),
            }
            // A hello has this length, and no call begins like it.
            if let Ok(hello) = Hello::decode(&self.line) {
                return Ok(Some(Heard::Window(hello)));
            }
            if let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                let call = Call::decode(&self.line[..end]);
                return call.map(|it| Some(Heard::Call(it))).map_err(|error| error.to_string());
            }
            if self.line.len() > LINE_BYTES_MAX {
                return Err(spillway_guests::Error::Long.to_string());
            }
        }
    }

    fn want(&mut self, now: Duration, ask: Ask, bytes: u64, quota: &mut Quota) -> Option<Wanted> {
        if let Err(why) = quota.call(now, self.user, bytes) {
            self.refuse(now, why);
            return None;
        }
        self.state = ProgramState::Waits(bytes);
        self.until = now + CALL_TIME;
        Some(Wanted { client: self.id, ask })
    }

    fn refuse(&mut self, now: Duration, why: String) {
        let why = why.chars().filter(|it| !it.is_control()).take(120).collect();
        self.reply(now, &Reply::Answer { granted_bytes: 0, why: Some(why) });
    }

    fn reply(&mut self, now: Duration, reply: &Reply) {
        self.state = ProgramState::Hears(reply.encode());
        self.until = now + TALK_TIME;
    }

    fn write(&mut self) {
        let ProgramState::Hears(left) = &mut self.state else { return };
        while !left.is_empty() {
            match self.stream.write(left) {
                Ok(count) => drop(left.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => break,
            }
        }
        self.state = ProgramState::Done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    const NOW: Duration = Duration::from_secs(1);

    struct Setup {
        folder: tempfile::TempDir,
        programs: Programs,
    }

    impl Setup {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let programs = Programs::listen(&folder.path().join("run/socket")).unwrap();
            Self { folder, programs }
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(self.folder.path().join("run/socket")).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream
        }

        fn go_on(&mut self, now: Duration) -> Vec<Wanted> {
            let status = spillway_guests::agent::Status::default();
            self.programs.go_on(now, || Reply::Status { host: false, reserve_bytes: 0, status })
        }
    }

    fn reply(stream: &mut UnixStream) -> Reply {
        let mut line = Vec::new();
        BufReader::new(stream).read_until(b'\n', &mut line).unwrap();
        Reply::decode(line.strip_suffix(b"\n").unwrap()).unwrap()
    }

    fn why(stream: &mut UnixStream) -> String {
        let Reply::Answer { granted_bytes: 0, why: Some(why) } = reply(stream) else { panic!() };
        why
    }

    #[test]
    fn a_call_waits_for_the_hosts_answer() {
        let mut setup = Setup::new();
        let mut stream = setup.connect();
        stream.write_all(b"{\"need\":{\"by").unwrap();
        assert_eq!(setup.go_on(NOW), []);
        stream.write_all(b"tes\":7}}\n").unwrap();
        let wanted = setup.go_on(NOW);
        assert_eq!(wanted[0].ask, Ask::Need { bytes: 7, urgent: false });
        assert_eq!(setup.programs.deadline(), Some(NOW + CALL_TIME));
        setup.programs.answer(NOW, wanted[0].client, 5, None);
        assert_eq!(reply(&mut stream), Reply::Answer { granted_bytes: 5, why: None });
        setup.go_on(NOW);
        assert!(setup.programs.clients.is_empty());
    }

    #[test]
    fn a_host_that_does_not_answer_is_not_waited_for() {
        let mut setup = Setup::new();
        let mut stream = setup.connect();
        stream.write_all(&Call::Give { bytes: 7 }.encode()).unwrap();
        let wanted = setup.go_on(NOW);
        setup.go_on(NOW + CALL_TIME);
        assert_eq!(why(&mut stream), "the host does not answer");
        setup.programs.answer(NOW, wanted[0].client, 7, None);
    }

    #[test]
    fn a_program_that_says_nothing_or_nonsense_goes() {
        let mut setup = Setup::new();
        let (_silent, mut strange, mut long) = (setup.connect(), setup.connect(), setup.connect());
        strange.write_all(b"\xff\xfe\n").unwrap();
        long.write_all(&[b'x'; 3000]).unwrap();
        setup.go_on(NOW);
        assert!(why(&mut strange).starts_with("not a message"));
        assert!(why(&mut long).contains("1024 bytes"));
        assert_eq!(setup.programs.clients.len(), 1);
        setup.go_on(NOW + TALK_TIME);
        assert!(setup.programs.clients.is_empty());
    }

    #[test]
    fn a_user_pays_for_what_was_granted_however_the_call_ends() {
        use crate::quota::BYTES;
        // How much was granted, if the host answers, and whether the program has ended meanwhile.
        for (granted, is_gone) in
            [(Some(0), false), (Some(7), false), (Some(BYTES), false), (None, false)]
                .into_iter()
                .chain([(Some(0), true), (Some(7), true), (None, true)])
        {
            let mut setup = Setup::new();
            let call = |bytes, setup: &mut Setup| {
                let mut stream = setup.connect();
                stream.write_all(&Call::Need { bytes }.encode()).unwrap();
                setup.programs.accept(NOW);
                setup.programs.clients.iter_mut().for_each(|client| client.user = 1000);
                (setup.go_on(NOW), stream)
            };
            let (wanted, stream) = call(BYTES, &mut setup);
            let stream = Some(stream).filter(|_| !is_gone);
            match granted {
                Some(granted) => setup.programs.answer(NOW, wanted[0].client, granted, None),
                None => drop(setup.go_on(NOW + CALL_TIME)),
            }
            drop(stream);
            let paid = granted.unwrap_or(0);
            let (too_much, mut refused) = call(BYTES - paid + 1, &mut setup);
            assert_eq!(too_much, [], "{granted:?} {is_gone}");
            assert!(why(&mut refused).contains("4 GiB"));
            let (rest, _stream) = call(BYTES - paid, &mut setup);
            assert_eq!(rest.len(), 1, "{granted:?} {is_gone}");
        }
    }

    #[test]
    fn more_programs_than_there_are_places_hear_so() {
        let mut setup = Setup::new();
        let mut streams: Vec<_> = (0..=CLIENTS_MAX).map(|_| setup.connect()).collect();
        setup.go_on(NOW);
        assert_eq!(
            why(streams.last_mut().unwrap()),
            "too many programs make requests at the same time"
        );
        assert!(setup.programs.clients.len() <= CLIENTS_MAX);
    }

    #[test]
    fn nobody_but_root_takes_more_than_eight_places() {
        let mut setup = Setup::new();
        let mut streams = Vec::new();
        for taken in 1..=CLIENTS_MAX {
            streams.push(setup.connect());
            // Use another user, so that the test's own user does not limit the connections.
            setup.programs.clients.iter_mut().for_each(|client| client.user = 2000);
            setup.programs.accept(NOW);
            setup.programs.clients.iter_mut().for_each(|client| client.user = 1000);
            let places = [1000, 1001, 0].map(|user| setup.programs.has_place(user));
            let is_left = taken < CLIENTS_MAX;
            assert_eq!(places, [taken < CLIENTS_OF_USER_MAX, is_left, is_left], "{taken}");
        }
    }

    #[test]
    fn anybody_may_ask_how_the_guest_is() {
        let mut setup = Setup::new();
        let mut stream = setup.connect();
        stream.write_all(&Call::Status.encode()).unwrap();
        assert_eq!(setup.go_on(NOW), []);
        assert!(matches!(reply(&mut stream), Reply::Status { host: false, .. }));
    }

    #[test]
    fn a_second_agent_is_refused_and_a_killed_ones_socket_is_taken_over() {
        let setup = Setup::new();
        let path = setup.folder.path().join("run/socket");
        assert!(Programs::listen(&path).is_err());
        drop(setup.programs);
        Programs::listen(&path).unwrap();
    }
}
