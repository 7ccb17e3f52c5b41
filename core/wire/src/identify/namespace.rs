//! Namespaces: Identify with CNS 00h, 05h and 08h.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::IDENTIFY_BYTES;
use crate::Error;
use crate::bytes::prefix;

/// LBA format (NVM Command Set 1.0, section 4.1.5.1, figure 98).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata size (MS), bytes.
    pub metadata_size: U16,
    /// LBA data size (LBADS), as a power of two of bytes.
    pub lba_data_size: u8,
    /// Relative performance (RP) in bits 1 and 0.
    pub relative_performance: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

/// Identify namespace of the NVM command set (NVM Command Set 1.0, section 4.1.5.1, figure 97).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace size (NSZE), blocks.
    pub namespace_size: U64,
    /// Namespace capacity (NCAP), blocks.
    pub namespace_capacity: U64,
    /// Namespace utilization (NUSE), blocks.
    pub namespace_utilization: U64,
    /// Namespace features (NSFEAT).
    pub namespace_features: u8,
    /// Number of LBA formats (NLBAF), less one.
    pub number_of_lba_formats: u8,
    /// Formatted LBA size (FLBAS): the LBA format in bits 3 to 0.
    pub formatted_lba_size: u8,
    /// Metadata capabilities (MC).
    pub metadata_capabilities: u8,
    /// End-to-end data protection capabilities (DPC).
    pub data_protection_capabilities: u8,
    /// End-to-end data protection type settings (DPS).
    pub data_protection_type_settings: u8,
    /// Namespace multi-path I/O and namespace sharing capabilities (NMIC).
    pub multi_path_and_sharing_capabilities: u8,
    /// Reservation capabilities (RESCAP).
    pub reservation_capabilities: u8,
    /// Format progress indicator (FPI).
    pub format_progress_indicator: u8,
    /// Deallocate logical block features (DLFEAT).
    pub deallocate_logical_block_features: u8,
    /// Bytes 34 to 63, not used here: NAWUN to NVMCAP.
    pub not_used_34: [u8; 30],
    /// Namespace preferred write granularity (NPWG), blocks less one.
    pub preferred_write_granularity: U16,
    /// Namespace preferred write alignment (NPWA), blocks less one.
    pub preferred_write_alignment: U16,
    /// Namespace preferred deallocate granularity (NPDG), blocks less one.
    pub preferred_deallocate_granularity: U16,
    /// Namespace preferred deallocate alignment (NPDA), blocks less one.
    pub preferred_deallocate_alignment: U16,
    /// Namespace optimal write size (NOWS), blocks less one.
    pub optimal_write_size: U16,
    /// Bytes 74 to 103, not used here: MSSRL to ENDGID.
    pub not_used_74: [u8; 30],
    /// Namespace globally unique identifier (NGUID).
    pub namespace_globally_unique_identifier: [u8; 16],
    /// IEEE extended unique identifier (EUI64).
    pub ieee_extended_unique_identifier: [u8; 8],
    /// LBA formats (LBAF0 to LBAF63).
    pub lba_formats: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor_specific: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == 4096);

/// KV format (Key Value Command Set 1.0, section 4.1.5.1, figure 37).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct KvFormat {
    /// KV key max length, bytes.
    pub key_max_length: U16,
    /// Reserved.
    pub reserved_1: u8,
    /// Additional format options.
    pub additional_format_options: u8,
    /// KV value max length, bytes.
    pub value_max_length: U32,
    /// Max num keys; 0 if no maximum is indicated.
    pub max_num_keys: U32,
    /// Reserved.
    pub reserved_2: [u8; 4],
}

const _: () = assert!(size_of::<KvFormat>() == 16);

