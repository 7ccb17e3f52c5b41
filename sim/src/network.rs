//! A network of TCP connections under a virtual clock.
//!
//! Within a connection bytes come in order and none is lost; what is lost is the connection. A cut is
//! seen by each side when it is seen: the target may go on receiving what was on its way for seconds
//! after the client has noticed, and connected again. Connections overtake each other freely.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::random::Random;

/// Names a connection. Never used again.
pub type Pipe = u64;

/// An end of a connection, or of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that connected.
    Client,
    /// The one that was connected to.
    Target,
}

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A client asks for a connection.
    Dial {
        /// Which client.
        client: usize,
        /// Its queue.
        lane: usize,
        /// The association that asks.
        generation: u32,
    },
    /// A client learns whether it is connected.
    Dialled {
        /// Which client.
        client: usize,
        /// Its queue.
        lane: usize,
        /// The association that asked.
        generation: u32,
        /// The connection, if there is one.
        pipe: Option<Pipe>,
    },
    /// Bytes arrive.
    Bytes(Pipe, Side, Vec<u8>),
    /// A side learns that the connection has ended.
    Closed(Pipe, Side),
    /// A client looks at the clock.
    Tick(usize),
    /// The target looks at the clock.
    TargetTick,
    /// A client's actor goes on.
    Act(usize, usize),
    /// Something breaks.
    Fault,
    /// The target, stopped or down, goes on.
    TargetUp,
}

#[derive(Debug)]
struct Connection {
    /// When the last thing sent to each side arrives: nothing sent later arrives earlier.
    client_last_us: u64,
    target_last_us: u64,
    /// A side that has closed or was told receives no more.
    client_open: bool,
    target_open: bool,
    /// Nothing that is sent from now on arrives.
    cut: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    now_us: u64,
    serial: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    connections: BTreeMap<Pipe, Connection>,
    next_pipe: Pipe,
    random: Random,
    /// How long bytes usually take.
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

    /// Lets `event` happen at `at_us`, or now if that has passed.
    pub fn schedule(&mut self, at_us: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at_us.max(self.now_us), self.serial, event)));
    }

    /// Turns the clock to the next event and gives it. Bytes for a side that has closed are dropped.
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

    /// A delay for something sent now: the usual, and now and then much more.
    pub fn delay_us(&mut self) -> u64 {
        let usual_us = self.delay_us + self.random.below(self.delay_us);
        let extra_us = if self.random.one_in(200) { self.random.below(300_000) } else { 0 };
        self.dark_until_us.saturating_sub(self.now_us) + usual_us + extra_us
    }

    /// A fresh connection.
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

    /// Whether bytes sent now would arrive before long.
    pub const fn is_dark(&self) -> bool {
        self.dark_until_us > self.now_us
    }

    /// When something sent now to `side` arrives, behind all that was sent before.
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

    /// `side` closes its end: what it has sent still arrives, and then the end.
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

    /// Cuts a connection. What is on its way to the target may still arrive there, late; each side
    /// learns of it at a time of its own.
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
        // One time in four the client hears nothing at all, and must notice the silence.
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

    /// Ends every connection: the target's process is gone. Clients learn of it soon.
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

    /// Nothing that is sent before `until_us` arrives before it.
    pub const fn go_dark(&mut self, until_us: u64) {
        self.dark_until_us = until_us;
    }
}
