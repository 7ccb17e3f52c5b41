//! The discovery log page.

use core::net::SocketAddr;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;
use crate::bytes::{prefix, put};
use crate::fabrics::{ANY_CONTROLLER, NQN_BYTES, decode_nqn};

/// Bytes of the discovery log's header, and of each of its entries.
pub const DISCOVERY_ENTRY_BYTES: usize = size_of::<DiscoveryLogPageEntry>();

/// The start of the discovery log page, before its entries (Base 2.1, section 5.1.12.3.1, figure 296).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryLogHeader {
    /// Generation counter (GENCTR).
    pub generation_counter: U64,
    /// Number of records (NUMREC).
    pub number_of_records: U64,
    /// Record format (RECFMT).
    pub record_format: U16,
    /// Discovery log page flags (DLPF).
    pub discovery_log_page_flags: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Total discovery log page length (TDLPL), bytes; 0 if it is not reported.
    pub total_discovery_log_page_length: U32,
    /// Reserved.
    pub reserved_2: [u8; 1000],
}

const _: () = assert!(size_of::<DiscoveryLogHeader>() == 1024);

/// Transport specific address subtype of TCP (TCP 1.0, section 3.6.1.1, figure 17).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TcpAddressSubtype {
    /// Security type (SECTYPE).
    pub security_type: u8,
    /// Reserved.
    pub reserved: [u8; 255],
}

const _: () = assert!(size_of::<TcpAddressSubtype>() == 256);

/// Discovery log page entry (Base 2.1, section 5.1.12.3.1, figure 294).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryLogPageEntry {
    /// Transport type (TRTYPE).
    pub transport_type: u8,
    /// Address family (ADRFAM).
    pub address_family: u8,
    /// Subsystem type (SUBTYPE).
    pub subsystem_type: u8,
    /// Transport requirements (TREQ): transport secure channel (TSC) in bits 1 and 0.
    pub transport_requirements: u8,
    /// Port ID (PORTID).
    pub port_id: U16,
    /// Controller ID (CNTLID).
    pub controller_id: U16,
    /// Admin max SQ size (ASQSZ), entries.
    pub admin_max_sq_size: U16,
    /// Entry flags (EFLAGS).
    pub entry_flags: U16,
    /// Reserved.
    pub reserved_1: [u8; 20],
    /// Transport service identifier (TRSVCID), ASCII: the port.
    pub transport_service_identifier: [u8; 32],
    /// Reserved.
    pub reserved_2: [u8; 192],
    /// NVM subsystem qualified name (SUBNQN).
    pub nvm_subsystem_qualified_name: [u8; NQN_BYTES],
    /// Transport address (TRADDR), ASCII.
    pub transport_address: [u8; 256],
    /// Transport specific address subtype (TSAS).
    pub transport_specific_address_subtype: TcpAddressSubtype,
}

const _: () = assert!(size_of::<DiscoveryLogPageEntry>() == 1024);

/// An entry of the discovery log, a [`DiscoveryLogPageEntry`]: a subsystem over NVMe/TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Name of the subsystem.
    pub subsystem: String,
    /// The address and port of the subsystem.
    pub address: SocketAddr,
    /// Whether the subsystem requires TLS 1.3.
    pub secure: bool,
}

/// The discovery log.
pub fn discovery(generation: u64, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let mut header = DiscoveryLogHeader::new_zeroed();
    header.generation_counter = generation.into();
    header.number_of_records = (entries.len() as u64).into();
    let mut bytes = header.as_bytes().to_vec();
    for entry in entries {
        bytes.extend_from_slice(entry.layout().as_bytes());
    }
    bytes
}

