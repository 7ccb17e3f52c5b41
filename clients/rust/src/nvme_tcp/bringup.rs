//! Connecting an association: the commands to the target, in order.

use spillway_wire::fabrics::{
    ANY_CONTROLLER, CONNECT_DATA_BYTES, Connect, ConnectData, ConnectResult, Fabrics,
};
use spillway_wire::identify::Controller;
use spillway_wire::kv::PoolEntry;
use spillway_wire::nvme::{Command, Completion, Status};
use spillway_wire::nvme_tcp::ADMIN_CAPSULE_DATA_BYTES;

use super::association::{ADMIN, ADMIN_DEPTH, Association, INTERNAL};
use super::call::Trouble;
use super::commands::{self, succeeded};
use super::phase::{Phase, Stage};
use super::queue::Payload;

/// More pools than a target can have for a client.
const LISTED_MAX: usize = 1 << 16;

impl Association {
    /// Records that the pipe for [`Step::Dial`](super::association::Step::Dial) is connected.
    pub fn dialled(&mut self, lane: usize, now_us: u64) {
        let until_us = match self.phase {
            Phase::Starting { until_us, .. } => until_us,
            _ => now_us + self.settings.connect_timeout_us,
        };
        let capsule_data_bytes = match lane {
            ADMIN => ADMIN_CAPSULE_DATA_BYTES as u32,
            // Connect's data always travels in the capsule, whatever capsule size the controller reports.
            _ => self.capsule_data_bytes.max(CONNECT_DATA_BYTES as u32),
        };
        self.queues[lane].start(self.settings.digests, capsule_data_bytes);
        self.phase = Phase::Starting { lane, stage: Stage::Initialize, until_us };
    }

    /// Handles the answer to the last command, and sends the next one.
    pub(super) fn advance(&mut self, completion: &Completion, now_us: u64) {
        let advanced = match self.phase {
            Phase::Starting { lane, stage, until_us } => {
                self.start_on(lane, stage, completion, now_us, until_us)
            }
            Phase::Mending { .. } => self.mended(completion.status, now_us),
            _ => Ok(()),
        };
        if let Err(trouble) = advanced {
            self.end(trouble, now_us);
        }
    }

    fn start_on(
        &mut self,
        lane: usize,
        stage: Stage,
        completion: &Completion,
        now_us: u64,
        until_us: u64,
    ) -> Result<(), Trouble> {
        let next = match stage {
            Stage::Dial => return Err(Trouble::Protocol("an answer to nothing")),
            Stage::Initialize => {
                self.ask_connect(lane)?;
                Stage::Connect
            }
            Stage::Connect => {
                succeeded("Connect", completion)?;
                let result = ConnectResult::decode(completion.result);
                if lane == ADMIN {
                    self.controller = result.controller;
                }
                match result.authenticate {
                    true => Stage::Authenticate(self.begin_authentication(lane)?),
                    false => return self.connected(lane, now_us, until_us),
                }
            }
            Stage::Authenticate(stage) => match self.authenticate(lane, stage, completion)? {
                Some(next) => Stage::Authenticate(next),
                None => return self.connected(lane, now_us, until_us),
            },
            Stage::Enable => {
                succeeded("Property Set", completion)?;
                self.ask(ADMIN, commands::read_status(), Payload::None)?;
                Stage::Ready
            }
            Stage::Ready => self.ready(completion)?,
            Stage::Identify => {
                succeeded("Identify", completion)?;
                self.capsule_data_bytes = Controller::decode(&self.buffer)?.capsule_data_bytes;
                let command = commands::set_queues(self.settings.io_queues);
                self.ask(ADMIN, command, Payload::None)?;
                Stage::Queues
            }
            Stage::Queues => self.queues_granted(completion)?,
            Stage::Pools => {
                succeeded("List Pools", completion)?;
                let count = completion.result as u32 as usize;
                if count > LISTED_MAX {
                    return Err(Trouble::Protocol("more pools are listed than there can be"));
                }
                if count * PoolEntry::BYTES > self.buffer.len() {
                    self.buffer = vec![0; count.next_power_of_two() * PoolEntry::BYTES].into();
                    self.list_pools()?;
                    return Ok(());
                }
                self.compare_pools(count)?;
                self.phase = Phase::Starting { lane: ADMIN + 1, stage: Stage::Dial, until_us };
                return Ok(());
            }
        };
        self.phase = Phase::Starting { lane, stage: next, until_us };
        Ok(())
    }

    /// Sends one of the association's own commands.
    pub(super) fn ask(
        &mut self,
        lane: usize,
        command: Command,
        payload: Payload<'_>,
    ) -> Result<(), Trouble> {
        self.queues[lane]
            .submit(INTERNAL, command, payload)
            .map_err(|_| Trouble::Protocol("commands are not answered"))
    }

