//! The controller: Identify with CNS 01h.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::IDENTIFY_BYTES;
use crate::Error;
use crate::bytes::{prefix, put};
use crate::fabrics::{NQN_BYTES, VERSION, decode_nqn};
use crate::nvme::COMMAND_BYTES;

/// Identify controller (Base 2.1, section 5.1.13.2.1, figure 312).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor ID (VID).
    pub pci_vendor_id: U16,
    /// PCI subsystem vendor ID (SSVID).
    pub pci_subsystem_vendor_id: U16,
    /// Serial number (SN), ASCII.
    pub serial_number: [u8; 20],
    /// Model number (MN), ASCII.
    pub model_number: [u8; 40],
    /// Firmware revision (FR), ASCII.
    pub firmware_revision: [u8; 8],
    /// Recommended arbitration burst (RAB).
    pub recommended_arbitration_burst: u8,
    /// IEEE OUI identifier (IEEE).
    pub ieee_oui_identifier: [u8; 3],
    /// Controller multi-path I/O and namespace sharing capabilities (CMIC).
    pub multi_path_and_sharing_capabilities: u8,
    /// Maximum data transfer size (MDTS), as a power of two of pages.
    pub maximum_data_transfer_size: u8,
    /// Controller ID (CNTLID).
    pub controller_id: U16,
    /// Version (VER), as the property VS.
    pub version: U32,
    /// RTD3 resume and entry latency (RTD3R, RTD3E).
    pub rtd3_latencies: [U32; 2],
    /// Optional asynchronous events supported (OAES).
    pub optional_asynchronous_events_supported: U32,
    /// Controller attributes (CTRATT).
    pub controller_attributes: U32,
    /// Bytes 100 to 110, not used here: RRLS to PLSI.
    pub not_used_100: [u8; 11],
    /// Controller type (CNTRLTYPE).
    pub controller_type: u8,
    /// FRU globally unique identifier (FGUID).
    pub fru_globally_unique_identifier: [u8; 16],
    /// Bytes 128 to 255, not used here: CRDT1 to MEC.
    pub not_used_128: [u8; 128],
    /// Optional admin command support (OACS).
    pub optional_admin_command_support: U16,
    /// Abort command limit (ACL), less one.
    pub abort_command_limit: u8,
    /// Asynchronous event request limit (AERL), less one.
    pub asynchronous_event_request_limit: u8,
    /// Firmware updates (FRMW).
    pub firmware_updates: u8,
    /// Log page attributes (LPA).
    pub log_page_attributes: u8,
    /// Error log page entries (ELPE), less one.
    pub error_log_page_entries: u8,
    /// Bytes 263 to 319, not used here: NPSS to FWUG.
    pub not_used_263: [u8; 57],
    /// Keep alive support (KAS): granularity of the timeout, units of 100 ms.
    pub keep_alive_support: U16,
    /// Bytes 322 to 511, not used here: HCTMA to CQT.
    pub not_used_322: [u8; 190],
    /// Submission queue entry size (SQES): maximum in bits 7 to 4, minimum in bits 3 to 0, powers of
    /// two.
    pub submission_queue_entry_size: u8,
    /// Completion queue entry size (CQES), in the same way.
    pub completion_queue_entry_size: u8,
    /// Maximum outstanding commands (MAXCMD).
    pub maximum_outstanding_commands: U16,
    /// Number of namespaces (NN).
    pub number_of_namespaces: U32,
    /// Optional NVM command support (ONCS).
    pub optional_nvm_command_support: U16,
    /// Bytes 522 to 535, not used here: FUSES to CDFS.
    pub not_used_522: [u8; 14],
    /// SGL support (SGLS).
    pub sgl_support: U32,
    /// Bytes 540 to 767, not used here: MNAN to MCDQPC.
    pub not_used_540: [u8; 228],
    /// NVM subsystem NVMe qualified name (SUBNQN).
    pub nvm_subsystem_nqn: [u8; NQN_BYTES],
    /// Reserved.
    pub reserved_1024: [u8; 768],
    /// I/O queue command capsule supported size (IOCCSZ), units of 16 bytes.
    pub io_queue_command_capsule_supported_size: U32,
    /// I/O queue response capsule supported size (IORCSZ), units of 16 bytes.
    pub io_queue_response_capsule_supported_size: U32,
    /// In capsule data offset (ICDOFF), units of 16 bytes.
    pub in_capsule_data_offset: U16,
    /// Fabrics controller attributes (FCATT).
    pub fabrics_controller_attributes: u8,
    /// Maximum SGL data block descriptors (MSDBD).
    pub maximum_sgl_data_block_descriptors: u8,
    /// Optional fabrics commands support (OFCS).
    pub optional_fabrics_commands_support: U16,
    /// Discovery controller type (DCTYPE).
    pub discovery_controller_type: u8,
    /// Reserved.
    pub reserved_1807: [u8; 241],
    /// Power state descriptors (PSD0 to PSD31).
    pub power_state_descriptors: [[u8; 32]; 32],
    /// Vendor specific.
    pub vendor_specific: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == 4096);