const TRANSPORT_TCP: u8 = 3;
const FAMILY_IPV4: u8 = 1;
const FAMILY_IPV6: u8 = 2;
const SUBTYPE_NVM: u8 = 2;
const SECURE_CHANNEL: u8 = 1;
/// A secure channel is not specified (NVMe over Fabrics 1.1a, figure 9, TREQ). "Not required" would be more exact, but
/// nvme-cli then tries TLS, and its connect-all fails without a key.
const CHANNEL_NOT_SPECIFIED: u8 = 0;
const NO_SECURITY: u8 = 0;
const TLS_13: u8 = 2;
/// The smallest admin queue, entries.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// The discovery log's generation and number of entries, from its header.
///
/// # Errors
/// [`Error::Short`].
pub fn decode_discovery_header(bytes: &[u8]) -> Result<(u64, u64), Error> {
    let header: &DiscoveryLogHeader = prefix(bytes)?;
    Ok((header.generation_counter.get(), header.number_of_records.get()))
}

impl DiscoveryEntry {
    fn layout(&self) -> DiscoveryLogPageEntry {
        let (channel, security) = if self.secure {
            (SECURE_CHANNEL, TLS_13)
        } else {
            (CHANNEL_NOT_SPECIFIED, NO_SECURITY)
        };
        let mut entry = DiscoveryLogPageEntry {
            transport_type: TRANSPORT_TCP,
            address_family: if self.address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 },
            subsystem_type: SUBTYPE_NVM,
            transport_requirements: channel,
            port_id: 1.into(),
            controller_id: ANY_CONTROLLER.into(),
            admin_max_sq_size: ADMIN_QUEUE_ENTRIES.into(),
            ..DiscoveryLogPageEntry::new_zeroed()
        };
        put(&mut entry.transport_service_identifier, 0, self.address.port().to_string().as_bytes());
        put(&mut entry.nvm_subsystem_qualified_name, 0, self.subsystem.as_bytes());
        put(&mut entry.transport_address, 0, self.address.ip().to_string().as_bytes());
        entry.transport_specific_address_subtype.security_type = security;
        entry
    }

    /// Decodes an entry. `None` if it is no NVM subsystem over TCP.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for a bad name or address.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let entry: &DiscoveryLogPageEntry = prefix(bytes)?;
        if entry.transport_type != TRANSPORT_TCP || entry.subsystem_type != SUBTYPE_NVM {
            return Ok(None);
        }
        let address = (|| {
            let ip = text(&entry.transport_address)?.parse().ok()?;
            Some(SocketAddr::new(ip, text(&entry.transport_service_identifier)?.parse().ok()?))
        })();
        let subsystem = decode_nqn(&entry.nvm_subsystem_qualified_name);
        Ok(Some(Self {
            subsystem: subsystem.ok_or(Error::Field("subsystem NQN"))?.into(),
            address: address.ok_or(Error::Field("transport address"))?,
            secure: entry.transport_requirements & 3 == SECURE_CHANNEL,
        }))
    }
}

/// The text up to a zero byte, without spaces at its end.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    core::str::from_utf8(&field[..end]).ok().map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test sets all bytes that are not zero.
    #[test]
    fn the_log_is_laid_out_as_figures_294_and_296_say() {
        let entry = DiscoveryEntry {
            subsystem: "nqn.a:b".into(),
            address: "127.0.0.1:4420".parse().unwrap(),
            secure: true,
        };
        let mut bytes = [0; 2048];
        bytes[..16].copy_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        bytes[1024..1034].copy_from_slice(&[3, 1, 2, 1, 1, 0, 0xff, 0xff, 32, 0]);
        bytes[1056..1060].copy_from_slice(b"4420");
        bytes[1280..1287].copy_from_slice(b"nqn.a:b");
        bytes[1536..1545].copy_from_slice(b"127.0.0.1");
        bytes[1792] = 2;
        assert_eq!(discovery(5, core::slice::from_ref(&entry)), bytes);
        // A secure channel is not specified, rather than not required.
        (bytes[1027], bytes[1792]) = (0, 0);
        assert_eq!(discovery(5, &[DiscoveryEntry { secure: false, ..entry }]), bytes);
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
}
