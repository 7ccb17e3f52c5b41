//! Log pages (Base 2.0, section 5.16).

use core::net::SocketAddr;

use crate::Error;
use crate::bytes::{head, put, u32_at, u64_at};
use crate::fabrics::{ANY_CONTROLLER, decode_nqn};
use crate::nvme::{Command, admin};

/// Log identifiers.
pub mod log {
    /// Errors.
    pub const ERRORS: u8 = 0x01;
    /// Health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and their effects.
    pub const COMMANDS: u8 = 0x05;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Parameters of Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Which log.
    pub log: u8,
    /// Keep the event that told of the log masked off until another read.
    pub retain_event: bool,
    /// Where to begin, bytes.
    pub offset: u64,
    /// Bytes asked for, a multiple of 4.
    pub bytes: u64,
    /// Command set, for logs that differ with it.
    pub command_set: u8,
}

impl GetLogPage {
    /// Reads a command.
    pub fn decode(command: &Command) -> Self {
        let words = u64::from(command.cdw10 >> 16) | u64::from(command.cdw11 & 0xffff) << 16;
        Self {
            log: command.cdw10 as u8,
            retain_event: command.cdw10 & 1 << 15 != 0,
            offset: u64::from(command.cdw12) | u64::from(command.cdw13) << 32,
            bytes: (words + 1) * 4,
            command_set: (command.cdw14 >> 24) as u8,
        }
    }

    /// The command; at least 4 bytes are asked for.
    pub fn encode(&self, id: u16) -> Command {
        let words = (self.bytes / 4).saturating_sub(1);
        let mut command = Command::new(admin::GET_LOG_PAGE, id, crate::nvme::ALL_NAMESPACES);
        command.data.bytes = self.bytes as u32;
        command.cdw10 = u32::from(self.log)
            | u32::from(self.retain_event) << 15
            | ((words & 0xffff) as u32) << 16;
        command.cdw11 = (words >> 16) as u32 & 0xffff;
        command.cdw12 = self.offset as u32;
        command.cdw13 = (self.offset >> 32) as u32;
        command.cdw14 = u32::from(self.command_set) << 24;
        command
    }
}

/// Bytes of the health log and of the firmware log.
pub const HEALTH_BYTES: usize = 512;

/// The health log: nothing wears out.
pub fn health() -> [u8; HEALTH_BYTES] {
    let mut bytes = [0; HEALTH_BYTES];
    bytes[3] = 100; // available spare, %
    bytes
}

/// The firmware log: one slot, with the version of the software.
pub fn firmware(version: &str) -> [u8; HEALTH_BYTES] {
    let mut bytes = [0; HEALTH_BYTES];
    bytes[0] = 1;
    bytes[8..16].fill(b' ');
    for (place, byte) in bytes[8..16].iter_mut().zip(version.bytes()) {
        *place = byte;
    }
    bytes
}

/// Bytes of the log of commands.
pub const COMMANDS_BYTES: usize = 4096;

/// The log of commands: the opcodes served on the admin queue and on I/O queues; with `true` those that
/// change what is stored.
pub fn commands(admin: &[u8], io: &[(u8, bool)]) -> [u8; COMMANDS_BYTES] {
    const SUPPORTED: u32 = 1 << 0;
    const CHANGES: u32 = 1 << 1;
    let mut bytes = [0; COMMANDS_BYTES];
    for &opcode in admin {
        put(&mut bytes, 4 * usize::from(opcode), &SUPPORTED.to_le_bytes());
    }
    for &(opcode, changes) in io {
        let effects = SUPPORTED | if changes { CHANGES } else { 0 };
        put(&mut bytes, 1024 + 4 * usize::from(opcode), &effects.to_le_bytes());
    }
    bytes
}

/// Bytes of the discovery log's header, and of each of its entries.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;

/// An entry of the discovery log: a subsystem that speaks NVMe/TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Name of the subsystem.
    pub subsystem: String,
    /// Where it is.
    pub address: SocketAddr,
    /// Whether it is reached by TLS 1.3 only.
    pub secure: bool,
}

/// The discovery log.
pub fn discovery(generation: u64, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let mut bytes = vec![0; DISCOVERY_ENTRY_BYTES * (1 + entries.len())];
    put(&mut bytes, 0, &generation.to_le_bytes());
    put(&mut bytes, 8, &(entries.len() as u64).to_le_bytes());
    for (place, entry) in bytes.chunks_exact_mut(DISCOVERY_ENTRY_BYTES).skip(1).zip(entries) {
        let family = if entry.address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 };
        let (channel, security) =
            if entry.secure { (SECURE_CHANNEL, TLS_13) } else { (CHANNEL_NOT_SPECIFIED, 0) };
        place[..4].copy_from_slice(&[TRANSPORT_TCP, family, SUBTYPE_NVM, channel]);
        place[SECURITY_AT] = security;
        put(place, 4, &1u16.to_le_bytes()); // port id
        put(place, 6, &ANY_CONTROLLER.to_le_bytes());
        put(place, 8, &ADMIN_QUEUE_ENTRIES.to_le_bytes());
        put(place, 32, entry.address.port().to_string().as_bytes());
        put(place, 256, entry.subsystem.as_bytes());
        put(place, 512, entry.address.ip().to_string().as_bytes());
    }
    bytes
}

