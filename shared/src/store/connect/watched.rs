//! A connection that notices when it was asked something and hears nothing.
//!
//! A server that vanished without a word (a cut cable, a firewall that forgot us, a frozen machine, a proxy that
//! passes nothing on) leaves a socket that looks well for ever. So the stream itself counts what was asked and what
//! was answered: while an answer is owed and nothing is heard for [`Watched`]'s longest silence, reading fails, the
//! connection ends, and every call on it with it. That is the deadline of every call, whoever makes it; the
//! callers' own are shorter. The server gives up sooner (`statement_timeout`), so one that lives always speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_postgres::tls::{ChannelBinding, TlsStream};

/// The tag and the length that begin each message.
const HEADER: usize = 5;

/// The messages of one direction, told apart as their bytes pass by.
#[derive(Debug, Default)]
struct Messages {
    header: Vec<u8>,
    /// What is still to come of the message at hand.
    rest: usize,
}

impl Messages {
    /// Calls `seen` with the tag of each message that these bytes complete.
    fn pass(&mut self, mut bytes: &[u8], mut seen: impl FnMut(u8)) {
        while !bytes.is_empty() {
            let take = match self.rest {
                0 => HEADER - self.header.len(),
                rest => rest,
            };
            let (now, after) = bytes.split_at(take.min(bytes.len()));
            bytes = after;
            if self.rest == 0 {
                self.header.extend_from_slice(now);
                let &[tag, a, b, c, d] = self.header.as_slice() else {
                    continue;
                };
                // The length counts itself.
                let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(0);
                self.rest = length.saturating_sub(4);
                if self.rest == 0 {
                    self.header.clear();
                    seen(tag);
                }
            } else {
                self.rest -= now.len();
                if self.rest == 0
                    && let Some(tag) = self.header.first().copied()
                {
                    self.header.clear();
                    seen(tag);
                }
            }
        }
    }
}

/// What is owed on a connection.
#[derive(Debug)]
struct Owed {
    said: Messages,
    heard: Messages,
    /// Whether anything was heard: the first byte may be the answer to "do you speak TLS?", which is no message.
    began: bool,
    /// Whether the server has let us in. What was said before is not counted: all of it asks one thing.
    ready: bool,
    /// Answers that the server owes.
    answers: usize,
    /// Whether it takes nothing more.
    is_full: bool,
}

impl Owed {
    fn new() -> Self {
        Self {
            said: Messages::default(),
            heard: Messages::default(),
            began: false,
            ready: false,
            answers: 1,
            is_full: false,
        }
    }

    const fn anything(&self) -> bool {
        self.answers > 0 || self.is_full
    }

    fn said(&mut self, bytes: &[u8]) {
        self.is_full = false;
        if self.ready {
            let answers = &mut self.answers;
            // Query, Sync, FunctionCall: each is answered by one ReadyForQuery.
            self.said
                .pass(bytes, |tag| *answers += usize::from(b"QSF".contains(&tag)));
        }
    }

