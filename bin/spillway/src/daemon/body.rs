//! Request bodies: empty, a text, or a reader's bytes.

use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};

/// Bytes per read.
const CHUNK_BYTES: usize = 256 << 10;

/// The body of a request.
pub enum RequestBody {
    /// All bytes at once; may be empty.
    Text(Option<Bytes>),
    /// From a reader until it ends. Reads block, which delays only this request.
    Reader(Box<dyn Read + Send>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
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
            Self::Reader(_) => hyper::body::SizeHint::default(),
        }
    }
}
