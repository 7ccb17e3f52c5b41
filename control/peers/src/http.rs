//! One HTTP/1.1 connection to another host, with or without TLS.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use spillway_tls::ClientSettings;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::Error;

/// Longest reason of a refusal, in bytes.
const REASON_BYTES_MAX: usize = 300;

/// The stream of a connection.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A connection. It ends when this is dropped.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    host: String,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects to `address`; with `tls`, to the host that the settings name.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Http`], [`Error::Time`].
    pub async fn open(
        address: SocketAddr,
        tls: Option<&ClientSettings>,
        time: Duration,
    ) -> Result<Self, Error> {
        timeout(time, Self::connect(address, tls)).await.map_err(|_| Error::Time(time))?
    }

    async fn connect(address: SocketAddr, tls: Option<&ClientSettings>) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let wire: Box<dyn Wire> = match tls {
            None => Box::new(stream),
            Some(settings) => {
                let (config, server) = settings.config();
                Box::new(TlsConnector::from(config).connect(server, stream).await?)
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(wire)).await?;
        // The request that waits for an answer gets the error.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driver, host: address.to_string() })
    }

    /// Whether the other side has hung up.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request to `path` with a JSON body, and returns the body of the answer, at most
    /// `bytes_max`.
    ///
    /// # Errors
    /// [`Error::Status`] if the answer is not a success, and errors of the connection, which is unusable
    /// then.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        time: Duration,
        bytes_max: usize,
    ) -> Result<Bytes, Error> {
        let whole = async {
            let answer = self.begin(method, path, body).await?;
            collect(answer, bytes_max).await
        };
        timeout(time, whole).await.map_err(|_| Error::Time(time))?
    }

    /// Sends a request, and returns the answer as soon as it begins: its body may be endless.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn stream(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        time: Duration,
    ) -> Result<Response<Incoming>, Error> {
        timeout(time, self.begin(method, path, body)).await.map_err(|_| Error::Time(time))?
    }

    async fn begin(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let reason = collect(answer, REASON_BYTES_MAX).await.unwrap_or_default();
        // It is untrusted: keep one line of it.
        let reason = String::from_utf8_lossy(&reason).replace(char::is_control, " ");
        Err(Error::Status(status, reason))
    }
}

async fn collect(answer: Response<Incoming>, bytes_max: usize) -> Result<Bytes, Error> {
    let body = Limited::new(answer.into_body(), bytes_max).collect().await;
    body.map(|it| it.to_bytes()).map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => Error::Http(*error),
        Err(_) => Error::Long(bytes_max),
    })
}