/// The type of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// I/O.
    Io = 1,
    /// Discovery.
    Discovery = 2,
}

/// The fields of an [`IdentifyController`] in which Spillway's controllers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controller<'a> {
    /// The controller's id.
    pub id: u16,
    /// The type of the controller.
    pub kind: ControllerKind,
    /// The subsystem's serial number, ASCII, up to 20 bytes.
    pub serial: &'a str,
    /// The version of the software, ASCII, up to 8 bytes.
    pub version: &'a str,
    /// Name of the subsystem.
    pub subsystem: &'a str,
    /// The most bytes of data of a command are 4096 << `transfer_shift`; 0 is no limit (MDTS).
    pub transfer_shift: u8,
    /// Asynchronous events that are reported, as in feature 0Bh.
    pub events: u32,
    /// Most outstanding event requests, less one.
    pub event_requests: u8,
    /// Most outstanding commands of a queue.
    pub commands_max: u16,
    /// Highest namespace id, or number of namespaces (NN).
    pub namespaces_max: u32,
    /// Optional block commands, as in ONCS.
    pub block_commands: u16,
    /// Bytes of data in a command's capsule; a multiple of 16.
    pub capsule_data_bytes: u32,
}

/// The granularity of keep alive timeouts, units of 100 ms.
const KEEP_ALIVE_STEPS: u16 = 1;
/// Most outstanding Abort commands.
const ABORTS_MAX: u8 = 4;
/// Bytes of the unit in which sizes of capsules are given.
const CAPSULE_UNIT: u32 = 16;
/// Of CMIC: multiple controllers (MCTRS).
const SEVERAL_CONTROLLERS: u8 = 1 << 1;
/// Of LPA: commands supported and effects support (CSES).
const COMMANDS_LOG: u8 = 1 << 1;
/// Of LPA: log page extended data support (LPEDS), which is offsets in logs.
const LOG_OFFSETS: u8 = 1 << 2;
/// Of SGLS: SGLs are supported, without a requirement on alignment.
const SGL_SUPPORTED: u32 = 1 << 0;
/// Of SGLS: SGL address offset supported (SAOS), for data in the capsule.
const SGL_OFFSETS: u32 = 1 << 20;
/// Of SGLS: transport SGL data block descriptor support (TSDBDS).
const SGL_TRANSPORT: u32 = 1 << 21;

impl<'a> Controller<'a> {
    /// Bits of [`Self::block_commands`].
    pub const COMPARE: u16 = 1 << 0;
    /// Bits of [`Self::block_commands`].
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Bits of [`Self::block_commands`].
    pub const WRITE_ZEROES: u16 = 1 << 3;

