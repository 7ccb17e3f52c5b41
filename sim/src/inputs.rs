//! Feeds bytes from outside to the code that reads them. The fuzzer (fuzz/) uses it, and so do the tests on the
//! fuzzer's corpus.
//!
//! Each of [`READERS`] takes any bytes and must return: no panic, no endless loop, no memory beyond its limits. If the
//! result can be encoded, it is, and must decode to the same.

mod client;
mod decoders;
mod handover;
mod lending;
mod resp;
mod target;
mod traces;
mod virtqueue;

/// Takes any bytes.
pub type Reader = fn(&[u8]);

/// The readers, by the name of their fuzz target and corpus folder.
pub const READERS: [(&str, Reader); 17] = [
    ("pdus", decoders::pdus),
    ("structures", decoders::structures),
    ("authentication", decoders::authentication),
    ("urls", decoders::urls),
    ("records", decoders::records),
    ("faults", decoders::faults),
    ("ring", decoders::ring),
    ("programs", decoders::programs),
    ("nbd", decoders::nbd),
    ("resp", resp::read),
    ("target", target::read),
    ("client", client::read),
    ("virtqueue", virtqueue::read),
    ("traces", traces::traces),
    ("lending_message", lending::messages),
    ("handover_cloud_hypervisor", handover::cloud_hypervisor),
    ("handover_firecracker", handover::firecracker),
];

/// Passes `bytes` to the reader of this name.
///
/// # Panics
/// If there is no such reader, or a promise is broken.
pub fn read(name: &str, bytes: &[u8]) {
    let reader = READERS.iter().find(|(its, _)| *its == name);
    let (_, read) = reader.expect("a reader that is listed");
    read(bytes);
}

/// Bytes that control decisions, one after the other; zeros after the end.
#[derive(Debug)]
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u32 {
        let mut word = [0; 4];
        let taken = self.take(4);
        word[..taken.len()].copy_from_slice(taken);
        u32::from_le_bytes(word)
    }

    /// A number that is usually small.
    fn number(&mut self) -> u32 {
        match self.byte() {
            255 => self.word(),
            254 => self.word() & 0xffff,
            small => u32::from(small),
        }
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