    fn heard(&mut self, mut bytes: &[u8]) {
        if !self.began
            && let Some((first, rest)) = bytes.split_first()
        {
            self.began = true;
            if b"SN".contains(first) {
                bytes = rest;
            }
        }
        let (answers, ready) = (&mut self.answers, &mut self.ready);
        // ReadyForQuery; or CopyInResponse: the Sync that was sent with the command will be ignored.
        self.heard.pass(bytes, |tag| {
            *answers = answers.saturating_sub(usize::from(b"ZG".contains(&tag)));
            *ready |= tag == b'Z';
        });
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watched<S> {
    inner: S,
    /// `None`: another layer watches.
    owed: Option<Owed>,
    silence: Duration,
    /// When something was heard last, or since when an answer is owed.
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    /// Watches a connection that is about to be opened.
    pub(super) fn new(inner: S, silence: Duration) -> Self {
        Self {
            inner,
            owed: Some(Owed::new()),
            silence,
            since: Instant::now(),
            timer: Box::pin(tokio::time::sleep(silence)),
        }
    }

    /// The same, watched by the layer above: what passes here from now on is encrypted.
    pub(super) fn unwatched(mut self) -> Self {
        self.owed = None;
        self
    }

    pub(super) const fn silence(&self) -> Duration {
        self.silence
    }

    fn tell(&mut self, told: impl FnOnce(&mut Owed)) {
        if let Some(owed) = &mut self.owed {
            told(owed);
            self.since = Instant::now();
        }
    }

    /// Fails when the silence has lasted too long; else wakes the task when it will have.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.owed.as_ref().is_some_and(Owed::anything) {
            return Poll::Pending;
        }
        let end = self.since + self.silence;
        while self.timer.as_mut().poll(context).is_ready() {
            if Instant::now() >= end {
                let text = format!("no answer for {:?}", self.silence);
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.inner).poll_read(context, buffer) {
            Poll::Ready(read) => {
                let bytes = buffer.filled().get(before..).unwrap_or_default();
                self.tell(|owed| owed.heard(bytes));
                Poll::Ready(read)
            }
            Poll::Pending => self.poll_silence(context).map(Err),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.inner).poll_write(context, bytes) {
            Poll::Ready(Ok(count)) => {
                self.tell(|owed| owed.said(bytes.get(..count).unwrap_or_default()));
                // Nobody may read again before the answer comes: from here on the timer wakes the task.
                match self.poll_silence(context) {
                    Poll::Ready(error) => Poll::Ready(Err(error)),
                    Poll::Pending => Poll::Ready(Ok(count)),
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if self.owed.as_ref().is_some_and(|owed| !owed.anything()) {
                    self.tell(|owed| owed.is_full = true);
                }
                self.poll_silence(context).map(Err)
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<S: TlsStream + Unpin> TlsStream for Watched<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.inner.channel_binding()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_millis(200);

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[tag][..], &length, body].concat()
    }

    /// A connection that was let in, and was asked nothing yet.
    fn let_in() -> Owed {
        let mut owed = Owed::new();
        owed.said(b"\x00\x00\x00\x08\x04\xd2\x16\x2f");
        owed.heard(b"N");
        owed.said(b"whatever a startup message says");
        owed.heard(&[message(b'R', &[0; 4]), message(b'S', b"a\0b\0")].concat());
        assert!(owed.anything(), "it is not in yet");
        owed.heard(&message(b'Z', b"I"));
        assert!(!owed.anything());
        owed
    }

    #[test]
    fn as_many_answers_are_owed_as_were_asked_for_however_the_bytes_are_cut() {
        for cut in [1, 2, 3, 5, 7, 1_000] {
            let mut owed = let_in();
            let pass = |owed: &mut Owed, bytes: &[u8], tell: fn(&mut Owed, &[u8])| {
                for part in bytes.chunks(cut) {
                    tell(owed, part);
                }
            };
            let asked = [
                message(b'P', b"\0SELECT 'QSF'\0\0\0"),
                message(b'S', b""),
                message(b'B', &[0; 20]),
                message(b'E', &[0; 5]),
                message(b'S', b""),
                message(b'Q', b"SELECT 1\0"),
            ];
            pass(&mut owed, &asked.concat(), Owed::said);
            assert_eq!(owed.answers, 3, "{cut}");

            let row = message(b'D', b"Z\0\0\0\x05I");
            pass(
                &mut owed,
                &[row.clone(), message(b'Z', b"I")].concat(),
                Owed::heard,
            );
            assert_eq!(owed.answers, 2, "{cut}");
            // Rows, notices and notifications are no end of an answer.
            pass(
                &mut owed,
                &[row, message(b'A', &[0; 9])].concat(),
                Owed::heard,
            );
            assert!(owed.anything());
            let rest = [message(b'Z', b"I"), message(b'Z', b"T")].concat();
            pass(&mut owed, &rest, Owed::heard);
            assert!(!owed.anything(), "{cut}");
        }
    }

    #[tokio::test]
    async fn silence_is_an_error_while_an_answer_is_owed_and_none_while_nothing_is() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let mut watched = Watched::new(ours, SILENCE);
        theirs.write_all(&message(b'Z', b"I")).await.unwrap();
        let mut buffer = [0; 64];
        assert_eq!(watched.read(&mut buffer).await.unwrap(), 6);
        let idle = tokio::time::timeout(SILENCE * 2, watched.read(&mut buffer)).await;
        assert!(idle.is_err(), "nothing was asked");

        watched
            .write_all(&message(b'Q', b"SELECT 1\0"))
            .await
            .unwrap();
        let asked = Instant::now();
        let read = tokio::time::timeout(SILENCE / 2, watched.read(&mut buffer));
        assert!(read.await.is_err(), "it may still answer");
        // A row is a sign of life; half an answer is none.
        theirs.write_all(&message(b'D', b"1")).await.unwrap();
        assert_eq!(watched.read(&mut buffer).await.unwrap(), 6);
        let error = watched.read(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(asked.elapsed() >= SILENCE * 3 / 2);
    }

    #[tokio::test]
    async fn a_server_that_takes_nothing_more_is_silent_too() {
        use tokio::io::AsyncWriteExt as _;
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut watched = Watched::new(ours, SILENCE);
        theirs.write_all(&message(b'Z', b"I")).await.unwrap();
        let mut buffer = [0; 64];
        tokio::io::AsyncReadExt::read(&mut watched, &mut buffer)
            .await
            .unwrap();

        let error = watched
            .write_all(&message(b'B', &[0; 500]))
            .await
            .unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
