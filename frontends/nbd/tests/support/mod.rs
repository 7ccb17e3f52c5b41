//! A fake client registry with exports, and a client's half of the protocol.

#![allow(dead_code)] // each test uses its part

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use spillway_block::{BlockSize, Device, ExportInfo, Exports, Geometry, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_store::{ClientConfig, Config, Store};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits};

pub const MIB: u64 = 1 << 20;

/// Two clients, each with an export. Every peer is the first client, except one with the name `other`.
pub struct FakeRegistry {
    pub store: Arc<Store>,
    pub client: ClientId,
    pub other: ClientId,
    pub exports: HashMap<(ClientId, &'static str), Arc<BlockDevice>>,
    pub connections: AtomicUsize,
    pub connections_max: usize,
    pub names: Mutex<Vec<String>>,
    /// Failed authentications.
    pub failures: AtomicUsize,
    pub late: AtomicUsize,
}

impl FakeRegistry {
    pub fn new() -> Self {
        let store = Arc::new(Store::open(Config::embedded(192 * MIB)).unwrap());
        let client = store.add_client(ClientConfig::default()).unwrap();
        let other = store.add_client(ClientConfig::default()).unwrap();
        let mut exports = HashMap::new();
        for (owner, name, bytes) in [(client, "disk", 64 * MIB), (other, "secret", 8 * MIB)] {
            let uuid = fresh_uuid().unwrap();
            let geometry = Geometry { bytes, block_size: BlockSize::B4096, uuid };
            let device = BlockDevice::create(store.clone(), owner, geometry).unwrap();
            exports.insert((owner, name), Arc::new(device));
        }
        Self {
            store,
            client,
            other,
            exports,
            connections: AtomicUsize::new(0),
            connections_max: 8,
            names: Mutex::default(),
            failures: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
        }
    }

    pub fn device(&self) -> Arc<BlockDevice> {
        self.exports[&(self.client, "disk")].clone()
    }
}

impl Access for FakeRegistry {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        self.names.lock().unwrap().push(format!("{who:?}"));
        let client = match who {
            Identity::Name("other") => self.other,
            Identity::Name("stranger") => return Err(Denied::Unknown),
            _ => self.client,
        };
        if self.connections.fetch_add(1, Ordering::SeqCst) >= self.connections_max {
            self.connections.fetch_sub(1, Ordering::SeqCst);
            return Err(Denied::Connections);
        }
        let limits = Limits { connections_max: 8, operations_max: 64, bytes_max: MIB };
        Ok(Admitted { client, limits })
    }

    fn leave(&self, _client: ClientId) {
        self.connections.fetch_sub(1, Ordering::SeqCst);
    }

    fn authentication_failed(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    fn handshake_late(&self) {
        self.late.fetch_add(1, Ordering::SeqCst);
    }

    fn host_secret(&self, _nqn: &str, _secret: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

impl Exports for FakeRegistry {
    fn list(&self, client: ClientId) -> Vec<ExportInfo> {
        let mine = self.exports.iter().filter(|((owner, _), _)| *owner == client);
        mine.map(|((_, name), device)| ExportInfo {
            name: (*name).to_owned(),
            number: 1,
            bytes: device.bytes(),
        })
        .collect()
    }

    fn open(&self, client: ClientId, name: &str) -> Option<Arc<dyn Device>> {
        let found = self.exports.iter().find(|(key, _)| **key == (client, name));
        found.map(|found| found.1.clone() as Arc<dyn Device>)
    }
}

/// The client's answer to the greeting.
pub const FLAGS: [u8; 4] = [0, 0, 0, 3];

/// An option with its data.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// A string after its length.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// The data of GO and INFO.
pub fn info(name: &str) -> Vec<u8> {
    [&text(name)[..], &[0, 0]].concat()
}

/// The data that chooses block status of an export.
pub fn context(name: &str, query: &str) -> Vec<u8> {
    [&text(name)[..], &[0, 0, 0, 1], &text(query)].concat()
}

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

/// A request without its data.
pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
    let mut request = vec![0x25, 0x60, 0x95, 0x13];
    request.extend(flags.to_be_bytes());
    request.extend(command.to_be_bytes());
    request.extend(cookie.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(bytes.to_be_bytes());
    request
}

/// A simple reply without data.
pub fn simple(cookie: u64, error: u32) -> Vec<u8> {
    [&[0x67, 0x44, 0x66, 0x98][..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// A chunk of a structured reply.
pub fn chunk(kind: u16, done: bool, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
    bytes.extend(u16::from(done).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads a reply to an option: its kind and data.
pub fn option_reply(stream: &mut impl Read) -> (u32, Vec<u8>) {
    let mut header = [0; 20];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
    let mut data = vec![0; u32::from_be_bytes(header[16..].try_into().unwrap()) as usize];
    stream.read_exact(&mut data).unwrap();
    (u32::from_be_bytes(header[12..16].try_into().unwrap()), data)
}

/// Completes the handshake by GO, with simple replies.
pub fn begin(stream: &mut (impl Read + Write), name: &str) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&[&FLAGS[..], &option(7, &info(name))].concat()).unwrap();
    assert_eq!(option_reply(stream).0, 3);
    assert_eq!(option_reply(stream).0, 1);
}
