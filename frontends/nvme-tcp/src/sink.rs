//! Where the data of a command goes if it follows the command.

use std::sync::Arc;

use spillway_block::Device;
use spillway_store::LongPut;
use spillway_wire::nvme::Status;

use crate::outcome::{Failure, Outcome, device_failure, stored};

/// Takes a command's data in parts. Short data is collected; longer data is passed on as it arrives.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Data of at most [`SHORT_BYTES_MAX`].
    Short(Vec<u8>),
    /// Into frames of the store.
    Value(LongPut),
    /// Into a block device, from its byte `offset` on.
    Write { device: Arc<dyn Device>, offset: u64 },
    /// Compared with a block device's bytes, from its byte `offset` on.
    Compare { device: Arc<dyn Device>, offset: u64 },
}

/// Most bytes of data that are collected for one command.
pub(crate) const SHORT_BYTES_MAX: u32 = 8 << 10;

/// What follows when all data was taken.
pub(crate) enum Taken {
    /// The command is executed with its data.
    Short(Vec<u8>),
    /// The command has ended.
    Done(Outcome),
}

impl Sink {
    /// Bytes that it collects.
    pub(crate) fn gathers(&self) -> usize {
        match self {
            Self::Short(data) => data.capacity(),
            Self::Value(_) | Self::Write { .. } | Self::Compare { .. } => 0,
        }
    }

    /// Takes the next part, which starts at byte `at` of the command's data.
    pub(crate) fn take(&mut self, at: u32, part: &[u8]) -> Result<(), Failure> {
        let at = u64::from(at);
        match self {
            Self::Short(data) => data.extend_from_slice(part),
            Self::Value(put) => put.push(part),
            Self::Write { device, offset } => {
                device.write(*offset + at, part).map_err(device_failure)?;
            }
            Self::Compare { device, offset } => {
                if !device.compare(*offset + at, part).map_err(device_failure)? {
                    return Err(Status::COMPARE_FAILURE.finally().into());
                }
            }
        }
        Ok(())
    }

    /// Ends the sink after the last part.
    pub(crate) fn end(self) -> Taken {
        match self {
            Self::Short(data) => Taken::Short(data),
            Self::Value(put) => Taken::Done(stored(put.publish())),
            Self::Write { .. } | Self::Compare { .. } => Taken::Done(Ok(0)),
        }
    }
}
