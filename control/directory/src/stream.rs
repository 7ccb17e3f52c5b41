//! The stream format for moving a client from one daemon to another.
//!
//! It begins with `SPILLWAY` and a four-byte version. Frames follow, the last of kind End. Version 1 has no frames of
//! kind Share. A frame consists of: kind (1 byte), 3 zero bytes, length of the payload (4), payload, XXH3-64 of all
//! that with the frame's number as the seed (8). This detects frames that are damaged, missing, duplicated or out of
//! order. Numbers are little-endian.

use std::io::{Read, Write};

use serde::{Deserialize, Serialize};
use spillway_store::Key;
use spillway_types::VALUE_BYTES_MAX;
use twox_hash::XxHash3_64;

use crate::error::Error;
use crate::settings::{FLOOR_PAGES_MAX, WEIGHTS};

/// The stream version that is written, and the newest one that can be read.
pub const STREAM_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"SPILLWAY";
const HEAD_BYTES: usize = 8;
const SUM_BYTES: usize = 8;
/// Bytes before the bytes of a value: pool, index, object.
const KEY_BYTES: usize = 16;
const PAYLOAD_BYTES_MAX: usize = VALUE_BYTES_MAX + KEY_BYTES;

/// An operator's settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Its cap; none means no cap.
    pub(crate) cap_pages: Option<u64>,
    pub(crate) floor_pages: u64,
    pub(crate) weight: u32,
}

/// A persistent private pool, ahead of its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolHead {
    /// Its number in the source store, which later frames use.
    pub(crate) number: u32,
    /// The block device in it.
    pub(crate) block: Option<BlockHead>,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockHead {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) uuid: u128,
    /// Whether its memory is reserved, as it was for all devices in older versions.
    #[serde(default = "yes")]
    pub(crate) reserve: bool,
}

const fn yes() -> bool {
    true
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Share(Share),
    Pool(PoolHead),
    Value(u32, Key, &'a [u8]),
    FlushPage(u32, Key),
    FlushObject(u32, u64),
    FlushPool(u32),
    End,
}

const POOL: u8 = 1;
const VALUE: u8 = 2;
const FLUSH_PAGE: u8 = 3;
const FLUSH_OBJECT: u8 = 4;
const FLUSH_POOL: u8 = 5;
const END: u8 = 6;
const SHARE: u8 = 7;

impl Frame<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Share(_) => SHARE,
            Self::Pool(_) => POOL,
            Self::Value(..) => VALUE,
            Self::FlushPage(..) => FLUSH_PAGE,
            Self::FlushObject(..) => FLUSH_OBJECT,
            Self::FlushPool(_) => FLUSH_POOL,
            Self::End => END,
        }
    }

    fn write_payload(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut put_key = |pool: u32, key: Key| {
            out.extend(pool.to_le_bytes());
            out.extend(key.index.to_le_bytes());
            out.extend(key.object.to_le_bytes());
        };
        match self {
            Self::Share(share) => {
                serde_json::to_writer(out, share).map_err(std::io::Error::from)?;
            }
            Self::Pool(head) => serde_json::to_writer(out, head).map_err(std::io::Error::from)?,
            Self::Value(pool, key, value) => {
                put_key(*pool, *key);
                out.extend_from_slice(value);
            }
            Self::FlushPage(pool, key) => put_key(*pool, *key),
            Self::FlushObject(pool, object) => put_key(*pool, Key::new(*object, 0)),
            Self::FlushPool(pool) => put_key(*pool, Key::new(0, 0)),
            Self::End => {}
        }
        Ok(())
    }

    fn parse(kind: u8, payload: &[u8]) -> Result<Frame<'_>, Error> {
        if kind == POOL {
            let head = serde_json::from_slice(payload);
            return head.map(Frame::Pool).map_err(|_| Error::Stream("describes a pool wrongly"));
        }
        if kind == SHARE {
            return match serde_json::from_slice::<Share>(payload) {
                Ok(share)
                    if WEIGHTS.contains(&share.weight) && share.floor_pages <= FLOOR_PAGES_MAX =>
                {
                    Ok(Frame::Share(share))
                }
                _ => Err(Error::Stream("has an invalid share of the client")),
            };
        }
        if kind == END {
            return Ok(Frame::End);
        }
        let Some((key, value)) = payload.split_first_chunk::<KEY_BYTES>() else {
            return Err(Error::Stream("has a frame without a key"));
        };
        let pool = u32::from_le_bytes([key[0], key[1], key[2], key[3]]);
        let index = u32::from_le_bytes([key[4], key[5], key[6], key[7]]);
        let (_, object) = key.split_last_chunk::<8>().unwrap_or((&[], &[0; 8]));
        let key = Key::new(u64::from_le_bytes(*object), index);
        Ok(match kind {
            VALUE => Frame::Value(pool, key, value),
            FLUSH_PAGE => Frame::FlushPage(pool, key),
            FLUSH_OBJECT => Frame::FlushObject(pool, key.object),
            FLUSH_POOL => Frame::FlushPool(pool),
            _ => return Err(Error::Stream("has a frame of an unknown kind")),
        })
    }
}

