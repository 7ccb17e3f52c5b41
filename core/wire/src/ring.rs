//! The local ring: the layout of the shared region, and the messages that set it up.
//!
//! The region has a page of control words, the submission queue, the completion queue and the data
//! area. The queues hold NVMe commands and completions. A command's data pointer is a data block with
//! an offset into the data area. docs/ring.md describes the whole protocol.

use core::num::NonZeroU32;

use crate::Error;
use crate::bytes::{array_at, head, put, u16_at, u32_at, u64_at};
use crate::nvme::{COMMAND_BYTES, COMPLETION_BYTES, DataPointer};

/// The version of hello, welcome and region.
pub const VERSION: u16 = 1;
/// The version in the hello of a program in a guest that finds its window anywhere in the file ([`Welcome::Part`]).
/// Agents ignore versions that they do not know.
pub const PART_VERSION: u16 = 2;
/// Most commands in flight on one ring.
pub const DEPTH_MAX: u16 = 256;
/// Largest data area, bytes: a value of the greatest length, and a page for each command.
pub const DATA_BYTES_MAX: u32 = (16 << 20) + (DEPTH_MAX as u32) * PAGE;
/// The byte that wakes the other side. It is a message of one byte on the socket.
pub const WAKE: u8 = b'!';

/// Bytes of a piece of a guest's window: a huge page, which is contiguous in the guest's memory.
pub const WINDOW_PAGE_BYTES: usize = 2 << 20;
/// Most huge pages of a window: enough for a ring for values of the greatest length.
pub const WINDOW_PAGES_MAX: usize = 9;

const PAGE: u32 = 4096;
const HELLO_MAGIC: [u8; 8] = *b"spillrng";

/// Offsets of the control words from the start of the region. Each is a 32-bit word on a cache line of
/// its own.
pub mod control {
    /// The doorbell: the total number of commands that the client has submitted. It wraps at 2^32. Only the
    /// client writes it.
    pub const SUBMITTED: usize = 0x00;
    /// 1 while the server sleeps and needs a wake-up. The server sets it, the client clears it.
    pub const SERVER_ASLEEP: usize = 0x40;
    /// 1 while the client sleeps and needs a wake-up. The client sets it, the server clears it.
    pub const CLIENT_ASLEEP: usize = 0x80;
    /// In a window on a guest's device: the 64-bit number by which the host recognizes that the agent and it have the same
    /// memory. The agent writes it before it asks the host, and clears it before a program gets the window.
    pub const PROOF: usize = 0xc0;
}

/// The sizes of a ring. They determine all offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    depth: u16,
    data_bytes: u32,
}

impl Geometry {
    /// Smallest data area, bytes: the longest answer that is no value.
    pub const DATA_BYTES_MIN: u32 = PAGE;

    /// A ring of `depth` commands and a data area of `data_bytes`.
    ///
    /// # Errors
    /// [`Error::Field`] unless the depth is a power of two of at most [`DEPTH_MAX`], and the data area has
    /// whole pages of 4 KiB, at least one and at most [`DATA_BYTES_MAX`].
    pub const fn new(depth: u16, data_bytes: u32) -> Result<Self, Error> {
        if !depth.is_power_of_two() || depth > DEPTH_MAX {
            return Err(Error::Field("ring depth"));
        }
        let whole = data_bytes.is_multiple_of(PAGE);
        if !whole || data_bytes < Self::DATA_BYTES_MIN || data_bytes > DATA_BYTES_MAX {
            return Err(Error::Field("ring data area"));
        }
        Ok(Self { depth, data_bytes })
    }

    /// Most commands in flight: the entries of each queue.
    pub const fn depth(&self) -> u16 {
        self.depth
    }

    /// Bytes of the data area.
    pub const fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// The offset of command number `count` in the region.
    pub const fn command_at(&self, count: u32) -> usize {
        PAGE as usize + (count & (self.depth as u32 - 1)) as usize * COMMAND_BYTES
    }

    /// The offset of completion number `count` in the region.
    pub const fn completion_at(&self, count: u32) -> usize {
        let queue = self.command_at(0) + self.depth as usize * COMMAND_BYTES;
        queue.next_multiple_of(PAGE as usize)
            + (count & (self.depth as u32 - 1)) as usize * COMPLETION_BYTES
    }

    /// The phase of completion number `count`: true in the first round, so that zeroed memory is no
    /// completion.
    pub const fn phase(&self, count: u32) -> bool {
        count & self.depth as u32 == 0
    }

    /// The offset of the data area in the region.
    pub const fn data_at(&self) -> usize {
        let queue = self.completion_at(0) + self.depth as usize * COMPLETION_BYTES;
        queue.next_multiple_of(PAGE as usize)
    }

    /// Bytes of the region.
    pub const fn region_bytes(&self) -> usize {
        self.data_at() + self.data_bytes as usize
    }

    /// Huge pages that a window of a guest needs for the region.
    pub const fn window_pages(&self) -> usize {
        self.region_bytes().div_ceil(WINDOW_PAGE_BYTES)
    }

