//! Ends stalled transfers: a body whose peer sends nothing, an answer whose peer receives nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Why a body ended too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing more of the request's body came within {0:?}")]
pub struct BodyStopped(Duration);

/// A deadline for the next step, restarted by each step.
#[derive(Debug)]
struct StallTimer {
    time: Duration,
    /// Runs during a wait.
    running: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    const fn new(time: Duration) -> Self {
        Self { time, running: None }
    }

    /// Stops the timer if there was progress; otherwise ready when the deadline has passed.
    fn watch<T>(&mut self, step: &Poll<T>, cx: &mut Context<'_>) -> Poll<()> {
        if step.is_ready() {
            self.running = None;
            return Poll::Pending;
        }
        let running = self.running.get_or_insert_with(|| Box::pin(sleep(self.time)));
        running.as_mut().poll(cx)
    }
}

/// The body of a request. It fails if nothing arrives for a while.
pub(crate) struct BodyDeadline {
    body: Body,
    timer: StallTimer,
}

impl BodyDeadline {
    pub(crate) const fn new(body: Body, stall: Duration) -> Self {
        Self { body, timer: StallTimer::new(stall) }
    }
}

impl HttpBody for BodyDeadline {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match self.timer.watch(&frame, cx) {
            Poll::Ready(()) => {
                let stopped = BodyStopped(self.timer.time);
                Poll::Ready(Some(Err(axum::Error::new(stopped))))
            }
            Poll::Pending => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection. Writing fails if the peer receives nothing for a while.
pub(crate) struct WriteDeadline<S> {
    stream: S,
    timer: StallTimer,
}

impl<S> WriteDeadline<S> {
    pub(crate) const fn new(stream: S, stall: Duration) -> Self {
        Self { stream, timer: StallTimer::new(stall) }
    }

    fn watched<T>(
        &mut self,
        step: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        match self.timer.watch(&step, cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => step,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(step, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watched(step, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A socket's flush never waits. That of TLS writes encrypted bytes, which may wait.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            // It proves no progress if there was nothing to flush.
            Poll::Ready(done) => Poll::Ready(done),
            step @ Poll::Pending => self.watched(step, cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watched(step, cx)
    }
}