/// Identify namespace of the key-value command set (Key Value Command Set 1.0, section 4.1.5.1, figure
/// 36).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct KvIdentifyNamespace {
    /// Namespace size (NSZE), bytes.
    pub namespace_size: U64,
    /// Reserved.
    pub reserved_1: [u8; 8],
    /// Namespace utilization (NUSE), bytes.
    pub namespace_utilization: U64,
    /// Namespace features (NSFEAT): only bit 3 is defined (NGUID and EUI64 are never reused).
    pub namespace_features: u8,
    /// Number of KV formats (NKVF), less one.
    pub number_of_kv_formats: u8,
    /// Bytes 26 to 71, not used here: NMIC to EUI64.
    pub not_used_26: [u8; 46],
    /// KV formats (KVF0 to KVF15).
    pub kv_formats: [KvFormat; 16],
    /// Reserved.
    pub reserved_2: [u8; 3512],
    /// Vendor specific.
    pub vendor_specific: [u8; 256],
}

const _: () = assert!(size_of::<KvIdentifyNamespace>() == 4096);

/// Identify namespace independent of the command set (Base 2.1, section 5.1.13.2.8, figure 319).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndependentIdentifyNamespace {
    /// Common namespace features (NSFEAT): bits 2 to 0 are reserved.
    pub common_namespace_features: u8,
    /// Namespace multi-path I/O and namespace sharing capabilities (NMIC).
    pub multi_path_and_sharing_capabilities: u8,
    /// Reservation capabilities (RESCAP).
    pub reservation_capabilities: u8,
    /// Format progress indicator (FPI).
    pub format_progress_indicator: u8,
    /// ANA group identifier (ANAGRPID).
    pub ana_group_identifier: U32,
    /// Namespace attributes (NSATTR).
    pub namespace_attributes: u8,
    /// Reserved.
    pub reserved: u8,
    /// NVM set identifier (NVMSETID).
    pub nvm_set_identifier: U16,
    /// Endurance group identifier (ENDGID).
    pub endurance_group_identifier: U16,
    /// Namespace status (NSTAT): namespace ready (NRDY) in bit 0.
    pub namespace_status: u8,
    /// Bytes 15 to 4095, not used here.
    pub not_used_15: [u8; 4081],
}

const _: () = assert!(size_of::<IndependentIdentifyNamespace>() == 4096);

/// Of the NVM command set's NSFEAT: thin provisioning (THINP). The other structures reserve this bit.
const THINLY_PROVISIONED: u8 = 1 << 0;
/// Of NSFEAT: NPWG, NPWA, NPDG and NPDA are defined (OPTPERF).
const PREFERRED_SIZES: u8 = 1 << 4;
/// Of NMIC: shared namespace (SHRNS). Several controllers may be attached to it.
const SHARED: u8 = 1 << 0;
/// Of DLFEAT: deallocated blocks read as zeros.
const READS_ZEROS: u8 = 1 << 0;
/// Of DLFEAT: Write Zeroes may deallocate.
const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
/// Of NSTAT: namespace ready (NRDY).
const READY: u8 = 1 << 0;

/// A block namespace, an [`IdentifyNamespace`]. Its blocks read as zeros after Deallocate. Write Zeroes may deallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNamespace {
    /// Length, blocks.
    pub blocks: u64,
    /// Blocks that take memory.
    pub used_blocks: u64,
    /// log2 of the bytes of a block.
    pub block_shift: u8,
}

impl BlockNamespace {
    /// Encodes the structure.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.namespace_size = self.blocks.into();
        namespace.namespace_capacity = self.blocks.into();
        namespace.namespace_utilization = self.used_blocks.into();
        namespace.namespace_features = THINLY_PROVISIONED | PREFERRED_SIZES;
        namespace.multi_path_and_sharing_capabilities = SHARED;
        namespace.deallocate_logical_block_features = READS_ZEROS | WRITE_ZEROES_DEALLOCATES;
        // The preferred size is a page.
        let page = (4096u32 >> self.block_shift).saturating_sub(1) as u16;
        namespace.preferred_write_granularity = page.into();
        namespace.preferred_write_alignment = page.into();
        namespace.preferred_deallocate_granularity = page.into();
        namespace.preferred_deallocate_alignment = page.into();
        namespace.lba_formats[0].lba_data_size = self.block_shift;
        transmute!(namespace)
    }

    /// Decodes the structure.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for a block of more than 64 KiB or less than 512 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let namespace: &IdentifyNamespace = prefix(bytes)?;
        let format = usize::from(namespace.formatted_lba_size & 0xf);
        let block_shift = namespace.lba_formats[format].lba_data_size;
        if !(9..=16).contains(&block_shift) {
            return Err(Error::Field("block size"));
        }
        Ok(Self {
            blocks: namespace.namespace_size.get(),
            used_blocks: namespace.namespace_utilization.get(),
            block_shift,
        })
    }
}

