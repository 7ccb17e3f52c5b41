//! The commands: their table and implementations.

mod connection;
mod expiry;
mod info;
mod keys;
mod listing;
mod numbers;
mod parts;
mod server;
mod strings;
mod table;

use std::sync::Arc;

use spillway_serving::CommandKind;

use crate::arguments::Arguments;
use crate::database::{Database, LockedKey};
use crate::output::Output;
use crate::record::KEY_BYTES_MAX;
use crate::session::Session;
use crate::shared::Shared;
use crate::trouble::{Refused, Trouble, until_zero};

pub use strings::Reading;
pub use table::takes_long;
use table::{Command, find};

/// Most bytes of an unknown name, and of the arguments behind it, that an error shows.
const SHOWN_BYTES: usize = 128;

/// The context of a command.
#[derive(Debug)]
pub struct Call<'a> {
    /// The connection that sent the command.
    pub session: &'a mut Session,
    /// The shared state of all connections.
    pub shared: &'a Shared,
    /// Its arguments.
    pub arguments: Arguments<'a>,
    /// The queue of replies.
    pub output: &'a mut Output,
    /// The time, milliseconds since 1970.
    pub now_ms: u64,
    /// Values that are still to be read, for a reply that is too long to be written at once.
    pub reading: &'a mut Option<Reading>,
}

/// The result of a command: its reply is written, or it is refused.
pub type Outcome = Result<(), Refused>;

impl Call<'_> {
    /// Executes the command, and gives what it does. A refusal becomes its reply.
    pub fn run(&mut self) -> CommandKind {
        let (mark, command) = (self.output.mark(), find(self.arguments.get(0)));
        if let Err(Refused(line)) = self.dispatch(command) {
            self.output.forget_from(mark);
            self.output.reply().error(&line);
        }
        command.map_or(CommandKind::Other, Command::kind)
    }

    fn dispatch(&mut self, command: Option<&'static Command>) -> Outcome {
        let Some(command) = command else {
            return Err(self.unknown());
        };
        if !command.takes(self.arguments.count()) {
            return Err(Refused::told(format!(
                "ERR wrong number of arguments for '{}' command",
                command.name
            )));
        }
        if self.session.database.is_none() && !command.is_for_strangers() {
            return Err(Refused::line("NOAUTH Authentication required."));
        }
        if self.arguments.has_nothing() {
            return Err(Refused::line(
                "ERR an argument other than a value is longer than 65536 bytes",
            ));
        }
        for at in command.keys(self.arguments.count()) {
            if self.arguments.get(at).len() > KEY_BYTES_MAX {
                return Err(Refused::line("ERR a key is longer than 65536 bytes"));
            }
        }
        (command.run)(self)
    }

    /// The error for an unknown command.
    fn unknown(&self) -> Refused {
        let shown = |bytes: &'_ [u8], most: usize| {
            let text = until_zero(bytes);
            text[..text.len().min(most)].to_vec()
        };
        let mut rest = Vec::new();
        for argument in self.arguments.from(1) {
            let Some(room) = SHOWN_BYTES.checked_sub(rest.len()).filter(|&room| room > 0) else {
                break;
            };
            rest.extend([b"'", &shown(argument, room)[..], b"' "].concat());
        }
        let name = shown(self.arguments.get(0), SHOWN_BYTES);
        let parts = [b"ERR unknown command '", &name[..], b"', with args beginning with: ", &rest];
        Refused::told(parts.concat())
    }

    /// The error for argument 1 that is no subcommand. If it is one of `known`, the number of arguments is wrong.
    fn no_subcommand(&self, known: &[&str]) -> Refused {
        let (name, word) = (self.arguments.get(0), until_zero(self.arguments.get(1)));
        let name = String::from_utf8_lossy(name);
        if let Some(word) = known.iter().find(|known| self.arguments.is(1, known)) {
            let name = name.to_lowercase();
            let line = format!("ERR wrong number of arguments for '{name}|{word}' command");
            return Refused::told(line);
        }
        let behind = format!("'. Try {} HELP.", name.to_uppercase());
        let shown = &word[..word.len().min(SHOWN_BYTES)];
        Refused::quoting("ERR unknown subcommand '", shown, &behind)
    }

    /// The database that is selected.
    fn database(&self) -> Result<Arc<Database>, Refused> {
        let none = Refused::line("NOAUTH Authentication required.");
        self.session.database.clone().ok_or(none)
    }

    /// Locks the key that is argument `at`, and calls `act` with it.
    fn at<R>(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut LockedKey<'_>, &mut Output) -> Result<R, Trouble>,
    ) -> Result<R, Refused> {
        let database = self.session.database.as_deref();
        let Some(database) = database else {
            return Err(Refused::line("NOAUTH Authentication required."));
        };
        let output = &mut *self.output;
        let key = self.arguments.get(at);
        Ok(database.at(key, self.now_ms, |place| act(place, output))?)
    }

    fn ok(&mut self) -> Outcome {
        self.output.reply().simple("OK");
        Ok(())
    }

    fn integer(&mut self, number: impl TryInto<i64>) -> Outcome {
        self.output.reply().integer(number.try_into().unwrap_or(i64::MAX));
        Ok(())
    }
}
