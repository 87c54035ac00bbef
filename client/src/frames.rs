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
        self.ask_first(&[], question, by)
    }

    /// As [`Self::ask`], with a preamble before the question.
    pub(crate) fn ask_first(
        &mut self,
        preamble: &[u8],
        question: &ToServer,
        by: Instant,
    ) -> io::Result<ToClient> {
        match self.send(preamble, question, by) {
            Ok(()) => self.receive(by),
            // A server that refuses says why and closes, whatever the client still has to say.
            Err(error) if is_closed(&error) => match self.receive(by) {
                Ok(refusal @ ToClient::Failed(_)) => Ok(refusal),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, preamble: &[u8], question: &ToServer, by: Instant) -> io::Result<()> {
        self.frame.clear();
        self.frame.extend_from_slice(preamble);
        let begin = self.frame.len();
        self.frame.extend_from_slice(&[0; 4]);
        question.encode(&mut self.frame);
        let len = (self.frame.len() - begin - 4) as u32;
        self.frame[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
        write_all(&mut self.stream, &self.frame, by)
    }

    /// Why the server has closed the connection, or is about to: what it said, if it did.
    pub(crate) fn farewell(&mut self, by: Instant) -> String {
        match self.receive(by) {
            Ok(ToClient::Failed(error)) => error.to_string(),
            Ok(_) => "the server sent what nobody asked for".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn receive(&mut self, by: Instant) -> io::Result<ToClient> {
        let mut len = [0; 4];
        read_exact(&mut self.stream, &mut len, by)?;
        if len == *b"HTTP" {
            let text = "what answers there speaks HTTP, as the server's admin port does; clients \
                        connect to the port of `listen`";
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let len = u32::from_le_bytes(len) as usize;
        if len > CONTROL_FRAME_MAX_BYTES {
            let text = format!("a control frame of {len} bytes: that is no onesided-server");
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        self.frame.resize(len, 0);
        read_exact(&mut self.stream, &mut self.frame, by)?;
        ToClient::decode(&self.frame).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use onesided_protocol::rpc::{ErrorCode, RpcError};

    use super::*;

    /// A connection whose other end has said this and is closed.
    fn closed(answer: &ToClient) -> ControlStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("accepted");
        let (mut peer, _) = listener.accept().expect("a connection");
        let mut bytes = vec![0; 4];
        answer.encode(&mut bytes);
        let len = bytes.len() as u32 - 4;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        peer.write_all(&bytes).expect("it is taken");
        drop(peer);
        ControlStream::new(stream)
    }

    fn refusal() -> ToClient {
        ToClient::Failed(RpcError::new(ErrorCode::ServerFull, "too many"))
    }

    #[test]
    fn what_the_server_said_before_it_closed_is_heard() {
        let by = Instant::now() + Duration::from_secs(60);
        assert_eq!(closed(&refusal()).farewell(by), "too many");
        let told = closed(&ToClient::Done).farewell(by);
        assert!(told.contains("nobody asked for"), "{told}");
        let mut stream = closed(&refusal());
        // The other end resets the connection when the first of these arrives; then writes fail.
        while write_all(&mut stream.stream, b"more", by).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(stream.ask(&ToServer::Ticket, by).expect("an answer"), refusal());
        assert!(stream.ask(&ToServer::Ticket, by).is_err());
        // What is no refusal is no answer to what was never sent.
        let mut stream = closed(&ToClient::Done);
        while write_all(&mut stream.stream, b"more", by).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(stream.ask(&ToServer::Ticket, by).is_err());
    }
}
