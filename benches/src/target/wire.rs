//! One blocking connection to a store with a line protocol: commands are gathered and leave in one
//! write, answers are taken apart where they lie.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::Counters;

/// Bound of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A server that says nothing for so long is given up.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// First length of the buffer for answers; it grows to hold the longest.
const INPUT_BYTES: usize = 64 << 10;
/// Commands that leave together, at most: what a socket takes although the server is not reading.
/// With more, both sides could wait until the other one reads.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Longest line of an answer.
const LINE_MAX_BYTES: usize = 64 << 10;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of its socket.
    Unix(PathBuf),
}

impl Address {
    /// Of what follows `scheme://` in a URL.
    pub(super) fn tcp(rest: &str, default_port: u16) -> Result<Self> {
        let host = rest.strip_suffix('/').unwrap_or(rest);
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            bail!("`{rest}` is no HOST[:PORT]");
        }
        let has_port = !host.ends_with(']') && host.contains(':');
        Ok(Self::Tcp(if has_port { host.to_owned() } else { format!("{host}:{default_port}") }))
    }

    /// Of what follows `scheme+unix://` in a URL.
    pub(super) fn unix(rest: &str) -> Result<Self> {
        if !rest.starts_with('/') {
            bail!("`{rest}` is no absolute path of a socket");
        }
        Ok(Self::Unix(PathBuf::from(rest)))
    }

    /// As reports name a store at it.
    pub(super) fn name_of(&self, store: &str) -> String {
        let way = match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "unix",
        };
        format!("{store} {way}")
    }

    /// As reports name the way.
    pub(super) fn transport(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "TCP",
            Self::Unix(_) => "Unix socket",
        }
    }

    fn connect(&self) -> Result<Box<dyn Stream>> {
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
                stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
                Ok(Box::new(stream))
            }
            Self::Tcp(host) => {
                let mut last = anyhow!("the name has no address");
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
                            stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
                            return Ok(Box::new(stream));
                        }
                        Err(error) => last = error.into(),
                    }
                }
                Err(last)
            }
        }
    }
}

