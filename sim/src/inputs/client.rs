//! A client that reads what a hostile target sends.

use spillway_client::nvme_tcp::association::{Association, Delivery, Step, Ticket};
use spillway_client::nvme_tcp::call::Call;
use spillway_client::nvme_tcp::pipe::Closed;
use spillway_client::nvme_tcp::queue::Digests;
use spillway_client::nvme_tcp::settings::Settings;
use spillway_types::{Key, PoolSpec};
use spillway_wire::auth::Secret;
use spillway_wire::nvme::{Completion, Status};
use spillway_wire::nvme_tcp::header::{CommandCapsule, kind};
use spillway_wire::nvme_tcp::{Framing, InitResponse, Pdu, ReadyToTransfer, Transfer};
use zerocopy::FromBytes;

use super::Source;
use crate::target::{HOST, SECRET};

/// Most steps of one input.
const STEPS_MAX: usize = 200;
/// Bytes of the buffers for calls that return data.
const ROOM_BYTES: usize = 10_000;

struct Victim {
    association: Association,
    incoming: Vec<Vec<u8>>,
    /// Ids of unanswered commands on each lane.
    ids: Vec<Vec<u16>>,
    tickets: Vec<(Ticket, Vec<u8>)>,
    framing: Framing,
    now_us: u64,
}

/// The first byte selects the client's settings; the rest are a target's steps.
pub fn read(bytes: &[u8]) {
    let mut source = Source(bytes);
    let choice = source.byte();
    let mut settings = Settings::new(HOST.to_owned(), [1; 16]);
    settings.depth = 8;
    settings.digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    if choice & 4 != 0 {
        settings.secret = Secret::parse(SECRET).ok();
    }
    let framing = Framing {
        header_digest: settings.digests.header,
        data_digest: settings.digests.data,
        alignment: 0,
    };
    let association = Association::new(settings, 1);
    let lanes = association.lanes();
    let mut victim = Victim {
        association,
        incoming: vec![Vec::new(); lanes],
        ids: vec![Vec::new(); lanes],
        tickets: Vec::new(),
        framing,
        now_us: 1,
    };
    victim.calls();
    for _ in 0..STEPS_MAX {
        if source.is_empty() {
            break;
        }
        victim.step(&mut source);
    }
    // However the target behaves, every call ends in time.
    victim.now_us += 10_000_000;
    victim.association.tick(victim.now_us);
    for (ticket, _) in victim.tickets {
        assert!(victim.association.outcome(ticket).is_some(), "a call without an end");
    }
}

impl Victim {
    fn calls(&mut self) {
        let deadline_us = self.now_us + 5_000_000;
        let Some(pool) = self.association.pools().adopt(1, 7, true) else { return };
        let key = Key::new(1, 2);
        let long = vec![3; 9_000];
        let calls = [
            (Call::Store(pool, key, 9_000), long.as_slice()),
            (Call::Store(pool, Key::new(1, 3), 100), &long[..100]),
            (Call::Retrieve(pool, Key::new(2, 2), ROOM_BYTES as u32), &[]),
            (Call::List(pool, Some(key), 4096), &[]),
            (Call::FlushObject(pool, 3), &[]),
            (Call::Create(PoolSpec::PERSISTENT), &[]),
            (Call::Pools(4096), &[]),
        ];
        for (call, value) in calls {
            if let Some(ticket) = self.association.open(call, deadline_us) {
                self.tickets.push((ticket, value.to_vec()));
            }
        }
    }

