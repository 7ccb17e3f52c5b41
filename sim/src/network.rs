//! A network of TCP connections under a virtual clock.
//!
//! Within a connection, bytes arrive in order and none is lost; only whole connections are lost. Each side notices a
//! cut at its own time: the target may receive bytes for seconds after the client has noticed and reconnected.
//! Connections overtake each other freely.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::random::Random;

/// Identifies a connection. Never reused.
pub type Pipe = u64;

/// An end of a connection, or of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that accepted.
    Target,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A client dials.
    Dial {
        /// The client.
        client: usize,
        /// Its queue.
        lane: usize,
        /// The association that dials.
        generation: u32,
    },
    /// A client learns the result of dialling.
    Dialled {
        /// The client.
        client: usize,
        /// Its queue.
        lane: usize,
        /// The association that dialled.
        generation: u32,
        /// The connection, if it was made.
        pipe: Option<Pipe>,
    },
    /// Bytes arrive.
    Bytes(Pipe, Side, Vec<u8>),
    /// A side learns that the connection has ended.
    Closed(Pipe, Side),
    /// A client checks the clock.
    Tick(usize),
    /// The target checks the clock.
    TargetTick,
    /// A client's actor continues.
    Act(usize, usize),
    /// A fault occurs.
    Fault,
    /// A stopped or ended target continues.
    TargetUp,
}

#[derive(Debug)]
struct Connection {
    /// When the last bytes to each side arrive: later ones do not arrive earlier.
    client_last_us: u64,
    target_last_us: u64,
    /// Whether each side still receives: not after it has closed, or was told of the end.
    client_open: bool,
    target_open: bool,
    /// Whether bytes sent from now on are lost.
    cut: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Network {
    now_us: u64,
    serial: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    connections: BTreeMap<Pipe, Connection>,
    next_pipe: Pipe,
    random: Random,
    /// The usual delay of bytes.
    delay_us: u64,
    /// Until when nothing arrives anywhere.
    dark_until_us: u64,
}

impl Network {
    /// An empty network.
    pub fn new(mut random: Random) -> Self {
        let delay_us = random.between(10, 1_000);
        Self {
            now_us: 0,
            serial: 0,
            events: BinaryHeap::new(),
            connections: BTreeMap::new(),
            next_pipe: 1,
            random,
            delay_us,
            dark_until_us: 0,
        }
    }

