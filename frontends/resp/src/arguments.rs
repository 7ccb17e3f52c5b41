//! The arguments of a command. Long values among them arrive in chunks.

use spillway_wire::resp::{Argument, integer};

use crate::chunks::Chunks;
use crate::trouble::Refused;

/// A long argument that has arrived.
#[derive(Debug)]
pub enum Arrived {
    /// A value.
    Value(Box<Chunks>),
    /// An argument that is too long. Its bytes were skipped.
    Nothing,
}

/// A value among the arguments of a command.
#[derive(Debug)]
pub enum Given<'a> {
    /// The bytes of a value of at most 64 KiB.
    Bytes(&'a [u8]),
    /// A value of more than 64 KiB.
    Chunks(Box<Chunks>),
}

impl Given<'_> {
    /// The length of the value, bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Chunks(chunks) => chunks.total(),
        }
    }
}

/// The arguments of a command; the first is its name.
#[derive(Debug)]
pub struct Arguments<'a> {
    text: &'a [u8],
    list: &'a [Argument],
    arrived: &'a mut Vec<Option<Arrived>>,
}

impl<'a> Arguments<'a> {
    /// The arguments in `list`, with offsets into `text`. `arrived` holds the long ones.
    pub const fn new(
        text: &'a [u8],
        list: &'a [Argument],
        arrived: &'a mut Vec<Option<Arrived>>,
    ) -> Self {
        Self { text, list, arrived }
    }

    /// The number of arguments, the name included.
    pub const fn count(&self) -> usize {
        self.list.len()
    }

    /// The bytes of argument `at`. Empty if the argument is missing or long.
    pub fn get(&self, at: usize) -> &'a [u8] {
        match self.list.get(at) {
            Some(&Argument::Bytes { at, length }) => {
                let (at, length) = (at as usize, length as usize);
                self.text.get(at..at + length).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// The arguments from number `first` on.
    pub fn from(&self, first: usize) -> impl Iterator<Item = &'a [u8]> + use<'_, 'a> {
        (first..self.count()).map(|at| self.get(at))
    }

    /// Every second argument from number `first` on.
    pub fn pairs(&self, first: usize) -> impl Iterator<Item = &'a [u8]> + Clone + use<'_, 'a> {
        (first..self.count()).step_by(2).map(|at| self.get(at))
    }

    /// Whether argument `at` is this word, in upper or lower case.
    pub fn is(&self, at: usize, word: &str) -> bool {
        self.get(at).eq_ignore_ascii_case(word.as_bytes())
    }

    /// Takes out the value that is argument `at`.
    pub fn value(&mut self, at: usize) -> Given<'a> {
        let Some(&Argument::Long(number)) = self.list.get(at) else {
            return Given::Bytes(self.get(at));
        };
        match self.arrived.get_mut(number as usize).and_then(Option::take) {
            Some(Arrived::Value(chunks)) => Given::Chunks(chunks),
            _ => Given::Bytes(&[]),
        }
    }

    /// Whether an argument was too long and skipped.
    pub fn has_nothing(&self) -> bool {
        self.arrived.iter().any(|arrived| matches!(arrived, Some(Arrived::Nothing)))
    }

    /// Argument `at` as a number.
    ///
    /// # Errors
    /// [`NO_INTEGER`], in Redis's words.
    pub fn integer(&self, at: usize) -> Result<i64, Refused> {
        integer(self.get(at)).ok_or(NO_INTEGER)
    }
}

/// The error for an invalid number.
pub const NO_INTEGER: Refused = Refused::line("ERR value is not an integer or out of range");
/// The error for an unknown option, or one that the others exclude.
pub const SYNTAX: Refused = Refused::line("ERR syntax error");