    /// The ring of this depth that fills a window of `window_pages` huge pages.
    ///
    /// # Errors
    /// As for [`Self::new`]. A window without pages is too small.
    pub const fn filling(depth: u16, window_pages: usize) -> Result<Self, Error> {
        let least = match Self::new(depth, Self::DATA_BYTES_MIN) {
            Ok(least) => least,
            Err(error) => return Err(error),
        };
        let window_bytes = window_pages.saturating_mul(WINDOW_PAGE_BYTES);
        let data_bytes = window_bytes.saturating_sub(least.data_at());
        let most = DATA_BYTES_MAX as usize;
        Self::new(depth, if data_bytes < most { data_bytes as u32 } else { DATA_BYTES_MAX })
    }

    /// Whether `data` lies in the data area.
    pub const fn holds(&self, data: &DataPointer) -> bool {
        data.address <= self.data_bytes as u64
            && data.bytes as u64 <= self.data_bytes as u64 - data.address
    }
}

/// A data pointer to `bytes` bytes at an offset of the data area.
pub const fn data(offset: u32, bytes: u32) -> DataPointer {
    DataPointer { address: offset as u64, bytes, kind: DataPointer::IN_CAPSULE }
}

/// The client's first message, and the only one besides wake-ups: its version, and the sizes that it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`], or to a guest's agent [`PART_VERSION`].
    pub version: u16,
    /// The wanted depth.
    pub depth: u16,
    /// The wanted bytes of the data area.
    pub data_bytes: u32,
}

impl Hello {
    /// The length of the encoded message, bytes.
    pub const BYTES: usize = 16;

    /// Decodes the message.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] if the message is no hello.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::BYTES] = head(bytes)?;
        if array_at(bytes, 0) != HELLO_MAGIC {
            return Err(Error::Field("ring hello"));
        }
        Ok(Self {
            version: u16_at(bytes, 8),
            depth: u16_at(bytes, 10),
            data_bytes: u32_at(bytes, 12),
        })
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &HELLO_MAGIC);
        put(&mut bytes, 8, &self.version.to_le_bytes());
        put(&mut bytes, 10, &self.depth.to_le_bytes());
        put(&mut bytes, 12, &self.data_bytes.to_le_bytes());
        bytes
    }
}

/// The server's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// The client gets a ring. The file descriptor of the region comes with this message.
    Granted {
        /// The sizes of the ring.
        geometry: Geometry,
        /// The server's random number. Two rings with the same number lead to the same store.
        instance: u64,
    },
    /// As [`Self::Granted`], but the region does not lie at the start of the file: a window in a part of a guest's device.
    Part {
        /// The sizes of the ring.
        geometry: Geometry,
        /// The server's random number.
        instance: u64,
        /// Where in the file the region starts, in huge pages.
        first: NonZeroU32,
    },
    /// The client gets no ring.
    Refused(Reason),
}

/// The reason why a client gets no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// The server has [`VERSION`], and the client another version.
    Version = 1,
    /// No client is configured for the peer's credentials.
    Unknown = 2,
    /// The client or the server has its largest number of connections.
    Connections = 3,
    /// The client's other rings use up its limit of operations or bytes in flight.
    Limits = 4,
    /// The server could not make a ring.
    Failed = 5,
    /// In a guest: there is no huge page for a window, or the user has reached its limit of them.
    NoPages = 6,
    /// In a guest: the host serves no windows to it.
    NoWindows = 7,
    /// In a guest: the host is absent, or does not answer.
    HostAway = 8,
}

impl Reason {
    /// The text for a user.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Version => "it speaks another version of the ring",
            Self::Unknown => "no client is configured for this user",
            Self::Connections => "there are as many connections as there may be",
            Self::Limits => "this client's other connections use up its limits",
            Self::Failed => "it has no memory or no threads left; see its log",
            Self::NoPages => "the guest has no huge page for a window; see the agent's log",
            Self::NoWindows => "the host serves no windows to this guest; see the agent's log",
            Self::HostAway => "the host is not there, or serves no windows to this guest",
        }
    }

    /// The reason with this number, if there is one.
    pub const fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Version,
            2 => Self::Unknown,
            3 => Self::Connections,
            4 => Self::Limits,
            5 => Self::Failed,
            6 => Self::NoPages,
            7 => Self::NoWindows,
            8 => Self::HostAway,
            _ => return None,
        })
    }
}

impl Welcome {
    /// The length of the encoded message, bytes.
    pub const BYTES: usize = 32;

