//! The health log page.

use zerocopy::little_endian::{U16, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// SMART / health information log page (Base 2.1, section 5.1.12.1.3, figure 206).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HealthLogPage {
    /// Critical warning (CW).
    pub critical_warning: u8,
    /// Composite temperature (CTEMP), kelvins.
    pub composite_temperature: U16,
    /// Available spare (AVSP), %.
    pub available_spare: u8,
    /// Available spare threshold (AVSPT), %.
    pub available_spare_threshold: u8,
    /// Percentage used (PUSED).
    pub percentage_used: u8,
    /// Endurance group critical warning summary (EGCWS).
    pub endurance_group_critical_warning_summary: u8,
    /// Reserved.
    pub reserved_7: [u8; 25],
    /// Data units read (DUR), thousands of 512 bytes, rounded up; 0 if it is not reported.
    pub data_units_read: U128,
    /// Data units written (DUW), in the same way.
    pub data_units_written: U128,
    /// Host read commands (HRC).
    pub host_read_commands: U128,
    /// Host write commands (HWC).
    pub host_write_commands: U128,
    /// Controller busy time (CBT), minutes.
    pub controller_busy_time: U128,
    /// Power cycles (PWRC).
    pub power_cycles: U128,
    /// Power on hours (POH).
    pub power_on_hours: U128,
    /// Bytes 144 to 511, not used here.
    pub not_used_144: [u8; 368],
}

const _: () = assert!(size_of::<HealthLogPage>() == 512);

/// Bytes of the health log and of the firmware log.
pub const HEALTH_BYTES: usize = size_of::<HealthLogPage>();

/// The fields of a [`HealthLogPage`] that change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Commands that read.
    pub reads: u64,
    /// Bytes that they read; 0 if this is not counted.
    pub read_bytes: u64,
    /// Commands that write.
    pub writes: u64,
    /// Bytes that they wrote; 0 if this is not counted.
    pub written_bytes: u64,
    /// Hours since the target started.
    pub hours: u64,
}

/// 25 °C, kelvins. Memory has no sensor of its own. Hosts show 0 kelvins as -273 °C, and some warn of it.
const TEMPERATURE: u16 = 298;
/// Bytes of a data unit: a thousand of 512.
const DATA_UNIT_BYTES: u64 = 512_000;

impl Health {
    /// Encodes the log page. Memory does not wear out, so it reports full health.
    pub fn encode(&self) -> [u8; HEALTH_BYTES] {
        let count = |count: u64| U128::from(u128::from(count));
        let mut log = HealthLogPage::new_zeroed();
        log.composite_temperature = TEMPERATURE.into();
        log.available_spare = 100;
        log.data_units_read = count(self.read_bytes.div_ceil(DATA_UNIT_BYTES));
        log.data_units_written = count(self.written_bytes.div_ceil(DATA_UNIT_BYTES));
        log.host_read_commands = count(self.reads);
        log.host_write_commands = count(self.writes);
        log.power_cycles = count(1);
        log.power_on_hours = count(self.hours);
        transmute!(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test sets all bytes that are not zero.
    #[test]
    fn health_is_laid_out_as_figure_206_says() {
        let mut bytes = [0; HEALTH_BYTES];
        bytes[1..4].copy_from_slice(&[0x2a, 1, 100]);
        bytes[112] = 1;
        assert_eq!(Health::default().encode(), bytes);
        let health = Health {
            reads: 0x0102_0304_0506_0708,
            read_bytes: 0x0201 * 512_000,
            writes: 0x0403,
            written_bytes: 1,
            hours: 0x0605,
        };
        bytes[32..34].copy_from_slice(&[1, 2]);
        bytes[48] = 1;
        bytes[64..72].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        bytes[80..82].copy_from_slice(&[3, 4]);
        bytes[128..130].copy_from_slice(&[5, 6]);
        assert_eq!(health.encode(), bytes);
    }

    #[test]
    fn data_units_are_rounded_up() {
        for (bytes, units) in [(0, 0), (1, 1), (512_000, 1), (512_001, 2), (1_536_000, 3)] {
            let log = Health { read_bytes: bytes, ..Health::default() }.encode();
            assert_eq!(log[32], units, "{bytes} bytes");
        }
    }
}
