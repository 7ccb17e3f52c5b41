//! Properties of a controller (Base 2.1, section 3.1.4). Hosts access them by Property Get and Property Set.

/// Offsets of properties (figure 33).
pub mod property {
    /// Controller capabilities, 8 bytes: [`super::ControllerCapabilities`].
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes: [`super::VERSION`].
    pub const VS: u32 = 0x08;
    /// Controller configuration, 4 bytes: [`super::ControllerConfiguration`].
    pub const CC: u32 = 0x14;
    /// Controller status, 4 bytes: [`super::ControllerStatus`].
    pub const CSTS: u32 = 0x1c;
    /// NVM subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Controller ready timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// The version of NVMe, as in the property VS (section 3.1.4.2, figure 37): 2.0.
pub const VERSION: u32 = 0x0002_0000;

/// The property CAP, controller capabilities (section 3.1.4.1, figure 36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerCapabilities {
    /// Maximum queue entries supported (MQES, bits 15 to 0), less one.
    pub maximum_queue_entries_supported: u16,
    /// Contiguous queues required (CQR, bit 16).
    pub contiguous_queues_required: bool,
    /// Timeout (TO, bits 31 to 24), units of 500 ms.
    pub timeout: u8,
    /// Command sets supported (CSS, bits 44 to 37).
    pub command_sets_supported: u8,
}

impl ControllerCapabilities {
    /// Of [`Self::command_sets_supported`]: NVM command set support (NCSS).
    pub const NVM_COMMAND_SET: u8 = 1 << 0;
    /// Of [`Self::command_sets_supported`]: I/O command set support (IOCSS), of sets that the host
    /// finds by Identify.
    pub const IO_COMMAND_SETS: u8 = 1 << 6;

    /// The property's value.
    pub const fn encode(self) -> u64 {
        self.maximum_queue_entries_supported as u64
            | (self.contiguous_queues_required as u64) << 16
            | (self.timeout as u64) << 24
            | (self.command_sets_supported as u64) << 37
    }
}

/// The property CC, controller configuration (section 3.1.4.5, figure 41).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerConfiguration(pub u32);

impl ControllerConfiguration {
    /// Enable (EN).
    const ENABLE: u32 = 1 << 0;
    /// I/O command set selected (CSS): all that the controller supports.
    const ALL_COMMAND_SETS: u32 = 0b110 << 4;
    /// Shutdown notification (SHN).
    const SHUTDOWN_NOTIFICATION: u32 = 0b11 << 14;
    /// I/O submission queue entry size (IOSQES), as a power of two.
    const SUBMISSION_ENTRY_SIZE: u32 = 6 << 16;
    /// I/O completion queue entry size (IOCQES), as a power of two.
    const COMPLETION_ENTRY_SIZE: u32 = 4 << 20;

    /// The value that enables a controller with all its command sets.
    pub const ENABLED: Self = Self(
        Self::ENABLE
            | Self::ALL_COMMAND_SETS
            | Self::SUBMISSION_ENTRY_SIZE
            | Self::COMPLETION_ENTRY_SIZE,
    );

    /// Whether EN is set.
    pub const fn is_enabled(self) -> bool {
        self.0 & Self::ENABLE != 0
    }

    /// Whether SHN announces a shutdown, normal or abrupt.
    pub const fn is_shutdown(self) -> bool {
        self.0 & Self::SHUTDOWN_NOTIFICATION != 0
    }
}

/// The property CSTS, controller status (section 3.1.4.6, figure 42).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// Ready (RDY).
    pub const READY: u32 = 1 << 0;
    /// Controller fatal status (CFS).
    pub const FATAL: u32 = 1 << 1;
    /// Shutdown status (SHST): complete.
    pub const SHUTDOWN_COMPLETE: u32 = 0b10 << 2;

    /// Whether RDY is set.
    pub const fn is_ready(self) -> bool {
        self.0 & Self::READY != 0
    }

    /// Whether CFS is set.
    pub const fn is_fatal(self) -> bool {
        self.0 & Self::FATAL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_laid_out_as_figure_36_says() {
        let capabilities = ControllerCapabilities {
            maximum_queue_entries_supported: 127,
            contiguous_queues_required: true,
            timeout: 20,
            command_sets_supported: ControllerCapabilities::NVM_COMMAND_SET,
        };
        assert_eq!(capabilities.encode(), 0x0020_1401_007f);
        let sets = ControllerCapabilities::IO_COMMAND_SETS;
        let capabilities = ControllerCapabilities { command_sets_supported: sets, ..capabilities };
        assert_eq!(capabilities.encode(), 0x0800_1401_007f);
    }

    #[test]
    fn configuration_and_status_are_laid_out_as_figures_41_and_42_say() {
        assert_eq!(ControllerConfiguration::ENABLED.0, 0x0046_0061);
        assert!(ControllerConfiguration::ENABLED.is_enabled());
        assert!(!ControllerConfiguration::ENABLED.is_shutdown());
        assert!(ControllerConfiguration(0x0046_4061).is_shutdown());
        assert!(ControllerStatus(1).is_ready() && !ControllerStatus(1).is_fatal());
        assert!(ControllerStatus(2).is_fatal() && !ControllerStatus(2).is_ready());
    }
}
