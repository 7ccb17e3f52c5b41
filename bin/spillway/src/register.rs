//! Registers a run with the daemon of this host, if there is one, and follows the target that it sets.
//!
//! A run never waits for a daemon. Anything that can't be done at once is tried again later. Without a daemon the
//! budget stays as it is.

use std::ffi::OsStr;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use spillway_pager::tree::{Eviction, Tree, next_budget_pages, reserve_pages};
use spillway_platform::sys::peer_credentials;
use spillway_types::{Orders, PROGRAM_PAGES_MIN, ProgramCounters};
use spillway_wire::programs::{Answer, Hello, encode_report};

use crate::daemon::default_dir;

/// Name of the programs' socket in a daemon's directory.
const SOCKET: &str = "programs.sock";
/// The socket directory of a host-wide daemon.
const HOST_DIR: &str = "/run/spillway";
/// Time between two attempts to find a daemon.
const RETRY: Duration = Duration::from_secs(1);
/// The same after a daemon has refused.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// The daemon with which a run registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Register {
    /// The user's own, else the host's, when one runs.
    Auto,
    /// None.
    Off,
    /// The one that listens here.
    At(PathBuf),
}

/// Reads `auto`, `off` or a path.
///
/// # Errors
/// A line that says what is expected.
pub fn parse_register(text: &str) -> Result<Register, String> {
    match text {
        "auto" => Ok(Register::Auto),
        "off" => Ok(Register::Off),
        path if path.contains('/') => Ok(Register::At(path.into())),
        _ => Err("give auto, off, or the path of a daemon's programs.sock".to_owned()),
    }
}

/// A run's registration.
pub struct Registration {
    sockets: Vec<PathBuf>,
    /// The user named the daemon, so problems with it are reported.
    is_named: bool,
    hello: Hello,
    local_pages: u64,
    /// The most that an operator can give: the machine's memory.
    most_pages: u64,
    socket: Option<OwnedFd>,
    /// The last report.
    orders: Option<Orders>,
    /// Whether the present daemon has answered.
    is_known: bool,
    /// When the next attempt or report is due.
    due: Instant,
    /// A line for the user, and whether one was printed.
    said: Option<String>,
    has_said: bool,
}

impl Registration {
    /// A registration that begins with the first [`Self::look`]; none for `off`. `most_pages` is the machine's
    /// memory.
    pub fn new(
        register: &Register,
        program: &OsStr,
        local_pages: u64,
        most_pages: u64,
    ) -> Option<Self> {
        let sockets = match register {
            Register::Off => return None,
            Register::At(path) => vec![path.clone()],
            Register::Auto => {
                // A user without a runtime directory has no daemon there.
                let own = default_dir().ok();
                let mut dirs = Vec::from_iter(own.into_iter().chain([PathBuf::from(HOST_DIR)]));
                dirs.dedup();
                dirs.into_iter().map(|dir| dir.join(SOCKET)).collect()
            }
        };
        let program = Path::new(program).file_name().unwrap_or(program);
        Some(Self {
            sockets,
            is_named: matches!(register, Register::At(_)),
            hello: Hello::new(&program.to_string_lossy(), local_pages),
            local_pages,
            most_pages,
            socket: None,
            orders: None,
            is_known: false,
            due: Instant::now(),
            said: None,
            has_said: false,
        })
    }

    /// Reports if that is due, reads new orders, and moves the run's budget a step towards them. Returns a line for
    /// the user if there is something to report.
    pub fn look(&mut self, tree: &Tree) -> Option<String> {
        self.hear();
        if Instant::now() >= self.due {
            match &self.socket {
                None => self.ask(tree),
                Some(_) => self.report(tree),
            }
        }
        self.follow(tree);
        self.said.take().filter(|_| self.is_named)
    }

    /// What the run may hold, pages.
    fn goal_pages(&self) -> u64 {
        match self.orders {
            Some(Orders { target_pages, beyond_local, .. }) if target_pages != u64::MAX => {
                let most = if beyond_local { self.most_pages } else { self.local_pages };
                target_pages.clamp(PROGRAM_PAGES_MIN, most.max(PROGRAM_PAGES_MIN))
            }
            _ => self.local_pages,
        }
    }

