//! A host without a socket, which sends one command at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use spillway_block::{BlockSize, Device, ExportInfo, Exports, Geometry, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_nvme_tcp::{Config, Connection, Error, Output, Target};
use spillway_store::{ClientConfig, Store};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};
use spillway_wire::auth::Secret;
use spillway_wire::fabrics::{
    ANY_CONTROLLER, Connect, ConnectData, ConnectResult, Fabrics, property,
};
use spillway_wire::nvme::{Command, Completion, DataPointer, Status};
use spillway_wire::nvme_tcp::{Framing, InitRequest, Pdu, Transfer, decode};

pub const ALICE: &str = "nqn.2026-11.io.spillway:alice";
pub const BOB: &str = "nqn.2026-11.io.spillway:bob";
/// Must authenticate, and acts as Alice.
pub const CAROL: &str = "nqn.2026-11.io.spillway:carol";
pub const SECRET: &str = "DHHC-1:00:T3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:";
pub const POOLS: &str = "nqn.2026-11.io.spillway:pools";
pub const BLOCKS: &str = "nqn.2026-11.io.spillway:blocks";

/// Two clients; Alice has a block device.
pub struct World {
    pub store: Arc<Store>,
    pub alice: ClientId,
    pub bob: ClientId,
    pub device: Arc<BlockDevice>,
    pub target: Arc<Target>,
    /// Authentications that failed.
    pub failed: Arc<AtomicU32>,
    /// Hosts that did not complete the handshake in time.
    pub late: Arc<AtomicU32>,
    is_destroyed: Arc<AtomicBool>,
}

struct FakeRegistry {
    is_destroyed: Arc<AtomicBool>,
    alice: ClientId,
    bob: ClientId,
    number: u32,
    device: Arc<BlockDevice>,
    failed: Arc<AtomicU32>,
    late: Arc<AtomicU32>,
}

impl Access for FakeRegistry {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        let client = match who {
            Identity::Host { nqn: ALICE | CAROL } => self.alice,
            Identity::Host { nqn: BOB } => self.bob,
            _ => return Err(Denied::Unknown),
        };
        let limits = Limits { connections_max: 16, operations_max: 4, bytes_max: 4 << 20 };
        Ok(Admitted { client, limits })
    }

    fn leave(&self, _: ClientId) {}

    fn authentication_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn handshake_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    fn name(&self, client: ClientId, tell: &mut dyn FnMut(&str)) {
        tell(if client == self.alice { "alice" } else { "bob" });
    }

    fn host_secret(&self, nqn: &str, secret: &mut [u8; 64]) -> Option<usize> {
        let (key, bytes) = Secret::parse(SECRET).ok().filter(|_| nqn == CAROL)?.key_of(nqn);
        *secret = key;
        Some(bytes)
    }
}

impl Exports for FakeRegistry {
    fn list(&self, client: ClientId) -> Vec<ExportInfo> {
        let bytes = self.device.bytes();
        let export = ExportInfo { name: "disk".into(), number: self.number, bytes };
        if self.has_device(client) { vec![export] } else { Vec::new() }
    }

    fn open(&self, client: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        let found = self.has_device(client) && name == "disk";
        found.then(|| self.device.clone() as Arc<dyn Device>)
    }
}

impl FakeRegistry {
    fn has_device(&self, client: ClientId) -> bool {
        client == self.alice && !self.is_destroyed.load(Ordering::Relaxed)
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let store = spillway_store::Config::embedded(64 << 20);
        let store = Arc::new(Store::open(store).unwrap());
        let alice = store.add_client(ClientConfig::default()).unwrap();
        let bob = store.add_client(ClientConfig::default()).unwrap();
        let geometry =
            Geometry { bytes: 1 << 20, block_size: BlockSize::B4096, uuid: fresh_uuid().unwrap() };
        let device = BlockDevice::create(Arc::clone(&store), alice, geometry).unwrap();
        let device = Arc::new(device);
        let pools = store.pools(alice).unwrap();
        let number = pools.iter().find(|pool| pool.id == device.pool()).unwrap().number;
        let (its_device, failed) = (Arc::clone(&device), Arc::<AtomicU32>::default());
        let (is_destroyed, late) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let registry = Arc::new(FakeRegistry {
            is_destroyed: Arc::clone(&is_destroyed),
            alice,
            bob,
            number,
            device: its_device,
            failed: Arc::clone(&failed),
            late: Arc::clone(&late),
        });
        let target = Target::new(Arc::clone(&store), registry.clone(), registry, config).unwrap();
        Self { store, alice, bob, device, target, failed, late, is_destroyed }
    }

