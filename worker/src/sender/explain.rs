//! Tells from an error what went wrong.
//!
//! Errors are told apart by type along their sources, never by their text.

use std::error::Error;
use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use shared::policy::classify::{SendError, Shortage};

use super::tls::certificate_problem;

/// The longest text kept of an error, in characters.
const MAX_DETAIL: usize = 200;

/// What a dial that failed means.
pub(super) fn no_connection(error: &io::Error, to: IpAddr) -> SendError {
    match shortage(error) {
        // Of IPv6 it is also said where this machine has no address of that family, for good.
        Some(Shortage::Ports) if to.is_ipv6() => SendError::Connect(error.kind()),
        Some(short) => SendError::NoSocket(short),
        None => SendError::Connect(error.kind()),
    }
}

/// What we lack ourselves, if that is why there is no socket.
pub(super) fn shortage(error: &io::Error) -> Option<Shortage> {
    match Errno::from_io_error(error)? {
        Errno::MFILE | Errno::NFILE => Some(Shortage::Files),
        Errno::ADDRNOTAVAIL => Some(Shortage::Ports),
        Errno::NOBUFS | Errno::NOMEM => Some(Shortage::Memory),
        _ => None,
    }
}

/// What a handshake that failed means.
pub(super) fn handshake(error: &io::Error) -> SendError {
    let tls = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            SendError::Tls(
                "the receiver answered without TLS: is it plain http on that port?".into(),
            )
        }
        Some(tls) => match certificate_problem(tls) {
            Some(problem) => SendError::Certificate(problem),
            None => SendError::Tls(brief(tls)),
        },
        None => SendError::Tls(format!("the handshake broke off: {}", error.kind()).into()),
    }
}

/// What a request without an answer means. `used`: its connection had carried others before, and may
/// have been closed just then for having been idle.
pub(super) fn broken(error: &hyper::Error, used: bool) -> SendError {
    if error.is_user() {
        return SendError::Internal("the client refused the request");
    }
    if error.is_parse() || speaks_no_http2(error) {
        return SendError::Protocol;
    }
    if let Some(refused) = refused_after_the_handshake(error) {
        return refused;
    }
    if used && !was_reset_alone(error) {
        SendError::MaybeSent
    } else {
        SendError::Reset
    }
}

/// What a new connection that ended before it took a request means. Many a server of another protocol
/// speaks first or refuses our certificate, and whether that is met before or after the request went out
/// is chance.
pub(super) fn untaken(error: Option<&hyper::Error>) -> SendError {
    match error {
        Some(error) if has_spoken_first(error) => SendError::Protocol,
        Some(error) => refused_after_the_handshake(error).unwrap_or(SendError::Reset),
        None => SendError::Reset,
    }
}

/// In TLS 1.3 a server judges the client's certificate after the client believes that all is well.
fn refused_after_the_handshake(error: &hyper::Error) -> Option<SendError> {
    let mut below = causes(error);
    let tls = below.find_map(|cause| cause.downcast_ref::<rustls::Error>())?;
    Some(SendError::Tls(brief(tls)))
}

/// hyper has no name for it: an error of its own below the cancelled request, which is none of those
/// that a connection ends with.
fn has_spoken_first(error: &hyper::Error) -> bool {
    let mut below = causes(error)
        .skip(1)
        .filter_map(|cause| cause.downcast_ref::<hyper::Error>());
    below.any(|own| {
        let has_ended = own.is_canceled() || own.is_closed() || own.is_incomplete_message();
        !has_ended && own.source().is_none()
    })
}

/// The receiver says that it has not acted on the request. Of a GOAWAY that is all but certain: hyper gives
/// the same error to a request that went out in the moment in which the GOAWAY came in, and that may be
/// below the last stream that it names.
pub(super) fn was_not_processed(error: &hyper::Error) -> bool {
    http2(error).is_some_and(|error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (error.is_go_away() || refused)
    })
}

/// The connection ended while the request waited for its turn: its receiver takes no more at once.
///
/// hyper blames its user, and has no name for it: of what it blames its user for only this has a cause
/// below it, as our bodies don't fail.
pub(super) fn was_waiting(error: &hyper::Error) -> bool {
    error.is_user() && error.source().is_some()
}

/// What was received is against the rules of HTTP/2.
fn speaks_no_http2(error: &hyper::Error) -> bool {
    http2(error).is_some_and(h2::Error::is_library)
}

/// The receiver ended this one stream, not the connection: that is an answer to this request.
fn was_reset_alone(error: &hyper::Error) -> bool {
    http2(error).is_some_and(|error| error.is_reset() && error.is_remote())
}

fn http2(error: &hyper::Error) -> Option<&h2::Error> {
    causes(error).find_map(|cause| cause.downcast_ref::<h2::Error>())
}

type Cause<'a> = &'a (dyn Error + 'static);

/// An error and all below it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = Cause<'a>> {
    std::iter::successors(Some(error), |cause| below(*cause))
}

/// An [`io::Error`] hides what it wraps from `source`.
fn below(cause: Cause<'_>) -> Option<Cause<'_>> {
    let wrapped = cause
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => Some(wrapped),
        None => cause.source(),
    }
}

fn brief(error: &dyn Error) -> Box<str> {
    error.to_string().chars().take(MAX_DETAIL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_lack_is_told_from_what_the_receiver_does() {
        let of = |errno: Errno, to: &str| no_connection(&errno.into(), to.parse().unwrap());
        let cases = [
            (Errno::MFILE, Shortage::Files),
            (Errno::NFILE, Shortage::Files),
            (Errno::ADDRNOTAVAIL, Shortage::Ports),
            (Errno::NOBUFS, Shortage::Memory),
            (Errno::NOMEM, Shortage::Memory),
        ];
        for (errno, short) in cases {
            assert_eq!(
                of(errno, "127.0.0.1"),
                SendError::NoSocket(short),
                "{errno}"
            );
        }
        assert_eq!(
            of(Errno::MFILE, "::1"),
            SendError::NoSocket(Shortage::Files)
        );
        assert_eq!(
            of(Errno::ADDRNOTAVAIL, "::1"),
            SendError::Connect(io::ErrorKind::AddrNotAvailable)
        );
        for errno in [Errno::CONNREFUSED, Errno::NETUNREACH, Errno::ACCESS] {
            let kind = io::Error::from(errno).kind();
            assert_eq!(of(errno, "127.0.0.1"), SendError::Connect(kind), "{errno}");
        }
    }
}
