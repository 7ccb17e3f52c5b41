//! Log pages (Base 2.1, section 5.1.12).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::bytes::put;
use crate::identify::decode_namespace_list;
use crate::nvme::{Command, admin};

mod discovery;
mod health;
mod supported;

pub use discovery::{
    DISCOVERY_ENTRY_BYTES, DiscoveryEntry, DiscoveryLogHeader, DiscoveryLogPageEntry,
    TcpAddressSubtype, decode_discovery_header, discovery,
};
pub use health::{HEALTH_BYTES, Health, HealthLogPage};
pub use supported::{
    COMMANDS_BYTES, CommandsLogPage, FeaturesLogPage, SUPPORTED_BYTES, SupportedLogPages, commands,
    features, supported,
};

/// Log page identifiers (section 5.1.12, figure 202).
pub mod log {
    /// Log pages that are supported.
    pub const SUPPORTED: u8 = 0x00;
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
    /// Features that are supported and their effects.
    pub const FEATURES: u8 = 0x12;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Command dwords 10 to 15 of Get Log Page (Base 2.1, section 5.1.12, figures 197 to 201).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetLogPageDwords {
    /// Log page identifier (LID).
    pub log_page_identifier: u8,
    /// Log specific parameter (LSP) in bits 6 to 0, retain asynchronous event (RAE) in bit 7.
    pub log_specific_parameter: u8,
    /// Number of dwords lower (NUMDL): the low half of the number of dwords less one.
    pub number_of_dwords_lower: U16,
    /// Number of dwords upper (NUMDU): the high half.
    pub number_of_dwords_upper: U16,
    /// Log specific identifier (LSI).
    pub log_specific_identifier: U16,
    /// Log page offset lower and upper (LPOL, LPOU), bytes.
    pub log_page_offset: U64,
    /// UUID index (UIDX) in bits 6 to 0.
    pub uuid_index: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Offset type (OT) in bit 7.
    pub offset_type: u8,
    /// Command set identifier (CSI).
    pub command_set_identifier: u8,
    /// Dword 15.
    pub reserved_2: U32,
}

const _: () = assert!(size_of::<GetLogPageDwords>() == 24);

/// Of [`GetLogPageDwords::log_specific_parameter`]: RAE.
const RETAIN_EVENT: u8 = 1 << 7;

/// Parameters of Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// The log: one of [`log`].
    pub log: u8,
    /// Keeps the asynchronous event of the log masked until another read.
    pub retain_event: bool,
    /// The offset in the log, bytes.
    pub offset: u64,
    /// Requested bytes, a multiple of 4.
    pub bytes: u64,
    /// The command set, for logs that depend on it.
    pub command_set: u8,
}

impl GetLogPage {
    /// Decodes a command.
    pub fn decode(command: &Command) -> Self {
        let dwords: GetLogPageDwords = transmute!(command.dwords());
        let lower = u64::from(dwords.number_of_dwords_lower.get());
        let upper = u64::from(dwords.number_of_dwords_upper.get());
        Self {
            log: dwords.log_page_identifier,
            retain_event: dwords.log_specific_parameter & RETAIN_EVENT != 0,
            offset: dwords.log_page_offset.get(),
            bytes: ((lower | upper << 16) + 1) * 4,
            command_set: dwords.command_set_identifier,
        }
    }

    /// Encodes the command. It requests at least 4 bytes.
    pub fn encode(&self, id: u16) -> Command {
        let less_one = (self.bytes / 4).saturating_sub(1);
        let dwords = GetLogPageDwords {
            log_page_identifier: self.log,
            log_specific_parameter: if self.retain_event { RETAIN_EVENT } else { 0 },
            number_of_dwords_lower: (less_one as u16).into(),
            number_of_dwords_upper: ((less_one >> 16) as u16).into(),
            log_page_offset: self.offset.into(),
            command_set_identifier: self.command_set,
            ..GetLogPageDwords::new_zeroed()
        };
        let mut command = Command::new(admin::GET_LOG_PAGE, id, crate::nvme::ALL_NAMESPACES);
        command.data.bytes = self.bytes as u32;
        command.set_dwords(transmute!(dwords));
        command
    }
}

/// Bytes of an entry of the error log (section 5.1.12.1.2, figure 205). An unused entry is all zeros.
pub const ERROR_ENTRY_BYTES: usize = 64;

