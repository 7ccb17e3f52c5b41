//! Holds a guest's descriptors and keeps a manager running.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::pidfd_send_signal;
use rustix::time::{ClockId, clock_gettime};
use spillway_guest_memory::{Map, Mark};
use spillway_host::Limits;

use super::manager::{CAN_NOT, LEFT, MONITOR_ENDED};
use super::plan::{Plan, adopt, inherited};
use super::report::Report;
use super::{say, tiers};
use crate::run::Sink;
use crate::units::show_size;

/// How long the first manager may take before the handover is refused.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How often that is checked.
const READY_TICK: Duration = Duration::from_millis(1);
/// How often the supervisor checks without being woken.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// After this many deaths in a row before it is ready, a manager's failure is reported.
const DEATHS_MAX: u32 = 5;
/// Longest pause before the next is started.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Holds all descriptors of one guest.
pub struct Supervisor {
    plan: Plan,
    /// The plan, for each manager that is started.
    written: OwnedFd,
    map: Map,
    monitor: OwnedFd,
    /// Only this process holds the other end, so managers see it close.
    alive: OwnedFd,
    _end: OwnedFd,
    _held: Vec<OwnedFd>,
    /// This process was a manager, so it must clean up the blade itself.
    is_heir: bool,
}

/// Reads signals from a descriptor from now on, instead of having them delivered.
///
/// # Errors
/// Those of signalfd(2).
pub fn hold_signals() -> anyhow::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Supervisor {
    /// Holds the descriptors of a handover.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new(plan: Plan, held: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let written = plan.write()?;
        Self::with(plan, written, held, false)
    }

    /// Takes the place of a supervisor that was killed, in the process of its manager.
    ///
    /// # Errors
    /// A descriptor was not inherited.
    pub fn inherit(number: i32) -> anyhow::Result<Self> {
        let plan = Plan::read(number)?;
        let written = inherited(adopt(number)?)?;
        Self::with(plan, written, Vec::new(), true)
    }

    fn with(
        plan: Plan,
        written: OwnedFd,
        held: Vec<OwnedFd>,
        is_heir: bool,
    ) -> anyhow::Result<Self> {
        let map = Map::adopt(adopt(plan.map)?, plan.layout.units()).context("no map")?;
        let monitor = adopt(plan.monitor)?;
        let (alive, end) = pipe_with(PipeFlags::CLOEXEC)?;
        let alive = inherited(alive)?;
        Ok(Self { plan, written, map, monitor, alive, _end: end, _held: held, is_heir })
    }

    /// Keeps a manager running until the guest ends or is released.
    ///
    /// # Errors
    /// The guest could not be served, or the statistics could not be written.
    pub fn run(
        self,
        signals: &SignalFd,
        monitor: Option<UnixStream>,
        sink: Option<Sink>,
    ) -> anyhow::Result<ExitCode> {
        let began = Instant::now();
        if self.is_heir {
            self.map.set_mark(Mark::DiedNs, now_ns());
        }
        let mut child = self.start()?;
        if let Some(mut socket) = monitor {
            self.wait_ready(&mut child);
            let answer = self.plan.handshake().answer(Ok(()));
            let _ = socket.write_all(answer.as_bytes());
        }
        let mut deaths = 0;
        let code = loop {
            let status = self.wait(&mut child, signals)?;
            match status.code() {
                Some(MONITOR_ENDED) => break ExitCode::SUCCESS,
                Some(LEFT) => {
                    say("every page is back: the guest continues without a manager");
                    break ExitCode::SUCCESS;
                }
                Some(CAN_NOT) => {
                    say("the guest is killed, because its pages can't be served correctly");
                    let _ = pidfd_send_signal(&self.monitor, rustix::process::Signal::KILL);
                    break ExitCode::FAILURE;
                }
                _ => {}
            }
            if self.monitor_has_ended() {
                break ExitCode::SUCCESS;
            }
            child = self.start_again(status, &mut deaths)?;
        };
        let report = Report::new(&self.plan, &self.map, began.elapsed());
        say(&report.line());
        if let Some(sink) = sink {
            sink.write(&report)?;
        }
        self.tidy_blade();
        Ok(code)
    }

    fn start(&self) -> anyhow::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["guest-memory-part", "manager"]);
        for number in [self.written.as_raw_fd(), self.alive.as_raw_fd()] {
            command.arg(number.to_string());
        }
        // Signals of a terminal are for this process.
        command.process_group(0).spawn().context("can't start a manager")
    }

    /// Starts a manager after the last one died.
    fn start_again(&self, status: ExitStatus, deaths: &mut u32) -> anyhow::Result<Child> {
        let was_ready = self.map.mark(Mark::DiedNs) == 0;
        self.map.set_mark(Mark::DiedNs, now_ns());
        let how = status.signal().map_or_else(
            || format!("ended with code {}", status.code().unwrap_or(-1)),
            |signal| format!("was ended by signal {signal}"),
        );
        say(&format!("the manager {how}; starting the next one"));
        *deaths = if was_ready { 0 } else { *deaths + 1 };
        if *deaths == DEATHS_MAX {
            say(
                "no manager becomes ready: the guest waits for its pages; a start is tried every second",
            );
        }
        if *deaths > 0 {
            let pause = Duration::from_millis(10) * 2_u32.saturating_pow(*deaths);
            std::thread::sleep(pause.min(PAUSE_MAX));
        }
        self.start()
    }

    fn wait_ready(&self, child: &mut Child) {
        let end = Instant::now() + READY_WITHIN;
        while self.map.mark(Mark::Ready) == 0 && Instant::now() < end {
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(READY_TICK);
        }
    }

    /// Waits for the manager's end, and handles signals.
    fn wait(&self, child: &mut Child, signals: &SignalFd) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let mut polled = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            let _ = poll(&mut polled, Some(&TICK));
            while let Ok(Some(info)) = signals.read_signal() {
                if info.ssi_signo != Signal::SIGCHLD as u32 {
                    self.ask_to_leave();
                }
            }
        }
    }

    /// Asks the manager to bring the guest's far pages back, if there is memory for them.
    fn ask_to_leave(&self) {
        if self.map.mark(Mark::Leave) != 0 {
            say("the guest's pages are still coming back; without them it would lose memory");
            return;
        }
        let bytes = if self.plan.firecracker {
            self.plan.layout.bytes()
        } else {
            self.map.far() * self.plan.layout.unit_bytes()
        };
        let available = Limits::read().available.unwrap_or(u64::MAX);
        if bytes > available {
            say(&format!(
                "{} of the guest are far and {} of memory are available: free some, or end the guest",
                show_size(bytes),
                show_size(available)
            ));
            return;
        }
        say(&format!("bringing {} back to the guest", show_size(bytes)));
        self.map.set_mark(Mark::Leave, 1);
    }

    fn monitor_has_ended(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.monitor.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Removes the guest's pages on the blade. The first supervisor's claim does that when it is
    /// dropped.
    fn tidy_blade(&self) {
        let blade = self.plan.tiers.as_ref().and_then(|plan| plan.blade.as_ref());
        if let Some(blade) = blade.filter(|_| self.is_heir)
            && let Ok(carriers) = tiers::carriers(blade)
        {
            for carrier in carriers {
                carrier.tend();
                carrier.end_run();
            }
        }
    }
}
