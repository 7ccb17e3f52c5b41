//! Puts values in three steps: a record that announces the value, its parts, then the record that makes
//! them valid.

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
    /// Its bytes; may be empty.
    pub value: &'a [u8],
}

/// A put in progress.
struct Step<'a> {
    put: &'a Put<'a>,
    object: u64,
    /// The parts of the value; none if it lies in the record.
    parts: Option<Parts>,
    /// The parts of the previous value.
    old: Option<Parts>,
    /// Whether a record names `parts`.
    announced: bool,
    state: PutState,
}

/// State of a put.
enum PutState {
    /// It is in progress.
    Going,
    /// Another client has put or removed the key's value since it began. The effect is as if this put had
    /// come first.
    Overtaken,
    /// It was refused.
    Refused,
    /// It failed; holds the first error.
    Failed(Error),
}

impl Step<'_> {
    const fn goes_on(&self) -> bool {
        matches!(self.state, PutState::Going)
    }

    /// Processes the outcome of one of its operations.
    fn take(&mut self, outcome: Result<Outcome, spillway_client::Error>) {
        match (&self.state, outcome) {
            (PutState::Going, Ok(Outcome::Put(Stored::Refused(_)))) => {
                self.state = PutState::Refused
            }
            (PutState::Failed(_), _) | (_, Ok(_)) => {}
            (_, Err(error)) => self.state = PutState::Failed(error.into()),
        }
    }
}

impl Cache {
    /// Puts values and replaces the former ones; returns whether each is stored.
    ///
    /// A put is refused if the store is full, the client is at its limit, or another key with the same hash has a
    /// value. After a refusal the key has no value.
    pub fn put(&self, puts: &[Put<'_>]) -> Vec<Result<bool, Error>> {
        let mut outcomes = Vec::with_capacity(puts.len());
        let mut objects = HashSet::with_capacity(puts.len());
        let mut rest = puts;
        while !rest.is_empty() {
            // Two values of the same key must not be put at the same time.
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
        for step in &mut steps {
            step.announced = step.goes_on() && step.parts.is_some();
        }
        self.put_records(&mut steps, |step| Some(Body::Pending(step.parts?)));
        self.remove(&steps, |step| step.old.filter(|_| step.goes_on()));
        self.put_parts(&mut steps);
        self.look_again(&mut steps);
        self.put_records(&mut steps, |step| {
            Some(step.parts.map_or(Body::Inline(step.put.value), Body::Parts))
        });
        // Removes the stored parts of an incomplete value. An error here is not reported: there was
        // one before.
        self.remove(&steps, |step| step.parts.filter(|_| step.announced && !step.goes_on()));
        self.withdraw(&steps);
        let outcome = |step: Step<'_>| match step.state {
            PutState::Going | PutState::Overtaken => Ok(true),
            PutState::Refused => Ok(false),
            PutState::Failed(error) => Err(error),
        };
        steps.into_iter().map(outcome).collect()
    }

    fn begin<'a>(&self, put: &'a Put<'a>) -> Step<'a> {
        let state = if put.key.len() > KEY_BYTES_MAX {
            PutState::Failed(Error::Key(put.key.len()))
        } else if put.value.len() > VALUE_BYTES_MAX {
            PutState::Failed(Error::Value(put.value.len()))
        } else {
            PutState::Going
        };
        let inline = Record::is_inline(put.key, put.value) || put.value.is_empty();
        let long = !inline && matches!(state, PutState::Going);
        let parts = long.then(|| Parts::new(put.value.len(), self.version()));
        Step { put, object: object(put.key), parts, old: None, announced: false, state }
    }

    /// Reads the present records of the keys. A record of another key stays.
    fn look(&self, steps: &mut [Step<'_>]) {
        let keys: Vec<&[u8]> = steps.iter().map(|step| step.put.key).collect();
        self.records(&keys, &mut |number, _, record| {
            let step = &mut steps[number];
            match record {
                _ if !step.goes_on() => {}
                Ok(Some(old)) if old.key != keys[number] => step.state = PutState::Refused,
                Ok(old) => step.old = old.and_then(|old| old.parts()),
                Err(error) => step.state = PutState::Failed(error),
            }
        });
    }

    /// Checks that no other client has replaced the announced records meanwhile.
    fn look_again(&self, steps: &mut [Step<'_>]) {
        let mut long: Vec<_> =
            steps.iter_mut().filter(|step| step.goes_on() && step.parts.is_some()).collect();
        let keys: Vec<&[u8]> = long.iter().map(|step| step.put.key).collect();
        self.records(&keys, &mut |number, _, record| {
            let step = &mut long[number];
            match record {
                Ok(Some(now)) if now.key == keys[number] && now.parts() == step.parts => {}
                Ok(_) => step.state = PutState::Overtaken,
                Err(error) => step.state = PutState::Failed(error),
            }
        });
    }

    /// Removes the parts that `which` returns for each put.
    fn remove(&self, steps: &[Step<'_>], which: impl Fn(&Step<'_>) -> Option<Parts>) {
        let parts = steps.iter().flat_map(|step| self.flush_parts(step.object, which(step)));
        let mut operations: Vec<_> = parts.collect();
        // If the store is unreachable, the next operation fails too.
        self.batch(&mut operations);
    }

    /// Removes the records of values that were not completed, if they still exist.
    fn withdraw(&self, steps: &[Step<'_>]) {
        let ended = |step: &&Step<'_>| {
            step.announced && matches!(step.state, PutState::Refused | PutState::Failed(_))
        };
        let ended: Vec<_> = steps.iter().filter(ended).collect();
        let keys: Vec<&[u8]> = ended.iter().map(|step| step.put.key).collect();
        let mut operations = Vec::new();
        self.records(&keys, &mut |number, object, record| {
            if matches!(record, Ok(Some(record)) if record.parts() == ended[number].parts) {
                operations.push(self.flush(record_key(object)));
            }
        });
        self.batch(&mut operations);
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

    /// Puts the records that `body` returns for the puts in progress.
    fn put_records<'a>(
        &self,
        steps: &mut [Step<'a>],
        body: impl Fn(&Step<'a>) -> Option<Body<'a>>,
    ) {
        let (mut bytes, mut ends, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps.iter_mut().filter(|step| step.goes_on()) {
            let Some(body) = body(step) else { continue };
            Record { key: step.put.key, body }.encode(&mut bytes);
            ends.push(bytes.len());
            chosen.push(step);
        }
        let mut start = 0;
        let mut operations = Vec::with_capacity(chosen.len());
        for (step, end) in chosen.iter().zip(ends) {
            let (key, value) = (record_key(step.object), &bytes[start..end]);
            operations.push(Operation::Put { pool: self.pool, key, value });
            start = end;
        }
        for (step, outcome) in chosen.iter_mut().zip(self.batch(&mut operations)) {
            step.take(outcome);
        }
    }
}
