//! memcached by a client as simple as can be: one connection over a Unix socket, blocking, its
//! text protocol by hand.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use super::process::Peer;

/// A memcached, ended when this is dropped.
pub struct MemcachedServer {
    _peer: Peer,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl MemcachedServer {
    /// Starts the installed one with so much memory; `Err` says why there is none.
    pub fn start(memory_mib: u64) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("memcached.sock");
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-m", &memory_mib.to_string(), "-s"]).arg(&socket);
        let peer = Peer::start(&mut command, || UnixStream::connect(&socket).is_ok())?;
        Ok(Self { _peer: peer, socket, _directory: directory })
    }

    /// A connection.
    pub fn connect(&self) -> io::Result<Memcached> {
        let stream = UnixStream::connect(&self.socket)?;
        let input = BufReader::with_capacity(64 << 10, stream.try_clone()?);
        Ok(Memcached { input, output: stream, out: Vec::new(), line: Vec::new() })
    }
}

/// One connection.
pub struct Memcached {
    input: BufReader<UnixStream>,
    output: UnixStream,
    /// Commands not sent yet.
    out: Vec<u8>,
    line: Vec<u8>,
}

impl Memcached {
    /// Which of the keys (without spaces or control characters) are there.
    pub fn get_many(&mut self, keys: &[Vec<u8>]) -> io::Result<Vec<bool>> {
        self.out.extend_from_slice(b"get");
        for key in keys {
            self.out.push(b' ');
            self.out.extend_from_slice(key);
        }
        self.out.extend_from_slice(b"\r\n");
        self.flush()?;
        let mut found = vec![false; keys.len()];
        let mut next = 0;
        loop {
            self.read_line()?;
            if self.line == b"END\r\n" {
                return Ok(found);
            }
            let mut words =
                self.line.strip_suffix(b"\r\n").unwrap_or(&self.line).split(|&b| b == b' ');
            let (kind, key) = (words.next(), words.next().unwrap_or_default().to_vec());
            let len: Option<usize> =
                words.nth(1).and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
            // Answers come in the order of the keys.
            let place = keys[next..].iter().position(|asked| *asked == key);
            let (Some(b"VALUE"), Some(len), Some(place)) = (kind, len, place) else {
                return Err(self.unexpected());
            };
            next += place + 1;
            found[next - 1] = true;
            let mut value = vec![0; len + 2];
            self.input.read_exact(&mut value)?;
        }
    }

    /// Stores all pairs, sent together.
    pub fn set_many<'a>(
        &mut self,
        pairs: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> io::Result<()> {
        let count = pairs.len();
        for (key, value) in pairs {
            self.out.extend_from_slice(b"set ");
            self.out.extend_from_slice(key);
            // A Vec takes every write.
            let _ = write!(self.out, " 0 0 {}\r\n", value.len());
            self.out.extend_from_slice(value);
            self.out.extend_from_slice(b"\r\n");
        }
        self.flush()?;
        for _ in 0..count {
            self.read_line()?;
            if self.line != b"STORED\r\n" {
                return Err(self.unexpected());
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        self.input.read_until(b'\n', &mut self.line)?;
        Ok(())
    }

    fn unexpected(&self) -> io::Error {
        io::Error::other(format!("memcached answered {}", self.line.escape_ascii()))
    }
}