    fn follow(&self, tree: &Tree) {
        let budget_pages = tree.budget_pages.load(Relaxed);
        let resident_pages = gauge(&tree.counters.resident_pages);
        let next_pages = next_budget_pages(budget_pages, self.goal_pages(), resident_pages);
        if next_pages != budget_pages {
            tree.budget_pages.store(next_pages, Relaxed);
        }
    }

    /// Looks for a daemon and sends the greeting.
    fn ask(&mut self, tree: &Tree) {
        self.hello.budget_pages = tree.budget_pages.load(Relaxed);
        self.due = Instant::now() + RETRY;
        let mut found = Err(Errno::NOENT);
        for path in &self.sockets {
            found = connected(path);
            if found.is_ok() {
                break;
            }
        }
        match found.and_then(|socket| tell(&socket, &self.hello.encode()).map(|()| socket)) {
            Ok(socket) => {
                self.socket = Some(socket);
                self.is_known = false;
            }
            Err(error) => {
                let path = self.sockets[0].display();
                self.say(format!("--register: no daemon at {path}: {error}; retrying"));
            }
        }
    }

    /// Reads the daemon's messages.
    fn hear(&mut self) {
        let Some(socket) = &self.socket else { return };
        let mut bytes = [0; Answer::BYTES];
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, Answer::BYTES)) => match Answer::decode(&bytes) {
                Ok(Answer::Orders(orders)) => {
                    // A new daemon must not assume that the run holds nothing.
                    if !mem::replace(&mut self.is_known, true) {
                        self.due = Instant::now();
                    }
                    self.orders = Some(orders);
                    self.has_said = false;
                }
                Ok(Answer::Refused(reason)) => {
                    self.hang_up(REFUSED_RETRY);
                    self.say(format!("--register: the daemon says no: {}", reason.text()));
                }
                Err(_) => self.hang_up(REFUSED_RETRY),
            },
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The daemon is gone, or speaks another protocol. Its last order stays in force.
            Ok(_) | Err(_) => self.hang_up(RETRY),
        }
    }

    /// Reports what the run did.
    fn report(&mut self, tree: &Tree) {
        let interval_ms = self.orders.map_or(1000, |orders| orders.interval_ms);
        self.due = Instant::now() + Duration::from_millis(interval_ms.into());
        let Some(socket) = &self.socket else { return };
        match tell(socket, &encode_report(&counters(tree))) {
            // A busy daemon gets it with the next report.
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(_) => self.hang_up(RETRY),
        }
    }

    fn hang_up(&mut self, pause: Duration) {
        self.socket = None;
        self.due = Instant::now() + pause;
    }

    /// Leaves a line for the user, once until a daemon answers.
    fn say(&mut self, line: String) {
        if !self.has_said {
            (self.has_said, self.said) = (true, Some(line));
        }
    }
}

/// A connection to a daemon that this user can trust: root's or its own.
fn connected(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let daemon = peer_credentials(&socket)?.uid;
    let own = rustix::process::geteuid().as_raw();
    if daemon == 0 || daemon == own { Ok(socket) } else { Err(Errno::PERM) }
}

