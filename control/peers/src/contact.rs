//! Derives a peer's health from requests to it.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lending::{Contact, Fault};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};

use crate::Error;

/// The receiver of the results of requests to peers.
pub trait Contacts: Debug + Send + Sync {
    /// Reports whether a request to the host `peer` at `address` was answered.
    fn contact(&self, peer: &str, address: SocketAddr, contact: Contact);
}

/// The result of a request that took `took`.
pub fn contact<T>(took: Duration, result: &Result<T, Error>) -> Contact {
    match result {
        Ok(_) => Contact::Answered(took),
        Err(error) => {
            let (fault, reason) = fault(error);
            Contact::Failed { fault, reason }
        }
    }
}

/// The kind of failure, and a reason in plain words.
fn fault(error: &Error) -> (Fault, String) {
    match error {
        Error::Time(time) => (Fault::Late, format!("no answer within {} ms", time.as_millis())),
        Error::Io(error) => of_cause(error),
        Error::Http(error) => of_cause(error),
        Error::Status(408 | 503, reason) => (Fault::Late, format!("it is busy: {reason}")),
        Error::Status(403, reason) => (Fault::Refused, format!("it refuses this host: {reason}")),
        Error::Status(..)
        | Error::Long(_)
        | Error::Answer(_)
        | Error::Tls(_)
        | Error::Request(_) => (Fault::Refused, error.to_string()),
    }
}

/// Uses the innermost cause: the error of the kernel or TLS.
fn of_cause(error: &(dyn StdError + 'static)) -> (Fault, String) {
    let mut next = Some(error);
    let mut found = None;
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // A wrapped error is not reported as the source, only its own source is.
            let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            found = Some(tls.map_or_else(|| of_kernel(error), of_tls));
        }
        next = error.source();
    }
    found.unwrap_or_else(|| (Fault::Unreachable, "it closed the connection".to_owned()))
}

fn of_kernel(error: &io::Error) -> (Fault, String) {
    let reason = match error.kind() {
        ErrorKind::TimedOut => return (Fault::Late, "the connection timed out".to_owned()),
        ErrorKind::ConnectionRefused => "connection refused: no daemon listens there",
        ErrorKind::HostUnreachable => "no route to the host",
        ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => "the network is unreachable",
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => "it closed the connection",
        _ => return (Fault::Unreachable, error.to_string()),
    };
    (Fault::Unreachable, reason.to_owned())
}

fn of_tls(error: &rustls::Error) -> (Fault, String) {
    use AlertDescription as Alert;
    use CertificateError as Certificate;
    let reason = match error {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "its certificate does not match: it is for another name"
            }
            Certificate::UnknownIssuer | Certificate::BadSignature => {
                "its certificate does not match: no authority of listen.tls_clients signed it"
            }
            Certificate::Expired | Certificate::ExpiredContext { .. } => {
                "its certificate has expired"
            }
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "its certificate is not valid yet"
            }
            _ => return (Fault::Refused, format!("its certificate is not valid: {error}")),
        },
        rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::AccessDenied
            | Alert::CertificateRequired,
        ) => "it does not accept this host's certificate",
        _ => return (Fault::Refused, format!("TLS failed: {error}")),
    };
    (Fault::Refused, reason.to_owned())
}