    fn step(&mut self, source: &mut Source<'_>) {
        if let Step::Dial(lane) = self.association.step(self.now_us) {
            match source.byte() {
                0 => self.association.closed(Closed::TimedOut, self.now_us),
                _ => {
                    self.association.dialled(lane, self.now_us);
                    self.incoming[lane].clear();
                    self.ids[lane].clear();
                    let response = InitResponse {
                        host_data_bytes_max: 4096 + 4 * u32::from(source.byte()),
                        header_digest: self.framing.header_digest,
                        data_digest: self.framing.data_digest,
                        ..Default::default()
                    };
                    self.give(lane, &Pdu::InitResponse(response), Framing::default());
                }
            }
        }
        for (ticket, value) in &self.tickets {
            self.association.push(*ticket, value, self.now_us);
        }
        self.note_commands();
        let lane = usize::from(source.byte()) % self.ids.len();
        match source.byte() % 8 {
            0 => {
                let count = usize::from(source.byte());
                let bytes = source.take(count);
                self.incoming[lane].extend_from_slice(bytes);
                self.take_in(lane);
            }
            1 => {
                self.now_us += u64::from(source.number()) * 1_000;
                self.association.tick(self.now_us);
            }
            2 => {
                let grant = ReadyToTransfer {
                    command: self.id(lane, source, false),
                    tag: 1,
                    offset: source.number(),
                    bytes: source.number().wrapping_mul(64),
                };
                self.give(lane, &Pdu::ReadyToTransfer(grant), self.framing);
            }
            3 | 4 => {
                let count = source.number().min(4_096) as usize;
                let data = source.take(count);
                let transfer = Transfer {
                    command: self.id(lane, source, false),
                    tag: 0,
                    offset: source.number(),
                    bytes: data.len() as u32,
                    last: source.byte() & 1 != 0,
                    success: source.byte() & 1 != 0,
                };
                self.give(lane, &Pdu::ControllerData(transfer, data), self.framing);
            }
            _ => {
                let completion = Completion {
                    id: self.id(lane, source, true),
                    result: source.number().into(),
                    status: Status(source.number() as u16 & 0x7fff),
                    ..Default::default()
                };
                self.give(lane, &Pdu::Response(completion), self.framing);
            }
        }
    }

    /// One of the ids that wait for an answer, or any id.
    fn id(&mut self, lane: usize, source: &mut Source<'_>, answered: bool) -> u16 {
        let place = usize::from(source.byte());
        let ids = &mut self.ids[lane];
        match ids.get(place) {
            Some(_) if answered => ids.remove(place),
            Some(&id) => id,
            None => place as u16,
        }
    }

    /// Reads the ids of the commands that the client sends.
    fn note_commands(&mut self) {
        for lane in 0..self.ids.len() {
            let outgoing = self.association.outgoing(lane);
            let bytes = outgoing.bytes().to_vec();
            outgoing.clear();
            let mut rest = bytes.as_slice();
            while let Ok(Some(length)) = spillway_wire::nvme_tcp::pdu_bytes(rest, 1 << 20) {
                if let Ok((capsule, _)) = CommandCapsule::ref_from_prefix(rest)
                    && capsule.common.pdu_type == kind::COMMAND
                {
                    let id = capsule.submission_queue_entry.command_identifier;
                    self.ids[lane].push(id.get());
                }
                rest = &rest[length.min(rest.len())..];
            }
        }
    }

    fn give(&mut self, lane: usize, pdu: &Pdu<'_>, framing: Framing) {
        let mut bytes = vec![0; 5_000];
        let length = pdu.encode(framing, &mut bytes).unwrap_or(0);
        self.incoming[lane].extend_from_slice(&bytes[..length]);
        self.take_in(lane);
    }

    fn take_in(&mut self, lane: usize) {
        let incoming = core::mem::take(&mut self.incoming[lane]);
        let mut rest = incoming.as_slice();
        while let Some(delivery) = self.association.receive(lane, &mut rest, self.now_us) {
            if let Delivery::Data(ticket, offset, data) = delivery {
                assert!(self.tickets.iter().any(|(its, _)| *its == ticket));
                assert!(offset + data.len() <= ROOM_BYTES, "more than was asked for");
            }
        }
        self.incoming[lane] = rest.to_vec();
        while self.association.next_changed().is_some() {}
    }
}
