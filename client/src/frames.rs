//! Frames of the control connection, blocking, every read and write bounded by a time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use onesided_protocol::control::{ToClient, ToServer};
use onesided_protocol::limits::CONTROL_FRAME_MAX_BYTES;

/// The control connection.
#[derive(Debug)]
pub(crate) struct ControlStream {
    pub(crate) stream: TcpStream,
    frame: Vec<u8>,
}

impl ControlStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, frame: Vec::new() }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// When the connection ends, the time is over, or the answer is no message: the connection
    /// is of no use afterwards.
    pub(crate) fn ask(&mut self, question: &ToServer, by: Instant) -> io::Result<ToClient> {
        self.send(question, by)?;
        self.receive(by)
    }

    pub(crate) fn send(&mut self, question: &ToServer, by: Instant) -> io::Result<()> {
        self.frame.clear();
        self.frame.extend_from_slice(&[0; 4]);
        question.encode(&mut self.frame);
        let len = (self.frame.len() - 4) as u32;
        self.frame[..4].copy_from_slice(&len.to_le_bytes());
        write_all(&mut self.stream, &self.frame, by)
    }

    fn receive(&mut self, by: Instant) -> io::Result<ToClient> {
        let mut len = [0; 4];
        read_exact(&mut self.stream, &mut len, by)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > CONTROL_FRAME_MAX_BYTES {
            let text = format!("a control frame of {len} bytes; is this a onesided server?");
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        self.frame.resize(len, 0);
        read_exact(&mut self.stream, &mut self.frame, by)?;
        ToClient::decode(&self.frame).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }
}

fn left(by: Instant) -> io::Result<std::time::Duration> {
    let left = by.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(too_late()) } else { Ok(left) }
}

fn too_late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
}

fn in_time(error: io::Error) -> io::Error {
    // A socket timeout is reported as "would block".
    if error.kind() == ErrorKind::WouldBlock { too_late() } else { error }
}

pub(crate) fn write_all(stream: &mut TcpStream, mut bytes: &[u8], by: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(by)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(in_time(error)),
        }
    }
    Ok(())
}

fn read_exact(stream: &mut TcpStream, bytes: &mut [u8], by: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        stream.set_read_timeout(Some(left(by)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => {
                let text = "the server closed the connection";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
            }
            Ok(n) => filled += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(in_time(error)),
        }
    }
    Ok(())
}