const TRANSPORT_TCP: u8 = 3;
const FAMILY_IPV4: u8 = 1;
const FAMILY_IPV6: u8 = 2;
const SUBTYPE_NVM: u8 = 2;
const SECURE_CHANNEL: u8 = 1;
/// NVMe over Fabrics 1.1a, Figure 9 (TREQ): whether there is a secure channel is not specified. "Not required" would be
/// closer, but nvme-cli takes it for an offer of TLS, and its connect-all fails for want of a key.
const CHANNEL_NOT_SPECIFIED: u8 = 0;
/// Which security, in the part of an entry that is TCP's own.
const SECURITY_AT: usize = 768;
const TLS_13: u8 = 2;
/// Least entries of an admin queue.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// The discovery log's generation and number of entries, from its header.
///
/// # Errors
/// [`Error::Short`].
pub fn decode_discovery_header(bytes: &[u8]) -> Result<(u64, u64), Error> {
    let bytes: &[u8; DISCOVERY_ENTRY_BYTES] = head(bytes)?;
    Ok((u64_at(bytes, 0), u64_at(bytes, 8)))
}

impl DiscoveryEntry {
    /// Reads an entry; `None` for one that is no NVM subsystem over TCP.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for a bad name or address.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let bytes: &[u8; DISCOVERY_ENTRY_BYTES] = head(bytes)?;
        if bytes[0] != TRANSPORT_TCP || bytes[2] != SUBTYPE_NVM {
            return Ok(None);
        }
        let text = |field: &[u8]| {
            let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
            core::str::from_utf8(&field[..end]).map(|text| text.trim_end().to_owned())
        };
        let address = (|| {
            let ip = text(&bytes[512..768]).ok()?.parse().ok()?;
            Some(SocketAddr::new(ip, text(&bytes[32..64]).ok()?.parse().ok()?))
        })();
        Ok(Some(Self {
            subsystem: decode_nqn(&bytes[256..512]).ok_or(Error::Field("subsystem NQN"))?.into(),
            address: address.ok_or(Error::Field("transport address"))?,
            secure: bytes[3] & 3 == SECURE_CHANNEL,
        }))
    }
}

/// An asynchronous event, as it stands in the result of an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Type: 2 is a notice.
    pub kind: u8,
    /// What happened.
    pub what: u8,
    /// The log that says more.
    pub log: u8,
}

impl Event {
    /// Namespaces came, went or changed.
    pub const NAMESPACES_CHANGED: Self = Self { kind: 2, what: 0, log: log::CHANGED_NAMESPACES };
    /// The bit of feature 0Bh that asks for [`Self::NAMESPACES_CHANGED`].
    pub const NAMESPACES_CHANGED_BIT: u32 = 1 << 8;

    /// As it stands in the result.
    pub const fn encode(self) -> u64 {
        self.kind as u64 | (self.what as u64) << 8 | (self.log as u64) << 16
    }

    /// Reads a result.
    pub const fn decode(result: u64) -> Self {
        Self { kind: result as u8 & 7, what: (result >> 8) as u8, log: (result >> 16) as u8 }
    }
}

/// Reads a list of changed namespaces: their ids, or `None` when there are too many to list.
pub fn decode_changed(bytes: &[u8]) -> Option<Vec<u32>> {
    let ids: Vec<u32> =
        bytes.chunks_exact(4).map(|id| u32_at(id, 0)).take_while(|&id| id != 0).collect();
    if ids == [crate::nvme::ALL_NAMESPACES] { None } else { Some(ids) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_offsets_come_back() {
        let get = GetLogPage {
            log: log::DISCOVERY,
            retain_event: true,
            offset: 0x1_0000_0400,
            bytes: 1 << 20,
            command_set: 1,
        };
        let command = get.encode(3);
        assert_eq!(command.cdw10, 0xffff_8070);
        assert_eq!(command.cdw11, 3);
        assert_eq!(GetLogPage::decode(&command), get);
    }

    #[test]
    fn the_discovery_log_comes_back() {
        let entries = [
            DiscoveryEntry {
                subsystem: "nqn.2026-11.io.spillway:pools".into(),
                address: "127.0.0.1:4420".parse().unwrap(),
                secure: false,
            },
            DiscoveryEntry {
                subsystem: "nqn.2026-11.io.spillway:blocks".into(),
                address: "[::1]:4421".parse().unwrap(),
                secure: true,
            },
        ];
        let bytes = discovery(5, &entries);
        assert_eq!(decode_discovery_header(&bytes), Ok((5, 2)));
        assert_eq!(bytes[1024..1028], [3, 1, 2, 0]);
        assert_eq!(bytes[2048..2052], [3, 2, 2, 1]);
        for (bytes, entry) in bytes[1024..].chunks_exact(1024).zip(&entries) {
            assert_eq!(DiscoveryEntry::decode(bytes), Ok(Some(entry.clone())));
        }
        let mut broken = bytes[1024..2048].to_vec();
        broken[512] = b'x';
        assert_eq!(DiscoveryEntry::decode(&broken), Err(Error::Field("transport address")));
        broken[0] = 1;
        assert_eq!(DiscoveryEntry::decode(&broken), Ok(None));
    }

    #[test]
    fn events_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(Event::NAMESPACES_CHANGED.encode(), 0x04_0002);
        assert_eq!(Event::decode(0x04_0002), Event::NAMESPACES_CHANGED);
    }

    #[test]
    fn the_log_of_commands_has_two_halves() {
        let bytes = commands(&[admin::IDENTIFY], &[(0x01, true), (0x02, false)]);
        assert_eq!(bytes[24], 1);
        assert_eq!((bytes[1028], bytes[1032]), (3, 1));
    }
}
