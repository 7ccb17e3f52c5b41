//! A client's requests to a store, in order, with the computing time between them.

use crate::keys::Keys;

/// Position of the bits of [`Event`] that say which step it is.
const VERB_SHIFT: u32 = 28;

/// Limit of the keys of a trace: 1 TiB of pages.
pub const KEYS_MAX: u32 = 1 << VERB_SHIFT;

/// A step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Puts the page of a key.
    Put(u32),
    /// Gets the page of a key, which stays in the store.
    Get(u32),
    /// Gets the page of a key and flushes it.
    Take(u32),
    /// Gets the page of a key as a run does: the copy is flushed afterwards if the store is short of room.
    Read(u32),
    /// An unchanged page of a run leaves its memory: a put, unless its copy is still valid.
    Leave(u32),
    /// Flushes a key.
    Flush(u32),
    /// Idles for this many milliseconds.
    Sleep(u32),
    /// Marks a shift of demand on the node.
    Shift,
    /// Ends its program: flushes all its keys.
    Exit,
}

/// A step after some computing, packed into two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time that the client computes before the step, ns.
    pub think_ns: u32,
    code: u32,
}

impl Event {
    /// A step after `think_ns` of computing. Its key is below [`KEYS_MAX`].
    pub const fn new(think_ns: u32, step: Step) -> Self {
        let (verb, operand) = match step {
            Step::Put(key) => (0, key),
            Step::Get(key) => (1, key),
            Step::Take(key) => (2, key),
            Step::Flush(key) => (3, key),
            Step::Sleep(ms) => (4, ms),
            Step::Shift => (5, 0),
            Step::Exit => (6, 0),
            Step::Read(key) => (7, key),
            Step::Leave(key) => (8, key),
        };
        Self { think_ns, code: verb << VERB_SHIFT | operand & (KEYS_MAX - 1) }
    }

    /// The step.
    #[inline]
    pub const fn step(self) -> Step {
        let operand = self.code & (KEYS_MAX - 1);
        match self.code >> VERB_SHIFT {
            0 => Step::Put(operand),
            1 => Step::Get(operand),
            2 => Step::Take(operand),
            3 => Step::Flush(operand),
            4 => Step::Sleep(operand),
            5 => Step::Shift,
            6 => Step::Exit,
            7 => Step::Read(operand),
            _ => Step::Leave(operand),
        }
    }
}

/// A client's requests from start to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its name.
    pub name: String,
    /// Its steps, in order.
    pub events: Vec<Event>,
    /// Keys are below this.
    pub keys: u32,
    /// The meaning of its keys.
    pub kind: Keys,
    /// Accesses to pages that the events come from, including those to local memory.
    pub accesses: u64,
}

impl Trace {
    /// Total time that the client computes, ns: its running time with enough memory.
    pub fn compute_ns(&self) -> u64 {
        self.events.iter().map(|event| u64::from(event.think_ns)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_packed_without_loss() {
        let steps = [
            Step::Put(0),
            Step::Put(KEYS_MAX - 1),
            Step::Get(7),
            Step::Take(8),
            Step::Flush(9),
            Step::Sleep(5000),
            Step::Shift,
            Step::Exit,
            Step::Read(10),
            Step::Leave(KEYS_MAX - 1),
        ];
        for step in steps {
            let event = Event::new(u32::MAX, step);
            assert_eq!((event.step(), event.think_ns), (step, u32::MAX));
        }
        assert_eq!(size_of::<Event>(), 8);
    }
}
