//! Sets memory blocks online and offline, one after the other, through a child process. The kernel may try for minutes
//! to empty a block whose pages are in use, and stops only when the requesting process is killed. The child gets
//! several blocks ahead, so it need not wait for this process between two of them.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Signal, set_parent_process_death_signal, setpriority_process};

use crate::blocks::{Blocks, Wish};

/// Time limit to set one block offline.
pub const BLOCK_TIME: Duration = Duration::from_secs(1);
/// Time limit to set one online. This is quick, but may wait for another block that is going offline.
const ONLINE_TIME: Duration = Duration::from_secs(10);

/// How many blocks the worker gets before it answers. Their lines fit in its pipe, so writing never blocks.
const AHEAD_MAX: usize = 16;

/// Blocks to change, and the worker that changes them.
#[derive(Debug)]
pub struct Mover {
    program: Command,
    worker: Option<Child>,
    /// Killed, and not reaped yet.
    ended: Vec<Child>,
    queue: VecDeque<(u64, Wish)>,
    /// Commands that the worker has not answered, and the deadline of the first, which it executes
    /// now.
    handed: VecDeque<(u64, Wish)>,
    until: Duration,
    answer: Vec<u8>,
    /// How many still have to change.
    wanted: usize,
    /// Blocks that did not change.
    failed: u32,
}

