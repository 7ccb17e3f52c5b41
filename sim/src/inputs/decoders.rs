//! Readers of a single kind of input.

use spillway_wire::auth::{Message, Secret};
use spillway_wire::fabrics::{ConnectData, ConnectResult, Fabrics, decode_nqn};
use spillway_wire::identify::{
    BlockNamespace, Controller, PoolNamespace, decode_namespace_list, namespace_uuid,
};
use spillway_wire::kv::{self, CreatePool, KeyList, PoolEntry};
use spillway_wire::log_page::{
    DiscoveryEntry, GetLogPage, decode_changed, decode_discovery_header,
};
use spillway_wire::nbd;
use spillway_wire::nvme::{Command, Completion};
use spillway_wire::nvme_tcp::{self, Framing};
use spillway_wire::programs;
use spillway_wire::ring::{Hello, Welcome};

use super::Source;

/// Longest PDU.
const PDU_BYTES_MAX: usize = 1 << 16;

/// PDUs of both directions, under any framing.
pub fn pdus(bytes: &[u8]) {
    let mut source = Source(bytes);
    let choice = source.byte();
    let framing = Framing {
        header_digest: choice & 1 != 0,
        data_digest: choice & 2 != 0,
        alignment: choice >> 3,
    };
    let mut rest = source.0;
    while let Ok(Some((pdu, taken))) = nvme_tcp::decode(rest, framing, PDU_BYTES_MAX) {
        assert!(taken != 0 && taken <= rest.len());
        let mut written = vec![0; taken + 256];
        let length = pdu.encode(framing, &mut written).expect("room for a PDU that was read");
        let again = nvme_tcp::decode(&written[..length], framing, PDU_BYTES_MAX);
        assert_eq!(again, Ok(Some((pdu, length))));
        rest = &rest[taken..];
    }
}

/// Contents of commands, completions and their data.
pub fn structures(bytes: &[u8]) {
    let mut source = Source(bytes);
    let choice = source.byte();
    let bytes = source.0;
    match choice % 4 {
        0 => commands(bytes),
        1 => {
            if let Some(data) = bytes.first_chunk()
                && let Ok(create) = CreatePool::decode(data)
            {
                assert_eq!(CreatePool::decode(&create.encode()), Ok(create));
            }
            if let Ok(entry) = PoolEntry::decode(bytes) {
                assert_eq!(PoolEntry::decode(&entry.encode()), Ok(entry));
            }
            if let Ok(keys) = KeyList::decode(bytes) {
                assert!(keys.count() <= bytes.len());
            }
            if let Ok(counters) = kv::decode_statistics(bytes) {
                assert_eq!(kv::decode_statistics(&kv::encode_statistics(&counters)), Ok(counters));
            }
        }
        2 => {
            let _ = Controller::decode(bytes);
            let _ = BlockNamespace::decode(bytes);
            let _ = PoolNamespace::decode(bytes);
            let _ = namespace_uuid(bytes);
            assert!(decode_namespace_list(bytes).count() <= bytes.len());
        }
        _ => {
            let _ = decode_discovery_header(bytes);
            let _ = DiscoveryEntry::decode(bytes);
            let _ = decode_changed(bytes);
            let _ = decode_nqn(bytes);
            if let Ok(data) = ConnectData::decode(bytes) {
                let again = data.encode().expect("names that were read are short enough");
                assert_eq!(ConnectData::decode(&again), Ok(data));
            }
        }
    }
}

fn commands(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk() {
        let command = Command::decode(bytes);
        assert_eq!(Command::decode(&command.encode()), command);
        let _ = (kv::key(&command), kv::list_start(&command), GetLogPage::decode(&command));
        if let Some(fabrics) = Fabrics::decode(&command) {
            let again = fabrics.encode(command.id);
            assert_eq!(Fabrics::decode(&again), Some(fabrics));
        }
    }
    if let Some(bytes) = bytes.first_chunk() {
        let completion = Completion::decode(bytes);
        assert_eq!(Completion::decode(&completion.encode()), completion);
        let _ = ConnectResult::decode(completion.result);
    }
}

/// Messages of DH-HMAC-CHAP, and secrets.
pub fn authentication(bytes: &[u8]) {
    if let Ok((transaction, message)) = Message::decode(bytes) {
        let mut written = vec![0; bytes.len() + 1024];
        if let Ok(length) = message.encode(transaction, &mut written) {
            assert_eq!(Message::decode(&written[..length]), Ok((transaction, message)));
        }
    }
    if let Ok(text) = core::str::from_utf8(bytes)
        && let Ok(secret) = Secret::parse(text)
    {
        let _ = secret.key_of("nqn.2026-11.io.spillway:fuzz");
    }
}

/// URLs of stores.
pub fn urls(bytes: &[u8]) {
    if let Ok(text) = core::str::from_utf8(bytes) {
        let _ = text.parse::<spillway_client::Url>();
    }
}

/// Records of a cache's keys.
pub fn records(bytes: &[u8]) {
    if let Ok(record) = spillway_cache::Record::decode(bytes) {
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(again, bytes);
    }
}

/// The first messages of a ring.
pub fn ring(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
    if let Ok(welcome) = Welcome::decode(bytes) {
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
    }
}

/// Messages between the supervisor of a paged program and the daemon.
pub fn programs(bytes: &[u8]) {
    if let Ok(hello) = programs::Hello::decode(bytes) {
        assert!(hello.program().len() <= programs::NAME_BYTES_MAX);
        assert_eq!(programs::Hello::decode(&hello.encode()), Ok(hello));
    }
    if let Ok(answer) = programs::Answer::decode(bytes) {
        assert_eq!(programs::Answer::decode(&answer.encode()), Ok(answer));
    }
    if let Some(report) = bytes.first_chunk() {
        let counters = programs::decode_report(report);
        assert_eq!(programs::encode_report(&counters), *report);
        let _ = counters.statistics(u64::MAX);
    }
}

/// NBD's flags, options and requests.
pub fn nbd(bytes: &[u8]) {
    if let Some(flags) = bytes.first_chunk() {
        let _ = nbd::ClientFlags::decode(*flags);
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = nbd::OptionHeader::decode(*header);
    }
    if let Some(request) = bytes.first_chunk() {
        let _ = nbd::Request::decode(request);
    }
    let _ = nbd::export_name(bytes);
    if let Ok(query) = nbd::InfoQuery::decode(bytes) {
        let _ = (0..8).any(|info| query.wants(info));
    }
    if let Ok(query) = nbd::ContextQuery::decode(bytes) {
        assert!(query.queries().count() <= bytes.len());
    }
}

/// Messages of userfaultfd.
pub fn faults(bytes: &[u8]) {
    for message in bytes.as_chunks().0 {
        let _ = spillway_platform::uffd::decode(message);
    }
}
