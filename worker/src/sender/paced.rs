//! A connection that is read a little at a time.
//!
//! # Why
//! A connection is read by a task of its own, for as long as bytes are there; what it finds waits for the
//! task of the request. Interim answers (1xx) take no room in any window of HTTP/2, and many times their
//! bytes in memory: between two turns of the request's task, a receiver that sends nothing else could
//! put hundreds of thousands of them there. And whoever reads on and on keeps a thread from all others,
//! deadlines among them. So the reading task gives way after each [`AT_ONCE`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use shared::fail_point;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read before others get their turn, in bytes: more than most answers have.
const AT_ONCE: usize = 8 * 1_024;

/// See the module.
pub(super) struct Paced<S> {
    stream: S,
    /// Bytes read since others had their turn.
    read: usize,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read >= AT_ONCE {
            self.read = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let ended = Pin::new(&mut self.stream).poll_read(context, buffer);
        if ended.is_pending() {
            self.read = 0;
        }
        ready!(ended)?;
        self.read += buffer.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        fail_point!("worker.writing");
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            fail_point!("worker.written");
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        fail_point!("worker.writing");
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if written.is_ready() {
            fail_point!("worker.written");
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Reads as long as it may without a pause, and says how many bytes that were.
    fn read_in_one_turn(paced: &mut Paced<&[u8]>) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let mut total = 0;
        loop {
            let mut room = [0; 4_096];
            let mut buffer = ReadBuf::new(&mut room);
            let read = Pin::new(&mut *paced).poll_read(&mut context, &mut buffer);
            match (read.is_ready(), buffer.filled().len()) {
                (true, 1..) => total += buffer.filled().len(),
                (true, 0) | (false, _) => return total,
            }
        }
    }

    #[test]
    fn whoever_reads_gives_way_after_a_bounded_number_of_bytes_and_loses_none() {
        let bytes = vec![7; 2 * AT_ONCE + 5];
        let mut paced = Paced::new(bytes.as_slice());

        assert_eq!(read_in_one_turn(&mut paced), AT_ONCE);
        assert_eq!(read_in_one_turn(&mut paced), AT_ONCE);
        assert_eq!(read_in_one_turn(&mut paced), 5);
    }
}