/// Writes a stream.
pub(crate) struct StreamWriter<'a> {
    sink: &'a mut dyn Write,
    frames: u64,
    buffer: Vec<u8>,
}

impl<'a> StreamWriter<'a> {
    pub(crate) fn new(sink: &'a mut dyn Write) -> Result<Self, Error> {
        sink.write_all(&MAGIC)?;
        sink.write_all(&STREAM_VERSION.to_le_bytes())?;
        Ok(Self { sink, frames: 0, buffer: Vec::new() })
    }

    pub(crate) fn write(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        self.buffer.clear();
        self.buffer.extend([frame.kind(), 0, 0, 0, 0, 0, 0, 0]);
        frame.write_payload(&mut self.buffer)?;
        let length = (self.buffer.len() - HEAD_BYTES) as u32;
        self.buffer[4..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
        let sum = XxHash3_64::oneshot_with_seed(self.frames, &self.buffer);
        self.buffer.extend(sum.to_le_bytes());
        self.frames += 1;
        self.sink.write_all(&self.buffer)?;
        if matches!(frame, Frame::End) {
            self.sink.flush()?;
        }
        Ok(())
    }
}

/// Reads a stream.
pub(crate) struct StreamReader<'a> {
    source: &'a mut dyn Read,
    frames: u64,
    buffer: Vec<u8>,
}

impl<'a> StreamReader<'a> {
    pub(crate) fn new(source: &'a mut dyn Read) -> Result<Self, Error> {
        let mut start = [0; 12];
        read_exact(source, &mut start)?;
        if start[..8] != MAGIC {
            return Err(Error::Stream("is not an exported client"));
        }
        let version = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
        if !(1..=STREAM_VERSION).contains(&version) {
            return Err(Error::Stream("is of a version that this daemon does not read"));
        }
        Ok(Self { source, frames: 0, buffer: Vec::new() })
    }

    pub(crate) fn read(&mut self) -> Result<Frame<'_>, Error> {
        let mut head = [0; HEAD_BYTES];
        read_exact(self.source, &mut head)?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(Error::Stream("has a frame that is too long"));
        }
        self.buffer.resize(HEAD_BYTES + length, 0);
        self.buffer[..HEAD_BYTES].copy_from_slice(&head);
        read_exact(self.source, &mut self.buffer[HEAD_BYTES..])?;
        let mut sum = [0; SUM_BYTES];
        read_exact(self.source, &mut sum)?;
        if XxHash3_64::oneshot_with_seed(self.frames, &self.buffer) != u64::from_le_bytes(sum) {
            return Err(Error::Stream("is damaged: a checksum does not match"));
        }
        self.frames += 1;
        Frame::parse(head[0], &self.buffer[HEAD_BYTES..])
    }
}

fn read_exact(source: &mut dyn Read, bytes: &mut [u8]) -> Result<(), Error> {
    source.read_exact(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::Stream("ends early"),
        _ => Error::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame<'static>> {
        let block = BlockHead {
            name: "b".into(),
            bytes: 4096,
            block_bytes: 512,
            uuid: u128::MAX,
            reserve: false,
        };
        vec![
            Frame::Share(Share { cap_pages: Some(9), floor_pages: 8, weight: 7 }),
            Frame::Pool(PoolHead { number: 1, block: None }),
            Frame::Pool(PoolHead { number: 2, block: Some(block) }),
            Frame::Value(1, Key::new(u64::MAX, 7), b"value"),
            Frame::FlushPage(1, Key::new(3, u32::MAX)),
            Frame::FlushObject(2, 9),
            Frame::FlushPool(2),
            Frame::End,
        ]
    }

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::new(&mut bytes).unwrap();
        for frame in frames() {
            writer.write(&frame).unwrap();
        }
        bytes
    }

    fn read_all(mut bytes: &[u8]) -> Result<usize, Error> {
        let mut reader = StreamReader::new(&mut bytes)?;
        for (read, expected) in frames().iter().enumerate() {
            if reader.read()? != *expected {
                return Ok(read);
            }
        }
        Ok(frames().len())
    }

    #[test]
    fn frames_come_back_as_they_were() {
        assert_eq!(read_all(&written()).unwrap(), frames().len());
    }

    #[test]
    fn a_share_beyond_the_bounds_is_refused() {
        let good = Share { cap_pages: None, floor_pages: FLOOR_PAGES_MAX, weight: *WEIGHTS.end() };
        for (share, is_good) in [
            (good, true),
            (Share { weight: 0, ..good }, false),
            (Share { weight: WEIGHTS.end() + 1, ..good }, false),
            (Share { floor_pages: FLOOR_PAGES_MAX + 1, ..good }, false),
        ] {
            let mut bytes = Vec::new();
            StreamWriter::new(&mut bytes).unwrap().write(&Frame::Share(share)).unwrap();
            let mut source = bytes.as_slice();
            let mut reader = StreamReader::new(&mut source).unwrap();
            assert_eq!(reader.read().is_ok(), is_good, "{share:?}");
        }
    }

    #[test]
    fn every_damaged_byte_and_every_early_end_is_found() {
        let bytes = written();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(read_all(&damaged).is_err(), "byte {at}");
            assert!(read_all(&bytes[..at]).is_err(), "end at {at}");
        }
    }
}
