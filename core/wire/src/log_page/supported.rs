//! The log pages that say what a controller supports: its log pages, features and commands.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// Supported log pages log page (Base 2.1, section 5.1.12.1.1, figures 203 and 204).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SupportedLogPages {
    /// Log page identifiers supported (LIDS0 to LIDS255).
    pub log_page_identifiers_supported: [U32; 256],
}

const _: () = assert!(size_of::<SupportedLogPages>() == 1024);

/// Feature identifiers supported and effects log page (Base 2.1, section 5.1.12.1.18, figures 261 and 262).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FeaturesLogPage {
    /// Feature identifiers supported (FIS0 to FIS255).
    pub feature_identifiers_supported: [U32; 256],
}

const _: () = assert!(size_of::<FeaturesLogPage>() == 1024);

/// Commands supported and effects log page (Base 2.1, section 5.1.12.1.6, figures 209 and 210).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandsLogPage {
    /// Admin commands supported (ACS0 to ACS255), by opcode.
    pub admin_commands_supported: [U32; 256],
    /// I/O commands supported (IOCS0 to IOCS255), by opcode.
    pub io_commands_supported: [U32; 256],
    /// Reserved.
    pub reserved: [u8; 2048],
}

const _: () = assert!(size_of::<CommandsLogPage>() == 4096);

/// Bytes of the log of log pages, and of the log of features.
pub const SUPPORTED_BYTES: usize = size_of::<SupportedLogPages>();

/// Bytes of the log of commands.
pub const COMMANDS_BYTES: usize = size_of::<CommandsLogPage>();

/// The log of log pages, by identifier.
pub fn supported(logs: &[u8]) -> [u8; SUPPORTED_BYTES] {
    /// LID supported (LSUPP).
    const SUPPORTED: u32 = 1 << 0;
    let mut log = SupportedLogPages::new_zeroed();
    for &identifier in logs {
        log.log_page_identifiers_supported[usize::from(identifier)] = SUPPORTED.into();
    }
    transmute!(log)
}

/// The log of features, by identifier. To set one affects this controller alone.
pub fn features(identifiers: &[u8]) -> [u8; SUPPORTED_BYTES] {
    /// FID supported (FSUPP).
    const SUPPORTED: u32 = 1 << 0;
    /// Controller scope (CSCPE), bit 1 of the FID scope (FSP).
    const CONTROLLER_SCOPE: u32 = 1 << 21;
    let mut log = FeaturesLogPage::new_zeroed();
    for &identifier in identifiers {
        log.feature_identifiers_supported[usize::from(identifier)] =
            (SUPPORTED | CONTROLLER_SCOPE).into();
    }
    transmute!(log)
}

/// The log of commands: the opcodes of the admin queue and of I/O queues. `true` marks commands that
/// change stored data.
pub fn commands(admin: &[u8], io: &[(u8, bool)]) -> [u8; COMMANDS_BYTES] {
    /// Command supported (CSUPP).
    const SUPPORTED: u32 = 1 << 0;
    /// Logical block content change (LBCC).
    const CHANGES: u32 = 1 << 1;
    let mut log = CommandsLogPage::new_zeroed();
    for &opcode in admin {
        log.admin_commands_supported[usize::from(opcode)] = SUPPORTED.into();
    }
    for &(opcode, changes) in io {
        let effects = SUPPORTED | if changes { CHANGES } else { 0 };
        log.io_commands_supported[usize::from(opcode)] = effects.into();
    }
    transmute!(log)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::admin;

    /// The test sets all bytes that are not zero.
    #[test]
    fn log_pages_are_laid_out_as_figures_203_and_204_say() {
        let mut bytes = [0; SUPPORTED_BYTES];
        bytes[0] = 1;
        bytes[8] = 1;
        bytes[1020] = 1;
        assert_eq!(supported(&[0, 2, 0xff]), bytes);
    }

    /// The test sets all bytes that are not zero.
    #[test]
    fn features_are_laid_out_as_figures_261_and_262_say() {
        let mut bytes = [0; SUPPORTED_BYTES];
        bytes[0x07 * 4..][..4].copy_from_slice(&[1, 0, 0x20, 0]);
        bytes[0xff * 4..].copy_from_slice(&[1, 0, 0x20, 0]);
        assert_eq!(features(&[0x07, 0xff]), bytes);
    }

    #[test]
    fn the_log_of_commands_has_two_halves() {
        let bytes = commands(&[admin::IDENTIFY], &[(0x01, true), (0x02, false)]);
        assert_eq!(bytes[24], 1);
        assert_eq!((bytes[1028], bytes[1032]), (3, 1));
    }
}