    /// Decodes the message.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] if the message is no welcome.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::BYTES] = head(bytes)?;
        if array_at(bytes, 0) != HELLO_MAGIC {
            return Err(Error::Field("ring welcome"));
        }
        match u16_at(bytes, 10) {
            0 if u16_at(bytes, 8) == VERSION => {
                let geometry = Geometry::new(u16_at(bytes, 12), u32_at(bytes, 16))?;
                let instance = u64_at(bytes, 24);
                Ok(match NonZeroU32::new(u32_at(bytes, 20)) {
                    None => Self::Granted { geometry, instance },
                    Some(first) => Self::Part { geometry, instance, first },
                })
            }
            0 => Err(Error::Field("ring version")),
            number => {
                Reason::of(number).map(Self::Refused).ok_or(Error::Field("reason of a refusal"))
            }
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &HELLO_MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        match self {
            Self::Granted { geometry, instance } | Self::Part { geometry, instance, .. } => {
                put(&mut bytes, 12, &geometry.depth.to_le_bytes());
                put(&mut bytes, 16, &geometry.data_bytes.to_le_bytes());
                put(&mut bytes, 24, &instance.to_le_bytes());
            }
            Self::Refused(reason) => put(&mut bytes, 10, &(*reason as u16).to_le_bytes()),
        }
        if let Self::Part { first, .. } = self {
            put(&mut bytes, 20, &first.get().to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_region_do_not_overlap() {
        const { assert!(control::CLIENT_ASLEEP + 4 <= control::PROOF) };
        for depth in [1, 2, 64, DEPTH_MAX] {
            for data_bytes in [PAGE, 64 * PAGE, DATA_BYTES_MAX] {
                let ring = Geometry::new(depth, data_bytes).unwrap();
                let depth = u32::from(depth);
                assert!(control::PROOF + 8 <= ring.command_at(0));
                assert!(ring.command_at(depth - 1) + COMMAND_BYTES <= ring.completion_at(0));
                assert!(ring.completion_at(depth - 1) + COMPLETION_BYTES <= ring.data_at());
                assert_eq!(ring.data_at() + data_bytes as usize, ring.region_bytes());
                assert_eq!(ring.command_at(depth), ring.command_at(0));
                // The counts wrap at 2^32, a multiple of the depth.
                assert_eq!(ring.command_at(u32::MAX), ring.command_at(depth - 1));
                assert_eq!(ring.phase(u32::MAX), ring.phase(2 * depth - 1));
                assert!(ring.phase(0) && !ring.phase(depth) && ring.phase(2 * depth));
            }
        }
    }

    #[test]
    fn sizes_that_make_no_ring_are_refused() {
        for (depth, data_bytes) in [
            (0, PAGE),
            (3, PAGE),
            (2 * DEPTH_MAX, PAGE),
            (64, 0),
            (64, PAGE + 1),
            (64, DATA_BYTES_MAX + PAGE),
        ] {
            assert!(Geometry::new(depth, data_bytes).is_err(), "{depth} {data_bytes}");
        }
    }

    #[test]
    fn a_ring_fills_the_window_that_it_is_made_for() {
        for pages in 1..=WINDOW_PAGES_MAX {
            let ring = Geometry::filling(64, pages).unwrap();
            assert_eq!(ring.window_pages(), pages);
            let full = ring.region_bytes() == pages * WINDOW_PAGE_BYTES;
            assert!(full || ring.data_bytes() == DATA_BYTES_MAX, "{pages}: {ring:?}");
        }
        assert!(Geometry::filling(64, 0).is_err() && Geometry::filling(3, 1).is_err());
        assert_eq!(
            Geometry::new(DEPTH_MAX, DATA_BYTES_MAX).unwrap().window_pages(),
            WINDOW_PAGES_MAX
        );
    }

    #[test]
    fn data_stays_in_the_data_area() {
        let ring = Geometry::new(1, 2 * PAGE).unwrap();
        for (offset, bytes) in [(0, 0), (0, 2 * PAGE), (2 * PAGE, 0), (PAGE, PAGE)] {
            assert!(ring.holds(&data(offset, bytes)), "{offset} {bytes}");
        }
        for (address, bytes) in [
            (0, 2 * PAGE + 1),
            (1, 2 * PAGE),
            (u64::from(2 * PAGE) + 1, 0),
            (u64::MAX, 1),
            (u64::MAX, u32::MAX),
        ] {
            assert!(!ring.holds(&DataPointer { address, bytes, kind: 1 }), "{address} {bytes}");
        }
    }

    #[test]
    fn hello_and_welcome_come_back() {
        let hello = Hello { version: VERSION, depth: 64, data_bytes: 1 << 20 };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        assert!(Hello::decode(&hello.encode()[1..]).is_err() && Hello::decode(&[0; 16]).is_err());
        let geometry = Geometry::new(64, 1 << 20).unwrap();
        let granted = Welcome::Granted { geometry, instance: 7 << 40 };
        assert_eq!(Welcome::decode(&granted.encode()), Ok(granted));
        let first = NonZeroU32::new(0x0102_0304).unwrap();
        let part = Welcome::Part { geometry, instance: 7 << 40, first };
        assert_eq!(Welcome::decode(&part.encode()), Ok(part));
        for reason in [
            Reason::Version,
            Reason::Unknown,
            Reason::Connections,
            Reason::Limits,
            Reason::Failed,
            Reason::NoPages,
            Reason::NoWindows,
            Reason::HostAway,
        ] {
            let refused = Welcome::Refused(reason);
            assert_eq!(Welcome::decode(&refused.encode()), Ok(refused));
        }
        let mut wrong = granted.encode();
        wrong[12] = 3;
        assert!(Welcome::decode(&wrong).is_err());
    }
}