fn tell(socket: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
    send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// The run's counters in the daemon's format.
fn counters(tree: &Tree) -> ProgramCounters {
    let sums = &tree.counters;
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    // If that is chosen while the program runs, it can become true later.
    let pre_evicts = tree.settings.eviction != Eviction::OnDemand as u32;
    let budget_pages = tree.budget_pages.load(Relaxed);
    ProgramCounters {
        resident_pages: gauge(&sums.resident_pages),
        reserve_pages: if pre_evicts { reserve_pages(budget_pages) } else { 0 },
        faults: count(&sums.faults),
        first_touches: count(&sums.first_touches),
        refaults: count(&sums.fetches),
        pages_out: count(&sums.evictions),
    }
}

fn gauge(value: &AtomicI64) -> u64 {
    u64::try_from(value.load(Relaxed)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rustix::net::{accept, bind, listen};

    use super::*;
    use crate::run::tests::settings;
    use crate::shared_tree::SharedTree;

    /// A daemon that the test plays.
    struct Played {
        listener: OwnedFd,
        path: PathBuf,
        _dir: tempfile::TempDir,
    }

    impl Played {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(SOCKET);
            let flags = SocketFlags::CLOEXEC;
            let kind = SocketType::SEQPACKET;
            let listener = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            listen(&listener, 8).unwrap();
            Self { listener, path, _dir: dir }
        }

        fn answer(socket: &OwnedFd, answer: Answer) {
            tell(socket, &answer.encode()).unwrap();
        }

        fn order(socket: &OwnedFd, target_pages: u64, beyond_local: bool) {
            let orders = Orders { target_pages, beyond_local, interval_ms: 1 };
            Self::answer(socket, Answer::Orders(orders));
        }

        fn heard(socket: &OwnedFd) -> Vec<u8> {
            let mut bytes = vec![0; 256];
            let (_, length) = recv(socket, &mut bytes, RecvFlags::empty()).unwrap();
            bytes.truncate(length);
            bytes
        }
    }

    fn registration(register: &Register) -> Registration {
        Registration::new(register, OsStr::new("/usr/bin/prog"), 16384, 50_000).unwrap()
    }

    fn budget(tree: &Tree) -> u64 {
        tree.budget_pages.load(Relaxed)
    }

    #[test]
    fn a_run_follows_its_orders_and_keeps_the_last_when_the_daemon_goes() {
        let (daemon, tree) = (Played::new(), SharedTree::new(&settings()).unwrap());
        let mut run = registration(&Register::At(daemon.path.clone()));
        assert_eq!(run.look(&tree), None);
        let socket = accept(&daemon.listener).unwrap();
        let hello = Hello::decode(&Played::heard(&socket)).unwrap();
        assert_eq!((hello.program(), hello.local_pages), ("prog", 16384));
        // Shrinking waits for pages to leave: a reserve at a time.
        tree.counters.resident_pages.store(16384, Relaxed);
        Played::order(&socket, 4096, false);
        run.look(&tree);
        assert_eq!(budget(&tree), 16384 - 512);
        run.look(&tree);
        assert_eq!(budget(&tree), 16384 - 512, "more is resident than that");
        tree.counters.resident_pages.store(2000, Relaxed);
        run.look(&tree);
        assert_eq!(budget(&tree), 4096);
        let report = Played::heard(&socket);
        assert_eq!(report.len(), spillway_wire::programs::REPORT_BYTES);
        // More than the user gave is the operator's to give, and never more than there is.
        for (target_pages, beyond_local, expected) in [
            (20_000, false, 16384),
            (20_000, true, 20_000),
            (60_000, true, 50_000),
            (0, false, PROGRAM_PAGES_MIN),
            (5000, false, 5000),
        ] {
            Played::order(&socket, target_pages, beyond_local);
            tree.counters.resident_pages.store(100, Relaxed);
            run.look(&tree);
            assert_eq!(budget(&tree), expected);
        }
        drop((socket, daemon));
        for _ in 0..3 {
            run.look(&tree);
        }
        assert_eq!(budget(&tree), 5000, "the last target holds");
    }

    #[test]
    fn no_orders_leave_the_budget_as_the_user_gave_it() {
        let (daemon, tree) = (Played::new(), SharedTree::new(&settings()).unwrap());
        let mut run = registration(&Register::At(daemon.path.clone()));
        run.look(&tree);
        let socket = accept(&daemon.listener).unwrap();
        Played::order(&socket, 300, false);
        run.look(&tree);
        assert_eq!(budget(&tree), 300);
        Played::order(&socket, u64::MAX, false);
        run.look(&tree);
        assert_eq!(budget(&tree), 16384);
    }

    #[test]
    fn a_daemon_that_is_missing_or_refuses_is_told_of_once_if_it_was_named() {
        let tree = SharedTree::new(&settings()).unwrap();
        let mut run = registration(&Register::At("/no/such/programs.sock".into()));
        assert!(run.look(&tree).unwrap().contains("/no/such/programs.sock"));
        run.due = Instant::now();
        assert_eq!(run.look(&tree), None);
        let daemon = Played::new();
        let mut run = registration(&Register::At(daemon.path.clone()));
        run.look(&tree);
        let socket = accept(&daemon.listener).unwrap();
        Played::answer(&socket, Answer::Refused(spillway_wire::programs::Reason::Unknown));
        assert!(run.look(&tree).unwrap().contains("no client is configured"));
        assert!(Registration::new(&Register::Off, OsStr::new("a"), 1, 1).is_none());
        assert_eq!(budget(&tree), 16384);
    }

    #[test]
    fn a_bad_option_is_told_from_a_path() {
        assert_eq!(parse_register("auto"), Ok(Register::Auto));
        assert_eq!(parse_register("./p.sock"), Ok(Register::At("./p.sock".into())));
        assert!(parse_register("on").is_err());
    }
}
