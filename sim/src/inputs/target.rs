//! A target that reads what a hostile host sends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use spillway_nvme_tcp::{Connection, Output};
use spillway_wire::fabrics::{
    ANY_CONTROLLER, Connect, ConnectData, ControllerConfiguration, Fabrics, property,
};
use spillway_wire::kv::{self, CreatePool};
use spillway_wire::nvme::{Command, DataPointer};
use spillway_wire::nvme_tcp::{self, Framing, InitRequest, Pdu, Transfer};

use super::Source;
use crate::target::{HOST, Server};

const POOLS: &str = "nqn.2026-11.io.spillway:pools";
const BLOCKS: &str = "nqn.2026-11.io.spillway:blocks";
/// Most steps of one input.
const STEPS_MAX: usize = 64;

/// The host's side of a connection.
struct Host {
    connection: Connection,
    framing: Framing,
    input: Vec<u8>,
    output: Output,
    now_ms: u64,
}

/// The first byte selects the connection's state, and whether the rest are bytes or steps.
pub fn read(bytes: &[u8]) {
    let mut source = Source(bytes);
    let choice = source.byte();
    let server = Server::new(choice & 0x80 != 0);
    let mut admin = Host::new(&server, choice);
    if choice & 4 == 0 {
        return admin.bytes(source.0);
    }
    admin.initialize();
    let subsystem = if choice & 8 == 0 { POOLS } else { BLOCKS };
    let controller = admin.connect(0, ANY_CONTROLLER, subsystem);
    let value = ControllerConfiguration::ENABLED.0.into();
    let enable = Fabrics::PropertySet { offset: property::CC, wide: false, value };
    admin.command(enable.encode(2), &[]);
    if choice & 16 == 0 {
        return admin.steps(&mut source);
    }
    let spec = CreatePool(spillway_types::PoolSpec::PERSISTENT).encode();
    admin.command(Command::new(kv::admin::CREATE_POOL, 3, 0), &spec);
    let mut io = Host::new(&server, choice);
    io.initialize();
    io.connect(1, controller, subsystem);
    io.steps(&mut source);
}

impl Host {
    fn new(server: &Server, choice: u8) -> Self {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let framing =
            Framing { header_digest: choice & 1 != 0, data_digest: choice & 2 != 0, alignment: 0 };
        Self {
            connection: Connection::new(
                Arc::clone(server.target()),
                local,
                None,
                0,
                Arc::new(|| {}),
            ),
            framing,
            input: Vec::new(),
            output: Output::default(),
            now_ms: 1,
        }
    }

    /// Passes received bytes to the connection. Returns its answer.
    fn serve(&mut self) -> Vec<u8> {
        let mut answer = Vec::new();
        loop {
            let taken =
                self.connection.receive(self.now_ms, &self.input, &mut self.output).unwrap_or(0);
            self.input.drain(..taken);
            let sent = self.output.pending().len();
            answer.extend_from_slice(self.output.pending());
            self.output.sent(sent);
            if taken == 0 && sent == 0 {
                return answer;
            }
            // An error ends the connection. Here it continues, to test the reader further.
            if taken == 0 {
                return answer;
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(100) {
            self.input.extend_from_slice(piece);
            self.serve();
        }
    }

    fn send(&mut self, pdu: &Pdu<'_>, framing: Framing) -> Vec<u8> {
        let mut bytes = vec![0; 20_000];
        if let Ok(length) = pdu.encode(framing, &mut bytes) {
            self.input.extend_from_slice(&bytes[..length]);
        }
        self.serve()
    }

    fn initialize(&mut self) {
        let request = InitRequest {
            header_digest: self.framing.header_digest,
            data_digest: self.framing.data_digest,
            ..Default::default()
        };
        self.send(&Pdu::InitRequest(request), Framing::default());
    }

    fn command(&mut self, mut command: Command, data: &[u8]) -> Vec<u8> {
        if !data.is_empty() {
            command.data = DataPointer::in_capsule(data.len() as u32);
        }
        self.send(&Pdu::Command(command, data), self.framing)
    }

    /// Connects a queue. Returns the controller.
    fn connect(&mut self, queue: u16, controller: u16, subsystem: &str) -> u16 {
        let connect = Connect {
            format: 0,
            queue,
            queue_entries: 15,
            attributes: Connect::NO_FLOW_CONTROL,
            keep_alive_ms: 5000,
        };
        let data = ConnectData { host_id: [1; 16], controller, subsystem, host: HOST };
        let data = data.encode().expect("short names");
        let answer = self.command(Fabrics::Connect(connect).encode(1), &data);
        match nvme_tcp::decode(&answer, self.framing, 1 << 16) {
            Ok(Some((Pdu::Response(completion), _))) => completion.result as u16,
            _ => 0,
        }
    }

    /// Commands and data as a host can send them, with fields from the source.
    fn steps(&mut self, source: &mut Source<'_>) {
        let filler = vec![0x5a; 9_000];
        for _ in 0..STEPS_MAX {
            if source.is_empty() {
                return;
            }
            match source.byte() % 8 {
                0 => {
                    let count = usize::from(source.byte());
                    let bytes = source.take(count).to_vec();
                    self.bytes(&bytes);
                }
                1 => {
                    let bytes = source.number().min(9_000);
                    let transfer = Transfer {
                        command: source.number() as u16,
                        tag: source.number() as u16,
                        offset: source.number().wrapping_mul(4),
                        bytes,
                        last: source.byte() & 1 != 0,
                        success: false,
                    };
                    let data = &filler[..bytes as usize];
                    self.send(&Pdu::HostData(transfer, data), self.framing);
                }
                2 => {
                    self.now_ms += u64::from(source.number());
                    let _ = self.connection.poll(self.now_ms, &mut self.output);
                    self.serve();
                }
                _ => {
                    let command = command(source);
                    let bytes = (source.number() as usize).min(filler.len());
                    let inline = &filler[..bytes];
                    self.send(&Pdu::Command(command, inline), self.framing);
                }
            }
        }
    }
}

fn command(source: &mut Source<'_>) -> Command {
    let mut command = Command::new(source.byte(), source.byte().into(), source.number());
    command.cdw2 = source.number();
    command.cdw10 = source.number();
    command.cdw11 = source.number();
    command.cdw12 = source.number();
    command.cdw13 = source.number();
    command.cdw14 = source.number();
    command.data = DataPointer {
        address: source.number().into(),
        bytes: source.number(),
        kind: match source.byte() % 4 {
            0 => DataPointer::IN_CAPSULE,
            1 => source.byte(),
            _ => DataPointer::TRANSPORT,
        },
    };
    command
}
