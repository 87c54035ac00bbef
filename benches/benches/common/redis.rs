//! Redis by a client as simple as can be: one connection, blocking, RESP by hand.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::Peer;

/// A redis-server without persistence, ended when this is dropped.
pub struct RedisServer {
    _peer: Peer,
    socket: PathBuf,
    port: u16,
    _directory: tempfile::TempDir,
}

impl RedisServer {
    /// Starts the installed one; `Err` says why there is none.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// The same with more arguments.
    pub fn start_with(arguments: &[&str]) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let socket = directory.path().join("redis.sock");
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--unixsocket"])
            .arg(&socket)
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(directory.path())
            .args(arguments);
        let peer = Peer::start(&mut command, || connect(&socket).is_ok())?;
        Ok(Self { _peer: peer, socket, port, _directory: directory })
    }

    /// A connection over the Unix socket.
    pub fn unix(&self) -> io::Result<Redis<UnixStream>> {
        connect(&self.socket)
    }

    /// A connection over loopback TCP.
    pub fn tcp(&self) -> io::Result<Redis<TcpStream>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        Redis::new(stream.try_clone()?, stream)
    }
}

fn connect(socket: &Path) -> io::Result<Redis<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    Redis::new(stream.try_clone()?, stream)
}

/// One connection.
pub struct Redis<S: Read + Write> {
    input: BufReader<S>,
    output: S,
    /// Commands not sent yet.
    commands: Vec<u8>,
    line: Vec<u8>,
}

impl<S: Read + Write> Redis<S> {
    fn new(input: S, output: S) -> io::Result<Self> {
        let (commands, line) = (Vec::new(), Vec::new());
        let mut redis =
            Self { input: BufReader::with_capacity(64 << 10, input), output, commands, line };
        redis.command(&[b"PING"]);
        redis.flush()?;
        redis.ok()?;
        Ok(redis)
    }

    fn command(&mut self, words: &[&[u8]]) {
        let out = &mut self.commands;
        // A Vec takes every write.
        let _ = write!(out, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(out, "${}\r\n", word.len());
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.write_all(&self.commands)?;
        self.commands.clear();
        Ok(())
    }

    fn ok(&mut self) -> io::Result<()> {
        self.read_line()?;
        if self.line.first() == Some(&b'+') { Ok(()) } else { Err(self.unexpected()) }
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        self.input.read_until(b'\n', &mut self.line)?;
        Ok(())
    }

    fn unexpected(&self) -> io::Error {
        io::Error::other(format!("redis answered {}", self.line.escape_ascii()))
    }

    /// SETs all pairs, sent together, and waits for all answers.
    pub fn set_many(&mut self, pairs: &[(&[u8], &[u8])]) -> io::Result<()> {
        for (key, value) in pairs {
            self.command(&[b"SET", key, value]);
        }
        self.flush()?;
        pairs.iter().try_for_each(|_| self.ok())
    }

    /// Which of the keys are there; their values are read and forgotten.
    pub fn get_many(&mut self, keys: &[Vec<u8>]) -> io::Result<Vec<bool>> {
        for key in keys {
            self.command(&[b"GET", key]);
        }
        self.flush()?;
        let mut value = Vec::new();
        keys.iter().map(|_| self.bulk(&mut value)).collect()
    }

    /// GETs one value into `value`.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> io::Result<()> {
        self.command(&[b"GET", key]);
        self.flush()?;
        match self.bulk(value)? {
            true => Ok(()),
            false => Err(self.unexpected()),
        }
    }

    /// A value, if there is one.
    fn bulk(&mut self, value: &mut Vec<u8>) -> io::Result<bool> {
        self.read_line()?;
        if self.line == b"$-1\r\n" {
            return Ok(false);
        }
        let text = self.line.strip_prefix(b"$").and_then(|line| line.strip_suffix(b"\r\n"));
        let len = text.and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok());
        value.resize(len.ok_or_else(|| self.unexpected())? + 2, 0);
        self.input.read_exact(value)?;
        value.truncate(value.len() - 2);
        Ok(true)
    }
}