    /// Destroys Alice's block device, and tells the target.
    pub fn destroy_device(&self) {
        self.store.destroy_pool(self.device.pool()).unwrap();
        self.is_destroyed.store(true, Ordering::Relaxed);
        self.target.namespaces_changed(self.alice);
    }

    /// A new connection, on which nothing was sent yet.
    pub fn host(&self) -> Host {
        let address = "127.0.0.1:4420".parse().unwrap();
        let connection =
            Connection::new(Arc::clone(&self.target), address, None, 0, Arc::new(|| {}));
        Host {
            connection,
            framing: Framing::default(),
            out: Output::default(),
            input: Vec::new(),
            flow_control: false,
            now_ms: 0,
            keep_alive_ms: 1000,
            next_id: 0,
        }
    }

    /// An admin queue that is enabled, and the controller's id.
    pub fn admin(&self, subsystem: &str, host: &str) -> (Host, u16) {
        self.admin_with(InitRequest::default(), subsystem, host, 1)
    }

    pub fn admin_with(
        &self,
        init: InitRequest,
        subsystem: &str,
        host: &str,
        id: u8,
    ) -> (Host, u16) {
        let mut admin = self.host();
        admin.initialize(init);
        let completion = admin.connect(subsystem, host, id, ANY_CONTROLLER, 0);
        assert_eq!(completion.status, Status::SUCCESS);
        let result = ConnectResult::decode(completion.result);
        if !result.authenticate {
            admin.enable();
        }
        (admin, result.controller)
    }

    /// An I/O queue of a controller.
    pub fn io(&self, subsystem: &str, host: &str, controller: u16) -> Host {
        self.io_with(InitRequest::default(), subsystem, host, controller)
    }

    pub fn io_with(&self, init: InitRequest, subsystem: &str, host: &str, controller: u16) -> Host {
        let mut io = self.host();
        io.initialize(init);
        let completion = io.connect(subsystem, host, 1, controller, 1);
        assert_eq!(completion.status, Status::SUCCESS);
        io
    }
}

/// The host's end of a connection.
pub struct Host {
    pub connection: Connection,
    pub framing: Framing,
    pub out: Output,
    /// Bytes that the target has not taken.
    pub input: Vec<u8>,
    /// Whether its queues have flow control: completions tell the head of the submission queue.
    pub flow_control: bool,
    pub now_ms: u64,
    /// The keep-alive timeout that Connect of an admin queue asks for.
    pub keep_alive_ms: u32,
    next_id: u16,
}

impl Host {
    /// Sends bytes, and gives the target's answers.
    pub fn send(&mut self, bytes: &[u8]) -> Result<Vec<Answer>, Error> {
        self.input.extend_from_slice(bytes);
        let mut answers = Vec::new();
        loop {
            let taken = self.connection.receive(self.now_ms, &self.input, &mut self.out)?;
            self.input.drain(..taken);
            let said = self.answers();
            if taken == 0 && said.is_empty() {
                return Ok(answers);
            }
            answers.extend(said);
        }
    }

