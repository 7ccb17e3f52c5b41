//! Putting values: parts first, then the record that makes them a value.

use std::collections::HashSet;

use spillway_client::{Operation, Outcome, Put as Stored};

use crate::cache::Cache;
use crate::error::Error;
use crate::record::{Body, KEY_BYTES_MAX, Parts, Record, VALUE_BYTES_MAX, object, record_key};

/// A value to put.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its bytes, none or more.
    pub value: &'a [u8],
}

/// How far a put has come.
struct Step<'a> {
    put: &'a Put<'a>,
    object: u64,
    /// Where the value goes; none for one in the record.
    parts: Option<Parts>,
    /// Whether the object has to be emptied first.
    flush: bool,
    /// Whether it goes on, or what came of it.
    so_far: Result<bool, Error>,
}

impl Step<'_> {
    const fn goes_on(&self) -> bool {
        matches!(self.so_far, Ok(true))
    }

    /// Takes in what came of one of its operations.
    fn take(&mut self, outcome: Result<Outcome, spillway_client::Error>) {
        match outcome {
            Ok(Outcome::Put(Stored::Refused(_))) if self.goes_on() => self.so_far = Ok(false),
            // The first error says most.
            Err(error) if self.so_far.is_ok() => self.so_far = Err(error.into()),
            _ => {}
        }
    }
}

impl Cache {
    /// Puts values in place of what is under their keys; whether each is stored.
    ///
    /// One that is not was refused: the store is full or the client at its limit, or another key with the same hash has a
    /// value. After a refusal nothing is under the key.
    pub fn put(&self, puts: &[Put<'_>]) -> Vec<Result<bool, Error>> {
        let mut outcomes = Vec::with_capacity(puts.len());
        let mut objects = HashSet::with_capacity(puts.len());
        let mut rest = puts;
        while !rest.is_empty() {
            // Two values of one key must not be put at the same time.
            objects.clear();
            let again = rest.iter().position(|put| !objects.insert(object(put.key)));
            let (now, later) = rest.split_at(again.unwrap_or(rest.len()));
            outcomes.extend(self.put_distinct(now));
            rest = later;
        }
        outcomes
    }

    fn put_distinct(&self, puts: &[Put<'_>]) -> Vec<Result<bool, Error>> {
        let mut steps: Vec<Step<'_>> = puts.iter().map(|put| self.begin(put)).collect();
        self.look(&mut steps);
        self.empty(&mut steps, |step| step.flush && step.goes_on());
        self.put_parts(&mut steps);
        self.put_records(&mut steps);
        // What was stored of a value that is none. An error before says more than one of this.
        let mut leftover: Vec<_> = steps
            .iter()
            .filter(|step| !step.goes_on() && step.flush)
            .map(|step| self.flush(step.object))
            .collect();
        self.batch(&mut leftover);
        steps.into_iter().map(|step| step.so_far).collect()
    }

    fn begin<'a>(&self, put: &'a Put<'a>) -> Step<'a> {
        let so_far = if put.key.len() > KEY_BYTES_MAX {
            Err(Error::Key(put.key.len()))
        } else if put.value.len() > VALUE_BYTES_MAX {
            Err(Error::Value(put.value.len()))
        } else {
            Ok(true)
        };
        let inline = Record::is_inline(put.key, put.value) || put.value.is_empty();
        let parts = (!inline).then(|| Parts::new(put.value.len(), self.version()));
        Step { put, object: object(put.key), parts, flush: false, so_far }
    }

    /// Looks at what is under the keys: that of another key stays.
    fn look(&self, steps: &mut [Step<'_>]) {
        let keys: Vec<&[u8]> = steps.iter().map(|step| step.put.key).collect();
        self.records(&keys, &mut |number, _, record| {
            let step = &mut steps[number];
            if step.so_far.is_err() {
                return;
            }
            match record {
                Ok(Some(old)) if old.key != keys[number] => step.so_far = Ok(false),
                // Also what a put has left that was broken off.
                Ok(None) => step.flush = step.parts.is_some(),
                Ok(Some(old)) => {
                    step.flush = step.parts.is_some() || matches!(old.body, Body::Parts(_));
                }
                Err(error) => step.so_far = Err(error),
            }
        });
    }

    /// Empties objects.
    fn empty(&self, steps: &mut [Step<'_>], which: impl Fn(&Step<'_>) -> bool) {
        let mut chosen: Vec<_> = steps.iter_mut().filter(|step| which(step)).collect();
        let mut operations: Vec<_> = chosen.iter().map(|step| self.flush(step.object)).collect();
        for (step, outcome) in chosen.iter_mut().zip(self.batch(&mut operations)) {
            step.take(outcome);
        }
    }

    fn put_parts(&self, steps: &mut [Step<'_>]) {
        let mut operations = Vec::new();
        let mut owners = Vec::new();
        for (number, step) in steps.iter().enumerate().filter(|(_, step)| step.goes_on()) {
            let Some(parts) = step.parts else { continue };
            for (at, value) in step.put.value.chunks(parts.part_bytes as usize).enumerate() {
                let key = parts.key(step.object, at);
                operations.push(Operation::Put { pool: self.pool, key, value });
                owners.push(number);
            }
        }
        for (&owner, outcome) in owners.iter().zip(self.batch(&mut operations)) {
            steps[owner].take(outcome);
        }
    }

    fn put_records(&self, steps: &mut [Step<'_>]) {
        let mut chosen: Vec<_> = steps.iter_mut().filter(|step| step.goes_on()).collect();
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(chosen.len()));
        for step in &chosen {
            let body = step.parts.map_or(Body::Inline(step.put.value), Body::Parts);
            Record { key: step.put.key, body }.encode(&mut bytes);
            ends.push(bytes.len());
        }
        let mut start = 0;
        let put = |(step, &end): (&&mut Step<'_>, &usize)| {
            let value = &bytes[start..end];
            start = end;
            Operation::Put { pool: self.pool, key: record_key(step.object), value }
        };
        let mut operations: Vec<_> = chosen.iter().zip(&ends).map(put).collect();
        for (step, outcome) in chosen.iter_mut().zip(self.batch(&mut operations)) {
            step.take(outcome);
        }
    }
}
