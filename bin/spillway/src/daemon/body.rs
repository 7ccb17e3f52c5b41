//! Request bodies: empty, a text, a reader's bytes, or another daemon's answer.

use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming};

/// Bytes per read.
const CHUNK_BYTES: usize = 256 << 10;

/// The body of a request.
pub enum RequestBody {
    /// All bytes at once; may be empty.
    Text(Option<Bytes>),
    /// From a reader until it ends. Reads block, which delays only this request.
    Reader(Box<dyn Read + Send>),
    /// The body of another daemon's answer.
    Relay(Incoming, Arc<Relayed>),
}

/// How far a relayed body is.
#[derive(Debug, Default)]
pub struct Relayed {
    bytes: AtomicU64,
    broken: AtomicBool,
}

impl Relayed {
    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether it ended before its end.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Relay(body, relayed) => Pin::new(body).poll_frame(cx).map(|frame| {
                frame.map(|frame| match frame {
                    Ok(frame) => {
                        let length = frame.data_ref().map_or(0, Bytes::len);
                        relayed.bytes.fetch_add(length as u64, Ordering::Relaxed);
                        Ok(frame)
                    }
                    Err(error) => {
                        relayed.broken.store(true, Ordering::Relaxed);
                        Err(io::Error::other(error))
                    }
                })
            }),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Reader(reader) => {
                let mut chunk = vec![0; CHUNK_BYTES];
                Poll::Ready(match reader.read(&mut chunk) {
                    Ok(0) => None,
                    Ok(length) => {
                        chunk.truncate(length);
                        Some(Ok(Frame::data(chunk.into())))
                    }
                    Err(error) => Some(Err(error)),
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Text(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Text(text) => {
                hyper::body::SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Reader(_) | Self::Relay(..) => hyper::body::SizeHint::default(),
        }
    }
}
