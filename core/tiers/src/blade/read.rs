//! Reads values back from the blade and its mirror.

use spillway_types::Key;

use super::silence::{Heard, Silent};
use super::{
    Blade, BladePlace, Carried, Carrier, READ_PAGES_MAX, SEALED_BYTES_MAX, Wanted, now_ns,
};
use crate::sync::Ordering;

/// Why a fetch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The blade returned other bytes than were sent.
    Corrupt,
    /// No blade has it, or none answers.
    Gone,
}

/// A value that is wanted back.
#[derive(Debug)]
pub struct Read<'a> {
    /// Where it lies.
    pub place: BladePlace,
    /// Takes its bytes, and holds them when `outcome` is good.
    pub room: &'a mut [u8; SEALED_BYTES_MAX],
    /// What became of it.
    pub outcome: Result<(), ReadError>,
}

impl Blade {
    /// Reads up to [`READ_PAGES_MAX`] values: from the blade, and what that does not give from the
    /// mirror.
    pub fn read(&self, reads: &mut [Read<'_>]) {
        let (began_ns, down) = (now_ns(), self.down());
        self.read_once(reads);
        self.count_reads(reads);
        self.note_stall(now_ns() - began_ns, down);
    }

    /// [`Blade::read`] of a value that somebody needs: if neither gives it while one of them does not
    /// answer, it is waited for, up to the loss timeout.
    pub fn read_demanded(&self, read: &mut Read<'_>) {
        let (began_ns, down) = (now_ns(), self.down());
        let reads = core::slice::from_mut(read);
        let silent = self.read_once(reads);
        if reads[0].outcome.is_err() {
            self.silence.wait(silent, |carrier| self.read_from(carrier, reads, false));
        }
        if reads[0].outcome.is_err() {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.count_reads(reads);
        self.note_stall(now_ns() - began_ns, down);
    }

    /// Asks the blade, and then the mirror. Those that did not answer.
    fn read_once(&self, reads: &mut [Read<'_>]) -> Silent<'static> {
        assert!(reads.len() <= READ_PAGES_MAX);
        for read in reads.iter_mut() {
            read.outcome = Err(ReadError::Gone);
        }
        let mut patient = self.mirror.is_none();
        let mut came = 0;
        let mut silent = [None; 2];
        for (number, carrier) in self.carriers().enumerate() {
            if self.read_from(carrier, reads, patient) == Heard::Silence {
                silent[number] = Some(carrier);
            }
            let before = came;
            came = reads.iter().filter(|read| read.outcome.is_ok()).count();
            if number == 1 {
                let from_mirror = (came - before) as u64;
                self.counters.mirror_reads.fetch_add(from_mirror, Ordering::Relaxed);
            }
            if came == reads.len() {
                break;
            }
            patient = true;
        }
        silent
    }

    fn count_reads(&self, reads: &[Read<'_>]) {
        for read in reads.iter().filter(|read| read.outcome.is_ok()) {
            self.counters.reads.fetch_add(1, Ordering::Relaxed);
            let bytes = self.sealed_bytes(usize::from(read.place.length));
            self.counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Asks one of the two for what has not come yet.
    fn read_from(&self, carrier: &dyn Carrier, reads: &mut [Read<'_>], patient: bool) -> Heard {
        let mut count = 0;
        let mut asked = reads.iter_mut().filter(|read| read.outcome.is_err());
        let mut wanted: [Wanted<'_>; READ_PAGES_MAX] = core::array::from_fn(|_| {
            let Some(read) = asked.next() else {
                return Wanted { key: Key::new(0, 0), room: &mut [], outcome: Carried::Lost };
            };
            count += 1;
            let length = self.sealed_bytes(usize::from(read.place.length)) as usize;
            let key = self.key(read.place);
            Wanted { key, room: &mut read.room[..length], outcome: Carried::Lost }
        });
        carrier.get(&mut wanted[..count], patient);
        let outcomes = wanted.map(|one| one.outcome);
        let asked = reads.iter_mut().filter(|read| read.outcome.is_err());
        for (read, outcome) in asked.zip(outcomes) {
            read.outcome = match outcome {
                Carried::Done => self.open(read),
                // What the blade said of it before stands.
                _ => read.outcome,
            };
        }
        if reads.iter().all(|read| read.outcome.is_ok()) {
            Heard::All
        } else if outcomes[..count].contains(&Carried::Lost) {
            Heard::Silence
        } else {
            Heard::NotAll
        }
    }

    fn open(&self, read: &mut Read<'_>) -> Result<(), ReadError> {
        let length = self.sealed_bytes(usize::from(read.place.length)) as usize;
        let key = self.key(read.place);
        match self.seal.open(key, &mut read.room[..length]) {
            Some(_) => Ok(()),
            None => Err(ReadError::Corrupt),
        }
    }
}
