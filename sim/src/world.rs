//! One run: clients, a network, a target, and faults.

use crate::client::{ACTORS, SimClient};
use crate::network::{Event, Network, Side};
use crate::random::Random;
use crate::target::Server;

/// Clients of a run.
const CLIENTS: usize = 2;
/// How long faults occur, µs of virtual time.
const FAULTS_US: u64 = 12_000_000;
/// How long the actors continue after that: everything must be answered by then.
const CALM_US: u64 = 9_000_000;
/// Time after the last fault from which no operation may fail.
const SETTLED_US: u64 = 6_000_000;
/// How often the target checks the clock.
const TARGET_TICK_US: u64 = 20_000;
/// How long a client waits for a connection.
const DIAL_US: u64 = 2_000_000;

/// The results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that were answered.
    pub answered: u64,
    /// Operations that ended with an error.
    pub failed: u64,
    /// Connections cut, pauses, restarts.
    pub faults: u64,
    /// Restarts with an empty store.
    pub emptied: u64,
}

struct World {
    network: Network,
    server: Server,
    clients: Vec<SimClient>,
    random: Random,
    report: Report,
}

/// Runs the world of `seed`.
///
/// # Errors
/// The violated promise, and the time.
pub fn run(seed: u64) -> Result<Report, String> {
    let mut random = Random::new(seed);
    let authenticates = random.one_in(4);
    let client = |id| SimClient::new(id, authenticates, Random::new(seed ^ (id as u64 + 1) << 56));
    let mut world = World {
        network: Network::new(Random::new(random.next())),
        server: Server::new(authenticates),
        clients: (0..CLIENTS).map(client).collect(),
        random,
        report: Report::default(),
    };
    world.start();
    world.run().map_err(|wrong| format!("at {} µs: {wrong}", world.network.now_us()))?;
    for client in &world.clients {
        world.report.answered += client.answered;
        world.report.failed += client.failed;
    }
    Ok(world.report)
}

impl World {
    fn start(&mut self) {
        for client in 0..CLIENTS {
            self.network.schedule(0, Event::Tick(client));
            for actor in 0..ACTORS {
                self.network.schedule(0, Event::Act(client, actor));
            }
        }
        self.network.schedule(0, Event::TargetTick);
        self.schedule_fault();
    }

    fn schedule_fault(&mut self) {
        let at_us = self.network.now_us() + self.random.between(10_000, 1_500_000);
        if at_us < FAULTS_US {
            self.network.schedule(at_us, Event::Fault);
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let end_us = FAULTS_US + CALM_US;
        let mut settled = None;
        while let Some(event) = self.network.advance() {
            let now_us = self.network.now_us();
            if now_us >= end_us {
                break;
            }
            let before: [Option<u64>; CLIENTS] =
                core::array::from_fn(|client| self.clients[client].pool_identity());
            self.happen(event)?;
            for (client, before) in before.iter().enumerate() {
                let lost = before.is_some() && self.clients[client].pool_identity().is_none();
                if lost && *before == Some(self.server.identity()) {
                    return Err(format!("client {client} lost a pool that is there"));
                }
            }
            if settled.is_none() && now_us >= FAULTS_US + SETTLED_US {
                settled = Some(self.failed());
            }
        }
        if settled != Some(self.failed()) {
            let troubles: Vec<String> = self.clients.iter().map(SimClient::trouble).collect();
            let error = self.server.error();
            return Err(format!(
                "operations fail although nothing is broken: {troubles:?}, {error}"
            ));
        }
        Ok(())
    }

    fn failed(&self) -> u64 {
        self.clients.iter().map(|client| client.failed).sum()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let Self { network, server, clients, .. } = self;
        match event {
            Event::Dial { client, lane, generation } => {
                let takes = server.is_up() && !network.is_dark();
                let pipe = takes.then(|| network.connect());
                if let Some(pipe) = pipe {
                    server.accept(pipe, network.now_us());
                }
                // A target that is down refuses at once; in a dark network there is no answer.
                let silent = server.is_up() && !takes;
                let wait_us = if silent { DIAL_US } else { network.delay_us() };
                let at_us = network.now_us() + wait_us;
                network.schedule(at_us, Event::Dialled { client, lane, generation, pipe });
            }
            Event::Dialled { client, lane, generation, pipe } => {
                clients[client].dialled(network, lane, generation, pipe)?;
            }
            Event::Bytes(pipe, Side::Target, bytes) => server.receive(network, pipe, &bytes),
            Event::Bytes(pipe, Side::Client, bytes) => {
                if let Some(client) = clients.iter_mut().find(|client| client.has(pipe)) {
                    client.receive(network, pipe, &bytes)?;
                }
            }
            Event::Closed(pipe, Side::Target) => server.closed(network, pipe),
            Event::Closed(pipe, Side::Client) => {
                if let Some(client) = clients.iter_mut().find(|client| client.has(pipe)) {
                    client.closed(network, pipe)?;
                }
            }
            Event::Tick(client) => clients[client].tick(network)?,
            Event::Act(client, actor) => clients[client].act(network, actor, server.identity())?,
            Event::TargetTick => {
                server.look(network);
                let at_us = network.now_us() + TARGET_TICK_US;
                network.schedule(at_us, Event::TargetTick);
            }
            Event::TargetUp => server.go_on(network),
            Event::Fault => self.fault(),
        }
        Ok(())
    }

    /// Injects a fault.
    fn fault(&mut self) {
        self.report.faults += 1;
        let now_us = self.network.now_us();
        let short_us = self.random.between(1_000, 300_000);
        let long_us = self.random.between(1_000, 4_000_000);
        match self.random.below(10) {
            0..4 => {
                if let Some(pipe) = self.network.any() {
                    self.network.cut(pipe);
                }
            }
            4 => {
                // Several at once.
                for _ in 0..4 {
                    if let Some(pipe) = self.network.any() {
                        self.network.cut(pipe);
                    }
                }
            }
            5 => self.network.go_dark(now_us + long_us),
            6 | 7 => {
                self.server.stop();
                let pause_us = if self.random.one_in(2) { short_us } else { long_us };
                self.network.schedule(now_us + pause_us, Event::TargetUp);
            }
            kind => {
                let keep = kind == 8;
                self.report.emptied += u64::from(!keep);
                self.server.end(&mut self.network, keep);
                self.network.schedule(now_us + short_us, Event::TargetUp);
            }
        }
        self.schedule_fault();
    }
}
