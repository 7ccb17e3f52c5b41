//! Just enough of memcached's text protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// A connection.
pub struct Client {
    reader: BufReader<UnixStream>,
    request: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    /// Connects to a server's Unix socket.
    ///
    /// # Errors
    /// There is no server.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("no memcached at {}", socket.display()))?;
        Ok(Self {
            reader: BufReader::with_capacity(16 << 10, stream),
            request: Vec::new(),
            line: Vec::new(),
        })
    }

    /// Stores a value.
    ///
    /// # Errors
    /// The server says anything but STORED.
    pub fn set(&mut self, key: u64, value: &[u8]) -> Result<()> {
        self.request.clear();
        write!(self.request, "set key:{key} 0 0 {}\r\n", value.len())?;
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        self.reader.get_mut().write_all(&self.request)?;
        self.read_line()?;
        ensure!(self.line == b"STORED", "set: {}", self.line.escape_ascii());
        Ok(())
    }

    /// Reads a value into `out`; false when the server has none.
    ///
    /// # Errors
    /// The connection fails, or the answer is not understood.
    pub fn get(&mut self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        write!(self.reader.get_mut(), "get key:{key}\r\n")?;
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

    /// The server's process.
    ///
    /// # Errors
    /// The server does not say.
    pub fn pid(&mut self) -> Result<u32> {
        self.reader.get_mut().write_all(b"stats\r\n")?;
        let mut pid = None;
        loop {
            self.read_line()?;
            let line = std::str::from_utf8(&self.line)?;
            if line == "END" {
                return pid.context("the server's statistics have no pid");
            }
            if let Some(number) = line.strip_prefix("STAT pid ") {
                pid = Some(number.parse()?);
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
