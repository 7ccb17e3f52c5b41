//! A minimal client of memcached's text protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// A server that does not answer within this time counts as dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection.
pub struct CacheClient {
    reader: BufReader<Box<dyn Stream>>,
    request: Vec<u8>,
    line: Vec<u8>,
}

impl CacheClient {
    /// Connects to a server's Unix socket.
    ///
    /// # Errors
    /// No server listens there.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("no memcached at {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self::over(stream))
    }

    /// Connects to `HOST:PORT`, or to the Unix socket at a path with a slash.
    ///
    /// # Errors
    /// No server listens there.
    pub fn connect_to(server: &str) -> Result<Self> {
        if server.contains('/') {
            return Self::connect(Path::new(server));
        }
        let stream =
            TcpStream::connect(server).with_context(|| format!("no memcached at {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self::over(stream))
    }

    fn over(stream: impl Stream + 'static) -> Self {
        Self {
            reader: BufReader::with_capacity(16 << 10, Box::new(stream)),
            request: Vec::new(),
            line: Vec::new(),
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// The server answers anything but STORED.
    pub fn set(&mut self, key: u64, value: &[u8]) -> Result<()> {
        self.store("set", key, value)?;
        ensure!(self.line == b"STORED", "set: {}", self.line.escape_ascii());
        Ok(())
    }

    /// Stores a value if the server has none. Returns whether it was stored.
    ///
    /// # Errors
    /// The server answers anything but STORED and NOT_STORED.
    pub fn add(&mut self, key: u64, value: &[u8]) -> Result<bool> {
        self.store("add", key, value)?;
        match &*self.line {
            b"STORED" => Ok(true),
            b"NOT_STORED" => Ok(false),
            line => bail!("add: {}", line.escape_ascii()),
        }
    }

    fn store(&mut self, verb: &str, key: u64, value: &[u8]) -> Result<()> {
        self.request.clear();
        write!(self.request, "{verb} key:{key} 0 0 {}\r\n", value.len())?;
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        self.reader.get_mut().write_all(&self.request)?;
        self.read_line()
    }

    /// Reads a value into `out`. Returns false if the server has none.
    ///
    /// # Errors
    /// The connection fails, or the answer is invalid.
    pub fn get(&mut self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        // One write: over TCP, each write would be a packet.
        self.request.clear();
        write!(self.request, "get key:{key}\r\n")?;
        self.reader.get_mut().write_all(&self.request)?;
        self.read_line()?;
        if self.line == b"END" {
            return Ok(false);
        }
        let line = std::str::from_utf8(&self.line)?;
        let Some(("VALUE", rest)) = line.split_once(' ') else { bail!("get: {line}") };
        let length: usize = rest.rsplit(' ').next().unwrap_or_default().parse()?;
        out.resize(length + 2, 0);
        self.reader.read_exact(out)?;
        out.truncate(length);
        self.read_line()?;
        ensure!(self.line == b"END", "get: {}", self.line.escape_ascii());
        Ok(true)
    }

    /// A number of the server's statistics, such as `pid` or `evictions`.
    ///
    /// # Errors
    /// The server does not report it.
    pub fn statistic(&mut self, name: &str) -> Result<u64> {
        self.reader.get_mut().write_all(b"stats\r\n")?;
        let start = format!("STAT {name} ");
        let mut found = None;
        loop {
            self.read_line()?;
            let line = std::str::from_utf8(&self.line)?;
            if line == "END" {
                return found.with_context(|| format!("the server's statistics have no {name}"));
            }
            if let Some(number) = line.strip_prefix(&start) {
                found = Some(number.parse()?);
            }
        }
    }

    fn read_line(&mut self) -> Result<()> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line)?;
        ensure!(self.line.ends_with(b"\r\n"), "the server closed the connection");
        self.line.truncate(self.line.len() - 2);
        Ok(())
    }
}