    /// The time, µs.
    pub const fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Schedules `event` at `at_us`, or now if that time has passed.
    pub fn schedule(&mut self, at_us: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at_us.max(self.now_us), self.serial, event)));
    }

    /// Advances the clock to the next event and returns it. Drops bytes for a side that has closed.
    pub fn advance(&mut self) -> Option<Event> {
        loop {
            let Reverse((at_us, _, event)) = self.events.pop()?;
            self.now_us = at_us;
            match &event {
                Event::Bytes(pipe, side, _) if !self.is_open(*pipe, *side) => {}
                Event::Closed(pipe, side) => {
                    if self.is_open(*pipe, *side) {
                        self.shut_side(*pipe, *side);
                        return Some(event);
                    }
                }
                _ => return Some(event),
            }
        }
    }

    fn is_open(&self, pipe: Pipe, side: Side) -> bool {
        self.connections.get(&pipe).is_some_and(|connection| match side {
            Side::Client => connection.client_open,
            Side::Target => connection.target_open,
        })
    }

    fn shut_side(&mut self, pipe: Pipe, side: Side) {
        let Some(connection) = self.connections.get_mut(&pipe) else { return };
        match side {
            Side::Client => connection.client_open = false,
            Side::Target => connection.target_open = false,
        }
        if !connection.client_open && !connection.target_open {
            self.connections.remove(&pipe);
        }
    }

    /// The delay of bytes sent now: the usual one, and sometimes much more.
    pub fn delay_us(&mut self) -> u64 {
        let usual_us = self.delay_us + self.random.below(self.delay_us);
        let extra_us = if self.random.one_in(200) { self.random.below(300_000) } else { 0 };
        self.dark_until_us.saturating_sub(self.now_us) + usual_us + extra_us
    }

    /// Makes a new connection.
    pub fn connect(&mut self) -> Pipe {
        let connection = Connection {
            client_last_us: self.now_us,
            target_last_us: self.now_us,
            client_open: true,
            target_open: true,
            cut: false,
        };
        let pipe = self.next_pipe;
        self.next_pipe += 1;
        self.connections.insert(pipe, connection);
        pipe
    }

    /// Whether bytes sent now are delayed by darkness.
    pub const fn is_dark(&self) -> bool {
        self.dark_until_us > self.now_us
    }

    /// When bytes sent to `side` now arrive: after all earlier ones.
    fn arrival_us(&mut self, pipe: Pipe, side: Side) -> Option<u64> {
        let at_us = self.now_us + self.delay_us();
        let connection = self.connections.get_mut(&pipe)?;
        if connection.cut {
            return None;
        }
        let last_us = match side {
            Side::Client => &mut connection.client_last_us,
            Side::Target => &mut connection.target_last_us,
        };
        *last_us = (*last_us + 1).max(at_us);
        Some(*last_us)
    }

    /// Sends bytes to `side`, in pieces of any size.
    pub fn send(&mut self, pipe: Pipe, side: Side, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let most = self.random.between(1, 16_000) as usize;
            let (piece, rest) = bytes.split_at(most.min(bytes.len()));
            let Some(at_us) = self.arrival_us(pipe, side) else { return };
            self.schedule(at_us, Event::Bytes(pipe, side, piece.to_vec()));
            bytes = rest;
        }
    }

    /// Closes an end: the other side still receives all sent bytes, then the end.
    pub fn close(&mut self, pipe: Pipe, side: Side) {
        let other = match side {
            Side::Client => Side::Target,
            Side::Target => Side::Client,
        };
        if let Some(at_us) = self.arrival_us(pipe, other) {
            self.schedule(at_us, Event::Closed(pipe, other));
        }
        self.shut_side(pipe, side);
    }

    /// Cuts a connection. Bytes in flight to the target may still arrive, late. Each side notices at its own time.
    pub fn cut(&mut self, pipe: Pipe) {
        let Some(connection) = self.connections.get_mut(&pipe) else { return };
        connection.cut = true;
        let late_us = if self.random.one_in(2) { self.random.below(3_000_000) } else { 0 };
        let keep = self.random.below(4) != 0;
        let mut last_us = self.now_us;
        let events = core::mem::take(&mut self.events);
        for Reverse((at_us, serial, event)) in events.into_sorted_vec().into_iter().rev() {
            match &event {
                Event::Bytes(of, Side::Target, _) if *of == pipe => {
                    if keep {
                        last_us = last_us.max(at_us + late_us);
                        self.events.push(Reverse((at_us + late_us, serial, event)));
                    }
                }
                Event::Bytes(of, Side::Client, _) | Event::Closed(of, _) if *of == pipe => {}
                _ => self.events.push(Reverse((at_us, serial, event))),
            }
        }
        let notice_us = |random: &mut Random| random.below(50_000);
        // In one case of four the client gets no notice, and must detect the silence.
        if !self.random.one_in(4) {
            let at_us = self.now_us + notice_us(&mut self.random);
            self.schedule(at_us, Event::Closed(pipe, Side::Client));
        }
        let at_us = last_us + 1 + notice_us(&mut self.random);
        self.schedule(at_us, Event::Closed(pipe, Side::Target));
    }

    /// Any connection, if there is one.
    pub fn any(&mut self) -> Option<Pipe> {
        let count = self.connections.len() as u64;
        if count == 0 {
            return None;
        }
        let place = self.random.below(count) as usize;
        self.connections.keys().nth(place).copied()
    }

    /// Ends every connection: the target's process has ended. Clients notice soon.
    pub fn end_all(&mut self) {
        let pipes: Vec<Pipe> = self.connections.keys().copied().collect();
        for pipe in pipes {
            self.shut_side(pipe, Side::Target);
            if let Some(connection) = self.connections.get_mut(&pipe) {
                connection.cut = true;
            }
            let at_us = self.now_us + self.delay_us();
            self.schedule(at_us, Event::Closed(pipe, Side::Client));
        }
    }

    /// Delays everything sent before `until_us` until then.
    pub const fn go_dark(&mut self, until_us: u64) {
        self.dark_until_us = until_us;
    }
}
