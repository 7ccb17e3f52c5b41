//! A full-screen terminal that is restored at the end.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::refusal::Refusal;

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Restores the screen and the cursor.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// What ended a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The time has passed, or the window was resized.
    Draw,
    /// The user pressed keys.
    Keys(Vec<Key>),
    /// The user or a signal asked to quit.
    Quit,
}

/// A key of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(u8),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The sequences that terminals send for keys that are not characters.
const SEQUENCES: [(&[u8], Key); 14] = [
    (b"\x1b[A", Key::Up),
    (b"\x1bOA", Key::Up),
    (b"\x1b[B", Key::Down),
    (b"\x1bOB", Key::Down),
    (b"\x1b[C", Key::Right),
    (b"\x1bOC", Key::Right),
    (b"\x1b[D", Key::Left),
    (b"\x1bOD", Key::Left),
    (b"\x1b[5~", Key::PageUp),
    (b"\x1b[6~", Key::PageDown),
    (b"\x1b[H", Key::Home),
    (b"\x1b[1~", Key::Home),
    (b"\x1b[F", Key::End),
    (b"\x1b[4~", Key::End),
];
/// Bytes per read of the terminal.
const KEYS_BYTES: usize = 64;

/// The terminal on standard output, in raw mode.
pub struct Screen {
    before: Termios,
    signals: SignalFd,
}

impl Screen {
    /// Switches the terminal to raw mode.
    ///
    /// # Errors
    /// Standard input or output is not a terminal.
    pub fn enter() -> anyhow::Result<Self> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(Refusal::usage(
                "top needs a terminal; --batch prints without one, spillway stat prints once",
            )
            .into());
        }
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGWINCH] {
            set.add(signal);
        }
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let before = tcgetattr(io::stdin())?;
        let mut keys = before.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        let screen = Self { before, signals };
        write(ENTER)?;
        Ok(screen)
    }

    /// Rows and columns.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout());
        // A terminal that does not report its size gets the usual one.
        let (rows, columns) = size.map_or((0, 0), |size| (size.ws_row, size.ws_col));
        let or = |count: u16, usual| if count == 0 { usual } else { usize::from(count) };
        (or(rows, 24), or(columns, 80))
    }

    /// Draws `lines`, cut to the size of the screen.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (rows, columns) = self.size();
        let mut out = HOME.to_owned();
        for (at, line) in lines.iter().take(rows).enumerate() {
            if at > 0 {
                out.push_str("\r\n");
            }
            out.extend(line.chars().filter(|c| !c.is_control()).take(columns));
            out.push_str(CLEAR_LINE);
        }
        out.push_str(CLEAR_BELOW);
        write(&out)
    }

    /// Waits for a key, a signal, or the time.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn wait(&self, time: Duration) -> anyhow::Result<Event> {
        let time = Timespec::try_from(time)?;
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, Some(&time))?;
        let keyed = !fds[0].revents().is_empty();
        let mut quit = false;
        while let Some(info) = self.signals.read_signal()? {
            quit |= info.ssi_signo != Signal::SIGWINCH as u32;
        }
        let mut keys = Vec::new();
        if keyed {
            let mut bytes = [0; KEYS_BYTES];
            let read = rustix::io::read(&stdin, &mut bytes)?;
            keys = keys_of(&bytes[..read]);
            let ends = |key| matches!(key, Key::Char(b'q' | b'Q' | 0x03));
            quit |= read == 0 || keys.iter().any(|&key| ends(key));
        }
        Ok(match (quit, keys.is_empty()) {
            (true, _) => Event::Quit,
            (false, true) => Event::Draw,
            (false, false) => Event::Keys(keys),
        })
    }
}

/// Parses the keys that the terminal sent. An unknown sequence consumes the rest of the bytes.
fn keys_of(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        let known = SEQUENCES.iter().find(|(sequence, _)| bytes.starts_with(sequence));
        bytes = match known {
            Some(&(sequence, key)) => {
                keys.push(key);
                &bytes[sequence.len()..]
            }
            // An unknown sequence ends with the read.
            None if *first == 0x1b => &[],
            None => {
                keys.push(Key::Char(*first));
                rest
            }
        };
    }
    keys
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(keys_of(b"R<"), [Key::Char(b'R'), Key::Char(b'<')]);
        assert_eq!(keys_of(b"\x1b[A\x1bOBj"), [Key::Up, Key::Down, Key::Char(b'j')]);
        assert_eq!(keys_of(b"\x1b[5~\x1b[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(keys_of(b"\x1b[15~q"), [], "q is part of what is not known");
        assert_eq!(keys_of(b""), []);
    }
}