/// A pool as a key-value namespace, a [`KvIdentifyNamespace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolNamespace {
    /// Bytes that the pool may hold; 2^64 - 1 without a limit.
    pub bytes: u64,
    /// Bytes that the pool holds.
    pub used_bytes: u64,
    /// Longest value, bytes.
    pub value_bytes_max: u32,
}

impl PoolNamespace {
    /// Encodes the structure.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut namespace = KvIdentifyNamespace::new_zeroed();
        namespace.namespace_size = self.bytes.into();
        namespace.namespace_utilization = self.used_bytes.into();
        // One format, of any number of keys.
        namespace.kv_formats[0].key_max_length = u16::from(crate::kv::KEY_BYTES).into();
        namespace.kv_formats[0].value_max_length = self.value_bytes_max.into();
        transmute!(namespace)
    }

    /// Decodes the structure.
    ///
    /// # Errors
    /// [`Error::Short`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let namespace: &KvIdentifyNamespace = prefix(bytes)?;
        Ok(Self {
            bytes: namespace.namespace_size.get(),
            used_bytes: namespace.namespace_utilization.get(),
            value_bytes_max: namespace.kv_formats[0].value_max_length.get(),
        })
    }
}

/// The structure of a namespace of any command set: it is ready, and several controllers may be attached if `shared`.
pub fn namespace_of_any(shared: bool) -> [u8; IDENTIFY_BYTES] {
    let mut namespace = IndependentIdentifyNamespace::new_zeroed();
    namespace.multi_path_and_sharing_capabilities = if shared { SHARED } else { 0 };
    namespace.namespace_status = READY;
    transmute!(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test sets all bytes that are not zero.
    #[test]
    fn a_block_namespace_is_laid_out_as_figure_97_says() {
        let namespace = BlockNamespace {
            blocks: 0x0807_0605_0403_0201,
            used_blocks: 0x1817_1615_1413_1211,
            block_shift: 9,
        };
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[16..24].copy_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        bytes[24] = 0x11;
        bytes[30] = 1;
        bytes[33] = 9;
        bytes[64..72].copy_from_slice(&[7, 0, 7, 0, 7, 0, 7, 0]);
        bytes[130] = 9;
        assert_eq!(namespace.encode(), bytes);
        assert_eq!(BlockNamespace::decode(&bytes), Ok(namespace));
        bytes[26] = 3;
        bytes[142] = 12;
        assert_eq!(
            BlockNamespace::decode(&bytes),
            Ok(BlockNamespace { block_shift: 12, ..namespace }),
            "the format that FLBAS names"
        );
    }

    /// The test sets all bytes that are not zero. Byte 24 (NSFEAT) is zero: bits 7 to 4 and 2 to 0 are reserved, and bit 3
    /// is for namespaces with an NGUID or EUI64.
    #[test]
    fn a_pool_is_laid_out_as_figures_36_and_37_say() {
        let pool = PoolNamespace {
            bytes: 0x0807_0605_0403_0201,
            used_bytes: 0x1817_1615_1413_1211,
            value_bytes_max: 0x2423_2221,
        };
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[16..24].copy_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        bytes[72..80].copy_from_slice(&[12, 0, 0, 0, 0x21, 0x22, 0x23, 0x24]);
        assert_eq!(pool.encode(), bytes);
        assert_eq!(PoolNamespace::decode(&bytes), Ok(pool));
    }

    /// The test sets all bytes that are not zero. Byte 0 (NSFEAT) is zero: bits 2 to 0 are reserved.
    #[test]
    fn a_namespace_of_any_set_is_laid_out_as_figure_319_says() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[1] = 1;
        bytes[14] = 1;
        assert_eq!(namespace_of_any(true), bytes);
        bytes[1] = 0;
        assert_eq!(namespace_of_any(false), bytes);
    }
}