    /// Encodes the structure.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut controller = IdentifyController::new_zeroed();
        text(&mut controller.serial_number, self.serial);
        text(&mut controller.model_number, "Spillway");
        text(&mut controller.firmware_revision, self.version);
        controller.multi_path_and_sharing_capabilities = SEVERAL_CONTROLLERS;
        controller.maximum_data_transfer_size = self.transfer_shift;
        controller.controller_id = self.id.into();
        controller.version = VERSION.into();
        controller.optional_asynchronous_events_supported = self.events.into();
        controller.controller_type = self.kind as u8;
        controller.abort_command_limit = ABORTS_MAX - 1;
        controller.asynchronous_event_request_limit = self.event_requests;
        controller.log_page_attributes = COMMANDS_LOG | LOG_OFFSETS;
        controller.keep_alive_support = KEEP_ALIVE_STEPS.into();
        controller.submission_queue_entry_size = 0x66; // 2^6 bytes
        controller.completion_queue_entry_size = 0x44; // 2^4 bytes
        controller.maximum_outstanding_commands = self.commands_max.into();
        controller.number_of_namespaces = self.namespaces_max.into();
        controller.optional_nvm_command_support = self.block_commands.into();
        controller.sgl_support = (SGL_SUPPORTED | SGL_OFFSETS | SGL_TRANSPORT).into();
        put(&mut controller.nvm_subsystem_nqn, 0, self.subsystem.as_bytes());
        let capsule_bytes = COMMAND_BYTES as u32 + self.capsule_data_bytes;
        controller.io_queue_command_capsule_supported_size = (capsule_bytes / CAPSULE_UNIT).into();
        controller.io_queue_response_capsule_supported_size = 1.into();
        controller.maximum_sgl_data_block_descriptors = 1;
        transmute!(controller)
    }

    /// Decodes the structure.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for names that are not UTF-8.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let controller: &IdentifyController = prefix(bytes)?;
        let capsule_units = controller.io_queue_command_capsule_supported_size.get();
        Ok(Self {
            id: controller.controller_id.get(),
            kind: match controller.controller_type {
                2 => ControllerKind::Discovery,
                _ => ControllerKind::Io,
            },
            serial: ascii(&controller.serial_number)?,
            version: ascii(&controller.firmware_revision)?,
            subsystem: decode_nqn(&controller.nvm_subsystem_nqn)
                .ok_or(Error::Field("subsystem NQN"))?,
            transfer_shift: controller.maximum_data_transfer_size,
            events: controller.optional_asynchronous_events_supported.get(),
            event_requests: controller.asynchronous_event_request_limit,
            commands_max: controller.maximum_outstanding_commands.get(),
            namespaces_max: controller.number_of_namespaces.get(),
            block_commands: controller.optional_nvm_command_support.get(),
            capsule_data_bytes: capsule_units
                .saturating_mul(CAPSULE_UNIT)
                .saturating_sub(COMMAND_BYTES as u32),
        })
    }
}

/// Decodes ASCII padded with spaces.
fn ascii(field: &[u8]) -> Result<&str, Error> {
    core::str::from_utf8(field).map(str::trim_end).map_err(|_| Error::Field("text"))
}

/// Fills `field` with ASCII, padded with spaces.
fn text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLER: Controller<'_> = Controller {
        id: 0x0201,
        kind: ControllerKind::Io,
        serial: "0123456789abcdef",
        version: "0.1.0",
        subsystem: "nqn.2026-11.io.spillway:blocks",
        transfer_shift: 8,
        events: 1 << 8,
        event_requests: 3,
        commands_max: 128,
        namespaces_max: 1024,
        block_commands: Controller::COMPARE | Controller::WRITE_ZEROES,
        capsule_data_bytes: 4096,
    };

    /// The test sets all bytes that are not zero.
    #[test]
    fn a_controller_is_laid_out_as_figure_312_says() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[4..24].copy_from_slice(b"0123456789abcdef    ");
        bytes[24..64].fill(b' ');
        bytes[24..32].copy_from_slice(b"Spillway");
        bytes[64..72].copy_from_slice(b"0.1.0   ");
        bytes[76..84].copy_from_slice(&[2, 8, 1, 2, 0, 0, 2, 0]);
        bytes[92..96].copy_from_slice(&[0, 1, 0, 0]);
        bytes[111] = 1;
        bytes[258..262].copy_from_slice(&[3, 3, 0, 6]);
        bytes[320..322].copy_from_slice(&[1, 0]);
        bytes[512..522].copy_from_slice(&[0x66, 0x44, 128, 0, 0, 4, 0, 0, 9, 0]);
        bytes[536..540].copy_from_slice(&[1, 0, 0x30, 0]);
        bytes[768..798].copy_from_slice(b"nqn.2026-11.io.spillway:blocks");
        bytes[1792..1804].copy_from_slice(&[4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(CONTROLLER.encode(), bytes);
        assert_eq!(Controller::decode(&bytes), Ok(CONTROLLER));
    }
}