/// Firmware slot information log page (Base 2.1, section 5.1.12.1.4, figure 208).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareLogPage {
    /// Active firmware info (AFI): the current slot (CAFS) in bits 2 to 0.
    pub active_firmware_info: u8,
    /// Reserved.
    pub reserved_1: [u8; 7],
    /// Firmware revisions for slots 1 to 7 (FRS1 to FRS7), ASCII.
    pub firmware_revisions: [[u8; 8]; 7],
    /// Reserved.
    pub reserved_2: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareLogPage>() == 512);

/// The firmware log: one slot, with the version of the software.
pub fn firmware(version: &str) -> [u8; HEALTH_BYTES] {
    let mut log = FirmwareLogPage::new_zeroed();
    log.active_firmware_info = 1;
    let slot = &mut log.firmware_revisions[0];
    slot.fill(b' ');
    let bytes = version.len().min(slot.len());
    put(slot, 0, &version.as_bytes()[..bytes]);
    transmute!(log)
}

/// Dwords 0 and 1 of a completion of Asynchronous Event Request (Base 2.1, section 5.1.2.1, figures 147
/// and 148).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AsynchronousEventResult {
    /// Asynchronous event type (AET) in bits 2 to 0.
    pub asynchronous_event_type: u8,
    /// Asynchronous event information (AEI).
    pub asynchronous_event_information: u8,
    /// Log page identifier (LID).
    pub log_page_identifier: u8,
    /// Reserved.
    pub reserved: u8,
    /// Event specific parameter (EVNTSP).
    pub event_specific_parameter: U32,
}

const _: () = assert!(size_of::<AsynchronousEventResult>() == 8);

/// An asynchronous event: an [`AsynchronousEventResult`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Type: 2 is a notice.
    pub kind: u8,
    /// The event of this type.
    pub what: u8,
    /// The log with the details.
    pub log: u8,
}

impl Event {
    /// Namespaces were added, removed or changed.
    pub const NAMESPACES_CHANGED: Self = Self { kind: 2, what: 0, log: log::CHANGED_NAMESPACES };
    /// The bit of feature 0Bh that enables [`Self::NAMESPACES_CHANGED`].
    pub const NAMESPACES_CHANGED_BIT: u32 = 1 << 8;
    /// The bit of feature 0Bh that enables discovery log page change notifications.
    pub const DISCOVERY_CHANGED_BIT: u32 = 1 << 31;

    /// Encodes the event as the result of a completion.
    pub fn encode(self) -> u64 {
        let result: U64 = transmute!(AsynchronousEventResult {
            asynchronous_event_type: self.kind,
            asynchronous_event_information: self.what,
            log_page_identifier: self.log,
            reserved: 0,
            event_specific_parameter: U32::ZERO,
        });
        result.get()
    }

    /// Decodes the result of a completion.
    pub fn decode(result: u64) -> Self {
        let result: AsynchronousEventResult = transmute!(U64::new(result));
        Self {
            kind: result.asynchronous_event_type & 7,
            what: result.asynchronous_event_information,
            log: result.log_page_identifier,
        }
    }
}

/// Decodes the log of changed namespaces (section 5.1.12.1.5), a namespace list. `None` if too many have changed for a
/// list.
pub fn decode_changed(bytes: &[u8]) -> Option<Vec<u32>> {
    let ids: Vec<u32> = decode_namespace_list(bytes).collect();
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
    fn get_log_page_is_laid_out_as_figures_197_to_201_say() {
        let get = GetLogPage {
            log: 0x70,
            retain_event: true,
            offset: 0x0807_0605_0403_0200,
            bytes: (0x0605_0403 + 1) * 4,
            command_set: 9,
        };
        let bytes = get.encode(1).encode();
        assert_eq!(bytes[40..48], [0x70, 0x80, 3, 4, 5, 6, 0, 0]);
        assert_eq!(bytes[48..64], [0, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0, 0, 0]);
        assert_eq!(GetLogPage::decode(&get.encode(1)), get);
    }

    /// The test sets all bytes that are not zero.
    #[test]
    fn firmware_is_laid_out_as_figure_208_says() {
        let mut bytes = [0; HEALTH_BYTES];
        bytes[0] = 1;
        bytes[8..16].copy_from_slice(b"0.1.0   ");
        assert_eq!(firmware("0.1.0"), bytes);
        assert_eq!(firmware("0123456789")[8..17], *b"01234567\0");
    }

    #[test]
    fn changed_namespaces_are_listed_unless_there_are_too_many() {
        assert_eq!(decode_changed(&[2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]), Some(vec![2, 5]));
        assert_eq!(decode_changed(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]), None);
    }

    #[test]
    fn events_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(Event::NAMESPACES_CHANGED.encode(), 0x04_0002);
        assert_eq!(Event::decode(0x04_0002), Event::NAMESPACES_CHANGED);
    }
}