impl Mover {
    /// A mover for the blocks below `root`, whose worker is this program.
    ///
    /// # Errors
    /// The program's path is unknown.
    pub fn new(root: &Path) -> io::Result<Self> {
        let mut program = Command::new(std::env::current_exe()?);
        program.arg("move-blocks").arg(root).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self::with(program))
    }

    /// A mover with the caller's worker.
    pub fn with(program: Command) -> Self {
        Self {
            program,
            worker: None,
            ended: Vec::new(),
            queue: VecDeque::new(),
            handed: VecDeque::new(),
            until: Duration::ZERO,
            answer: Vec::new(),
            wanted: 0,
            failed: 0,
        }
    }

    /// Starts the worker ahead of need, which takes some milliseconds.
    ///
    /// # Errors
    /// It does not start.
    pub fn ready(&mut self) -> io::Result<()> {
        self.ended.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        if self.worker.is_none() {
            let child = self.program.spawn()?;
            if let Some(output) = &child.stdout {
                fcntl_setfl(output, fcntl_getfl(output)? | OFlags::NONBLOCK)?;
            }
            self.worker = Some(child);
            self.answer.clear();
        }
        Ok(())
    }

    /// Changes this many of these blocks, the first ones that can change. Replaces the blocks that
    /// were waiting.
    pub fn start(
        &mut self,
        now: Duration,
        wanted: usize,
        blocks: impl IntoIterator<Item = (u64, Wish)>,
    ) {
        self.stop();
        self.queue = blocks.into_iter().collect();
        (self.wanted, self.failed) = (wanted, 0);
        self.next(now);
    }

    /// Drops waiting blocks and ends the operation in progress. That block may still change a moment
    /// later.
    pub fn stop(&mut self) {
        self.queue.clear();
        if !self.handed.is_empty() {
            self.handed.clear();
            self.end_worker();
        }
    }

    /// No block waits, and none is in progress.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.handed.is_empty()
    }

    /// How many of the blocks did not change since [`Mover::start`].
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// The worker's output, for poll.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        let worker = self.worker.as_ref().filter(|_| !self.handed.is_empty())?;
        worker.stdout.as_ref().map(AsFd::as_fd)
    }

    /// The worker's deadline.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.handed.is_empty()).then_some(self.until)
    }

    /// Reads the worker's replies, kills it when its time is over, and continues with the next block.
    pub fn go_on(&mut self, now: Duration) {
        while !self.handed.is_empty() {
            match self.read_answer() {
                Ok(None) if now < self.until => break,
                Ok(Some(true)) => self.wanted = self.wanted.saturating_sub(1),
                Ok(Some(false)) => self.failed += 1,
                Ok(None) | Err(_) => {
                    self.failed += 1;
                    self.end_worker();
                }
            }
            self.handed.pop_front();
            if self.worker.is_none() {
                self.take_back();
            }
            self.expect(now);
        }
        self.next(now);
    }

    /// Commands of an ended worker go to the next one.
    fn take_back(&mut self) {
        while let Some(block) = self.handed.pop_back() {
            self.queue.push_front(block);
        }
    }

    /// The worker starts with the first command.
    fn expect(&mut self, now: Duration) {
        if let Some((_, wish)) = self.handed.front() {
            self.until = now + if *wish == Wish::Offline { BLOCK_TIME } else { ONLINE_TIME };
        }
    }

    /// A whole line of the worker: whether the block changed.
    fn read_answer(&mut self) -> io::Result<Option<bool>> {
        let output = self.worker.as_mut().and_then(|worker| worker.stdout.as_mut());
        let output = output.ok_or(io::ErrorKind::BrokenPipe)?;
        let (mut bytes, mut has_ended) = ([0; 64], false);
        loop {
            match output.read(&mut bytes) {
                Ok(0) => {
                    has_ended = true;
                    break;
                }
                Ok(count) => self.answer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let Some(end) = self.answer.iter().position(|&byte| byte == b'\n') else {
            return if has_ended { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
        };
        let line: Vec<u8> = self.answer.drain(..=end).collect();
        Ok(Some(line == b"ok\n"))
    }

    fn next(&mut self, now: Duration) {
        if self.wanted == 0 {
            self.queue.clear();
        }
        // No more than wanted: the worker executes every command that it got.
        while self.handed.len() < self.wanted.min(AHEAD_MAX) {
            let Some((number, wish)) = self.queue.pop_front() else { return };
            if self.hand_over(number, wish).is_err() {
                self.failed += 1;
                self.end_worker();
                self.take_back();
                continue;
            }
            self.handed.push_back((number, wish));
            if self.handed.len() == 1 {
                self.expect(now);
            }
        }
    }

    fn hand_over(&mut self, number: u64, wish: Wish) -> io::Result<()> {
        self.ready()?;
        let input = self.worker.as_mut().and_then(|worker| worker.stdin.as_mut());
        let input = input.ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(format!("{number} {}\n", wish.word()).as_bytes())
    }

    fn end_worker(&mut self) {
        if let Some(mut child) = self.worker.take() {
            // It may have ended already. It is reaped later, because the kernel may take long to end it.
            let _ = child.kill();
            self.ended.push(child);
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.end_worker();
    }
}

/// The worker: reads commands, writes blocks' states, and reports the results, until its input
/// ends.
///
/// # Errors
/// There are no blocks, or the output is closed.
pub fn work(root: &Path) -> io::Result<()> {
    // The kernel may try to empty a block for minutes. If the agent ends, so does this process and
    // the attempt.
    let _ = setpriority_process(None, 0);
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let blocks = Blocks::open(root)?;
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (number, word) = line.split_once(' ').unwrap_or_default();
        let number = number.parse().map_err(io::Error::other)?;
        match std::fs::write(blocks.state_file(number), word) {
            Ok(()) => writeln!(output, "ok")?,
            Err(error) => writeln!(output, "{error}")?,
        }
        output.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// The mover's time, four times as slow as the real one: a busy machine may keep a worker for seconds.
    fn time(start: Instant) -> Duration {
        start.elapsed() / 4
    }

    /// A worker that is a shell script: block 7 takes forever, block 9 is refused.
    fn mover() -> Mover {
        let mut shell = Command::new("sh");
        let script = "while read -r number word; do case $number in 7) exec sleep 60;; 9) echo busy;; *) echo ok;; esac; done";
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Mover::with(shell)
    }

    fn run(mover: &mut Mover, numbers: &[u64]) -> Duration {
        let start = Instant::now();
        let blocks = numbers.iter().map(|&number| (number, Wish::Offline));
        mover.start(time(start), numbers.len().min(3), blocks);
        while !mover.is_idle() {
            assert!(time(start) < 10 * BLOCK_TIME, "it does not come to an end");
            std::thread::sleep(Duration::from_millis(2));
            mover.go_on(time(start));
        }
        time(start)
    }

    #[test]
    fn blocks_change_one_after_the_other() {
        let mut mover = mover();
        let took = run(&mut mover, &[3, 2, 1]);
        assert!(mover.failed() == 0 && took < BLOCK_TIME, "{took:?}");
    }

    #[test]
    fn a_block_that_takes_too_long_is_given_up_and_the_next_one_tried() {
        let mut mover = mover();
        let took = run(&mut mover, &[8, 7, 9, 1]);
        assert_eq!(mover.failed(), 2);
        assert!(took >= BLOCK_TIME && took < 3 * BLOCK_TIME, "{took:?}");
        // Three are enough: it does not reach the block that takes forever.
        assert!(run(&mut mover, &[1, 2, 3, 7]) < BLOCK_TIME);
        assert_eq!(mover.failed(), 0);
    }

    #[test]
    fn each_block_has_its_own_time() {
        let mut shell = Command::new("sh");
        let script = "while read -r number word; do sleep 0.8; echo ok; done";
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut mover = Mover::with(shell);
        let start = Instant::now();
        mover.start(time(start), 6, (0..6).map(|number| (number, Wish::Offline)));
        while !mover.is_idle() {
            assert!(time(start) < 10 * BLOCK_TIME, "it does not come to an end");
            std::thread::sleep(Duration::from_millis(2));
            mover.go_on(time(start));
        }
        assert_eq!(mover.failed(), 0);
    }

    #[test]
    fn what_is_under_way_does_not_count_for_what_comes_next() {
        let mut mover = mover();
        let start = Instant::now();
        mover.start(time(start), 2, [(7, Wish::Offline), (8, Wish::Offline)]);
        mover.stop();
        assert!(mover.is_idle());
        mover.start(time(start), 1, [(7, Wish::Offline)]);
        assert!(run(&mut mover, &[1, 2, 9]) < BLOCK_TIME);
        assert_eq!(mover.failed(), 1);
    }

    #[test]
    fn a_worker_that_ends_takes_nothing_with_it_that_it_was_told() {
        let done = tempfile::NamedTempFile::new().unwrap();
        let mut shell = Command::new("sh");
        // Each worker changes two blocks and ends.
        let script =
            r#"for i in 1 2; do read -r number word; echo "$number" >>"$0"; echo ok; done"#;
        shell.args(["-c", script]).arg(done.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut mover = Mover::with(shell);
        let start = Instant::now();
        mover.start(time(start), 20, (0..60).map(|number| (number, Wish::Offline)));
        while !mover.is_idle() {
            assert!(time(start) < 10 * BLOCK_TIME, "it does not come to an end");
            std::thread::sleep(Duration::from_millis(2));
            mover.go_on(time(start));
        }
        let text = std::fs::read_to_string(done.path()).unwrap();
        let numbers: std::collections::HashSet<_> = text.lines().collect();
        assert_eq!((text.lines().count(), numbers.len()), (20, 20), "{text}");
        assert_eq!(mover.wanted, 0);
    }

    #[test]
    fn a_worker_that_does_not_start_fails_all_blocks() {
        let mut mover = Mover::with(Command::new("/nonexistent"));
        run(&mut mover, &[1, 2]);
        assert_eq!(mover.failed(), 2);
    }

    /// A worker that never answers, and records its commands.
    fn silent(told: &Path) -> Mover {
        let mut shell = Command::new("sh");
        let script = r#"while read -r line; do echo "$line" >>"$0"; done"#;
        shell.args(["-c", script]).arg(told);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        Mover::with(shell)
    }

    fn lines(told: &Path, count: usize) -> Vec<String> {
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(told).unwrap();
            if text.lines().count() >= count {
                return text.lines().map(str::to_owned).collect();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{text}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn the_worker_is_told_of_no_more_than_are_wanted_and_of_16_ahead() {
        for (wanted, handed) in [(0, 0), (1, 1), (16, 16), (17, 16), (60, 16)] {
            let told = tempfile::NamedTempFile::new().unwrap();
            let mut mover = silent(told.path());
            mover.start(Duration::ZERO, wanted, (0..60).map(|number| (number, Wish::Movable)));
            mover.go_on(Duration::ZERO);
            assert_eq!(mover.handed.len(), handed, "{wanted}");
            assert_eq!(mover.is_idle(), wanted == 0);
            let expected: Vec<_> =
                (0..handed).map(|number| format!("{number} online_movable")).collect();
            assert_eq!(lines(told.path(), handed), expected);
        }
    }

    #[test]
    fn a_block_has_a_second_to_go_offline_and_ten_to_come_online() {
        let second = Duration::from_secs(1);
        for (wish, time) in
            [(Wish::Offline, second), (Wish::Movable, 10 * second), (Wish::Online, 10 * second)]
        {
            let told = tempfile::NamedTempFile::new().unwrap();
            let mut mover = silent(told.path());
            assert_eq!(mover.deadline(), None);
            mover.start(5 * second, 1, [(3, wish), (2, wish)]);
            assert_eq!(mover.deadline(), Some(5 * second + time));
            mover.go_on(5 * second + time - Duration::from_nanos(1));
            assert_eq!((mover.failed(), mover.handed.front()), (0, Some(&(3, wish))));
            // The time limit of the next block starts now.
            mover.go_on(5 * second + time);
            assert_eq!((mover.failed(), mover.handed.front()), (1, Some(&(2, wish))));
            assert_eq!(mover.deadline(), Some(5 * second + 2 * time));
            mover.go_on(5 * second + 2 * time);
            assert!(mover.is_idle());
            assert_eq!((mover.failed(), mover.deadline()), (2, None));
        }
    }

    #[test]
    fn what_an_ended_worker_was_told_goes_to_the_next_in_the_same_order() {
        let told = tempfile::NamedTempFile::new().unwrap();
        let mut mover = silent(told.path());
        mover.start(Duration::ZERO, 4, (1..=4).rev().map(|number| (number, Wish::Offline)));
        mover.go_on(BLOCK_TIME);
        let handed: Vec<_> = mover.handed.iter().map(|(number, _)| *number).collect();
        assert_eq!(handed, [3, 2, 1]);
    }

    #[test]
    fn a_new_start_counts_failures_anew_and_a_stop_ends_the_worker() {
        let told = tempfile::NamedTempFile::new().unwrap();
        let mut mover = silent(told.path());
        mover.start(Duration::ZERO, 2, [(3, Wish::Offline)]);
        mover.go_on(BLOCK_TIME);
        assert_eq!((mover.failed(), mover.is_idle()), (1, true));
        mover.start(BLOCK_TIME, 1, [(4, Wish::Offline)]);
        assert_eq!((mover.failed(), mover.is_idle()), (0, false));
        mover.stop();
        assert!(mover.is_idle() && mover.worker.is_none() && mover.output().is_none());
        mover.go_on(2 * BLOCK_TIME);
        assert_eq!(mover.failed(), 0, "what was dropped has not failed");
    }
}
