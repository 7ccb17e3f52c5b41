//! The interface of the measured sides, which store values by number; and the ring as one of them.

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use spillway_client::{
    Error, Get, Operation, Outcome, Pool, PoolSpec, Put, Ring as Client, RingOptions, Store,
};

use super::{DEEP, STRIDE};
use crate::store::key;

/// The direction of values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Put,
    Get,
}

/// How many operations are in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flight {
    /// One.
    One,
    /// Up to [`DEEP`]: a new one for each answer.
    Window,
    /// [`DEEP`] at a time: the next ones after all of these are answered.
    Batches,
}

/// A store of values.
pub trait Side {
    /// Puts or gets the values with these numbers.
    ///
    /// # Errors
    /// A wrong or missing value.
    fn run(&mut self, way: Way, flight: Flight, numbers: &[usize]) -> anyhow::Result<()>;

    /// Stops using a core until the next run.
    fn rest(&mut self) {}
}

/// Values to put and buffers for gets, one for each operation of a run.
pub struct Buffers {
    values: Vec<Vec<u8>>,
}

impl Buffers {
    /// Creates buffers for values of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let fill = |at: usize| (0..bytes).map(|byte| (byte * 7 + at) as u8).collect();
        Self { values: (0..STRIDE).map(fill).collect() }
    }

    /// The buffers for these numbers, each beginning with its number.
    pub fn numbered(&mut self, numbers: &[usize]) -> &mut [Vec<u8>] {
        for (value, number) in self.values.iter_mut().zip(numbers) {
            value[..8].copy_from_slice(&(*number as u64).to_ne_bytes());
        }
        &mut self.values[..numbers.len()]
    }

    /// This many buffers, with the numbers erased.
    pub fn emptied(&mut self, count: usize) -> &mut [Vec<u8>] {
        let values = &mut self.values[..count];
        for value in &mut *values {
            value[..8].fill(0xff);
        }
        values
    }

    /// Checks that the first buffers hold the values of these numbers.
    pub fn check(&self, numbers: &[usize]) -> anyhow::Result<()> {
        for (value, number) in self.values.iter().zip(numbers) {
            ensure!(value[..8] == (*number as u64).to_ne_bytes(), "value {number} came back wrong");
        }
        Ok(())
    }
}

/// Spillway's ring, in another process.
pub struct Ring {
    client: Client,
    pool: Pool,
    buffers: Buffers,
    outcomes: Vec<Result<Outcome, Error>>,
}

impl Ring {
    /// Connects to a polling server.
    pub fn connect(socket: &Path, bytes: usize) -> anyhow::Result<Self> {
        Self::connect_polling(socket, bytes, Duration::from_micros(50))
    }

    /// Connects with a client that never polls.
    pub fn connect_sleeping(socket: &Path, bytes: usize) -> anyhow::Result<Self> {
        Self::connect_polling(socket, bytes, Duration::ZERO)
    }

    fn connect_polling(socket: &Path, bytes: usize, poll: Duration) -> anyhow::Result<Self> {
        let depth = DEEP as u16;
        let options = RingOptions { depth, connections_max: 1, poll, ..RingOptions::default() };
        let client = Client::connect_with(socket, options)?;
        let pool = client.open_pool(PoolSpec::PERSISTENT)?;
        Ok(Self { client, pool, buffers: Buffers::new(bytes), outcomes: Vec::new() })
    }

    fn one(&mut self, way: Way, number: usize) -> anyhow::Result<()> {
        let key = key(number);
        match way {
            Way::Put => {
                let value = &self.buffers.numbered(&[number])[0];
                ensure!(self.client.put(self.pool, key, value)? == Put::Stored, "refused");
            }
            Way::Get => {
                let value = &mut self.buffers.emptied(1)[0];
                let bytes = value.len();
                ensure!(self.client.get(self.pool, key, value)? == Get::Hit(bytes), "missed");
                self.buffers.check(&[number])?;
            }
        }
        Ok(())
    }

    /// Runs operations as one batch, with as many in flight as the ring's depth.
    fn batch(&mut self, way: Way, numbers: &[usize]) -> anyhow::Result<()> {
        let pool = self.pool;
        match way {
            Way::Put => {
                let values = self.buffers.numbered(numbers);
                let put = |(at, &number): (usize, &usize)| Operation::Put {
                    pool,
                    key: key(number),
                    value: &values[at],
                };
                let mut puts: Vec<Operation<'_>> = numbers.iter().enumerate().map(put).collect();
                self.client.batch(&mut puts, &mut self.outcomes);
            }
            Way::Get => {
                let values = self.buffers.emptied(numbers.len()).iter_mut().zip(numbers);
                let mut gets: Vec<Operation<'_>> = values
                    .map(|(value, &number)| Operation::Get { pool, key: key(number), value })
                    .collect();
                self.client.batch(&mut gets, &mut self.outcomes);
                self.buffers.check(numbers)?;
            }
        }
        for outcome in &self.outcomes {
            match outcome {
                Ok(Outcome::Put(Put::Stored) | Outcome::Get(Get::Hit(_))) => {}
                other => bail!("{other:?}"),
            }
        }
        Ok(())
    }
}

impl Side for Ring {
    fn run(&mut self, way: Way, flight: Flight, numbers: &[usize]) -> anyhow::Result<()> {
        match flight {
            Flight::One => numbers.iter().try_for_each(|&number| self.one(way, number)),
            Flight::Window => self.batch(way, numbers),
            Flight::Batches => {
                numbers.chunks(DEEP).try_for_each(|numbers| self.batch(way, numbers))
            }
        }
    }
}
