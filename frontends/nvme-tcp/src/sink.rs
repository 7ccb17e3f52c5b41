//! Where the data of a command goes that comes after it.

use std::sync::Arc;

use spillway_block::Device;
use spillway_store::LongPut;
use spillway_wire::nvme::Status;

use crate::outcome::{Failure, Outcome, device_failure, stored};

/// Takes a command's data part by part. Only what is short is gathered here: the rest goes on as it comes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Data of at most [`SHORT_BYTES_MAX`].
    Short(Vec<u8>),
    /// To the frames of the store.
    Value(LongPut),
    /// To a block device, from its byte `offset` on.
    Write { device: Arc<dyn Device>, offset: u64 },
    /// Compared with what a block device holds there.
    Compare { device: Arc<dyn Device>, offset: u64 },
}

/// Most bytes of data that are gathered for one command.
pub(crate) const SHORT_BYTES_MAX: u32 = 8 << 10;

/// What is to be done when all data was taken.
pub(crate) enum Taken {
    /// The command is to be carried out with its data.
    Short(Vec<u8>),
    /// It is carried out.
    Done(Outcome),
}

impl Sink {
    /// Bytes that it gathers for a command of `bytes`.
    pub(crate) fn gathers(&self) -> usize {
        match self {
            Self::Short(data) => data.capacity(),
            Self::Value(_) | Self::Write { .. } | Self::Compare { .. } => 0,
        }
    }

    /// Takes the next part, which begins at byte `at` of the command's data.
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

    /// Ends it when all data was taken.
    pub(crate) fn end(self) -> Taken {
        match self {
            Self::Short(data) => Taken::Short(data),
            Self::Value(put) => Taken::Done(stored(put.publish())),
            Self::Write { .. } | Self::Compare { .. } => Taken::Done(Ok(0)),
        }
    }
}