    fn ask_connect(&mut self, lane: usize) -> Result<(), Trouble> {
        let entries = if lane == ADMIN { ADMIN_DEPTH } else { self.settings.depth };
        let connect = Connect {
            format: 0,
            queue: lane as u16,
            queue_entries: entries - 1,
            attributes: Connect::NO_FLOW_CONTROL,
            keep_alive_ms: if lane == ADMIN {
                (self.settings.keep_alive_us / 1000) as u32
            } else {
                0
            },
        };
        let data = ConnectData {
            host_id: self.settings.host_id,
            controller: if lane == ADMIN { ANY_CONTROLLER } else { self.controller },
            subsystem: &self.settings.subsystem,
            host: &self.settings.host,
        };
        let data = data.encode()?;
        self.ask(lane, Fabrics::Connect(connect).encode(0), Payload::Out(&data))
    }

    /// Handles a queue that is connected and authenticated.
    fn connected(&mut self, lane: usize, now_us: u64, until_us: u64) -> Result<(), Trouble> {
        if lane == ADMIN {
            self.ask(ADMIN, commands::enable(), Payload::None)?;
            self.phase = Phase::Starting { lane, stage: Stage::Enable, until_us };
        } else if lane + 1 < self.queues.len() {
            self.phase = Phase::Starting { lane: lane + 1, stage: Stage::Dial, until_us };
        } else {
            self.keep_alive_at_us = now_us;
            self.mend(now_us)?;
        }
        Ok(())
    }

    fn ready(&mut self, completion: &Completion) -> Result<Stage, Trouble> {
        succeeded("Property Get", completion)?;
        let ready = commands::is_ready(completion.result)
            .ok_or(Trouble::Refused("to be enabled", Status::INTERNAL.0))?;
        if ready {
            let (command, payload) = commands::identify_controller();
            self.ask(ADMIN, command, payload)?;
            return Ok(Stage::Identify);
        }
        self.ask(ADMIN, commands::read_status(), Payload::None)?;
        Ok(Stage::Ready)
    }

    fn queues_granted(&mut self, completion: &Completion) -> Result<Stage, Trouble> {
        succeeded("Set Features", completion)?;
        if commands::queues_granted(completion.result) < self.settings.io_queues {
            return Err(Trouble::Refused("so many I/O queues", Status::INVALID_FIELD.0));
        }
        self.list_pools()?;
        Ok(Stage::Pools)
    }

    fn list_pools(&mut self) -> Result<(), Trouble> {
        let (command, payload) = commands::list_pools(self.buffer.len() as u32);
        self.ask(ADMIN, command, payload)
    }

    /// Marks as lost the pools that are not among the target's `count` pools in the buffer.
    fn compare_pools(&mut self, count: usize) -> Result<(), Trouble> {
        let listed = &self.buffer[..count * PoolEntry::BYTES];
        let mut missing = Vec::new();
        for pool in self.pools.open() {
            let (reference, number, identity) = pool;
            let mut there = false;
            for entry in listed.chunks_exact(PoolEntry::BYTES) {
                let entry = PoolEntry::decode(entry)?;
                there |= (entry.number, entry.identity) == (number, identity);
            }
            if !there {
                missing.push(reference);
            }
        }
        for pool in missing {
            self.lose(pool);
        }
        Ok(())
    }

    /// Deletes the next key in doubt, or completes the connection.
    fn mend(&mut self, now_us: u64) -> Result<(), Trouble> {
        while let Some(call) = self.doubts.last() {
            let Some(number) = call.pool().and_then(|pool| self.pools.number(pool)) else {
                self.doubts.settle();
                continue;
            };
            let mut inline = [0; commands::INLINE_BYTES];
            let (command, payload) = commands::of_call(&call, number, &[], &mut inline);
            self.ask(ADMIN + 1, command, payload)?;
            self.phase = Phase::Mending { since_us: now_us };
            return Ok(());
        }
        self.failures = 0;
        self.phase = Phase::Up;
        self.held_back = true;
        self.rouse();
        Ok(())
    }

    /// Handles the answer to the deletion of a key in doubt.
    fn mended(&mut self, status: Status, now_us: u64) -> Result<(), Trouble> {
        let settled = matches!(
            status.code(),
            Status::SUCCESS | Status::KEY_NOT_FOUND | Status::INVALID_NAMESPACE
        );
        if !settled {
            return Err(Trouble::Refused("to delete a value in doubt", status.0));
        }
        self.doubts.settle();
        self.mend(now_us)
    }
}