    /// The answers in the output.
    pub fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            let decoded = decode(self.out.pending(), self.framing, 1 << 20).unwrap();
            let Some((pdu, bytes)) = decoded else { break };
            answers.push(Answer::of(pdu));
            self.out.sent(bytes);
        }
        assert!(self.out.pending().is_empty());
        answers
    }

    pub fn encode(&self, pdu: &Pdu<'_>) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 18];
        let length = pdu.encode(self.framing, &mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    pub fn initialize(&mut self, request: InitRequest) {
        let bytes = self.encode(&Pdu::InitRequest(request));
        let answers = self.send(&bytes).unwrap();
        assert!(matches!(answers[..], [Answer::Initialized]));
        let InitRequest { header_digest, data_digest, .. } = request;
        self.framing = Framing { header_digest, data_digest, alignment: 0 };
    }

    pub fn connect(
        &mut self,
        subsystem: &str,
        host: &str,
        id: u8,
        controller: u16,
        queue: u16,
    ) -> Completion {
        let connect = Connect {
            format: 0,
            queue,
            queue_entries: 31,
            attributes: if self.flow_control { 0 } else { Connect::NO_FLOW_CONTROL },
            keep_alive_ms: if queue == 0 { self.keep_alive_ms } else { 0 },
        };
        let data = ConnectData { host_id: [id; 16], controller, subsystem, host };
        let mut command = Fabrics::Connect(connect).encode(self.next_id);
        command.id = self.id();
        self.ask(command, &data.encode().unwrap()).0
    }

    pub fn enable(&mut self) {
        let set = Fabrics::PropertySet { offset: property::CC, wide: false, value: 0x0046_0001 };
        let command = set.encode(self.id());
        assert_eq!(self.ask(command, &[]).0.status, Status::SUCCESS);
        let get = Fabrics::PropertyGet { offset: property::CSTS, wide: false };
        let command = get.encode(self.id());
        assert_eq!(self.ask(command, &[]).0.result, 1);
    }

    /// The id that [`Self::id`] returned last.
    pub const fn last_id(&self) -> u16 {
        self.next_id
    }

    pub fn id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends a command with its data, and gives its completion and the data of the answer. More than a page of data is
    /// sent when the target asks for it.
    pub fn ask(&mut self, command: Command, data: &[u8]) -> (Completion, Vec<u8>) {
        let mut command = command;
        let capsule = data.len() <= 4096;
        if !data.is_empty() && capsule {
            command.data = DataPointer::in_capsule(data.len() as u32);
        }
        let bytes = self.encode(&Pdu::Command(command, if capsule { data } else { &[] }));
        let mut answers = self.send(&bytes).unwrap();
        let mut got = Vec::new();
        loop {
            let mut more = Vec::new();
            for answer in answers {
                match answer {
                    Answer::Completed(completion) => {
                        assert_eq!(completion.id, command.id);
                        return (completion, got);
                    }
                    Answer::Data(transfer, part) => {
                        assert_eq!(transfer.command, command.id);
                        assert_eq!(transfer.offset as usize, got.len());
                        got.extend_from_slice(&part);
                        if transfer.success {
                            let completion = Completion { id: command.id, ..Default::default() };
                            return (completion, got);
                        }
                    }
                    Answer::Ready { tag, offset, bytes } => {
                        more.extend(self.transfer(command.id, tag, offset, bytes, data));
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(!more.is_empty(), "no answer to {command:?}");
            answers = more;
        }
    }

    /// Sends the data of a grant, in parts.
    fn transfer(
        &mut self,
        command: u16,
        tag: u16,
        offset: u32,
        bytes: u32,
        data: &[u8],
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        let granted = &data[offset as usize..(offset + bytes) as usize];
        let parts = granted.chunks(100_000);
        let count = parts.len();
        for (number, part) in parts.enumerate() {
            let transfer = Transfer {
                command,
                tag,
                offset: offset + 100_000 * number as u32,
                bytes: part.len() as u32,
                last: number + 1 == count,
                success: false,
            };
            let bytes = self.encode(&Pdu::HostData(transfer, part));
            answers.extend(self.send(&bytes).unwrap());
        }
        answers
    }
}

/// A PDU from the target, with a copy of its data.
#[derive(Debug)]
pub enum Answer {
    Initialized,
    Completed(Completion),
    Data(Transfer, Vec<u8>),
    Ready { tag: u16, offset: u32, bytes: u32 },
    Terminated,
}

impl Answer {
    fn of(pdu: Pdu<'_>) -> Self {
        match pdu {
            Pdu::InitResponse(response) => {
                assert!(response.host_data_bytes_max >= 4096);
                Self::Initialized
            }
            Pdu::Response(completion) => Self::Completed(completion),
            Pdu::ControllerData(transfer, data) => Self::Data(transfer, data.to_vec()),
            Pdu::ReadyToTransfer(ready) => {
                Self::Ready { tag: ready.tag, offset: ready.offset, bytes: ready.bytes }
            }
            Pdu::ControllerTerminate(_) => Self::Terminated,
            other => panic!("the target sent {other:?}"),
        }
    }
}