/// A figure among those that a server tells of itself; `whose` for the error.
pub(super) fn figure<T: std::str::FromStr>(
    told: &[(String, String)],
    whose: &str,
    name: &str,
) -> Result<T> {
    let found = told.iter().find(|(known, _)| known == name);
    found
        .and_then(|(_, value)| value.parse().ok())
        .with_context(|| format!("{whose} tells no {name}"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(host),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// What all sessions of a target sent and received.
#[derive(Default, Debug)]
pub(super) struct Traffic {
    round_trips: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    pub(super) fn counters(&self) -> Counters {
        Counters {
            round_trips: Some(self.round_trips.load(Ordering::Relaxed)),
            bytes: Some(self.bytes.load(Ordering::Relaxed)),
            ..Counters::default()
        }
    }
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// A connection.
pub(super) struct Wire {
    /// Commands that have not left yet.
    pub(super) out: Vec<u8>,
    stream: Box<dyn Stream>,
    traffic: Arc<Traffic>,
    /// Bytes `start..end` were received and not taken yet.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// Where the line that was taken last is.
    last: Range<usize>,
}

impl Wire {
    /// Connects. `start` is the command that starts such a server.
    pub(super) fn connect(address: &Address, traffic: &Arc<Traffic>, start: &str) -> Result<Self> {
        let stream = address
            .connect()
            .with_context(|| format!("nobody answers at {address}: start a server ({start})"))?;
        Ok(Self {
            out: Vec::with_capacity(PIECE_BYTES),
            stream,
            traffic: Arc::clone(traffic),
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            last: 0..0,
        })
    }

    /// Its traffic is counted there from now on.
    pub(super) fn count_in(&mut self, traffic: &Arc<Traffic>) {
        self.traffic = Arc::clone(traffic);
    }

    /// Sends the commands, a round trip.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.out).context("sending")?;
        self.traffic.round_trips.fetch_add(1, Ordering::Relaxed);
        self.traffic.bytes.fetch_add(self.out.len() as u64, Ordering::Relaxed);
        self.out.clear();
        Ok(())
    }

    /// The next line, without its end.
    #[inline]
    pub(super) fn line(&mut self) -> Result<&[u8]> {
        let mut looked = 0;
        loop {
            let waiting = &self.input[self.start..self.end];
            if let Some(at) = waiting[looked..].iter().position(|&byte| byte == b'\n') {
                self.last = self.start..self.start + looked + at;
                self.start = self.last.end + 1;
                return Ok(self.again());
            }
            looked = waiting.len();
            if looked > LINE_MAX_BYTES {
                bail!("the server sends a line of more than {LINE_MAX_BYTES} bytes");
            }
            self.receive(1)?;
        }
    }

    /// The line that was taken last, if nothing was taken since.
    #[inline]
    pub(super) fn again(&self) -> &[u8] {
        let line = &self.input[self.last.clone()];
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// The next bytes; the end of a line follows them.
    #[inline]
    pub(super) fn bytes(&mut self, len: usize) -> Result<&[u8]> {
        while self.end - self.start < len + 2 {
            let missing = len + 2 - (self.end - self.start);
            self.receive(missing)?;
        }
        let bytes = self.start..self.start + len;
        self.start = bytes.end + 2;
        if self.input[bytes.end..self.start] != *b"\r\n" {
            bail!("the server sends a value that is longer than it said");
        }
        Ok(&self.input[bytes])
    }

    /// Receives more; room for `wanted` bytes is made.
    #[cold]
    fn receive(&mut self, wanted: usize) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.end + wanted > self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end + wanted > self.input.len() {
            self.input.resize((self.end + wanted).next_power_of_two(), 0);
        }
        let received = self.stream.read(&mut self.input[self.end..]).context("receiving")?;
        if received == 0 {
            bail!("the server closed the connection");
        }
        self.end += received;
        self.traffic.bytes.fetch_add(received as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Appends a decimal number.
#[inline]
pub(super) fn push_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The number that a text is.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn numbers_are_written_and_read() {
        for value in [0, 7, 10, 99, 1 << 40, u64::MAX] {
            let mut out = Vec::new();
            push_number(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
            assert_eq!(number(&out), Some(value));
        }
        for text in [&b""[..], b"-1", b"1x", b"18446744073709551616", b"99999999999999999999999"] {
            assert_eq!(number(text), None);
        }
    }

    #[test]
    fn addresses_have_a_port_or_get_one() {
        let text = |rest| Address::tcp(rest, 6379).map(|address| address.to_string());
        assert_eq!(text("host").unwrap(), "host:6379");
        assert_eq!(text("host:1/").unwrap(), "host:1");
        assert_eq!(text("[::1]").unwrap(), "[::1]:6379");
        assert!(text("").is_err() && text("a/b").is_err() && text("user@host").is_err());
        assert!(Address::unix("relative").is_err());
    }

    #[test]
    fn answers_may_be_cut_anywhere_and_be_long() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let long = vec![b'x'; 3 * INPUT_BYTES];
        let mut stream = b"one\r\n".to_vec();
        stream.extend_from_slice(&long);
        stream.extend_from_slice(b"\r\ntwo\r\n");
        let server = std::thread::spawn(move || {
            let mut peer = listener.accept().unwrap().0;
            for part in stream.chunks(1013) {
                peer.write_all(part).unwrap();
            }
        });
        let address = Address::Unix(path);
        let traffic = Arc::new(Traffic::default());
        let mut wire = Wire::connect(&address, &traffic, "").unwrap();
        assert_eq!(wire.line().unwrap(), b"one");
        assert_eq!(wire.bytes(long.len()).unwrap(), long);
        assert_eq!(wire.line().unwrap(), b"two");
        server.join().unwrap();
        assert!(wire.line().unwrap_err().to_string().contains("closed"));
        assert_eq!(traffic.counters().bytes, Some(5 + long.len() as u64 + 2 + 5));
    }
}
