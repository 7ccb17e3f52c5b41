//! Answers to requests that are not valid HTTP.
//!
//! hyper answers them itself, with a status and no body. [`HeldAnswer`] keeps such an answer, so that another one can be
//! sent in its place. It tells these answers from the router's own by [`Answered`].

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{Response, StatusCode, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

/// Makes the answer to a request that is not valid HTTP, from its status.
pub type InvalidAnswer = fn(StatusCode) -> Response<String>;

/// How the head of every answer begins.
const VERSION: &[u8] = b"HTTP/1.1 ";
/// How an answer of hyper's own ends: it has no body.
const NO_BODY: &[u8] = b"content-length: 0\r\n";
/// Most bytes and longest time for what the peer still sends: a connection that is closed with unread bytes is reset,
/// and the peer may lose the answer.
const REST_BYTES_MAX: usize = 64 << 10;
const REST_TIME: Duration = Duration::from_secs(1);

/// The answer as plain text, for peers that only show it.
pub fn plain_answer(status: StatusCode) -> Response<String> {
    let mut answer = Response::new(detail(status));
    *answer.status_mut() = status;
    answer
}

/// What is wrong with a request that gets `status`.
pub fn detail(status: StatusCode) -> String {
    match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "the head of the request is longer than 16 KiB, or has too many lines".to_owned()
        }
        StatusCode::BAD_REQUEST => "the head of the request is not valid HTTP/1.1".to_owned(),
        status => status.canonical_reason().unwrap_or_default().to_owned(),
    }
}

/// The number of answers that the router has made and hyper has not written.
#[derive(Clone, Default)]
pub(crate) struct Answered(Arc<AtomicU64>);

impl Answered {
    /// The router has made an answer.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// The head of an answer was written. If one write had two of them, the count stays too high, and an answer of
    /// hyper's own may pass unchanged.
    fn written(&self) {
        let less = |count: u64| Some(count.saturating_sub(1));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// A stream that keeps an answer of hyper's own until other bytes follow it.
pub(crate) struct HeldAnswer<S> {
    stream: S,
    answered: Answered,
    held: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> HeldAnswer<S> {
    pub(crate) const fn new(stream: S, answered: Answered) -> Self {
        Self { stream, answered, held: Vec::new() }
    }

    /// Sends the answer of `invalid` in place of the one that is kept, and closes the connection.
    ///
    /// # Errors
    /// The peer is gone, or takes nothing.
    pub(crate) async fn replace(mut self, invalid: InvalidAnswer) -> io::Result<()> {
        let Some(status) = status_of(&self.held) else { return Ok(()) };
        let (parts, body) = invalid(status).into_parts();
        let mut text = Vec::new();
        let reason = status.canonical_reason().unwrap_or_default();
        write!(text, "HTTP/1.1 {} {reason}\r\n", status.as_u16())?;
        for (name, value) in &parts.headers {
            text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        let (length, connection) = (header::CONTENT_LENGTH, header::CONNECTION);
        write!(text, "{length}: {}\r\n{connection}: close\r\n\r\n{body}", body.len())?;
        self.stream.write_all(&text).await?;
        self.stream.shutdown().await?;
        let rest = async {
            let mut part = [0; 4096];
            let mut left = REST_BYTES_MAX;
            while left > 0
                && let Ok(length @ 1..) = self.stream.read(&mut part).await
            {
                left = left.saturating_sub(length);
            }
        };
        // A peer that sends more, or that stays, may lose the answer.
        let _ = timeout(REST_TIME, rest).await;
        Ok(())
    }

    fn hold(&mut self, bytes: &[u8]) -> bool {
        let is_own = !self.answered.is_any()
            && status_of(bytes).is_some()
            && bytes.ends_with(b"\r\n\r\n")
            && bytes.windows(NO_BODY.len()).any(|part| part == NO_BODY);
        if is_own {
            self.held.extend_from_slice(bytes);
        }
        is_own
    }

    /// Bytes were written.
    fn note(&self, bytes: &[u8]) {
        if bytes.starts_with(VERSION) {
            self.answered.written();
        }
    }

    /// Writes what is kept: other bytes follow it.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

/// The status of a client's error, if `answer` is the head of one.
fn status_of(answer: &[u8]) -> Option<StatusCode> {
    let status = answer.strip_prefix(VERSION)?.get(..3)?;
    StatusCode::from_bytes(status).ok().filter(StatusCode::is_client_error)
}

impl<S: AsyncRead + Unpin> AsyncRead for HeldAnswer<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HeldAnswer<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_held(cx))?;
        if self.hold(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.note(bytes);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_held(cx))?;
        let mut filled = parts.iter().filter(|part| !part.is_empty());
        let (first, second) = (filled.next(), filled.next());
        if let (Some(only), None) = (first, second)
            && self.hold(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts))?;
        self.note(first.map_or(&[], |first| &**first));
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
